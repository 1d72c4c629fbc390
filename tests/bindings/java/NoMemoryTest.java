import dev.kvc.Model;
import dev.kvc.Session;

/** The C library has no memory for a copy of an array (refuses.c): HotSpot hands out none then, and says nothing. */
public final class NoMemoryTest {
  private static final int BYTES = 4_000_012;

  public static void main(String[] args) {
    try (Model model = Model.open(Checks.RECALL); Session session = model.newSession()) {
      session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
      String answer;
      try (Session other = session.fork()) {
        answer = Checks.text(other, 4);
      }
      Checks.test("text without a copy", () -> refused(() -> model.tokenize(new byte[BYTES], 0)));
      Checks.test("a name without a copy", () -> refused(() -> Model.open("a".repeat(BYTES))));
      Checks.test("tokens without a copy", () -> refused(() -> session.append(new int[BYTES / 4])));
      Checks.test("the session goes on", () -> Checks.equal(answer, Checks.text(session, 4)));
    }
    Checks.finish();
  }

  private static void refused(Checks.Body body) {
    Checks.equal("libkvc", Checks.throwing(OutOfMemoryError.class, body).getMessage());
  }
}
