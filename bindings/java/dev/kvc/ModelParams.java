package dev.kvc;

/** How a model is opened. What is not set is the default. */
public final class ModelParams {
  private String device;
  private int threads;
  private long memoryLimit;
  private boolean trusted;
  private boolean planOnly;

  /** All defaults. */
  public ModelParams() {}

  /**
   * Where the model runs.
   *
   * @param device "auto", the default, or a name of {@link Kvc#devices}
   * @return this
   */
  public ModelParams device(String device) {
    this.device = device;
    return this;
  }

  /**
   * Threads of the processor, the caller's included.
   *
   * @param threads how many; 0, the default: one for each processor that the process may use (affinity, control
   *     groups), slow ones of big.LITTLE not counted
   * @return this
   */
  public ModelParams threads(int threads) {
    this.threads = threads;
    return this;
  }

  /**
   * Past it calls fail with {@link Status#MEMORY}.
   *
   * @param bytes of weights, tokenizer, caches and workspace; 0, the default: no limit
   * @return this
   */
  public ModelParams memoryLimit(long bytes) {
    this.memoryLimit = bytes;
    return this;
  }

  /**
   * Opens without reading all of the weights first.
   *
   * @param trusted whether the file was verified before (opened without this) and nobody else writes it; false, the
   *     default: everything in it is verified
   * @return this
   */
  public ModelParams trusted(boolean trusted) {
    this.trusted = trusted;
    return this;
  }

  /**
   * Opens for plans, texts and what the file says of itself: the weights are neither read nor counted.
   *
   * @param planOnly whether a session of this model is {@link Status#UNSUPPORTED}; false, the default: it runs
   * @return this
   */
  public ModelParams planOnly(boolean planOnly) {
    this.planOnly = planOnly;
    return this;
  }

  interface Call {
    void on(byte[] device, kvc_model_params params);
  }

  static void with(ModelParams params, Call call) {
    try (kvc_model_params raw = new kvc_model_params()) {
      if (params != null) {
        raw.setN_threads(params.threads);
        raw.setMemory_limit(params.memoryLimit);
        raw.setTrusted(params.trusted ? 1 : 0);
        raw.setPlan_only(params.planOnly ? 1 : 0);
      }
      call.on(params == null ? null : Utf8.name(params.device, "device"), raw);
    }
  }
}
