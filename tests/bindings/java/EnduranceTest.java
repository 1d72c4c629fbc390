import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Session;

/** 10,000 sessions opened, fed, stepped and closed, and 200 models: the memory of the process stays where it was. */
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

  private static void run() throws Exception {
    try (Model model = Model.open(System.getenv("KVC_STORIES"));
         Policy policy = Policy.of("snapkv:budget=16,window=4")) {
      int[] tokens = model.tokenize("Once upon a time there was a little dog", Model.ADD_BOS);
      // What the VM compiles and the allocator keeps has come by then.
      for (int i = 0; i < SESSIONS / 5; ++i) cycle(model, policy, tokens);
      for (int i = 0; i < MODELS / 5; ++i) Model.open(Checks.RECALL).close();
      System.gc();
      long early = Checks.residentBytes();
      for (int i = 0; i < SESSIONS * 4 / 5; ++i) cycle(model, policy, tokens);
      for (int i = 0; i < MODELS * 4 / 5; ++i) Model.open(Checks.RECALL).close();
      System.gc();
      long grown = Checks.residentBytes() - early;
      System.out.println("grown by " + (grown >> 10) + " KiB in " + SESSIONS * 4 / 5 + " sessions and " + MODELS * 4 / 5
          + " models");
      // A leak of 2 KiB a session, or of 100 KiB a model, is more than that; the VM's own heap is held by -Xmx.
      Checks.check(grown < 16 << 20, "grown by " + (grown >> 10) + " KiB");
    }
  }
}
