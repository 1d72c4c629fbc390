package dev.kvc;

import java.nio.ByteBuffer;
import java.util.Objects;

/** Weights and tokenizer. Never changes, and any number of threads may use it. */
public final class Model implements AutoCloseable {
  /** For {@link #tokenize}: begin with BOS, whether the model wants one or not; {@link #prompt} asks it. */
  public static final int ADD_BOS = Flat.KVC_ADD_BOS;
  /** For {@link #tokenize}: special tokens in the text count as such. */
  public static final int PARSE_SPECIAL = Flat.KVC_PARSE_SPECIAL;
  /** For {@link #tokenize}: the text goes on behind one that was tokenized before. */
  public static final int CONTINUE = Flat.KVC_CONTINUE;

  final Ref ref;
  private volatile Boolean beginsWithBos;  // null: not asked yet

  private Model(long handle, Object memory) {
    ref = new Ref(this, "model", handle, Flat::kvc_model_close, null, memory);
  }

  interface Opener {
    void open(byte[] device, kvc_model_params params, long[] handle);
  }

  /** The model that a flat call opens; memory, which it reads then, stays reachable as long as the model. */
  static Model opened(Object memory, ModelParams params, Opener opener) {
    NativeLibrary.load();
    long[] handle = new long[1];
    ModelParams.with(params, (device, raw) -> opener.open(device, raw, handle));
    return new Model(handle[0], memory);
  }

  /**
   * Opens a model file. All of it is verified before use.
   *
   * @param path of the file
   * @return the model, to be closed
   * @throws KvcException {@link Status#IO}, {@link Status#BAD_MODEL}, {@link Status#UNSUPPORTED} or
   *     {@link Status#MEMORY}
   */
  public static Model open(String path) {
    return open(path, null);
  }

  /**
   * Opens a model file.
   *
   * @param path of the file
   * @param params null: all defaults
   * @return the model, to be closed
   */
  public static Model open(String path, ModelParams params) {
    Objects.requireNonNull(path, "path");
    return opened(null, params, (device, raw, handle) ->
        Flat.kvc_model_open(Utf8.name(path, "path"), device, raw, handle));
  }

  /**
   * Opens a model inside an open file, such as an asset of an Android package that is not compressed. It is mapped
   * where offset is a multiple of 64, else read into memory.
   *
   * @param fd descriptor, which stays the caller's and may be closed after the call
   * @param offset where the model begins
   * @param bytes how long it is; 0: to the end of the file
   * @param params null: all defaults
   * @return the model, to be closed
   */
  public static Model open(int fd, long offset, long bytes, ModelParams params) {
    return opened(null, params, (device, raw, handle) ->
        Flat.kvc_model_open_fd(fd, offset, bytes, device, raw, handle));
  }

  /**
   * Opens a model in memory, which is not copied, such as a mapped file. It must not change while the model, or a
   * session of it, is open.
   *
   * @param memory a direct buffer, from its position to its limit, aligned to 64 bytes
   * @param params null: all defaults
   * @return the model, to be closed
   */
  public static Model open(ByteBuffer memory, ModelParams params) {
    if (!memory.isDirect()) throw new KvcException(Status.INVALID, "memory: only a direct buffer stays where it is");
    ByteBuffer part = memory.slice();
    return opened(part, params, (device, raw, handle) -> Flat.kvc_model_open_memory(part, device, raw, handle));
  }

  /**
   * Dimensions, special tokens and sizes.
   *
   * @return a copy of them
   */
  public ModelInfo info() {
    try (kvc_model_info raw = new kvc_model_info()) {
      ref.run(this, h -> Flat.kvc_model_get_info(h, raw));
      return new ModelInfo(raw);
    }
  }

  /**
   * All that the file says about itself.
   *
   * @return JSON: config, tokenizer, turn format, head scores, tensors
   */
  public String describe() {
    return ref.get(this, h -> Utf8.read((json, n) -> Flat.kvc_model_describe(h, json, n)));
  }

  /**
   * A head-score table of the file.
   *
   * @param index of the table, below {@link ModelInfo#nHeadScores}
   * @return [layers, KV heads], or [layers, heads] for estimator headkv-r2
   */
  public float[] headScores(int index) {
    return ref.get(this, h -> Filled.array(0, float[]::new, (scores, n) ->
        Flat.kvc_model_get_head_scores(h, index, scores, n)));
  }

  /**
   * Text to token ids.
   *
   * @param text the text; special tokens in it are text unless PARSE_SPECIAL
   * @param flags {@link #ADD_BOS}, {@link #PARSE_SPECIAL}, {@link #CONTINUE}, or 0
   * @return the ids
   */
  public int[] tokenize(String text, int flags) {
    return tokenize(Utf8.encode(text, "text"), flags);
  }

  /**
   * Text to token ids.
   *
   * @param text UTF-8; bytes that are none are kept where the vocabulary can
   * @param flags {@link #ADD_BOS}, {@link #PARSE_SPECIAL}, {@link #CONTINUE}, or 0
   * @return the ids
   */
  public int[] tokenize(byte[] text, int flags) {
    Objects.requireNonNull(text, "text");
    return ref.get(this, h -> Filled.array(text.length + 8, int[]::new, (tokens, n) ->
        Flat.kvc_tokenize(h, text, flags, tokens, n)));
  }

  /**
   * Token ids of a text that begins a session, with BOS before it where the model wants one.
   *
   * @param text the text; special tokens in it are text
   * @return the ids
   */
  public int[] prompt(String text) {
    byte[] bytes = Utf8.encode(text, "text");
    Boolean begins = beginsWithBos;
    if (begins == null) {
      // Written by the library; inside its strings each quote is escaped.
      beginsWithBos = begins = !describe().contains("\"add_bos\":false");
    }
    return tokenize(bytes, begins ? ADD_BOS : 0);
  }

  /**
   * Token ids to text.
   *
   * @param tokens the ids
   * @return their text; bytes that are no UTF-8 come as U+FFFD
   */
  public String detokenize(int... tokens) {
    byte[] bytes = detokenizeBytes(tokens);
    return Utf8.decode(bytes, bytes.length);
  }

  /**
   * Token ids to bytes, as the tokens have them: they need not be whole characters. For grammar engines those of a
   * token behind another: the first of a text may lose the space that it begins with.
   *
   * @param tokens the ids
   * @return their bytes
   */
  public byte[] detokenizeBytes(int... tokens) {
    Objects.requireNonNull(tokens, "tokens");
    int guess = 8 * Math.min(tokens.length, 1 << 20) + 16;
    return ref.get(this, h -> Filled.array(guess, byte[]::new, (bytes, n) ->
        Flat.kvc_detokenize(h, tokens, bytes, n)));
  }

  /**
   * What a session would take, without taking it.
   *
   * @param policy null: keep everything
   * @param params null: all defaults
   * @param nPrompt tokens of the prompt, 1 or more
   * @return the plan
   */
  public Plan plan(Policy policy, SessionParams params, int nPrompt) {
    ModelInfo info = info();
    int[] slots = new int[info.nLayers * info.nKvHeads];
    SessionParams some = params == null ? new SessionParams() : params;
    try (kvc_plan raw = new kvc_plan(); kvc_session_params rawParams = some.raw()) {
      ref.run(this, h -> withPolicy(policy, p ->
          Flat.kvc_session_plan(h, p, rawParams, nPrompt, raw, slots, new int[1])));
      return new Plan(raw, slots);
    }
  }

  /**
   * A session that keeps everything.
   *
   * @return the session, to be closed
   */
  public Session newSession() {
    return newSession(null, null);
  }

  /**
   * A session with a compressed cache.
   *
   * @param policy null: keep everything
   * @return the session, to be closed
   */
  public Session newSession(Policy policy) {
    return newSession(policy, null);
  }

  /**
   * A session with a compressed cache.
   *
   * @param policy is copied; null: keep everything
   * @param params null: all defaults
   * @return the session, to be closed
   * @throws KvcException {@link Status#INVALID} where the policy does not fit the model, {@link Status#NOT_FOUND} where
   *     it needs scores that the file has not
   */
  public Session newSession(Policy policy, SessionParams params) {
    SessionParams some = params == null ? new SessionParams() : params;
    Session made;
    try (kvc_session_params raw = some.raw()) {
      made = made((h, handle) -> withPolicy(policy, p -> Flat.kvc_session_create(h, p, raw, handle)));
    }
    if (some.sampling().isMore()) {
      try {
        made.setSampling(some.sampling());
      } catch (RuntimeException e) {
        made.close();
        throw e;
      }
    }
    return made;
  }

  /**
   * A session that {@link Session#save(String)} wrote. It continues bit for bit.
   *
   * @param path of the file
   * @return the session, to be closed
   * @throws KvcException {@link Status#BAD_MODEL} where it is damaged or of another model
   */
  public Session restore(String path) {
    Objects.requireNonNull(path, "path");
    return made((h, handle) -> Flat.kvc_session_restore(h, Utf8.name(path, "path"), handle));
  }

  /**
   * A session that {@link Session#save()} made.
   *
   * @param data all of its bytes
   * @return the session, to be closed
   */
  public Session restore(byte[] data) {
    Objects.requireNonNull(data, "data");
    return made((h, handle) -> Flat.kvc_session_restore_memory(h, data, handle));
  }

  private interface SessionMaker {
    void make(long model, long[] handle);
  }

  /** The session that a flat call makes; it keeps the memory that the model reads, which stays during the call. */
  private Session made(SessionMaker maker) {
    return ref.get(this, h -> {
      long[] handle = new long[1];
      maker.make(h, handle);
      return new Session(handle[0], ref.memory());
    });
  }

  private interface PolicyCall {
    void on(long policy);
  }

  private static void withPolicy(Policy policy, PolicyCall call) {
    if (policy == null) {
      call.on(0);
    } else {
      policy.ref.run(policy, call::on);
    }
  }

  @Override
  public String toString() {
    if (ref.isClosed()) return "Model, closed";
    try {
      ModelInfo info = info();
      return "Model: " + info.nLayers + " layers, " + info.vocabSize + " tokens, " + info.weightBytes
          + " bytes of weights";
    } catch (IllegalStateException e) {
      return "Model, closed";
    }
  }

  @Override
  public void close() {
    ref.close();
  }
}
