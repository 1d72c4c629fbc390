package dev.kvc;

/** What a session would take. Real use stays within 5 % of it. */
public final class Plan {
  /** Tokens planned for. */
  public final int nPrompt;
  /** Bytes of the weights. */
  public final long weightBytes;
  /** Bytes of buffers beside the cache. */
  public final long workspaceBytes;
  /** Bytes of the cache during prefill: one full layer and the compressed ones. */
  public final long cacheBytesPeak;
  /** Bytes of the cache after prefill. */
  public final long cacheBytesPrompt;
  /** Bytes of the cache at maxTokens. */
  public final long cacheBytesEnd;
  /** Bytes of the cache at maxTokens without compression. */
  public final long cacheBytesFull;
  /** Bytes of weights, workspace and cache at the worst moment. */
  public final long totalBytesPeak;
  /** Slots after the prompt, [layers, KV heads]; of methods that split by the prompt their expectation. */
  public final int[] slots;

  Plan(kvc_plan raw, int[] slots) {
    nPrompt = raw.getN_prompt();
    weightBytes = raw.getWeight_bytes();
    workspaceBytes = raw.getWorkspace_bytes();
    cacheBytesPeak = raw.getCache_bytes_peak();
    cacheBytesPrompt = raw.getCache_bytes_prompt();
    cacheBytesEnd = raw.getCache_bytes_end();
    cacheBytesFull = raw.getCache_bytes_full();
    totalBytesPeak = raw.getTotal_bytes_peak();
    this.slots = slots;
  }

  @Override
  public String toString() {
    return "Plan for " + nPrompt + " tokens: " + totalBytesPeak + " bytes at most, cache of " + cacheBytesPrompt
        + " bytes after the prompt, " + cacheBytesEnd + " at the end instead of " + cacheBytesFull;
  }
}
