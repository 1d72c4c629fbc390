import static java.util.Arrays.asList;
import static java.util.Collections.emptyList;

import dev.kvc.Batch;
import dev.kvc.Kvc;
import dev.kvc.Loader;
import dev.kvc.Model;
import dev.kvc.ModelInfo;
import dev.kvc.ModelParams;
import dev.kvc.Plan;
import dev.kvc.Policy;
import dev.kvc.Sampling;
import dev.kvc.Session;
import dev.kvc.SessionParams;
import dev.kvc.SessionStats;
import dev.kvc.Status;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.stream.Stream;

/** What every method does, on the real model. Misuse is in MisuseTest. */
public final class FacadeTest {
  private static Model model;
  private static Policy policy;

  public static void main(String[] args) throws Exception {
    model = Model.open(Checks.RECALL, new ModelParams().device("cpu").threads(2).memoryLimit(1L << 30));
    policy = Policy.of("cokv:budget=64,window=8");
    Checks.test("library", FacadeTest::library);
    Checks.test("model", FacadeTest::model);
    Checks.test("where a text begins", FacadeTest::begins);
    Checks.test("ways to open", FacadeTest::waysToOpen);
    Checks.test("loader", FacadeTest::loader);
    Checks.test("policies", FacadeTest::policies);
    Checks.test("plan", FacadeTest::plan);
    Checks.test("a character that is cut off", FacadeTest::cutOff);
    Checks.test("streams", FacadeTest::streams);
    Checks.test("prompts", FacadeTest::prompts);
    Checks.test("samplers", FacadeTest::samplers);
    Checks.test("conversation", FacadeTest::conversation);
    Checks.test("branches", FacadeTest::branches);
    Checks.test("batch", FacadeTest::batch);
    Checks.test("texts of a batch", FacadeTest::textsOfABatch);
    Checks.test("log", FacadeTest::log);
    policy.close();
    model.close();
    Checks.finish();
  }

  private static Session story() {
    Session session = model.newSession(policy);
    session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
    return session;
  }

  private static void library() {
    Checks.check(Kvc.version().matches("\\d+\\.\\d+\\.\\d+"), Kvc.version());
    Checks.equal(Kvc.version(), Kvc.class.getPackage().getImplementationVersion());
    Checks.check(Kvc.schemaVersion() > 0, "schema version");
    Checks.check(Kvc.methods().contains("cokv"), "methods");
    Checks.check(Kvc.describeMethod(Kvc.methods().indexOf("cokv")).contains("\"budget\""), "cokv has a budget");
    Checks.check(Kvc.devices().get(0).contains("\"cpu\""), "devices");
    Checks.check(Kvc.measureDevice(0) > 1e6, "bytes per second");
    Checks.equal("IO", Status.IO.cName());
  }

  private static void model() {
    ModelInfo info = model.info();
    Checks.equal("6 8 4 64 2048 1024", info.nLayers + " " + info.nHeads + " " + info.nKvHeads + " " + info.headDim + " "
        + info.vocabSize + " " + info.maxTokens);
    Checks.check(info.weightBytes > 10_000_000 && info.nParameters > 5_000_000, "sizes");
    Checks.check(model.describe().contains("\"tokenizer\""), "describe");
    Checks.check(info.nHeadScores > 0, "score tables");
    Checks.check(model.headScores(0).length >= info.nLayers * info.nKvHeads, "scores");
    String text = "Zo\u00eb \ud83d\ude00\u0000 \u4e2d";
    int[] tokens = model.tokenize(text, 0);
    Checks.equal(text, model.detokenize(tokens));
    Checks.equal(tokens.length + 1, model.tokenize(text, Model.ADD_BOS).length);
    Checks.equal(0, model.tokenize("", 0).length);
    Checks.equal("", model.detokenize());
    byte[] part = model.detokenizeBytes(model.tokenize("🐙", 0)[0]);  // of a character
    Checks.equal("[" + (byte) 0xf0 + "]", Arrays.toString(part));
    Checks.equal(text, new String(model.detokenizeBytes(tokens), java.nio.charset.StandardCharsets.UTF_8));
    StringBuilder longText = new StringBuilder();
    for (int i = 0; i < 5000; ++i) longText.append("word ");
    Checks.equal(longText.toString(), model.detokenize(model.tokenize(longText.toString(), 0)));
  }

  /** One model was trained with BOS at the beginning, the other without; both have it. */
  private static void begins() {
    int[] begun = model.tokenize(Checks.STORY, Model.ADD_BOS);
    Checks.equal(Arrays.toString(begun), Arrays.toString(model.prompt(Checks.STORY)));
    Checks.equal(1, model.prompt("").length);
    try (Model other = Model.open(Checks.NO_BOS)) {
      int[] bare = other.tokenize(Checks.STORY, 0);
      Checks.equal(bare.length + 1, other.tokenize(Checks.STORY, Model.ADD_BOS).length);
      for (int i = 0; i < 2; ++i) Checks.equal(Arrays.toString(bare), Arrays.toString(other.prompt(Checks.STORY)));
    }
  }

  private static String answerOf(Model other) {
    try (Session session = other.newSession()) {
      session.prefill(other.tokenize(Checks.STORY, Model.ADD_BOS));
      return Checks.text(session, 8);
    }
  }

  private static void waysToOpen() throws Exception {
    String wanted = answerOf(model);
    Path folder = Files.createTempDirectory("kvc \ud83d\ude00 ");
    Path copy = folder.resolve("Zo\u00eb \u4e2d.kvc");
    Files.copy(Paths.get(Checks.RECALL), copy);
    try (Model other = Model.open(copy.toString())) {
      Checks.equal(wanted, answerOf(other));
    }
    // Java does not tell the number of a descriptor; Android does.
    try (RandomAccessFile file = new RandomAccessFile(copy.toString(), "r")) {
      int descriptor = -1;
      for (int fd = 0; fd < 4096 && descriptor < 0; ++fd) {
        Path link = Paths.get("/proc/self/fd/" + fd);
        if (Files.isSymbolicLink(link) && Files.readSymbolicLink(link).equals(copy)) descriptor = fd;
      }
      try (Model other = Model.open(descriptor, 0, file.length(), null)) {
        Checks.equal(wanted, answerOf(other));
      }
    }
    // What the Android sample has of libkvc; this model was not trained on conversations.
    try (dev.kvc.sample.Chat chat = new dev.kvc.sample.Chat(copy.toString())) {
      Checks.failing(Status.UNSUPPORTED, () -> chat.ask("Hello", 8, piece -> { }));
      Checks.equal("0 KiB of cache instead of 0", chat.memory());
      chat.stop();
    }
    List<WeakReference<ByteBuffer>> memory = new ArrayList<>();
    Model other = openMapped(copy, memory);
    Session session = other.newSession();
    session.prefill(other.tokenize(Checks.STORY, Model.ADD_BOS));
    other.close();
    // The session keeps the mapping, which nothing else refers to now.
    for (int i = 0; i < 5; ++i) System.gc();
    Session fork = session.fork();
    session.close();
    for (int i = 0; i < 5; ++i) System.gc();
    Checks.equal(wanted, Checks.text(fork, 8));
    fork.close();
    for (int i = 0; i < 50 && memory.get(0).get() != null; ++i) System.gc();
    Checks.equal(null, memory.get(0).get());
    Checks.equal("Model, closed", other.toString());
    Checks.equal("Session, closed", session.toString());
    Files.delete(copy);
    Files.delete(folder);
  }

  private static Model openMapped(Path path, List<WeakReference<ByteBuffer>> memory) throws IOException {
    try (FileChannel channel = FileChannel.open(path)) {
      ByteBuffer mapped = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
      memory.add(new WeakReference<>(mapped));
      return Model.open(mapped, null);
    }
  }

  private static void loader() {
    try (Loader loader = new Loader()) {
      Checks.equal(1.0, loader.progress());
      loader.cancel();
      Checks.failing(Status.CANCELLED, () -> loader.open(Checks.RECALL, null));
      loader.cancel();
      loader.clearCancel();
      try (Model other = loader.open(Checks.RECALL, new ModelParams().threads(1))) {
        Checks.equal(2048, other.info().vocabSize);
      }
      Checks.failing(Status.INVALID, () -> loader.open(-1, 0, 0, null));
    }
  }

  private static void policies() {
    String canonical = policy.describe();
    Checks.check(canonical.startsWith("cokv:budget=64,"), canonical);
    try (Policy again = Policy.of(canonical); Policy table = Policy.of("table")) {
      Checks.equal(canonical, again.describe());
      float[] scores = new float[24];
      Arrays.fill(scores, 1);
      again.setHeadScores(scores);
      int[] slots = new int[24];
      Arrays.fill(slots, 32);
      table.setTable(slots);
      try (Session session = model.newSession(table)) {
        session.prefill(Checks.longPrompt(model, 200));
        Checks.equal(32, session.kept(5, 3).length);
      }
    }
    Checks.failing(Status.NOT_FOUND, () -> Policy.of("nothing"));
    String text = Checks.failing(Status.INVALID, () -> Policy.of("cokv:budgte=3")).getMessage();
    Checks.check(text.contains("budget"), text);
  }

  private static void plan() {
    Plan plan = model.plan(policy, new SessionParams().maxTokens(512), 400);
    Checks.equal(400, plan.nPrompt);
    Checks.equal(24, plan.slots.length);
    Checks.check(plan.cacheBytesEnd < plan.cacheBytesFull && plan.totalBytesPeak > plan.weightBytes, "bytes");
    Checks.check(model.plan(null, null, 10).slots[0] == 10, "slots without a policy");
    Checks.equal("Plan for 400 tokens: " + plan.totalBytesPeak + " bytes at most, cache of " + plan.cacheBytesPrompt
        + " bytes after the prompt, " + plan.cacheBytesEnd + " at the end instead of " + plan.cacheBytesFull,
        "" + plan);
    try (Model alone = Model.open(Checks.RECALL,
        new ModelParams().device("cpu").threads(2).memoryLimit(4 << 20).planOnly(true))) {
      Plan same = alone.plan(policy, new SessionParams().maxTokens(512), 400);
      Checks.check(Arrays.equals(plan.slots, same.slots), "slots without weights");
      Checks.equal(plan.workspaceBytes + " " + plan.cacheBytesPeak, same.workspaceBytes + " " + same.cacheBytesPeak);
      // The tokenizer's patterns are machine code, which is longer where it lies far from what it calls.
      Checks.check(Math.abs(plan.totalBytesPeak - same.totalBytesPeak) < 1024, plan + " and " + same);
      Checks.failing(Status.UNSUPPORTED, () -> alone.newSession());
    }
    Checks.check(model.toString().matches("Model: 6 layers, 2048 tokens, \\d+ bytes of weights"), "" + model);
    Session session = story();
    String stats = session.stats().toString();
    Checks.check(stats.matches("SessionStats: \\d+ tokens fed, 0 generated, cache of \\d+ bytes .*"), stats);
    Checks.equal("Session", "" + session);
    session.close();
    Checks.equal("Session, closed", "" + session);
  }

  private static void streams() {
    String wanted;
    try (Session session = story()) {
      StringBuilder all = new StringBuilder();
      for (int i = 0; i < 12 && session.step() != Session.NO_TOKEN; ++i) all.append(session.readText());
      wanted = all.toString();
      Checks.check(wanted.length() > 3, "text");
    }
    try (Session session = story()) {
      Checks.equal(wanted, Checks.text(session, 12));
    }
    try (Session session = story()) {
      String first;
      try (Stream<String> pieces = session.generate(12)) {
        first = pieces.iterator().next();
      }
      Checks.equal(1, session.stats().nAnswer);
      Checks.equal(wanted, first + Checks.text(session, 11));
    }
    try (Session session = story()) {
      Iterator<String> pieces = session.generate(2).iterator();
      StringBuilder all = new StringBuilder();
      while (pieces.hasNext()) all.append(pieces.next());
      Checks.check(wanted.startsWith(all.toString()), all.toString());
      Checks.throwing(java.util.NoSuchElementException.class, pieces::next);
      Checks.equal(0L, session.generate(0).count());
    }
  }

  /** Of an answer that ends inside a character a sign is left, as no more of it can come; a prompt drops it. */
  private static void cutOff() {
    int part = model.tokenize("🐙", 0)[0]; // its first byte
    int end = model.info().eosToken;
    try (Session session = story()) {
      only(session, part);
      Checks.equal("", Checks.text(session, 1));
      only(session, end);
      Checks.equal("\ufffd", Checks.text(session, 5));
      session.accept(part);
      session.prefill(part);
      Checks.equal("", Checks.text(session, 5));
    }
  }

  private static void only(Session session, int token) {
    int[] mask = new int[2048 / 32];
    mask[token / 32] = 1 << token % 32;
    session.setTokenMask(mask);
  }

  private static void prompts() {
    int[] tokens = Checks.longPrompt(model, 300);
    try (Session one = model.newSession(policy); Session parts = model.newSession(policy)) {
      one.prefill(tokens);
      parts.append(Arrays.copyOf(tokens, 100));
      parts.append(Arrays.copyOfRange(tokens, 100, 300));
      Checks.equal(300, parts.kept(0, 0).length);
      parts.compress();
      Checks.check(Arrays.equals(one.kept(2, 1), parts.kept(2, 1)), "the same is kept of parts");
      SessionStats stats = one.stats();
      Checks.equal("300 0 1 -1 300",
          stats.nPrompt + " " + stats.nAnswer + " " + stats.nCompactions + " " + stats.stopToken + " " + stats.nTokens);
      Checks.check(stats.cacheBytes < stats.cacheBytesFull && stats.nSlots < stats.nSlotsFull, "it is compressed");
      Checks.check(stats.prefillSeconds > 0 && stats.compressSeconds > 0, "seconds");
      Checks.check(one.trim(16) > 0, "trim frees");
      Checks.equal(1.0, one.progress());
      one.reset();
      Checks.equal(0, one.stats().nPrompt);
      one.cancel();
      Checks.failing(Status.CANCELLED, () -> one.prefill(tokens));
      one.cancel();
      one.clearCancel();
      one.prefill(tokens);
    }
    try (Session full = model.newSession(null, new SessionParams().maxTokens(40))) {
      Checks.failing(Status.CONTEXT_FULL, () -> full.prefill(Arrays.copyOf(tokens, 41)));
      full.prefill(Arrays.copyOf(tokens, 40));
      full.step();
      Checks.failing(Status.CONTEXT_FULL, full::step);
    }
    try (Session slide = model.newSession(null,
        new SessionParams().maxTokens(40).onFull(SessionParams.OnFull.SLIDE))) {
      slide.prefill(tokens);
      Checks.check(Checks.text(slide, 60).length() > 0, "goes on");
      Checks.check(slide.stats().nSlots <= 24 * 41, "and holds no more");
    }
  }

  private static void samplers() {
    Sampling warm = new Sampling().temperature(1).topK(50).topP(0.9f).minP(0.01f).repeatPenalty(1.1f, 32).seed(7);
    String first;
    try (Session session = model.newSession(policy, new SessionParams().sampling(warm))) {
      session.prefill(model.tokenize(Checks.STORY, Model.ADD_BOS));
      first = Checks.text(session, 16);
    }
    try (Session session = story()) {
      session.setSampling(warm);
      Checks.equal(first, Checks.text(session, 16));
    }
    try (Session session = story()) {
      float[] logits = session.logits();
      float[] same = new float[2048];
      Checks.equal(2048, session.logits(same));
      Checks.check(Arrays.equals(logits, same), "logits");
      int best = 0;
      for (int i = 1; i < logits.length; ++i) best = logits[i] > logits[best] ? i : best;
      session.setLogitBias(new int[] {best}, new float[] {Float.NEGATIVE_INFINITY});
      int second;
      try (Session fork = session.fork()) {
        second = fork.step();
      }
      Checks.check(second != best, "the bias forbids");
      session.setLogitBias(new int[0], new float[0]);
      int[] mask = new int[2048 / 32];
      mask[best / 32] = 1 << best % 32;
      session.setTokenMask(mask);
      Checks.equal(best, session.step());
      session.setTokenMask(null);
      session.setSampling(null);
      session.accept(second);
      Checks.equal(2, session.stats().nAnswer);
    }
  }

  private static void conversation() {
    try (Session session = model.newSession(policy)) {
      Checks.failing(Status.UNSUPPORTED, () -> session.say(Session.Role.USER, "Hello", Session.ANSWER));
      session.setTurnMarks(Session.Role.USER, "Q: ", "\n");
      session.setTurnMarks(Session.Role.ASSISTANT, "A:", "\n");
      try (Stream<String> answer = session.ask("The code of Ada is 417. What is the code of Ada?", 8)) {
        Checks.check(answer.mapToInt(String::length).sum() > 0, "an answer");
      }
      session.say(Session.Role.USER, "", 0);
      session.setTurnMarks(Session.Role.USER, null, null);
    }
  }

  private static void branches() throws Exception {
    try (Session session = story()) {
      byte[] saved = session.save();
      Path file = Files.createTempFile("kvc", ".session");
      session.save(file.toString());
      Checks.check(Arrays.equals(saved, Files.readAllBytes(file)), "file and bytes are the same");
      String wanted = Checks.text(session, 10);
      try (Session one = model.restore(saved); Session two = model.restore(file.toString())) {
        Checks.equal(wanted, Checks.text(one, 10));
        Checks.equal(wanted, Checks.text(two, 10));
      }
      Files.delete(file);
      saved[saved.length / 2] ^= 1;
      Checks.failing(Status.BAD_MODEL, () -> model.restore(saved));
      Checks.failing(Status.IO, () -> model.restore(file.toString()));
    }
    try (Session session = model.newSession()) {
      int[] tokens = model.tokenize(Checks.STORY, Model.ADD_BOS);
      session.prefill(tokens);
      try (Session fork = session.fork()) {
        fork.rewind(3);
        fork.prefill(Arrays.copyOfRange(tokens, tokens.length - 3, tokens.length));
        Checks.equal(Checks.text(session, 8), Checks.text(fork, 8));
      }
    }
  }

  private static void batch() {
    try (Session one = story(); Session two = story(); Session three = model.newSession(policy)) {
      three.enqueue(Checks.longPrompt(model, 300), true);
      int[] alone;
      try (Session fork = one.fork()) {
        alone = new int[] {fork.step(), fork.step(), fork.step()};
      }
      Batch step = Batch.step(asList(one, two, three), 100);
      Checks.equal(Batch.READING, step.tokens[2]);
      Checks.equal(asList(Status.OK, Status.OK, Status.OK), asList(step.statuses));
      Checks.check(step.tokens[0] == alone[0] && step.tokens[1] == alone[0], "each answers as alone");
      Checks.check(three.stats().promptProgress < 1, "it is being read");
      float[] logits = new float[2 * 2048];
      Batch.logits(asList(one, two), 0, logits);
      int best = 0;
      for (int i = 1; i < 2048; ++i) best = logits[i] > logits[best] ? i : best;
      Checks.equal(alone[1], best);
      Checks.failing(Status.BUFFER_TOO_SMALL, () -> Batch.logits(asList(one, two), 0, new float[2048]));
      Checks.failing(Status.BUSY, () -> Batch.step(asList(one, one)));
      Checks.failing(Status.INVALID, () -> Batch.step(emptyList()));
    }
  }

  /** The last that failed has the library's text, the others a sentence. */
  private static void textsOfABatch() {
    int[] tokens = model.prompt(Checks.STORY);
    SessionParams brief = new SessionParams().maxTokens(tokens.length);
    try (Session first = model.newSession(null, brief); Session last = model.newSession(null, brief);
         Session good = story(); Session fresh = model.newSession()) {
      for (Session full : asList(first, last)) {
        full.prefill(tokens);
        full.step();
      }
      Batch step = Batch.step(asList(first, good, fresh, last));
      Checks.equal(asList(Status.CONTEXT_FULL, Status.OK, Status.INVALID, Status.CONTEXT_FULL), asList(step.statuses));
      Checks.equal("the session holds max_tokens tokens", step.messages[0]);
      Checks.equal(null, step.messages[1]);
      Checks.check(step.messages[2].contains("no prompt"), step.messages[2]);
      Checks.equal("the session holds max_tokens=" + tokens.length + " tokens", step.messages[3]);
    }
  }

  private static void log() throws Exception {
    Kvc.startLog(Kvc.Level.INFO);
    Model.open(Checks.RECALL).close();
    Kvc.LogLine line = Kvc.pollLog();
    Checks.equal(Kvc.Level.INFO, line.level);
    Checks.check(line.text.startsWith("opened"), line.toString());
    while (Kvc.pollLog() != null) { }
    Path file = Files.createTempFile("kvc", ".session");
    try (Session session = story()) {
      for (int i = 0; i < 300; ++i) session.save(file.toString());
    }
    Files.delete(file);
    Checks.check(Kvc.pollLog().text.contains("not fetched in time"), "the oldest went, and that is told");
    int kept = 0;
    while (Kvc.pollLog() != null) ++kept;
    Checks.equal(256, kept);
    Kvc.stopLog();
    Model.open(Checks.RECALL).close();
    Checks.equal(null, Kvc.pollLog());
  }
}
