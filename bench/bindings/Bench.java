import dev.kvc.Model;
import dev.kvc.Session;

/** Nanoseconds of a call that does nothing, and of a step: Bench STORIES.kvc. */
public final class Bench {
  public static void main(String[] args) {
    long start = System.nanoTime();
    Model model = Model.open(args[0]);
    double open = (System.nanoTime() - start) / 1e6;
    Session session = model.newSession();
    int[] prompt = model.tokenize("Once upon a time", Model.ADD_BOS);
    double call = 1e9;
    double step = 1e9;
    for (int round = 0; round < 20; ++round) {
      start = System.nanoTime();
      for (int i = 0; i < 20_000; ++i) session.progress();
      call = Math.min(call, (System.nanoTime() - start) / 20_000.0);
      session.reset();
      session.prefill(prompt);
      start = System.nanoTime();
      for (int i = 0; i < 200; ++i) session.step();
      step = Math.min(step, (System.nanoTime() - start) / 200.0);
    }
    System.out.printf("%.0f %.0f %.1f%n", call, step, open);
  }
}
