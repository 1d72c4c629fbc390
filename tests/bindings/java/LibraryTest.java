import dev.kvc.Kvc;
import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Status;

/**
 * Says what the first call comes to: the test around it gives it libraries that are missing, foreign or too old. With a
 * status that call asks for its name.
 */
public final class LibraryTest {
  public static void main(String[] args) {
    if (args.length > 0) {
      System.out.println("name " + Status.valueOf(args[0]).cName());
      return;
    }
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
