package dev.kvc;

/** What a session has done and holds, at one moment. */
public final class SessionStats {
  /** Tokens fed. */
  public final int nPrompt;
  /** Tokens generated. */
  public final int nAnswer;
  /** Times the cache was compressed. */
  public final int nCompactions;
  /** Bytes of the cache now. */
  public final long cacheBytes;
  /** Bytes of the cache at most so far. */
  public final long cacheBytesPeak;
  /** Bytes that a cache without compression would have. */
  public final long cacheBytesFull;
  /** Bytes of buffers beside the cache, at most so far. */
  public final long workspaceBytes;
  /** Bytes of the weights. */
  public final long weightBytes;
  /** Cached entries over all heads. */
  public final long nSlots;
  /** Cached entries without compression. */
  public final long nSlotsFull;
  /** Seconds of reading prompts, of which compressSeconds are a part. */
  public final double prefillSeconds;
  /** Seconds of compressing. */
  public final double compressSeconds;
  /** Seconds of generating. */
  public final double decodeSeconds;
  /** Token that ended the answer, until the next input; else -1. */
  public final int stopToken;
  /** Share that has been read of a queued prompt, 0 to 1; 1: none waits. */
  public final double promptProgress;
  /** Tokens of its text: what maxTokens bounds (unless onFull makes room), and a rewind takes from. */
  public final int nTokens;

  SessionStats(kvc_session_stats raw) {
    nPrompt = raw.getN_prompt();
    nAnswer = raw.getN_answer();
    nCompactions = raw.getN_compactions();
    cacheBytes = raw.getCache_bytes();
    cacheBytesPeak = raw.getCache_bytes_peak();
    cacheBytesFull = raw.getCache_bytes_full();
    workspaceBytes = raw.getWorkspace_bytes();
    weightBytes = raw.getWeight_bytes();
    nSlots = raw.getN_slots();
    nSlotsFull = raw.getN_slots_full();
    prefillSeconds = raw.getPrefill_seconds();
    compressSeconds = raw.getCompress_seconds();
    decodeSeconds = raw.getDecode_seconds();
    stopToken = raw.getStop_token();
    promptProgress = raw.getPrompt_progress();
    nTokens = raw.getN_tokens();
  }

  @Override
  public String toString() {
    return "SessionStats: " + nPrompt + " tokens fed, " + nAnswer + " generated, cache of " + cacheBytes
        + " bytes instead of " + cacheBytesFull;
  }
}
