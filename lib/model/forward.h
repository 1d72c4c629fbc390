// The network. Names no compression method: what happens to keys and values is up to the sinks, which the
// engine implements.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/call_state.h"
#include "lib/cache/layer_kv.h"
#include "lib/model/weights.h"
#include "lib/ops/ops.h"

namespace kvc {

// Everything a forward pass reads and never writes.
struct Network {
  const ModelConfig& config;
  const Weights& weights;
  const Rope& rope;
  OpContext ops;
};

// Where a prompt's keys and values go, layer by layer.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  // Fills kv with what the cache holds of the layer: keys rotated as attention needs them, kv->len set.
  virtual Status BeginLayer(int layer, LayerKv* kv) = 0;
  // The layer is complete: kv holds cached and new entries, observed what was asked for.
  virtual Status EndLayer(int layer, LayerKv* kv, Observation* observed) = 0;
};

// Tokens that are run behind a prompt only to see what they look at, in segments: each directly follows the
// prompt and none sees another. Nothing of them is kept.
struct Reread {
  std::vector<int32_t> tokens;
  std::vector<int32_t> ends;  // of every segment in tokens, ascending
  int32_t LongestSegment() const;
};

// What a prompt took beyond the network itself, in seconds.
struct PrefillExtras {
  double column_sums = 0, reread = 0;
};

struct PrefillRequest {
  const int32_t* tokens = nullptr;  // [n]
  int32_t n = 0;
  int32_t first_position = 0;       // of tokens[0] in the logical sequence
  int32_t max_cached = 0;           // longest head of the cache
  bool positions_in_cache = false;  // RoPE at the slot index of each head instead of the original position
  int32_t window_rows = 0;          // newest query rows to record
  bool column_sums = false;
  const Reread* reread = nullptr;  // null: none
  bool seen_masks = false;         // the cache may hold entries that only some query heads see
  int32_t n_aux = 0;
  PrefillSink* sink = nullptr;
  const CallState* call = nullptr;
  float* logits = nullptr;          // [V] of the last token
  PrefillExtras* extras = nullptr;  // added to, when wanted
};

// What one token does to one session's cache in one layer.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  // Whether keys of this layer are stored with their rotation (else q, k come unrotated).
  virtual bool KeysRotated(int layer) const = 0;
  // q [H, D], k, v [G, D] of the new token; writes the attention output [H, D].
  virtual void Attend(int layer, const float* q, const float* k, const float* v, float* out) = 0;
};

struct DecodeRow {
  int32_t token = 0, position = 0;
  DecodeSink* sink = nullptr;
  float* logits = nullptr;  // [V]
};

// Buffers of a forward pass; kept by a session between calls.
class ForwardWorkspace {
 public:
  Status ReservePrefill(const ModelConfig& config, const PrefillRequest& request, MemoryMeter* meter);
  // One layer's keys, values and zeroed column sums, without the buffers of a prompt.
  Status ReserveLayer(const ModelConfig& config, const PrefillRequest& request, MemoryMeter* meter,
                      LayerKv** kv, Observation** observed);
  Status ReserveDecode(const ModelConfig& config, int32_t n_rows, MemoryMeter* meter);
  void FreePrefill();
  int64_t bytes() const;
  int64_t layer_bytes() const;  // of the one layer at full length, part of bytes()

 private:
  friend class PrefillPass;
  friend class DecodePass;
  Buffer<float> residual_, block_, lse_;  // [n, hidden]; buffers of a chunk; [H, chunk]
  Buffer<float> decode_;
  Buffer<uint8_t> scratch_;  // of MatMul
  LayerKv kv_;
  Observation observed_;
};

// kCancelled at the next chunk when the call is cancelled. The sink has seen complete layers only.
Status Prefill(const Network& network, const PrefillRequest& request, ForwardWorkspace* workspace,
               MemoryMeter* meter);

// One token of each of n sessions; the weights are read once for all. Never fails, allocates nothing.
void Decode(const Network& network, const DecodeRow* rows, int32_t n, ForwardWorkspace* workspace);

}  // namespace kvc
