import dev.kvc.KvcException;
import dev.kvc.Model;
import dev.kvc.Session;
import dev.kvc.Status;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** What the test programs share: a few checks, the models, the count at the end. */
final class Checks {
  static final String RECALL = System.getenv("KVC_RECALL");
  static final String NO_BOS = System.getenv("KVC_NO_BOS");
  static final String STORY = "Ada lives in Paris. The code of Robin is 386. Ada lives in";

  private static int failed;
  private static int passed;

  private Checks() {}

  interface Body {
    void run() throws Throwable;
  }

  static void test(String name, Body body) {
    try {
      body.run();
      ++passed;
    } catch (Throwable e) {
      ++failed;
      System.out.println("FAILED " + name);
      e.printStackTrace(System.out);
    }
  }

  /** The end of a program. */
  static void finish() {
    System.out.println(passed + " passed, " + failed + " failed");
    System.out.flush();
    System.exit(failed == 0 && passed > 0 ? 0 : 1);
  }

  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static void equal(Object wanted, Object got) {
    if (wanted == null ? got != null : !wanted.equals(got)) {
      throw new AssertionError("wanted <" + wanted + ">, got <" + got + ">");
    }
  }

  static <T extends Throwable> T throwing(Class<T> type, Body body) {
    try {
      body.run();
    } catch (Throwable e) {
      if (type.isInstance(e)) return type.cast(e);
      throw new AssertionError("wanted " + type, e);
    }
    throw new AssertionError("wanted " + type + ", and nothing was thrown");
  }

  static KvcException failing(Status status, Body body) {
    KvcException e = throwing(KvcException.class, body);
    equal(status, e.status());
    return e;
  }

  static String text(Session session, int maxTokens) {
    try (Stream<String> pieces = session.generate(maxTokens)) {
      return pieces.collect(Collectors.joining());
    }
  }

  /** A prompt that takes a while. */
  static int[] longPrompt(Model model, int nTokens) {
    StringBuilder text = new StringBuilder();
    while (text.length() < nTokens * 6) text.append(" The code of Robin is 386. There was a silence.");
    return java.util.Arrays.copyOf(model.tokenize(text.toString(), Model.ADD_BOS), nTokens);
  }

  /** Waits until another thread is inside a prefill. */
  static void untilReading(Session session) throws InterruptedException {
    while (session.progress() >= 1) Thread.sleep(1);
  }

  /** A line of the process's status. */
  static long statusBytes(String name) throws java.io.IOException {
    for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
      if (line.startsWith(name + ":")) return Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
    }
    throw new java.io.IOException("no " + name);
  }
}
