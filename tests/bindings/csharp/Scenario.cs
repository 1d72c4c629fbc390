// tests/bindings/scenario.json in C#.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading.Tasks;
using Kvc;

sealed class Scenario {
  private readonly string model, folder;
  private readonly Dictionary<string, Model> models = new Dictionary<string, Model>();
  private readonly Dictionary<string, Policy> policies = new Dictionary<string, Policy>();
  private readonly Dictionary<string, Session> sessions = new Dictionary<string, Session>();
  private readonly Dictionary<string, int[]> tokens = new Dictionary<string, int[]>();
  private readonly Dictionary<string, byte[]> blobs = new Dictionary<string, byte[]>();
  private Dictionary<string, object> step;

  private Scenario(string model, string folder) {
    this.model = model;
    this.folder = folder;
  }

  internal static int Run(string model, string file, string folder) {
    Scenario scenario = new Scenario(model, folder);
    int n = 0;
    foreach (object step in (List<object>)Json.Parse(File.ReadAllText(file))) {
      ++n;
      string why = scenario.Fails((Dictionary<string, object>)step);
      if (why != null) {
        Console.WriteLine("step " + n + " " + scenario.Text("do") + ": " + why);
        return 1;
      }
    }
    Console.WriteLine(n + " steps passed");
    return 0;
  }

  /// Why the step does not come to what it says, or null.
  private string Fails(Dictionary<string, object> of) {
    step = of;
    string error = step.ContainsKey("error") ? Text("error") : null;
    try {
      object got = Result();
      if (error != null) return "went well, where " + error + " was due";
      return !step.ContainsKey("expect") || Plain(step["expect"]) == Plain(got) ? null : "gave " + Plain(got);
    } catch (KvcException e) {
      return e.Status.ToString().ToUpperInvariant() == error?.Replace("_", "") ? null : e.Message;
    }
  }

  private static string Plain(object value) {
    if (value is int[]) return string.Join(",", (int[])value);
    return value is List<object> ? string.Join(",", (List<object>)value) : "" + value;
  }

  private string Text(string key) { return (string)step[key]; }
  private double Number(string key) { return step.ContainsKey(key) ? (double)step[key] : 0; }
  private int Count(string key) { return (int)Number(key); }
  private float Real(string key) { return (float)Number(key); }
  private string InFolder { get { return Path.Combine(folder, Text("path")); } }
  private Model Of { get { return models[Text("model")]; } }
  private Policy OfPolicy { get { return step.ContainsKey("policy") ? policies[Text("policy")] : null; } }
  private Session OfSession { get { return sessions[Text("session")]; } }

  private int[] Ids {
    get {
      object given = step["tokens"];
      if (given is string) return tokens[(string)given];
      return ((List<object>)given).Select(n => (int)(double)n).ToArray();
    }
  }

  private Sampling Choice {
    get {
      return new Sampling { TopK = Count("top_k"), TopP = Real("top_p"), Temperature = Real("temperature"),
                            Seed = (long)Number("seed"), MinP = Real("min_p"), RepeatPenalty = Real("repeat_penalty"),
                            RepeatWindow = Count("repeat_window") };
    }
  }

  private object Keep<T>(Dictionary<string, T> map, T value) { return map[Text("as")] = value; }

  private object Result() {
    switch (Text("do")) {
      case "copy": File.Copy(model, Path.Combine(folder, Text("to"))); return null;
      case "open": return Keep(models, Model.Open(InFolder, new ModelParams { Device = "cpu", Threads = 2 }));
      case "load": return Load();
      case "info": return Info();
      case "tokenize": return Keep(tokens, Of.Tokenize(Text("text"), (TokenizeFlags)Count("flags")));
      case "detokenize": return Of.Detokenize(Ids);
      case "policy": return Keep(policies, new Policy(Text("spec")));
      case "describe_policy": return OfPolicy.Describe();
      case "plan": return Of.Plan(OfPolicy, null, Count("n_prompt")).Slots.Sum();
      case "session":
        return Keep(sessions, Of.NewSession(OfPolicy, new SessionParams {
          MaxTokens = Count("max_tokens"), OnFull = (OnFull)Count("on_full"), Sampling = Choice }));
      case "fork": return Keep(sessions, OfSession.Fork());
      case "restore": return Keep(sessions, Of.Restore(InFolder));
      case "save_memory": return Keep(blobs, OfSession.Save());
      case "restore_memory": return Keep(sessions, Of.Restore(blobs[Text("data")]));
      case "batch_step":
        return Batch.Step(((List<object>)step["sessions"]).Select(n => sessions[(string)n]).ToList()).Tokens;
      case "threads": return Threads();
      case "step": return Steps(OfSession, Count("n"));
      case "step_draft": return OfSession.Step(Ids);
      case "draft_lookup": return Library.DraftLookup(Ids, Count("most"), Count("n_gram"));
      case "read_text": return OfSession.ReadText();
      case "kept": return OfSession.Kept(Count("layer"), Count("kv_head"));
      case "best": float[] logits = OfSession.Logits(); return Array.IndexOf(logits, logits.Max());
      case "stats": return Stats();
      case "close": return Close();
      default: Change(); return null;
    }
  }

  /// Steps that give nothing.
  private void Change() {
    Session s = OfSession;
    switch (Text("do")) {
      case "prefill": s.Prefill(Ids); break;
      case "append": s.Append(Ids); break;
      case "enqueue": s.Enqueue(Ids); break;
      case "compress": s.Compress(); break;
      case "reset": s.Reset(); break;
      case "cancel": s.Cancel(); break;
      case "clear_cancel": s.ClearCancel(); break;
      case "trim": s.Trim(Count("budget")); break;
      case "rewind": s.Rewind(Count("n")); break;
      case "accept": s.Accept(Count("token")); break;
      case "sampling": s.SetSampling(Choice); break;
      case "bias": s.SetLogitBias(Ids, ((List<object>)step["biases"]).Select(n => (float)(double)n).ToArray()); break;
      case "mask": s.SetTokenMask(Mask()); break;
      case "turn_marks": s.SetTurnMarks((Role)Count("role"), Text("prefix"), Text("suffix")); break;
      case "say": s.Say((Role)Count("role"), Text("text"), (SayFlags)Count("flags")); break;
      case "save": s.Save(InFolder); break;
      default: throw new ArgumentException("no such step");
    }
  }

  private int[] Mask() {
    int[] words = new int[Ids.Length == 0 ? 0 : 2048 / 32];
    foreach (int token in Ids) words[token / 32] |= 1 << token % 32;
    return words;
  }

  private object Load() {
    using (Loader loader = new Loader()) {
      Keep(models, loader.Open(InFolder));
      Checks.Equal(1.0, loader.Progress);
      return null;
    }
  }

  private int Info() {
    ModelInfo i = Of.Info();
    switch (Text("field")) {
      case "n_layers": return i.Layers;
      case "n_kv_heads": return i.KvHeads;
      case "vocab_size": return i.VocabSize;
      case "max_tokens": return i.MaxTokens;
      case "bos_token": return i.BosToken;
      default: throw new ArgumentException("no such field");
    }
  }

  private long Stats() {
    SessionStats s = OfSession.Stats();
    switch (Text("field")) {
      case "n_prompt": return s.Prompt;
      case "n_answer": return s.Answer;
      case "n_slots": return s.Slots;
      default: throw new ArgumentException("no such field");
    }
  }

  private static int[] Steps(Session session, int n) {
    List<int> got = new List<int>();
    while (got.Count < n && (got.Count == 0 || got.Last() != Session.NoToken)) got.Add(session.Step());
    return got.ToArray();
  }

  private int[] Threads() {
    Model of = Of;
    Policy policy = OfPolicy;
    int[] prompt = Ids;
    int n = Count("steps");
    Task<int[]>[] answers = Enumerable.Range(0, Count("n")).Select(i => Task.Factory.StartNew(() => {
      using (Session session = of.NewSession(policy)) {
        session.Prefill(prompt);
        return Steps(session, n);
      }
    }, TaskCreationOptions.LongRunning)).ToArray();
    Checks.Check(answers.All(a => a.Result.SequenceEqual(answers[0].Result)), "one answer");
    return answers[0].Result;
  }

  private object Close() {
    string name = Text("name");
    if (models.ContainsKey(name)) models[name].Dispose();
    else if (policies.ContainsKey(name)) policies[name].Dispose();
    else sessions[name].Dispose();
    if (!models.Remove(name) && !policies.Remove(name)) sessions.Remove(name);
    return null;
  }
}
