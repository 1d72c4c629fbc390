import dev.kvc.Model;
import dev.kvc.Session;
import dev.kvc.SessionParams;

/** The machine ends with everything open: a model, sessions, one that is generating on another thread, and garbage. */
public final class ShutdownTest {
  public static void main(String[] args) throws Exception {
    Model model = Model.open(Checks.RECALL);
    for (int i = 0; i < 20; ++i) model.newSession().prefill(1, 2, 3);
    Session open = model.newSession();
    open.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
    Thread generator = new Thread(() -> {
      Session session = model.newSession(null, new SessionParams().onFull(SessionParams.OnFull.SLIDE));
      session.prefill(1, 2, 3);
      while (true) session.accept(Math.max(session.step(), 0));
    });
    generator.setDaemon(true);
    generator.start();
    System.gc();
    Thread.sleep(200);
    Checks.check(generator.isAlive(), "it is generating");
    System.out.println("ending");
  }
}
