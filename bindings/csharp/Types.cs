// What libkvc takes and gives: status, parameters, results.
using System;

namespace Kvc {
/// <summary>What a call came to: the KVC_E_* of kvc.h.</summary>
public enum Status {
  /// <summary>Fine.</summary>
  Ok = Flat.KVC_OK,
  /// <summary>An argument that cannot be.</summary>
  Invalid = Flat.KVC_E_INVALID,
  /// <summary>No memory, or past ModelParams.MemoryLimit.</summary>
  Memory = Flat.KVC_E_MEMORY,
  /// <summary>A file cannot be read or written.</summary>
  Io = Flat.KVC_E_IO,
  /// <summary>A file is damaged, foreign or newer than the library.</summary>
  BadModel = Flat.KVC_E_BAD_MODEL,
  /// <summary>This library, device, method or model cannot do that.</summary>
  Unsupported = Flat.KVC_E_UNSUPPORTED,
  /// <summary>There is no such thing.</summary>
  NotFound = Flat.KVC_E_NOT_FOUND,
  /// <summary>An array of the caller's is too small.</summary>
  BufferTooSmall = Flat.KVC_E_BUFFER_TOO_SMALL,
  /// <summary>The session holds as many tokens as it may.</summary>
  ContextFull = Flat.KVC_E_CONTEXT_FULL,
  /// <summary>Session.Cancel or Loader.Cancel was called.</summary>
  Cancelled = Flat.KVC_E_CANCELLED,
  /// <summary>The device failed.</summary>
  Device = Flat.KVC_E_DEVICE,
  /// <summary>Another thread is at work on the session, or on the loader.</summary>
  Busy = Flat.KVC_E_BUSY,
  /// <summary>A defect of the library.</summary>
  Internal = Flat.KVC_E_INTERNAL
}

/// <summary>A call of libkvc that failed: why, as a Status, and in words.</summary>
public sealed class KvcException : Exception {
  internal KvcException(Status status, string text) : base(text + " (" + Library.NameOf(status) + ")") {
    Status = status;
  }

  /// <summary>Why, for programs. Never Status.Ok.</summary>
  public Status Status { get; }
}

/// <summary>Flags of Model.Tokenize.</summary>
[Flags]
public enum TokenizeFlags {
  /// <summary>None.</summary>
  None = 0,
  /// <summary>Begin with BOS, whether the model wants one or not; Model.Prompt asks it.</summary>
  AddBos = Flat.KVC_ADD_BOS,
  /// <summary>Special tokens in the text count as such.</summary>
  ParseSpecial = Flat.KVC_PARSE_SPECIAL,
  /// <summary>The text goes on behind one that was tokenized before.</summary>
  Continue = Flat.KVC_CONTINUE
}

/// <summary>What happens when a session holds as many tokens as it may.</summary>
public enum OnFull {
  /// <summary>Status.ContextFull.</summary>
  Error = Flat.KVC_ON_FULL_ERROR,
  /// <summary>An old entry goes for each new one; positions go on counting.</summary>
  Evict = Flat.KVC_ON_FULL_EVICT,
  /// <summary>An old entry goes for each new one; positions are counted in slots: for ever.</summary>
  Slide = Flat.KVC_ON_FULL_SLIDE
}

/// <summary>Who speaks in a conversation.</summary>
public enum Role {
  /// <summary>Instructions.</summary>
  System = Flat.KVC_ROLE_SYSTEM,
  /// <summary>The person.</summary>
  User = Flat.KVC_ROLE_USER,
  /// <summary>The model.</summary>
  Assistant = Flat.KVC_ROLE_ASSISTANT
}

/// <summary>Flags of Session.Say.</summary>
[Flags]
public enum SayFlags {
  /// <summary>Only the message.</summary>
  None = 0,
  /// <summary>The assistant's turn begins behind it: steps give the answer.</summary>
  Answer = Flat.KVC_ANSWER,
  /// <summary>Only queue the tokens, as Session.Enqueue does.</summary>
  Queue = Flat.KVC_QUEUE
}

/// <summary>How much the log tells.</summary>
public enum LogLevel {
  /// <summary>What compression left of a prompt.</summary>
  Debug = Flat.KVC_LOG_DEBUG,
  /// <summary>Models opened; sessions saved, restored or full.</summary>
  Info = Flat.KVC_LOG_INFO,
  /// <summary>What was asked for and is not so; calls that ran out of memory.</summary>
  Warning = Flat.KVC_LOG_WARNING,
  /// <summary>Nothing so far.</summary>
  Error = Flat.KVC_LOG_ERROR
}

/// <summary>A line of the log. For people: the words may change.</summary>
public sealed class LogLine {
  internal LogLine(LogLevel level, string text) {
    Level = level;
    Text = text;
  }

  /// <summary>How grave.</summary>
  public LogLevel Level { get; }
  /// <summary>What.</summary>
  public string Text { get; }
}

/// <summary>How a model is opened. What is not set is the default.</summary>
public sealed class ModelParams {
  /// <summary>"auto" (or null), or a name of Library.Devices.</summary>
  public string Device { get; set; }
  /// <summary>Threads of the processor, the caller's included; 0: one for each processor that the process may use
  /// (affinity, control groups), slow ones of big.LITTLE not counted.</summary>
  public int Threads { get; set; }
  /// <summary>Bytes of weights, tokenizer, caches and workspace; past it: Status.Memory. 0: no limit.</summary>
  public long MemoryLimit { get; set; }
  /// <summary>The bytes of the weights are not verified: a file that was verified before opens at once.</summary>
  public bool Trusted { get; set; }
  /// <summary>The weights are neither read nor counted: for plans, texts and what the file says of itself. A session of
  /// this model: Status.Unsupported.</summary>
  public bool PlanOnly { get; set; }

  internal static kvc_model_params Raw(ModelParams from) {
    kvc_model_params raw = new kvc_model_params();
    if (from != null) {
      raw.n_threads = from.Threads;
      raw.memory_limit = from.MemoryLimit;
      raw.trusted = from.Trusted ? 1 : 0;
      raw.plan_only = from.PlanOnly ? 1 : 0;
    }
    return raw;
  }
}

/// <summary>How the next token is chosen. What is not set is off; all off is greedy, the reproducible mode.</summary>
public sealed class Sampling {
  /// <summary>Only so many of the likeliest tokens.</summary>
  public int TopK { get; set; }
  /// <summary>Only the likeliest tokens with this much of the probability together, in (0, 1].</summary>
  public float TopP { get; set; }
  /// <summary>How freely tokens are chosen; 0: greedy.</summary>
  public float Temperature { get; set; }
  /// <summary>The same seed and input give the same text on any number of threads.</summary>
  public long Seed { get; set; }
  /// <summary>Only tokens of at least this share of the likeliest one's probability, in (0, 1].</summary>
  public float MinP { get; set; }
  /// <summary>Logits of recent tokens are divided by it where positive, multiplied where negative; to 100.</summary>
  public float RepeatPenalty { get; set; }
  /// <summary>How many of the newest tokens are recent, at most 512; 0: 64.</summary>
  public int RepeatWindow { get; set; }

  internal kvc_sampling Raw() {
    return new kvc_sampling {
      top_k = TopK, top_p = TopP, temperature = Temperature, seed = Seed, min_p = MinP,
      repeat_penalty = RepeatPenalty, repeat_window = RepeatWindow
    };
  }
}

/// <summary>How a session is made. What is not set is the default.</summary>
public sealed class SessionParams {
  /// <summary>Most tokens of prompt and answer together; 0: the trained context of the model, or 2^26 where the policy
  /// drops at steps and counts positions in slots (streaming).</summary>
  public int MaxTokens { get; set; }
  /// <summary>What happens past MaxTokens.</summary>
  public OnFull OnFull { get; set; }
  /// <summary>How tokens are chosen; null: greedy.</summary>
  public Sampling Sampling { get; set; }

  internal static kvc_session_params Raw(SessionParams from) {
    kvc_session_params raw = new kvc_session_params();
    if (from == null) return raw;
    raw.max_tokens = from.MaxTokens;
    raw.on_full = (int)from.OnFull;
    if (from.Sampling == null) return raw;
    raw.top_k = from.Sampling.TopK;
    raw.top_p = from.Sampling.TopP;
    raw.temperature = from.Sampling.Temperature;
    raw.seed = from.Sampling.Seed;
    return raw;
  }
}

/// <summary>What a model is: dimensions, special tokens, sizes.</summary>
public sealed class ModelInfo {
  internal ModelInfo(kvc_model_info raw) {
    Layers = raw.n_layers;
    Heads = raw.n_heads;
    KvHeads = raw.n_kv_heads;
    HeadDim = raw.head_dim;
    HiddenSize = raw.hidden_size;
    FfnSize = raw.ffn_size;
    VocabSize = raw.vocab_size;
    MaxTokens = raw.max_tokens;
    BosToken = raw.bos_token;
    EosToken = raw.eos_token;
    HeadScores = raw.n_head_scores;
    WeightBytes = raw.weight_bytes;
    Parameters = raw.n_parameters;
  }

  /// <summary>How many there are.</summary>
  public int Layers { get; }
  /// <summary>Query heads of a layer.</summary>
  public int Heads { get; }
  /// <summary>KV heads of a layer.</summary>
  public int KvHeads { get; }
  /// <summary>Elements of a head.</summary>
  public int HeadDim { get; }
  /// <summary>Elements of a hidden state.</summary>
  public int HiddenSize { get; }
  /// <summary>Elements inside a feed-forward block.</summary>
  public int FfnSize { get; }
  /// <summary>Tokens there are.</summary>
  public int VocabSize { get; }
  /// <summary>Trained context, in tokens.</summary>
  public int MaxTokens { get; }
  /// <summary>Token at the beginning, or -1.</summary>
  public int BosToken { get; }
  /// <summary>Token at the end, or -1.</summary>
  public int EosToken { get; }
  /// <summary>Head-score tables in the file.</summary>
  public int HeadScores { get; }
  /// <summary>Bytes of the weights.</summary>
  public long WeightBytes { get; }
  /// <summary>How many there are.</summary>
  public long Parameters { get; }
}

/// <summary>What a session has done and holds, at one moment.</summary>
public sealed class SessionStats {
  internal SessionStats(kvc_session_stats raw) {
    Prompt = raw.n_prompt;
    Answer = raw.n_answer;
    Compactions = raw.n_compactions;
    CacheBytes = raw.cache_bytes;
    CacheBytesPeak = raw.cache_bytes_peak;
    CacheBytesFull = raw.cache_bytes_full;
    WorkspaceBytes = raw.workspace_bytes;
    WeightBytes = raw.weight_bytes;
    Slots = raw.n_slots;
    SlotsFull = raw.n_slots_full;
    PrefillSeconds = raw.prefill_seconds;
    CompressSeconds = raw.compress_seconds;
    DecodeSeconds = raw.decode_seconds;
    StopToken = raw.stop_token;
    PromptProgress = raw.prompt_progress;
    Tokens = raw.n_tokens;
  }

  /// <summary>Tokens and sizes in a line.</summary>
  public override string ToString() {
    return "SessionStats: " + Prompt + " tokens fed, " + Answer + " generated, cache of " + CacheBytes
        + " bytes instead of " + CacheBytesFull;
  }

  /// <summary>Tokens fed.</summary>
  public int Prompt { get; }
  /// <summary>Tokens generated.</summary>
  public int Answer { get; }
  /// <summary>Times the cache was compressed.</summary>
  public int Compactions { get; }
  /// <summary>Bytes of the cache now.</summary>
  public long CacheBytes { get; }
  /// <summary>Bytes of the cache at most so far.</summary>
  public long CacheBytesPeak { get; }
  /// <summary>Bytes that a cache without compression would have.</summary>
  public long CacheBytesFull { get; }
  /// <summary>Bytes of buffers beside the cache, at most so far.</summary>
  public long WorkspaceBytes { get; }
  /// <summary>Bytes of the weights.</summary>
  public long WeightBytes { get; }
  /// <summary>Cached entries over all heads.</summary>
  public long Slots { get; }
  /// <summary>Cached entries without compression.</summary>
  public long SlotsFull { get; }
  /// <summary>Seconds of reading prompts, of which CompressSeconds are a part.</summary>
  public double PrefillSeconds { get; }
  /// <summary>Seconds of compressing.</summary>
  public double CompressSeconds { get; }
  /// <summary>Seconds of generating.</summary>
  public double DecodeSeconds { get; }
  /// <summary>Token that ended the answer, until the next input; else -1.</summary>
  public int StopToken { get; }
  /// <summary>Share that has been read of a queued prompt, 0 to 1; 1: none waits.</summary>
  public double PromptProgress { get; }
  /// <summary>Tokens of its text: what MaxTokens bounds (unless OnFull makes room), and Rewind takes from.</summary>
  public int Tokens { get; }
}

/// <summary>What a session would take. Real use stays within 5 % of it.</summary>
public sealed class Plan {
  internal Plan(kvc_plan raw, int[] slots) {
    Prompt = raw.n_prompt;
    WeightBytes = raw.weight_bytes;
    WorkspaceBytes = raw.workspace_bytes;
    CacheBytesPeak = raw.cache_bytes_peak;
    CacheBytesPrompt = raw.cache_bytes_prompt;
    CacheBytesEnd = raw.cache_bytes_end;
    CacheBytesFull = raw.cache_bytes_full;
    TotalBytesPeak = raw.total_bytes_peak;
    Slots = slots;
  }

  /// <summary>The sizes in a line.</summary>
  public override string ToString() {
    return "Plan for " + Prompt + " tokens: " + TotalBytesPeak + " bytes at most, cache of " + CacheBytesPrompt
        + " bytes after the prompt, " + CacheBytesEnd + " at the end instead of " + CacheBytesFull;
  }

  /// <summary>Tokens planned for.</summary>
  public int Prompt { get; }
  /// <summary>Bytes of the weights.</summary>
  public long WeightBytes { get; }
  /// <summary>Bytes of buffers beside the cache.</summary>
  public long WorkspaceBytes { get; }
  /// <summary>Bytes of the cache during prefill: one full layer and the compressed ones.</summary>
  public long CacheBytesPeak { get; }
  /// <summary>Bytes of the cache after prefill.</summary>
  public long CacheBytesPrompt { get; }
  /// <summary>Bytes of the cache at MaxTokens.</summary>
  public long CacheBytesEnd { get; }
  /// <summary>Bytes of the cache at MaxTokens without compression.</summary>
  public long CacheBytesFull { get; }
  /// <summary>Bytes of weights, workspace and cache at the worst moment.</summary>
  public long TotalBytesPeak { get; }
  /// <summary>Slots after the prompt, [layers, KV heads]; of methods that split by the prompt an expectation.</summary>
  public int[] Slots { get; }
}
}
