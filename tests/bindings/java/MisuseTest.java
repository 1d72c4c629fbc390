import dev.kvc.Batch;
import dev.kvc.KvcException;
import dev.kvc.Loader;
import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Sampling;
import dev.kvc.Session;
import dev.kvc.SessionParams;
import dev.kvc.Status;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;

/** What no program should do: each has to end in an exception that says so, never in a crash. */
public final class MisuseTest {
  private static Model model;

  public static void main(String[] args) {
    model = Model.open(Checks.RECALL);
    Checks.test("null", MisuseTest::nulls);
    Checks.test("text that is none", MisuseTest::badText);
    Checks.test("arrays of no length", MisuseTest::noLength);
    Checks.test("numbers out of range", MisuseTest::badNumbers);
    Checks.test("closed", MisuseTest::closed);
    Checks.test("closed in any order", MisuseTest::closedInAnyOrder);
    Checks.test("closed while reading", MisuseTest::closedWhileReading);
    Checks.test("closed while generating", MisuseTest::closedWhileGenerating);
    Checks.test("closed while another clears cancels", MisuseTest::closedWhileClearing);
    Checks.test("busy", MisuseTest::busy);
    Checks.test("an array that grows between two calls", MisuseTest::growing);
    Checks.test("cancelled from another thread", MisuseTest::cancelled);
    Checks.test("exception while streaming", MisuseTest::exceptionWhileStreaming);
    Checks.test("errors belong to their threads", MisuseTest::errorsOfThreads);
    Checks.test("four threads on one model", MisuseTest::fourThreads);
    Checks.test("never closed", MisuseTest::neverClosed);
    model.close();
    Checks.finish();
  }

  private static Session story() {
    Session session = model.newSession();
    session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
    return session;
  }

  private static void allNull(Checks.Body... bodies) {
    for (Checks.Body body : bodies) Checks.throwing(NullPointerException.class, body);
  }

  private static void nulls() {
    try (Session session = story(); Policy policy = Policy.of("snapkv:budget=64"); Loader loader = new Loader()) {
      allNull(() -> Model.open((String) null), () -> Model.open((ByteBuffer) null, null), () -> Policy.of(null),
          () -> model.tokenize((String) null, 0), () -> model.tokenize((byte[]) null, 0),
          () -> model.detokenize((int[]) null), () -> model.detokenizeBytes((int[]) null),
          () -> model.restore((String) null), () -> model.restore((byte[]) null),
          () -> policy.setHeadScores(null), () -> policy.setTable(null), () -> loader.open(null, null),
          () -> session.prefill((int[]) null), () -> session.append((int[]) null), () -> session.enqueue(null, true),
          () -> session.say(null, "", 0), () -> session.say(Session.Role.USER, null, 0), () -> session.save(null),
          () -> session.setLogitBias(null, new float[0]), () -> session.setLogitBias(new int[0], null),
          () -> session.logits(null), () -> session.setTurnMarks(null, "", ""), () -> Batch.step(null),
          () -> Batch.step(Arrays.asList(session, null)), () -> new SessionParams().onFull(null),
          () -> new SessionParams().sampling(null));
      Checks.check(session.step() >= 0, "nothing of it touched the session");
    }
  }

  private static void badText() {
    try (Session session = story()) {
      for (String half : new String[] {"a\ud83d", "\ude00b", "\ude00\ud83d"}) {
        Checks.failing(Status.INVALID, () -> Model.open(half));
        Checks.failing(Status.INVALID, () -> Policy.of(half));
        Checks.failing(Status.INVALID, () -> model.tokenize(half, 0));
        Checks.failing(Status.INVALID, () -> session.say(Session.Role.USER, half, 0));
        Checks.failing(Status.INVALID, () -> session.save(half));
      }
      Checks.failing(Status.INVALID, () -> Model.open(Checks.RECALL + "\0"));
      Checks.failing(Status.INVALID, () -> Policy.of("snapkv\0:budget=3"));
      Checks.failing(Status.INVALID, () -> session.setTurnMarks(Session.Role.USER, "\0", ""));
      byte[] noUtf8 = {(byte) 0xff, (byte) 0xc3, 0};
      Checks.check(model.detokenize(model.tokenize(noUtf8, 0)).startsWith("\ufffd"), "bytes come back as U+FFFD");
    }
  }

  private static void noLength() {
    try (Session session = story()) {
      Checks.failing(Status.INVALID, session::prefill);
      Checks.failing(Status.INVALID, session::append);
      Checks.failing(Status.INVALID, () -> session.enqueue(new int[0], false));
      Checks.failing(Status.BAD_MODEL, () -> model.restore(new byte[0]));
      Checks.failing(Status.INVALID, () -> Policy.of(""));
      Checks.failing(Status.BUFFER_TOO_SMALL, () -> session.logits(new float[7]));
      Checks.failing(Status.BUFFER_TOO_SMALL, () -> session.logits(new float[0]));
      session.setTokenMask(new int[0]);
      session.setLogitBias(new int[0], new float[0]);
      Checks.check(session.step() >= 0, "and it goes on");
    }
    Checks.throwing(KvcException.class, () -> Model.open(ByteBuffer.allocateDirect(0), null));
    Checks.failing(Status.INVALID, () -> Model.open(ByteBuffer.allocate(64), null));
    Checks.failing(Status.IO, () -> Model.open(""));
  }

  private static void badNumbers() {
    try (Session session = story(); Policy table = Policy.of("table")) {
      Checks.failing(Status.INVALID, () -> session.prefill(-1));
      Checks.failing(Status.INVALID, () -> session.prefill(Integer.MAX_VALUE));
      Checks.failing(Status.INVALID, () -> session.accept(2048));
      Checks.failing(Status.INVALID, () -> model.detokenize(2048));
      Checks.failing(Status.INVALID, () -> session.kept(6, 0));
      Checks.failing(Status.INVALID, () -> session.kept(-1, 0));
      Checks.failing(Status.INVALID, () -> session.setSampling(new Sampling().temperature(Float.NaN)));
      Checks.failing(Status.INVALID, () -> model.newSession(null, new SessionParams().maxTokens(-1)));
      Checks.failing(Status.INVALID,
          () -> model.newSession(null, new SessionParams().sampling(new Sampling().minP(2))).close());
      Checks.failing(Status.INVALID, () -> session.setTokenMask(new int[1]));
      Checks.failing(Status.INVALID, () -> session.setLogitBias(new int[1], new float[2]));
      Checks.failing(Status.INVALID, () -> model.plan(null, null, 0));
      Checks.throwing(KvcException.class, () -> model.headScores(1000));
      table.setTable(new int[] {3});
      Checks.failing(Status.INVALID, () -> model.newSession(table));
    }
  }

  private static void allClosed(Checks.Body... bodies) {
    for (Checks.Body body : bodies) {
      String text = Checks.throwing(IllegalStateException.class, body).getMessage();
      Checks.check(text.contains("closed"), text);
    }
  }

  private static void closed() {
    Session session = story();
    Stream<String> late = session.generate(3);
    session.close();
    session.close();
    allClosed(() -> session.prefill(1), () -> session.append(1), session::compress,
        () -> session.enqueue(new int[1], true), () -> session.say(Session.Role.USER, "", 0), () -> session.trim(8),
        session::step, () -> session.accept(1),
        () -> session.setSampling(null), () -> session.setTokenMask(null), session::readText, session::logits,
        session::stats, session::progress, () -> session.kept(0, 0), session::reset, session::cancel,
        session::clearCancel, session::fork, () -> session.rewind(1), () -> session.save("x"), session::save,
        () -> Batch.step(Arrays.asList(session)), late::count);
    Model other = Model.open(Checks.RECALL);
    other.close();
    other.close();
    allClosed(other::info, other::describe, () -> other.tokenize("", 0), () -> other.detokenize(1), other::newSession,
        () -> other.plan(null, null, 1), () -> other.restore("x"), () -> other.headScores(0));
    Policy policy = Policy.of("snapkv:budget=64");
    policy.close();
    policy.close();
    allClosed(policy::describe, () -> model.newSession(policy), () -> policy.setTable(new int[1]));
    Loader loader = new Loader();
    loader.close();
    loader.close();
    allClosed(loader::progress, loader::cancel, loader::clearCancel, () -> loader.open("x", null));
    // What stands beside a closed one in a batch stays usable.
    try (Session open = story()) {
      allClosed(() -> Batch.step(Arrays.asList(open, session)));
      Checks.check(open.step() >= 0, "usable");
    }
  }

  private static void closedInAnyOrder() {
    Model other = Model.open(Checks.RECALL);
    Policy policy = Policy.of("cokv:budget=64,window=8");
    Session session = other.newSession(policy);
    policy.close();
    other.close();
    session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
    Session fork = session.fork();
    session.close();
    Checks.check(Checks.text(fork, 4).length() > 0, "text");
    fork.close();
  }

  /** What another thread came to. */
  private static Thread start(AtomicReference<Throwable> end, Checks.Body body) {
    Thread thread = new Thread(() -> {
      try {
        body.run();
      } catch (Throwable e) {
        end.set(e);
      }
    });
    thread.start();
    return thread;
  }

  private static void closedWhileReading() throws Exception {
    for (int i = 0; i < 4; ++i) {
      Session session = model.newSession();
      int[] prompt = Checks.longPrompt(model, 1000);
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread reader = start(end, () -> session.prefill(prompt));
      Checks.untilReading(session);
      session.close();
      reader.join();
      Checks.equal(Status.CANCELLED, ((KvcException) end.get()).status());
    }
  }

  private static void closedWhileGenerating() throws Exception {
    for (int i = 0; i < 20; ++i) {
      Session session = model.newSession(null, new SessionParams().onFull(SessionParams.OnFull.SLIDE));
      session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread generator = start(end, () -> {
        while (true) session.accept(session.step());
      });
      Thread.sleep(i % 5);
      session.close();
      generator.join();
      // Between two calls it finds the session closed, inside of one it is cancelled.
      Throwable e = end.get();
      Checks.check(e instanceof IllegalStateException || ((KvcException) e).status() == Status.CANCELLED, "" + e);
    }
  }

  /** Nobody takes back the cancel of a close, whenever they ask. */
  private static void closedWhileClearing() throws Exception {
    int[] prompt = Checks.longPrompt(model, 1000);
    for (int i = 0; i < 30; ++i) {
      Session session = model.newSession();
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread reader = start(end, () -> session.prefill(prompt));
      Thread clearer = start(new AtomicReference<>(), () -> {
        while (true) session.clearCancel();
      });
      Checks.untilReading(session);
      session.close();
      reader.join();
      clearer.join();
      Checks.check(end.get() != null, "the close of round " + i + " ended nothing");
    }
  }

  private static void busy() throws Exception {
    try (Session session = model.newSession()) {
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread reader = start(end, () -> session.prefill(Checks.longPrompt(model, 1000)));
      Checks.untilReading(session);
      Checks.failing(Status.BUSY, session::step);
      Checks.failing(Status.BUSY, () -> session.generate(3).count());
      reader.join();
      Checks.equal(null, end.get());
      Checks.check(session.step() >= 0, "nothing of it touched the session");
    }
  }

  /** Another thread reads on between the call that counts and the one that fills: an array is whole, or BUSY. */
  private static void growing() throws Throwable {
    try (Session session = model.newSession()) {
      session.prefill(Checks.longPrompt(model, 600));
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread reader = start(end, () -> {
        for (int read = 0; read < 300; Thread.sleep(1)) read += unlessBusy(() -> session.prefill(1));
      });
      while (reader.isAlive()) {
        unlessBusy(() -> Checks.check(session.save()[0] != 0, "it begins with the name of its format"));
      }
      reader.join();
      Checks.equal(null, end.get());
    }
  }

  private static int unlessBusy(Checks.Body body) throws Throwable {
    try {
      body.run();
      return 1;
    } catch (KvcException e) {
      Checks.equal(Status.BUSY, e.status());
      return 0;
    }
  }

  private static void cancelled() throws Exception {
    try (Session session = model.newSession()) {
      AtomicReference<Throwable> end = new AtomicReference<>();
      Thread reader = start(end, () -> session.prefill(Checks.longPrompt(model, 1000)));
      Checks.untilReading(session);
      session.cancel();
      reader.join();
      Checks.equal(Status.CANCELLED, ((KvcException) end.get()).status());
      Checks.equal(0, session.stats().nPrompt);
      session.prefill(1, 2, 3);
    }
  }

  private static void exceptionWhileStreaming() {
    try (Session session = story()) {
      Checks.throwing(ArithmeticException.class, () -> {
        try (Stream<String> pieces = session.generate(8)) {
          pieces.forEach(piece -> {
            throw new ArithmeticException();
          });
        }
      });
      Checks.equal(1, session.stats().nAnswer);
      session.cancel();
      Checks.failing(Status.CANCELLED, () -> session.generate(8).count());
      Checks.check(session.generate(8).count() > 0, "and it goes on");
    }
  }

  private static void errorsOfThreads() throws Exception {
    List<Thread> threads = new ArrayList<>();
    AtomicReference<Throwable> end = new AtomicReference<>();
    for (int t = 0; t < 4; ++t) {
      String path = "/nowhere/" + t + "/\ud83d\ude00";
      threads.add(start(end, () -> {
        for (int i = 0; i < 300; ++i) {
          String text = Checks.failing(Status.IO, () -> Model.open(path)).getMessage();
          Checks.check(text.contains(path), text);
        }
      }));
    }
    for (Thread thread : threads) thread.join();
    if (end.get() != null) throw new AssertionError(end.get());
  }

  private static void fourThreads() throws Exception {
    String wanted;
    try (Session session = story()) {
      wanted = Checks.text(session, 16);
    }
    List<Thread> threads = new ArrayList<>();
    AtomicReference<Throwable> end = new AtomicReference<>();
    for (int t = 0; t < 4; ++t) {
      threads.add(start(end, () -> {
        for (int i = 0; i < 5; ++i) {
          try (Session session = story()) {
            Checks.equal(wanted, Checks.text(session, 16));
          }
        }
      }));
    }
    for (Thread thread : threads) thread.join();
    if (end.get() != null) throw new AssertionError(end.get());
  }

  /** 300 sessions of some 4 MB: more than a gigabyte, if nobody gave them back. */
  private static void neverClosed() throws Exception {
    int[] prompt = Checks.longPrompt(model, 600);
    byte[] saved;
    try (Session session = model.newSession()) {
      session.prefill(prompt);
      saved = session.save();
    }
    Checks.check(saved.length > 3 << 20, "a session of some size");
    long before = Checks.statusBytes("VmRSS");
    for (int i = 0; i < 300; ++i) {
      model.restore(saved);
      if (i % 20 == 19) {
        System.gc();
        Thread.sleep(20);
      }
    }
    long grown = Checks.statusBytes("VmRSS") - before;
    Checks.check(grown < 300L << 20, "grown by " + (grown >> 20) + " MiB");
  }
}
