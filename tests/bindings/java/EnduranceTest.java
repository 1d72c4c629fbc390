import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Session;

/** 10,000 sessions opened, fed, stepped and closed, and 200 models: over the second half the memory stays. */
public final class EnduranceTest {
  private static final int SESSIONS = 10_000;
  private static final int MODELS = 200;

  public static void main(String[] args) {
    Checks.test("memory stays", EnduranceTest::run);
    Checks.finish();
  }

  private static void cycle(Model model, Policy policy, int[] tokens) {
    try (Session session = model.newSession(policy)) {
      session.prefill(tokens);
      session.step();
      session.readText();
    }
  }

  private static void part(Model model, Policy policy, int[] tokens) {
    for (int i = 0; i < SESSIONS / 2; ++i) cycle(model, policy, tokens);
    for (int i = 0; i < MODELS / 2; ++i) Model.open(Checks.RECALL).close();
    System.gc();
  }

  private static void run() throws Exception {
    try (Model model = Model.open(System.getenv("KVC_STORIES"));
         Policy policy = Policy.of("snapkv:budget=16,window=4")) {
      int[] tokens = model.tokenize("Once upon a time there was a little dog", Model.ADD_BOS);
      // What the VM compiles and the allocator keeps has come by then.
      part(model, policy, tokens);
      long early = Checks.statusBytes("VmRSS");
      part(model, policy, tokens);
      long grown = Checks.statusBytes("VmRSS") - early;
      System.out.println("grown by " + (grown >> 10) + " KiB in " + SESSIONS / 2 + " sessions and " + MODELS / 2
          + " models");
      // A leak of 110 bytes a session, or of 6 KiB a model, is more than that.
      Checks.check(grown < 512 << 10, "grown by " + (grown >> 10) + " KiB");
    }
  }
}
