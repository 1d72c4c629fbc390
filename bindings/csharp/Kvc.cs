// Language models on a compressed KV cache: the C# face of libkvc.
//
// A Model is shared by any number of threads. A Session is one conversation, used by one thread at a time: a second
// call on one that is working throws KvcException with Status.Busy and changes nothing. Dispose in any order, also
// while another thread is inside: its call is cancelled, and the memory goes when it returns. What is disposed throws
// ObjectDisposedException; disposing twice does nothing; what is never disposed is given back when it is garbage.
using System;
using System.Collections.Generic;

namespace Kvc {
/// <summary>A compression method and its options. Each session has a copy of its own.</summary>
public sealed class Policy : IDisposable {
  internal readonly PolicyHandle handle;

  /// <summary>Makes one of a spec such as "cokv:budget=128,window=8"; "full" keeps everything. Status.NotFound for a
  /// method, Status.Invalid for an option that cannot be.</summary>
  public Policy(string spec) {
    Library.Load();
    Flat.kvc_policy_create(Utf8.Required(spec, "spec"), out handle);
  }

  /// <summary>The spec with all defaults written out.</summary>
  public string Describe() {
    return Utf8.Read((byte[] text, out int n) => Flat.kvc_policy_describe(handle, text, text.Length, out n));
  }

  /// <summary>Head scores other than those in the model file: [layers, KV heads] in layer order, higher is more
  /// important; for headkv [layers, heads].</summary>
  public void SetHeadScores(float[] scores) {
    if (scores == null) throw new ArgumentNullException("scores");
    Flat.kvc_policy_set_head_scores(handle, scores, scores.Length);
  }

  /// <summary>Slots of every head for the method "table": [layers, KV heads], window included.</summary>
  public void SetTable(int[] slots) {
    if (slots == null) throw new ArgumentNullException("slots");
    Flat.kvc_policy_set_table(handle, slots, slots.Length);
  }

  /// <summary>Gives it back. Sessions that were made with it stay.</summary>
  public void Dispose() { handle.Dispose(); }
}

/// <summary>Weights and tokenizer. Never changes, and any number of threads may use it.</summary>
public sealed partial class Model : IDisposable {
  private readonly ModelHandle handle;
  private volatile object beginsWithBos;  // null: not asked yet

  internal Model(ModelHandle handle) { this.handle = handle; }

  /// <summary>Opens a model file; all of it is verified before use. params null: all defaults. Status.Io, BadModel,
  /// Unsupported or Memory.</summary>
  public static Model Open(string path, ModelParams with = null) {
    Library.Load();
    using (kvc_model_params raw = ModelParams.Raw(with)) {
      Flat.kvc_model_open(Utf8.Required(path, "path"), Utf8.Name(with?.Device, "Device"), raw, out ModelHandle made);
      return new Model(made);
    }
  }

  /// <summary>Opens a model inside an open file: bytes from offset, 0: to its end. It is mapped where offset is a
  /// multiple of 64, else read into memory. The descriptor stays the caller's, who may close it after the
  /// call.</summary>
  public static Model Open(int descriptor, long offset, long bytes, ModelParams with = null) {
    Library.Load();
    using (kvc_model_params raw = ModelParams.Raw(with)) {
      Flat.kvc_model_open_fd(descriptor, offset, bytes, Utf8.Name(with?.Device, "Device"), raw, out ModelHandle made);
      return new Model(made);
    }
  }

  /// <summary>Opens a model in memory that the collector does not move, aligned to 64 bytes, such as a mapped file. It
  /// is not copied, and must stay unchanged until the model and its last session are closed.</summary>
  public static Model Open(IntPtr memory, long bytes, ModelParams with = null) {
    Library.Load();
    using (kvc_model_params raw = ModelParams.Raw(with)) {
      Flat.kvc_model_open_memory(memory, bytes, Utf8.Name(with?.Device, "Device"), raw, out ModelHandle made);
      return new Model(made);
    }
  }

  /// <summary>Dimensions, special tokens and sizes.</summary>
  public ModelInfo Info() {
    using (kvc_model_info raw = new kvc_model_info()) {
      Flat.kvc_model_get_info(handle, raw);
      return new ModelInfo(raw);
    }
  }

  /// <summary>All that the file says about itself, as JSON.</summary>
  public string Describe() {
    return Utf8.Read((byte[] json, out int n) => Flat.kvc_model_describe(handle, json, json.Length, out n));
  }

  /// <summary>Head-score table index of the file: [layers, KV heads], or [layers, heads] for headkv-r2.</summary>
  public float[] HeadScores(int index) {
    return Filled.Array(0, (float[] scores, out int n) =>
        Flat.kvc_model_get_head_scores(handle, index, scores, scores.Length, out n));
  }

  /// <summary>Text to token ids. Special tokens in it are text unless ParseSpecial.</summary>
  public int[] Tokenize(string text, TokenizeFlags flags = TokenizeFlags.None) {
    return Tokenize(Utf8.Encode(text, "text"), flags);
  }

  /// <summary>UTF-8 to token ids; bytes that are none are kept where the vocabulary can.</summary>
  public int[] Tokenize(byte[] text, TokenizeFlags flags = TokenizeFlags.None) {
    if (text == null) throw new ArgumentNullException("text");
    return Filled.Array(text.Length + 8, (int[] tokens, out int n) =>
        Flat.kvc_tokenize(handle, text, text.Length, (int)flags, tokens, tokens.Length, out n));
  }

  /// <summary>Token ids of a text that begins a session, with BOS before it where the model wants one.</summary>
  public int[] Prompt(string text) {
    byte[] bytes = Utf8.Encode(text, "text");
    object begins = beginsWithBos;
    if (begins == null) {
      // Written by the library; inside its strings each quote is escaped.
      beginsWithBos = begins = !Describe().Contains("\"add_bos\":false");
    }
    return Tokenize(bytes, (bool)begins ? TokenizeFlags.AddBos : TokenizeFlags.None);
  }

  /// <summary>Token ids to text; bytes that are no UTF-8 come as U+FFFD.</summary>
  public string Detokenize(params int[] tokens) {
    byte[] bytes = DetokenizeBytes(tokens);
    return Utf8.Decode(bytes, bytes.Length);
  }

  /// <summary>Token ids to bytes, as the tokens have them: they need not be whole characters. For grammar engines
  /// those of a token behind another: the first of a text may lose the space that it begins with.</summary>
  public byte[] DetokenizeBytes(params int[] tokens) {
    if (tokens == null) throw new ArgumentNullException("tokens");
    return Filled.Array(8 * Math.Min(tokens.Length, 1 << 20) + 16, (byte[] bytes, out int n) =>
        Flat.kvc_detokenize(handle, tokens, tokens.Length, bytes, bytes.Length, out n));
  }

  /// <summary>What a session would take for a prompt of so many tokens (1 or more), without taking it. policy null:
  /// keep everything.</summary>
  public Plan Plan(Policy policy, SessionParams with, int prompt) {
    ModelInfo info = Info();
    int[] slots = new int[info.Layers * info.KvHeads];
    using (kvc_plan raw = new kvc_plan())
    using (kvc_session_params rawParams = SessionParams.Raw(with))
    using (Held<PolicyHandle> held = new Held<PolicyHandle>(HandleOf(policy))) {
      Flat.kvc_session_plan(handle, held.Handle, rawParams, prompt, raw, slots, slots.Length, out int n);
      return new Plan(raw, slots);
    }
  }

  /// <summary>A session. policy, which is copied, null: keep everything. Status.Invalid where it does not fit the
  /// model, Status.NotFound where it needs scores that the file has not.</summary>
  public Session NewSession(Policy policy = null, SessionParams with = null) {
    using (kvc_session_params raw = SessionParams.Raw(with))
    using (Held<PolicyHandle> held = new Held<PolicyHandle>(HandleOf(policy))) {
      Flat.kvc_session_create(handle, held.Handle, raw, out SessionHandle made);
      Session session = new Session(made);
      try {
        if (with?.Sampling != null) session.SetSampling(with.Sampling);
        return session;
      } catch {
        session.Dispose();
        throw;
      }
    }
  }

  /// <summary>A session that Session.Save wrote to a file. It continues bit for bit.</summary>
  public Session Restore(string path) {
    Flat.kvc_session_restore(handle, Utf8.Required(path, "path"), out SessionHandle made);
    return new Session(made);
  }

  /// <summary>A session of the bytes that Session.Save returned.</summary>
  public Session Restore(byte[] data) {
    if (data == null) throw new ArgumentNullException("data");
    Flat.kvc_session_restore_memory(handle, data, data.Length, out SessionHandle made);
    return new Session(made);
  }

  /// <summary>Its shape in a line.</summary>
  public override string ToString() {
    try {
      ModelInfo info = Info();
      return "Model: " + info.Layers + " layers, " + info.VocabSize + " tokens, " + info.WeightBytes
          + " bytes of weights";
    } catch (ObjectDisposedException) {
      return "Model, disposed";
    }
  }

  /// <summary>Gives it back. Its sessions stay.</summary>
  public void Dispose() { handle.Dispose(); }

  private static PolicyHandle HandleOf(Policy policy) { return policy == null ? PolicyHandle.None : policy.handle; }
}

/// <summary>Opens models while other threads see how far it is, and stop it.</summary>
public sealed class Loader : IDisposable {
  private readonly CancelledHandle<LoaderHandle> own;

  /// <summary>A loader, for one model at a time (else Status.Busy).</summary>
  public Loader() {
    Library.Load();
    Flat.kvc_loader_create(out LoaderHandle made);
    own = new CancelledHandle<LoaderHandle>(made, "Loader", h => Flat.kvc_loader_cancel(h));
  }

  /// <summary>As Model.Open; Status.Cancelled too.</summary>
  public Model Open(string path, ModelParams with = null) {
    using (kvc_model_params raw = ModelParams.Raw(with)) {
      Flat.kvc_loader_open(own.Handle, Utf8.Required(path, "path"), Utf8.Name(with?.Device, "Device"), raw,
                           out ModelHandle made);
      return new Model(made);
    }
  }

  /// <summary>As Model.Open; Status.Cancelled too.</summary>
  public Model Open(int descriptor, long offset, long bytes, ModelParams with = null) {
    using (kvc_model_params raw = ModelParams.Raw(with)) {
      Flat.kvc_loader_open_fd(own.Handle, descriptor, offset, bytes, Utf8.Name(with?.Device, "Device"), raw,
                              out ModelHandle made);
      return new Model(made);
    }
  }

  /// <summary>How far the open is that runs, 0 to 1; 1 when none runs. From any thread.</summary>
  public double Progress {
    get {
      Flat.kvc_loader_get_progress(own.Handle, out double share);
      return share;
    }
  }

  /// <summary>The running open, or else the next one, throws Status.Cancelled. From any thread.</summary>
  public void Cancel() { Flat.kvc_loader_cancel(own.Handle); }

  /// <summary>Withdraws a Cancel that came too late. From any thread.</summary>
  public void ClearCancel() { own.WhileOpen(h => Flat.kvc_loader_clear_cancel(h)); }

  /// <summary>Gives it back, and cancels what it opens. Models stay.</summary>
  public void Dispose() { own.Dispose(); }
}

/// <summary>What a step of several sessions came to. Each answers exactly as it would alone.</summary>
public sealed class Batch {
  /// <summary>In Tokens: the session's prompt is still being read.</summary>
  public const int Reading = Flat.KVC_TOKEN_READING;

  /// <summary>Of each session: its token, Session.NoToken or Reading.</summary>
  public int[] Tokens { get; }
  /// <summary>Of each session: what its own step would have come to.</summary>
  public Status[] Statuses { get; }

  /// <summary>Of each session: why its own step would have failed, for people; null where it is Status.Ok.</summary>
  public string[] Messages { get; }

  private Batch(int n) {
    Tokens = new int[n];
    Statuses = new Status[n];
    Messages = new string[n];
  }

  private delegate int Call(IntPtr[] handles, kvc_batch_params raw, int[] tokens, int[] codes, byte[] text,
                            out int n);

  /// <summary>One step of each of 1 to 256 sessions of one model in one pass over its weights, behind about so many
  /// tokens of queued prompts (0: 256). When the batch cannot be, or a session is disposed, it throws, and no session
  /// has changed. One that is disposed during the call has Status.Cancelled, and does not stop the others.</summary>
  public static Batch Step(IReadOnlyList<Session> sessions, int promptTokens = 0) {
    return Run(sessions, promptTokens,
        (IntPtr[] handles, kvc_batch_params raw, int[] tokens, int[] codes, byte[] text, out int n) =>
            Flat.kvc_batch_step(handles, handles.Length, raw, tokens, codes, text, text.Length, out n));
  }

  /// <summary>The same for samplers of your own: logits, [sessions, vocabulary] or more, to choose from and
  /// Session.Accept; the row of a session that is reading is not written.</summary>
  public static Batch Logits(IReadOnlyList<Session> sessions, float[] logits, int promptTokens = 0) {
    if (logits == null) throw new ArgumentNullException("logits");
    return Run(sessions, promptTokens,
        (IntPtr[] handles, kvc_batch_params raw, int[] tokens, int[] codes, byte[] text, out int n) =>
            Flat.kvc_batch_logits(handles, handles.Length, raw, logits, logits.Length, tokens, codes, text, text.Length,
                                  out n));
  }

  private static Batch Run(IReadOnlyList<Session> sessions, int promptTokens, Call call) {
    if (sessions == null) throw new ArgumentNullException("sessions");
    Library.Load();
    Batch made = new Batch(sessions.Count);
    IntPtr[] handles = new IntPtr[sessions.Count];
    SessionHandle[] used = new SessionHandle[sessions.Count];
    int[] codes = new int[sessions.Count];
    byte[] text = new byte[1024];
    int bytes;
    try {
      for (int i = 0; i < handles.Length; ++i) {
        SessionHandle handle = sessions[i].Handle;
        bool taken = false;
        handle.DangerousAddRef(ref taken);
        used[i] = handle;
        handles[i] = handle.DangerousGetHandle();
      }
      using (kvc_batch_params raw = new kvc_batch_params { prompt_tokens = promptTokens }) {
        if (call(handles, raw, made.Tokens, codes, text, out bytes) != Flat.KVC_OK) {
          throw new KvcException(Status.BufferTooSmall, "logits: room for a row of each session is needed");
        }
      }
    } finally {
      foreach (SessionHandle handle in used) handle?.DangerousRelease();
    }
    string known = Utf8.Decode(text, bytes);  // of the last that failed
    for (int i = codes.Length - 1; i >= 0; --i) {
      made.Statuses[i] = (Status)codes[i];
      if (codes[i] == Flat.KVC_OK) continue;
      made.Messages[i] = known ?? Utf8.Static(Flat.kvc_flat_row_error(codes[i]));
      known = null;
    }
    return made;
  }
}
}
