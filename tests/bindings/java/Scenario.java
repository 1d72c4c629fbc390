import dev.kvc.Batch;
import dev.kvc.Kvc;
import dev.kvc.KvcException;
import dev.kvc.Loader;
import dev.kvc.Model;
import dev.kvc.ModelInfo;
import dev.kvc.ModelParams;
import dev.kvc.Policy;
import dev.kvc.Sampling;
import dev.kvc.Session;
import dev.kvc.SessionParams;
import dev.kvc.SessionStats;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;

/** tests/bindings/scenario.json in Java: Scenario MODEL SCENARIO FOLDER. */
public final class Scenario {
  private final String model;
  private final String folder;
  private final Map<String, Model> models = new HashMap<>();
  private final Map<String, Policy> policies = new HashMap<>();
  private final Map<String, Session> sessions = new HashMap<>();
  private final Map<String, int[]> tokens = new HashMap<>();
  private final Map<String, byte[]> blobs = new HashMap<>();
  private Map<String, Object> step;

  private Scenario(String model, String folder) {
    this.model = model;
    this.folder = folder;
  }

  @SuppressWarnings("unchecked")
  public static void main(String[] args) throws Exception {
    Scenario scenario = new Scenario(args[0], args[2]);
    String text = new String(Files.readAllBytes(Paths.get(args[1])), StandardCharsets.UTF_8);
    int n = 0;
    for (Object step : (List<Object>) Json.parse(text)) {
      ++n;
      String why = scenario.fails((Map<String, Object>) step);
      if (why != null) {
        System.out.println("step " + n + " " + step + ": " + why);
        System.exit(1);
      }
    }
    System.out.println(n + " steps passed");
  }

  /** Why the step does not come to what it says, or null. */
  private String fails(Map<String, Object> step) throws Exception {
    this.step = step;
    Object error = step.get("error");
    try {
      Object got = run();
      if (error != null) return "went well, where " + error + " was due";
      Object wanted = step.get("expect");
      return wanted == null || wanted.equals(plain(got)) ? null : "gave " + plain(got);
    } catch (KvcException e) {
      return e.status().cName().equals(error) ? null : e.toString();
    }
  }

  /** As Json reads it. */
  private static Object plain(Object value) {
    if (value instanceof int[]) {
      return Arrays.stream((int[]) value).mapToObj(n -> (double) n).collect(Collectors.<Object>toList());
    }
    return value instanceof Number ? (Object) ((Number) value).doubleValue() : value;
  }

  private String text(String key) {
    return (String) step.get(key);
  }

  private double number(String key) {
    return step.containsKey(key) ? (Double) step.get(key) : 0;
  }

  private int count(String key) {
    return (int) number(key);
  }

  private String path() {
    return folder + "/" + text("path");
  }

  private Model model() {
    return models.get(text("model"));
  }

  private Policy policy() {
    return step.containsKey("policy") ? policies.get(text("policy")) : null;
  }

  private Session session() {
    return sessions.get(text("session"));
  }

  private List<?> list(String key) {
    return (List<?>) step.get(key);
  }

  private int[] ids() {
    if (step.get("tokens") instanceof String) return tokens.get(text("tokens"));
    return list("tokens").stream().mapToInt(n -> ((Double) n).intValue()).toArray();
  }

  private Session.Role role() {
    return Session.Role.values()[count("role")];
  }

  private Sampling sampling() {
    return new Sampling().topK(count("top_k")).topP((float) number("top_p")).temperature((float) number("temperature"))
        .seed((long) number("seed")).minP((float) number("min_p"))
        .repeatPenalty((float) number("repeat_penalty"), count("repeat_window"));
  }

  private static <T> T keep(Map<String, T> map, String name, T value) {
    map.put(name, value);
    return value;
  }

  private Object run() throws Exception {
    switch (text("do")) {
      case "copy": return Files.copy(Paths.get(model), Paths.get(folder, text("to")));
      case "open": return keep(models, text("as"), Model.open(path(), new ModelParams().device("cpu").threads(2)));
      case "load": return load();
      case "info": return info();
      case "tokenize": return keep(tokens, text("as"), model().tokenize(text("text"), count("flags")));
      case "detokenize": return model().detokenize(ids());
      case "policy": return keep(policies, text("as"), Policy.of(text("spec")));
      case "describe_policy": return policy().describe();
      case "plan": return Arrays.stream(model().plan(policy(), null, count("n_prompt")).slots).sum();
      case "session": return keep(sessions, text("as"), model().newSession(policy(), new SessionParams()
          .maxTokens(count("max_tokens")).onFull(SessionParams.OnFull.values()[count("on_full")])
          .sampling(sampling())));
      case "fork": return keep(sessions, text("as"), session().fork());
      case "restore": return keep(sessions, text("as"), model().restore(path()));
      case "save_memory": return keep(blobs, text("as"), session().save());
      case "restore_memory": return keep(sessions, text("as"), model().restore(blobs.get(text("data"))));
      case "batch_step": return batch();
      case "threads": return threads();
      case "step": return steps(session(), count("n"));
      case "step_draft": return session().step(ids());
      case "draft_lookup": return Kvc.draftLookup(ids(), count("most"), count("n_gram"));
      case "read_text": return session().readText();
      case "kept": return session().kept(count("layer"), count("kv_head"));
      case "best": return best(session().logits());
      case "stats": return stats();
      case "close": return close();
      default: return change();
    }
  }

  /** Steps that give nothing. */
  private Object change() {
    Session session = session();
    switch (text("do")) {
      case "prefill": session.prefill(ids()); break;
      case "append": session.append(ids()); break;
      case "enqueue": session.enqueue(ids(), true); break;
      case "compress": session.compress(); break;
      case "reset": session.reset(); break;
      case "cancel": session.cancel(); break;
      case "clear_cancel": session.clearCancel(); break;
      case "trim": session.trim(count("budget")); break;
      case "rewind": session.rewind(count("n")); break;
      case "accept": session.accept(count("token")); break;
      case "sampling": session.setSampling(sampling()); break;
      case "bias": bias(); break;
      case "mask": mask(); break;
      case "turn_marks": session.setTurnMarks(role(), text("prefix"), text("suffix")); break;
      case "say": session.say(role(), text("text"), count("flags")); break;
      case "save": session.save(path()); break;
      default: throw new IllegalArgumentException("no such step");
    }
    return null;
  }

  private Object load() {
    try (Loader loader = new Loader()) {
      keep(models, text("as"), loader.open(path(), null));
      Checks.equal(1.0, loader.progress());
      return null;
    }
  }

  private int info() {
    ModelInfo i = model().info();
    switch (text("field")) {
      case "n_layers": return i.nLayers;
      case "n_kv_heads": return i.nKvHeads;
      case "vocab_size": return i.vocabSize;
      case "max_tokens": return i.maxTokens;
      case "bos_token": return i.bosToken;
      default: throw new IllegalArgumentException("no such field");
    }
  }

  private long stats() {
    SessionStats s = session().stats();
    switch (text("field")) {
      case "n_prompt": return s.nPrompt;
      case "n_answer": return s.nAnswer;
      case "n_slots": return s.nSlots;
      default: throw new IllegalArgumentException("no such field");
    }
  }

  private static int[] steps(Session session, int n) {
    int[] tokens = new int[n];
    for (int i = 0; i < n; ++i) {
      tokens[i] = session.step();
      if (tokens[i] == Session.NO_TOKEN) return Arrays.copyOf(tokens, i + 1);
    }
    return tokens;
  }

  private static int best(float[] logits) {
    int best = 0;
    for (int i = 1; i < logits.length; ++i) best = logits[i] > logits[best] ? i : best;
    return best;
  }

  private void bias() {
    List<?> given = list("biases");
    float[] biases = new float[given.size()];
    for (int i = 0; i < biases.length; ++i) biases[i] = ((Double) given.get(i)).floatValue();
    session().setLogitBias(ids(), biases);
  }

  private void mask() {
    int[] words = new int[ids().length == 0 ? 0 : 2048 / 32];
    for (int token : ids()) words[token / 32] |= 1 << token % 32;
    session().setTokenMask(words);
  }

  private int[] batch() {
    List<Session> all = new ArrayList<>();
    for (Object name : list("sessions")) all.add(sessions.get(name));
    return Batch.step(all).tokens;
  }

  private int[] threads() throws Exception {
    Model model = model();
    Policy policy = policy();
    int[] prompt = ids();
    int nSteps = count("steps");
    Callable<int[]> one = () -> {
      try (Session session = model.newSession(policy)) {
        session.prefill(prompt);
        return steps(session, nSteps);
      }
    };
    ExecutorService pool = Executors.newFixedThreadPool(count("n"));
    List<Future<int[]>> answers = new ArrayList<>();
    for (int i = 0; i < count("n"); ++i) answers.add(pool.submit(one));
    for (Future<int[]> answer : answers) Checks.check(Arrays.equals(answers.get(0).get(), answer.get()), "one answer");
    pool.shutdown();
    return answers.get(0).get();
  }

  private Object close() throws Exception {
    String name = text("name");
    for (Map<String, ? extends AutoCloseable> map : Arrays.asList(models, policies, sessions)) {
      AutoCloseable open = map.remove(name);
      if (open != null) {
        open.close();
        return null;
      }
    }
    throw new IllegalArgumentException("nothing of this name is open");
  }
}
