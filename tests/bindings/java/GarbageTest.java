import dev.kvc.Policy;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Objects whose last call is just beginning when the collector comes: nothing reads them any more, and they are as open
 * as they were. Compiled code and a small young generation make such moments frequent: thousands of collections a run.
 */
public final class GarbageTest {
  private static final int THREADS = 8;
  private static final int CALLS = Integer.getInteger("calls", 40_000);

  public static void main(String[] args) {
    Checks.test("collected while the last call begins", GarbageTest::lastCalls);
    Checks.finish();
  }

  private static void lastCalls() throws Exception {
    AtomicInteger well = new AtomicInteger();
    AtomicInteger closed = new AtomicInteger();
    int[] slots = {8, 8};
    Thread[] threads = new Thread[THREADS];
    for (int t = 0; t < THREADS; ++t) {
      threads[t] = new Thread(() -> {
        for (int i = 0; i < CALLS; ++i) {
          try {
            Policy.of("table").setTable(slots);
            well.incrementAndGet();
          } catch (IllegalStateException e) {
            closed.incrementAndGet();
          }
        }
      });
      threads[t].start();
    }
    for (Thread thread : threads) thread.join();
    Checks.check(closed.get() + well.get() == THREADS * CALLS, "no other failure");
    Checks.check(closed.get() == 0, closed.get() + " of " + THREADS * CALLS + " calls found their object closed");
  }
}
