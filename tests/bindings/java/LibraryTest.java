import dev.kvc.Kvc;
import dev.kvc.Model;
import dev.kvc.Policy;

/** Says what the first call comes to: the test around it gives it libraries that are missing, foreign or too old. */
public final class LibraryTest {
  public static void main(String[] args) {
    for (int i = 0; i < 2; ++i) {
      try {
        System.out.println("version " + Kvc.version());
      } catch (UnsatisfiedLinkError e) {
        System.out.println(e.getMessage());
      }
    }
    try {
      Policy.of("full").close();
      Model.open("");
    } catch (RuntimeException | UnsatisfiedLinkError e) {
      System.out.println(e.getClass().getSimpleName());
    }
  }
}
