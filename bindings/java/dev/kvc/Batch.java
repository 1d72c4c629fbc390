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

  private Batch(int[] tokens, int[] codes) {
    this.tokens = tokens;
    statuses = Arrays.stream(codes).mapToObj(Status::of).toArray(Status[]::new);
  }

  /**
   * One step of each session.
   *
   * @param sessions 1 to 256 of one model
   * @return what came of it for each
   * @throws KvcException where the batch cannot be; then no session has changed
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
   */
  public static Batch step(List<Session> sessions, int promptTokens) {
    int[] tokens = new int[sessions.size()];
    int[] codes = new int[sessions.size()];
    run(sessions, promptTokens, (handles, raw) -> Flat.kvc_batch_step(handles, raw, tokens, codes));
    return new Batch(tokens, codes);
  }

  /**
   * The same for samplers of your own: logits to choose from and {@link Session#accept}.
   *
   * @param sessions 1 to 256 of one model
   * @param promptTokens of queued prompts to read before, about so many; 0: 256
   * @param logits [sessions, vocabulary] or more, row by row; that of a session that is reading is not written
   * @return READING or NO_TOKEN for each, and the statuses
   */
  public static Batch logits(List<Session> sessions, int promptTokens, float[] logits) {
    int[] tokens = new int[sessions.size()];
    int[] codes = new int[sessions.size()];
    int status = run(sessions, promptTokens, (handles, raw) ->
        Flat.kvc_batch_logits(handles, raw, logits, tokens, codes));
    if (status != Flat.KVC_OK) throw new KvcException(Status.of(status), "logits: room for a row of each is needed");
    return new Batch(tokens, codes);
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
      for (Session session : sessions) handles[used++] = session.ref.enter();
      return call.on(handles, raw);
    } finally {
      for (int i = 0; i < sessions.size(); ++i) {
        if (handles[i] != 0) sessions.get(i).ref.leave();
      }
    }
  }
}
