// The parts of a layer that know no cache: over n rows, each a token of some session. n rows of one input
// give the same bits as one row each (DeviceInfo::batch_invariant).
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "lib/ops/device_memory.h"
#include "lib/ops/tensor.h"

namespace kvc {

// What a matrix is for: products, and rows that are looked up besides; or rows only (Embed).
enum class MatrixUse : uint8_t { kProducts, kRows };

// A matrix as a device wants it: one or more tensors of a file with the same columns, rows behind each other.
// Device::Prepare makes it; only the device that made it looks inside. What it took is given back by
// Device::Free.
struct Matrix {
  static constexpr int kMaxParts = 3;
  struct Part {
    WeightType type = WeightType::kF32;
    WeightLayout layout = WeightLayout::kRowMajor;
    int32_t rows = 0, group = 0;
    DevicePtr<const uint8_t> data;
    DevicePtr<const uint16_t> scales;
    DevicePtr<const float> bias;
    float factor = 1;  // of every number: a power of two, where a device has made its own form of them
  };
  int32_t n_parts = 0, cols = 0;
  int32_t stack = 1;  // of every part: matrices of rows / stack rows each
  Part parts[kMaxParts];
  DeviceBytes memory;  // [bytes] of the device's own form; null where the tensors are used as they lie
  int64_t bytes = 0;
  int32_t rows() const {
    int32_t n = 0;
    for (int i = 0; i < n_parts; ++i) n += parts[i].rows;
    return n;
  }
};

// A vector of a file as a device wants it; memory as of a matrix.
struct Vector {
  DevicePtr<const float> at;
  DeviceBytes memory;
  int64_t bytes = 0;
};

// kClampedSwiglu, gate and up cut off at a limit: (up + 1) * gate * sigmoid(gain * gate).
enum class Activation : uint8_t { kSilu = 0, kGeluTanh = 1, kClampedSwiglu = 2 };

struct LayerMatrices {
  DevicePtr<const float> attention_norm, ffn_norm;            // [hidden]; null: none
  DevicePtr<const float> attention_post_norm, ffn_post_norm;  // of what a block adds; null: none
  DevicePtr<const float> query_norm, key_norm;                // [D] per head, null: none
  // Of layer norms. Null: attention_norm and ffn_norm are RMS norms, and so are those of heads.
  DevicePtr<const float> attention_norm_bias, ffn_norm_bias;
  Matrix qkv;  // query, key, value
  Matrix output;
  Matrix gate_up;  // gate, up; of all experts where there are some
  Matrix down;
  Matrix router;                   // where there are experts: a logit for each
  bool normalise_experts = false;  // the weights of the chosen experts add up to 1
  Activation activation = Activation::kSilu;
  float activation_gain = 0, activation_limit = 0;  // kClampedSwiglu
  // [H] logits that join every softmax of the layer's attention and have no value; null: none.
  DevicePtr<const float> sinks;
  bool wide_norms = false;  // query_norm [H * D] and key_norm [G * D] are over all heads of a token together
  bool own_norms = false;   // query_norm [H, D] and key_norm [G, D]: every head has its own
};

struct NetworkShape {
  int32_t hidden = 0, ffn = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, vocab = 0;
  float norm_eps = 1e-5f;
  // A mixture of experts, each with ffn; a token's feed-forward part is what its chosen ones give, by weights
  // that are the softmax over all logits of the router. 0: one feed-forward part, of all tokens.
  int32_t n_experts = 0, n_chosen = 0;
  bool layer_norms = false;      // every norm takes the mean off; those with a bias in LayerMatrices add it
  bool parallel_blocks = false;  // the feed-forward part reads x as it was before the attention's output
  // Of some matrix that every row meets: f16 or bf16; codes; of those q4_k, or with a scale for fewer than 32
  // columns. Scratch may depend on it.
  bool half_weights = false, coded_weights = false, fine_codes = false;
  bool f32_weights = false;  // of some matrix of a layer: what stands between products is wanted as it is
};

// Rows in half their memory: row i of x is factors[i], a power of two (half_rows.h), times its numbers of
// f16.
struct HalfRowsArgs {
  DevicePtr<float> x;          // [n, width]
  DevicePtr<uint16_t> halves;  // [n, width]
  DevicePtr<float> factors;    // [n]
  int32_t n, width;
};

// Row i of the table by token. scale: of every element.
struct EmbedArgs {
  const NetworkShape* shape;
  const Matrix* table;
  const int32_t* tokens;
  int32_t n;
  float scale;
  DevicePtr<float> x;  // [n, hidden]
};

// q [n, H, D], k, v [n, G, D] of the residual x [n, hidden], per-head norms applied, not rotated.
struct ProjectArgs {
  const NetworkShape* shape;
  const LayerMatrices* w;
  DevicePtr<const float> x;
  int32_t n;
  DevicePtr<float> q, k, v;
  DeviceBytes scratch;
};

// x += output(attended); x += ffn(norm(x)), where parallel_blocks of x before the first. Experts: those with
// the largest logits are chosen, of equal ones the one with the lower number; what they give is added in the
// order of their numbers.
struct FinishArgs {
  const NetworkShape* shape;
  const LayerMatrices* w;
  DevicePtr<const float> attended;  // [n, H * D]
  int32_t n;
  float scale;  // of what each block adds
  DevicePtr<float> x;
  DeviceBytes scratch;
};

// logits [n, vocab] of x [n, hidden], times scale, capped.
struct LogitsArgs {
  const NetworkShape* shape;
  DevicePtr<const float> final_norm;
  const Matrix* head;
  DevicePtr<const float> x;
  int32_t n;
  float scale;
  DevicePtr<float> logits;
  DeviceBytes scratch;
  float cap = 0;  // logits = cap * tanh(logits / cap) once scaled; 0: as they are
  DevicePtr<const float> final_norm_bias = {};  // of a layer norm
};

// What is added to a token's logit; -infinity: it is never chosen.
struct TokenBias {
  int32_t token;
  float bias;
};

// One token from logits [n], which are changed first: penalty, biases, mask. temperature 0: greedy, the
// lowest id among equals. Lists and mask are on the host.
struct SampleRow {
  DevicePtr<float> logits;
  Span<const int32_t> repeated;       // different tokens: their logits are divided by repeat_penalty where
  float repeat_penalty = 1;           // positive, else multiplied
  Span<const TokenBias> biases;       // ascending by token; added, those of one token in their order
  const uint32_t* allowed = nullptr;  // [(n + 31) / 32] bits of the tokens that may be chosen; null: all
  float temperature = 0;
  float top_p = 0;    // of the likeliest tokens, as few as reach this share; 0 or 1: all
  int32_t top_k = 0;  // only so many of the likeliest; 0: all
  float min_p = 0;    // only those of at least this share of the likeliest one's probability; 0: all
  uint64_t seed = 0;
  int64_t draw = 0;  // number of the draw: same logits, seed and number, same token
  bool draws() const { return temperature > 0; }
};

// Tokens of several rows, at most DeviceInfo::sample_rows.
struct SampleArgs {
  Span<const SampleRow> rows;
  int32_t n = 0;
  DevicePtr<float> weights;   // scratch [rows that draw, n]
  int32_t* tokens = nullptr;  // [rows]; -1: no logit is a finite number
};

}  // namespace kvc
