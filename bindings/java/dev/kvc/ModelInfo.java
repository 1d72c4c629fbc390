package dev.kvc;

/** What a model is: dimensions, special tokens, sizes. */
public final class ModelInfo {
  /** Layers. */
  public final int nLayers;
  /** Query heads of a layer. */
  public final int nHeads;
  /** KV heads of a layer. */
  public final int nKvHeads;
  /** Elements of a head. */
  public final int headDim;
  /** Elements of a hidden state. */
  public final int hiddenSize;
  /** Elements inside a feed-forward block. */
  public final int ffnSize;
  /** Tokens there are. */
  public final int vocabSize;
  /** Trained context, in tokens. */
  public final int maxTokens;
  /** Token at the beginning, or -1. */
  public final int bosToken;
  /** Token at the end, or -1. */
  public final int eosToken;
  /** Head-score tables in the file. */
  public final int nHeadScores;
  /** Bytes of the weights. */
  public final long weightBytes;
  /** Parameters. */
  public final long nParameters;

  ModelInfo(kvc_model_info raw) {
    nLayers = raw.getN_layers();
    nHeads = raw.getN_heads();
    nKvHeads = raw.getN_kv_heads();
    headDim = raw.getHead_dim();
    hiddenSize = raw.getHidden_size();
    ffnSize = raw.getFfn_size();
    vocabSize = raw.getVocab_size();
    maxTokens = raw.getMax_tokens();
    bosToken = raw.getBos_token();
    eosToken = raw.getEos_token();
    nHeadScores = raw.getN_head_scores();
    weightBytes = raw.getWeight_bytes();
    nParameters = raw.getN_parameters();
  }
}
