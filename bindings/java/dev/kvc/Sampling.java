package dev.kvc;

/** How the next token is chosen. What is not set is off; all off is greedy, the reproducible mode. */
public final class Sampling {
  private int topK;
  private float topP;
  private float temperature;
  private long seed;
  private float minP;
  private float repeatPenalty;
  private int repeatWindow;

  /** Greedy. */
  public Sampling() {}

  /**
   * Only the likeliest tokens.
   *
   * @param n how many of them; 0: off
   * @return this
   */
  public Sampling topK(int n) {
    topK = n;
    return this;
  }

  /**
   * Only the likeliest tokens that have this much of the probability together.
   *
   * @param share in (0, 1]; 0: off
   * @return this
   */
  public Sampling topP(float share) {
    topP = share;
    return this;
  }

  /**
   * How freely tokens are chosen.
   *
   * @param temperature 0: greedy
   * @return this
   */
  public Sampling temperature(float temperature) {
    this.temperature = temperature;
    return this;
  }

  /**
   * The same seed and input give the same text on any number of threads.
   *
   * @param seed any number
   * @return this
   */
  public Sampling seed(long seed) {
    this.seed = seed;
    return this;
  }

  /**
   * Only tokens of at least this share of the likeliest one's probability.
   *
   * @param share in (0, 1]; 0: off
   * @return this
   */
  public Sampling minP(float share) {
    minP = share;
    return this;
  }

  /**
   * Makes tokens that were there lately less likely.
   *
   * @param penalty their logits are divided by it where positive and multiplied where negative, to 100; 0 or 1: off
   * @param window how many of the newest tokens count, at most 512; 0: 64
   * @return this
   */
  public Sampling repeatPenalty(float penalty, int window) {
    repeatPenalty = penalty;
    repeatWindow = window;
    return this;
  }

  /** Whether a struct of session params, which has no fields for these, would lose them. */
  boolean isMore() {
    return minP != 0 || repeatPenalty != 0 || repeatWindow != 0;
  }

  void into(kvc_session_params raw) {
    raw.setTop_k(topK);
    raw.setTop_p(topP);
    raw.setTemperature(temperature);
    raw.setSeed(seed);
  }

  kvc_sampling raw() {
    kvc_sampling raw = new kvc_sampling();
    raw.setTop_k(topK);
    raw.setTop_p(topP);
    raw.setTemperature(temperature);
    raw.setSeed(seed);
    raw.setMin_p(minP);
    raw.setRepeat_penalty(repeatPenalty);
    raw.setRepeat_window(repeatWindow);
    return raw;
  }
}
