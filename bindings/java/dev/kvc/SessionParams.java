package dev.kvc;

/** How a session is made. What is not set is the default. */
public final class SessionParams {
  private int maxTokens;
  private OnFull onFull = OnFull.ERROR;
  private Sampling sampling = new Sampling();

  /** What happens when a session holds as many tokens as it may. */
  public enum OnFull {
    /** {@link Status#CONTEXT_FULL}, the default. */
    ERROR(Flat.KVC_ON_FULL_ERROR),
    /** An old entry goes for each new one; positions go on counting. */
    EVICT(Flat.KVC_ON_FULL_EVICT),
    /** An old entry goes for each new one; positions are counted in slots, so the session can go on for ever. */
    SLIDE(Flat.KVC_ON_FULL_SLIDE);

    final int code;

    OnFull(int code) {
      this.code = code;
    }
  }

  /** All defaults. */
  public SessionParams() {}

  /**
   * Most tokens of prompt and answer together.
   *
   * @param tokens how many; 0, the default: the trained context of the model, or 2^26 where the policy drops at steps
   *     and counts positions in slots (streaming)
   * @return this
   */
  public SessionParams maxTokens(int tokens) {
    this.maxTokens = tokens;
    return this;
  }

  /**
   * What happens past maxTokens.
   *
   * @param onFull what; {@link OnFull#ERROR} is the default
   * @return this
   */
  public SessionParams onFull(OnFull onFull) {
    if (onFull == null) throw new NullPointerException("onFull");
    this.onFull = onFull;
    return this;
  }

  /**
   * How tokens are chosen. Only topK, topP, temperature and seed count for a session plan.
   *
   * @param sampling how; greedy is the default
   * @return this
   */
  public SessionParams sampling(Sampling sampling) {
    if (sampling == null) throw new NullPointerException("sampling");
    this.sampling = sampling;
    return this;
  }

  Sampling sampling() {
    return sampling;
  }

  kvc_session_params raw() {
    kvc_session_params raw = new kvc_session_params();
    raw.setMax_tokens(maxTokens);
    raw.setOn_full(onFull.code);
    sampling.into(raw);
    return raw;
  }
}
