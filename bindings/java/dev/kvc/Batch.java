package dev.kvc;

import java.util.Arrays;
import java.util.List;

/** A step of several sessions of one model in one pass over its weights. Each answers exactly as it would alone. */
public final class Batch {
  /** In {@link #tokens}: the session's prompt is still being read. */
  public static final int READING = Flat.KVC_TOKEN_READING;

  /** Of each session: its token, {@link Session#NO_TOKEN} or {@link #READING}. */
  public final int[] tokens;
  /** Of each session: what its own step would have come to. */
  public final Status[] statuses;

  /** Of each session: why its own step would have failed, for people; null where it is {@link Status#OK}. */
  public final String[] messages;

  private final int[] codes;
  /** What the library says of the last session that failed, in UTF-8, and how many bytes of it. */
  private byte[] text = new byte[1024];
  private final int[] nText = new int[1];

  private Batch(int sessions) {
    tokens = new int[sessions];
    codes = new int[sessions];
    statuses = new Status[sessions];
    messages = new String[sessions];
  }

  /**
   * One step of each session.
   *
   * @param sessions 1 to 256 of one model
   * @return what came of it for each
   * @throws KvcException where the batch cannot be; then no session has changed
   * @throws IllegalStateException where one of them is closed; then no session has changed either. One that is closed
   *     during the call has {@link Status#CANCELLED}, and does not stop the others
   */
  public static Batch step(List<Session> sessions) {
    return step(sessions, 0);
  }

  /**
   * One step of each session.
   *
   * @param sessions 1 to 256 of one model
   * @param promptTokens of queued prompts to read before it, about so many; 0: 256
   * @return what came of it for each
   * @throws KvcException where the batch cannot be; then no session has changed
   * @throws IllegalStateException where one of them is closed; then no session has changed either. One that is closed
   *     during the call has {@link Status#CANCELLED}, and does not stop the others
   */
  public static Batch step(List<Session> sessions, int promptTokens) {
    Batch made = new Batch(sessions.size());
    run(sessions, promptTokens, (handles, raw) ->
        Flat.kvc_batch_step(handles, raw, made.tokens, made.codes, made.text, made.nText));
    return made.read();
  }

  /**
   * The same for samplers of your own: logits to choose from and {@link Session#accept}.
   *
   * @param sessions 1 to 256 of one model
   * @param promptTokens of queued prompts to read before, about so many; 0: 256
   * @param logits [sessions, vocabulary] or more, row by row; that of a session that is reading is not written
   * @return READING or NO_TOKEN for each, and the statuses
   * @throws KvcException as {@link #step(List, int)}
   * @throws IllegalStateException as {@link #step(List, int)}
   */
  public static Batch logits(List<Session> sessions, int promptTokens, float[] logits) {
    Batch made = new Batch(sessions.size());
    int status = run(sessions, promptTokens, (handles, raw) ->
        Flat.kvc_batch_logits(handles, raw, logits, made.tokens, made.codes, made.text, made.nText));
    if (status != Flat.KVC_OK) throw new KvcException(Status.of(status), "logits: room for a row of each is needed");
    return made.read();
  }

  /** What the codes mean. */
  private Batch read() {
    boolean last = true;
    for (int i = codes.length - 1; i >= 0; --i) {
      statuses[i] = Status.of(codes[i]);
      if (codes[i] == Flat.KVC_OK) continue;
      byte[] known = last ? Arrays.copyOf(text, nText[0]) : Flat.kvc_flat_row_error(codes[i]);
      messages[i] = Utf8.decode(known, known.length);
      last = false;
    }
    text = null;
    return this;
  }

  private interface Call {
    int on(long[] handles, kvc_batch_params params);
  }

  private static int run(List<Session> sessions, int promptTokens, Call call) {
    NativeLibrary.load();
    long[] handles = new long[sessions.size()];
    int used = 0;
    try (kvc_batch_params raw = new kvc_batch_params()) {
      raw.setPrompt_tokens(promptTokens);
      for (Session session : sessions) handles[used++] = session.ref.enter(session);
      return call.on(handles, raw);
    } finally {
      for (int i = 0; i < sessions.size(); ++i) {
        if (handles[i] != 0) sessions.get(i).ref.leave();
      }
    }
  }
}
