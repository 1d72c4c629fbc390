package dev.kvc;

import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * One KV cache, one sampler, one stream of text. For one thread at a time: a second call on a session that is working
 * is {@link Status#BUSY} and changes nothing. From any thread: {@link #cancel}, {@link #clearCancel}, {@link #progress}
 * and {@link #close}, which cancels the call that runs.
 */
public final class Session implements AutoCloseable {
  /** Of {@link #step}: the answer is complete. Of {@link Batch}: no token. */
  public static final int NO_TOKEN = Flat.KVC_TOKEN_NONE;
  /** For {@link #say}: the assistant's turn begins behind the message. */
  public static final int ANSWER = Flat.KVC_ANSWER;
  /** For {@link #say}: only queue the tokens, as {@link #enqueue}. */
  public static final int QUEUE = Flat.KVC_QUEUE;

  /** Who speaks in a conversation. */
  public enum Role {
    /** Instructions. */
    SYSTEM(Flat.KVC_ROLE_SYSTEM),
    /** The person. */
    USER(Flat.KVC_ROLE_USER),
    /** The model. */
    ASSISTANT(Flat.KVC_ROLE_ASSISTANT);

    final int code;

    Role(int code) {
      this.code = code;
    }
  }

  final Ref ref;

  Session(long handle, Object memory) {
    ref = new Ref(this, "session", handle, Flat::kvc_session_close, Flat::kvc_session_cancel, memory);
  }

  /**
   * Reads a prompt, or more of one, and compresses when the policy asks. A failure leaves the session as it was.
   *
   * @param tokens 1 or more
   */
  public void prefill(int... tokens) {
    Objects.requireNonNull(tokens, "tokens");
    ref.run(this, h -> Flat.kvc_session_prefill(h, tokens));
  }

  /**
   * As {@link #prefill}, but keeps everything; {@link #compress} then applies the policy.
   *
   * @param tokens 1 or more
   */
  public void append(int... tokens) {
    Objects.requireNonNull(tokens, "tokens");
    ref.run(this, h -> Flat.kvc_session_append(h, tokens));
  }

  /** Applies the policy to what was appended. */
  public void compress() {
    ref.run(this, Flat::kvc_session_compress);
  }

  /**
   * Queues a prompt, which steps of a {@link Batch} read on; any other call that needs it reads the rest first.
   *
   * @param tokens 1 or more
   * @param compress as {@link #prefill}, else as {@link #append}
   */
  public void enqueue(int[] tokens, boolean compress) {
    Objects.requireNonNull(tokens, "tokens");
    ref.run(this, h -> Flat.kvc_session_enqueue(h, tokens, compress ? 1 : 0));
  }

  /**
   * One message of a conversation, between the marks that the model file has for its role. The text never becomes a
   * special token. A failure changes nothing.
   *
   * @param role who speaks
   * @param text what
   * @param flags {@link #ANSWER}: steps then give the answer; {@link #QUEUE}; or 0
   * @throws KvcException {@link Status#UNSUPPORTED} where the file has no marks and none were set
   */
  public void say(Role role, String text, int flags) {
    Objects.requireNonNull(role, "role");
    byte[] bytes = Utf8.encode(text, "text");
    ref.run(this, h -> Flat.kvc_session_say(h, role.code, bytes, flags));
  }

  /**
   * What the user says, and then the answer.
   *
   * @param text the message
   * @param maxTokens at most so many of the answer
   * @return the answer as it comes; see {@link #generate}
   */
  public Stream<String> ask(String text, int maxTokens) {
    say(Role.USER, text, ANSWER);
    return generate(maxTokens);
  }

  /**
   * Marks for a role other than the file's. Special tokens in them count as such.
   *
   * @param role of whom
   * @param prefix before a message; both null: the file's again
   * @param suffix behind it
   */
  public void setTurnMarks(Role role, String prefix, String suffix) {
    Objects.requireNonNull(role, "role");
    byte[] before = Utf8.name(prefix, "prefix");
    byte[] behind = Utf8.name(suffix, "suffix");
    ref.run(this, h -> Flat.kvc_session_set_turn_marks(h, role.code, before, behind));
  }

  /**
   * Compresses harder, and keeps that budget.
   *
   * @param budget slots of a KV head, on average
   * @return bytes that were freed
   */
  public long trim(int budget) {
    long[] freed = new long[1];
    ref.run(this, h -> Flat.kvc_session_trim(h, budget, freed));
    return freed[0];
  }

  /**
   * Generates one token.
   *
   * @return its id, or {@link #NO_TOKEN} when the answer is complete
   * @throws KvcException {@link Status#CONTEXT_FULL} when maxTokens are held and {@link SessionParams#onFull} makes no
   *     room
   */
  public int step() {
    int[] token = new int[1];
    long used = ref.enter(this);
    try {
      Flat.kvc_session_step(used, token);
    } finally {
      ref.leave();
    }
    return token[0];
  }

  /**
   * As step called several times: so many tokens as the draft foresaw, and one more, from one pass over the weights.
   * They are those that step gives whatever the draft says. One comes where a step does more than append: methods that
   * evict or watch at steps, quantised caches.
   *
   * @param draft tokens that the answer may go on with, as from {@link Kvc#draftLookup}; 31 are looked at
   * @return the ids, none when the answer is complete
   * @throws KvcException as {@link #step()}
   */
  public int[] step(int... draft) {
    Objects.requireNonNull(draft, "draft");
    return ref.get(this, h -> {
      int[] tokens = new int[Math.min(draft.length, 31) + 1];
      int[] n = new int[1];
      Flat.kvc_session_step_draft(h, draft, tokens, n);
      return Arrays.copyOf(tokens, n[0]);
    });
  }

  /**
   * The answer goes on with a token of the caller's, as if step had given it.
   *
   * @param token its id
   */
  public void accept(int token) {
    ref.run(this, h -> Flat.kvc_session_accept(h, token));
  }

  /**
   * Text of the tokens so far that is complete; the bytes of a split character wait inside.
   *
   * @return what is new since the last call, perhaps ""
   */
  public String readText() {
    StringBuilder all = null;
    byte[] bytes = new byte[256];
    int[] n = new int[1];
    while (true) {
      long used = ref.enter(this);
      try {
        Flat.kvc_session_read_text(used, bytes, n);
      } finally {
        ref.leave();
      }
      String part = Utf8.decode(bytes, n[0]);
      // A character that did not fit any more has at most four bytes.
      if (n[0] <= bytes.length - 4) return all == null ? part : all.append(part).toString();
      if (all == null) all = new StringBuilder();
      all.append(part);
    }
  }

  /**
   * The answer as it comes, in pieces of complete characters, each computed when it is asked for. It ends at a stop
   * token or at maxTokens. Leave it where you like: the session stays after the last piece taken. What a step throws,
   * the stream throws; {@link #cancel} from another thread ends it with {@link Status#CANCELLED}.
   *
   * @param maxTokens at most so many
   * @return a sequential stream; close it to end it
   */
  public Stream<String> generate(int maxTokens) {
    Pieces pieces = new Pieces(maxTokens);
    return StreamSupport.stream(
        Spliterators.spliteratorUnknownSize(pieces, Spliterator.ORDERED | Spliterator.NONNULL), false)
        .onClose(pieces::end);
  }

  private final class Pieces implements Iterator<String> {
    private volatile boolean ended;
    private int left;
    private String next;

    Pieces(int maxTokens) {
      left = maxTokens;
    }

    void end() {
      ended = true;
    }

    @Override
    public boolean hasNext() {
      while (next == null && !ended) {
        if (left-- <= 0 || step() == NO_TOKEN) ended = true;
        String text = readText();
        if (!text.isEmpty()) next = text;
      }
      return next != null;
    }

    @Override
    public String next() {
      if (!hasNext()) throw new NoSuchElementException();
      String piece = next;
      next = null;
      return piece;
    }
  }

  /**
   * How the following steps choose.
   *
   * @param sampling null: greedy
   */
  public void setSampling(Sampling sampling) {
    try (kvc_sampling raw = (sampling == null ? new Sampling() : sampling).raw()) {
      ref.run(this, h -> Flat.kvc_session_set_sampling(h, raw));
    }
  }

  /**
   * Added to the logits of these tokens before a step chooses, instead of what was set before.
   *
   * @param tokens ids; none: no bias
   * @param biases as many, finite or Float.NEGATIVE_INFINITY: never
   */
  public void setLogitBias(int[] tokens, float[] biases) {
    Objects.requireNonNull(tokens, "tokens");
    if (tokens.length != biases.length) {
      throw new KvcException(Status.INVALID, tokens.length + " tokens and " + biases.length + " biases");
    }
    ref.run(this, h -> Flat.kvc_session_set_logit_bias(h, tokens, biases, tokens.length));
  }

  /**
   * The only tokens that the following steps may choose, until the next mask.
   *
   * @param mask bit t % 32 of word t / 32 is token t, (vocabulary + 31) / 32 words; null or none: all
   */
  public void setTokenMask(int[] mask) {
    ref.run(this, h -> Flat.kvc_session_set_token_mask(h, mask == null ? new int[0] : mask));
  }

  /**
   * Logits after the newest token, from which the next step chooses.
   *
   * @return [vocabulary]
   */
  public float[] logits() {
    return ref.get(this, h -> Filled.array(0, float[]::new, (logits, n) -> Flat.kvc_session_get_logits(h, logits, n)));
  }

  /**
   * The same into an array of the caller's.
   *
   * @param logits [vocabulary] or more
   * @return how many were written
   */
  public int logits(float[] logits) {
    Objects.requireNonNull(logits, "logits");
    int[] n = new int[1];
    int status = ref.get(this, h -> Flat.kvc_session_get_logits(h, logits, n));
    boolean fits = status == Flat.KVC_OK && n[0] <= logits.length; // without room the library only counts
    if (!fits) throw new KvcException(Status.BUFFER_TOO_SMALL, "logits: " + n[0] + " are needed");
    return n[0];
  }

  /**
   * What the session has done and holds.
   *
   * @return a copy of it
   */
  public SessionStats stats() {
    try (kvc_session_stats raw = new kvc_session_stats()) {
      ref.run(this, h -> Flat.kvc_session_get_stats(h, raw));
      return new SessionStats(raw);
    }
  }

  /**
   * Share that has been read by the prefill, append or say that runs. From any thread.
   *
   * @return 0 to 1; 1 when none runs
   */
  public double progress() {
    double[] share = new double[1];
    ref.run(this, h -> Flat.kvc_session_get_progress(h, share));
    return share[0];
  }

  /**
   * Positions that are still cached for one head, ascending. With reducer=rest the first may be -n: an entry that
   * stands for n dropped tokens. A queued prompt is not read for it.
   *
   * @param layer from 0
   * @param kvHead from 0
   * @return the positions
   */
  public int[] kept(int layer, int kvHead) {
    return ref.get(this, h -> Filled.array(0, int[]::new, (positions, n) ->
        Flat.kvc_session_get_kept(h, layer, kvHead, positions, n)));
  }

  /**
   * Empty again. Policy with trim's budget, sampling, seed, bias, mask and marks stay; mends {@link Status#DEVICE}.
   */
  public void reset() {
    ref.run(this, Flat::kvc_session_reset);
  }

  /**
   * The call that runs, or else the next one that computes or queues, throws {@link Status#CANCELLED}. From any thread.
   */
  public void cancel() {
    ref.run(this, Flat::kvc_session_cancel);
  }

  /** Withdraws a cancel that came too late. From any thread. */
  public void clearCancel() {
    ref.runApart(this, Flat::kvc_session_clear_cancel);
  }

  /**
   * Another session with the same cache, which is shared until one of them writes.
   *
   * @return the session, to be closed
   */
  public Session fork() {
    return ref.get(this, h -> {
      long[] handle = new long[1];
      Flat.kvc_session_fork(h, handle);
      return new Session(handle[0], ref.memory());
    });
  }

  /**
   * Takes the newest tokens back.
   *
   * @param nTokens how many
   * @throws KvcException {@link Status#UNSUPPORTED} where an older one was evicted since
   */
  public void rewind(int nTokens) {
    ref.run(this, h -> Flat.kvc_session_rewind(h, nTokens));
  }

  /**
   * Writes the session to a file, whole or not at all. {@link Model#restore(String)} reads it.
   *
   * @param path of the file
   */
  public void save(String path) {
    Objects.requireNonNull(path, "path");
    ref.run(this, h -> Flat.kvc_session_save(h, Utf8.name(path, "path")));
  }

  /**
   * The session as bytes. {@link Model#restore(byte[])} reads them.
   *
   * @return what {@link #save(String)} would write
   */
  public byte[] save() {
    return ref.get(this, h -> Filled.array(0, byte[]::new, (data, n) -> {
      long[] bytes = new long[1];
      int status = Flat.kvc_session_save_memory(h, data, bytes);
      if (bytes[0] > Integer.MAX_VALUE - 8) {
        throw new KvcException(Status.UNSUPPORTED, bytes[0] + " bytes are too many for an array; save to a file");
      }
      n[0] = (int) bytes[0];
      return status;
    }));
  }

  /** Nothing that a thread at work would hear of as {@link Status#BUSY}. */
  @Override
  public String toString() {
    return ref.isClosed() ? "Session, closed" : "Session";
  }

  @Override
  public void close() {
    ref.close();
  }
}
