// The network: which operations a token passes, in which order. Names no compression method and no
// architecture: what happens to keys and values is up to the sinks, which the engine implements, and layers
// differ by their data.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/call_state.h"
#include "lib/cache/layer_kv.h"
#include "lib/model/prompt_residual.h"
#include "lib/model/reread.h"
#include "lib/model/weights.h"

namespace kvc {

// Everything a forward pass reads and never writes.
struct Network {
  const ModelConfig* config = nullptr;
  const Weights* weights = nullptr;
  const Rope* const* ropes = nullptr;  // [L]
  Device* device = nullptr;
  float AttentionScale() const;
  // Of keys and values of a layer at full length whose entries go to a cache of this layout: f32, or f16
  // where the device has such layers and nothing asks for more: weights and pages have 16 bits or fewer.
  KvType LayerType(const CacheLayout& layout) const;
};

// ---- prompts ----

// Where a prompt's keys and values go, layer by layer.
class PromptSink {
 public:
  virtual ~PromptSink() = default;
  // Fills kv with what the cache holds of the layer: keys turned as attention needs them.
  virtual Status BeginLayer(int layer, LayerBuffers* kv) = 0;
  // The layer is complete: kv holds cached and new entries, observed what was asked for.
  virtual Status EndLayer(int layer, LayerBuffers* kv, ObservedBuffers* observed) = 0;
};

// Prompt tokens worked on at once by methods that read parts of a prompt again: what they make of one depends
// on it. All others go by the device (DeviceInfo::prompt_rows).
constexpr int32_t kPromptChunk = 256;

// What a prompt took beyond the network itself, in seconds.
struct PromptExtras {
  double column_sums = 0, reread = 0;
};

struct PromptRequest {
  const int32_t* tokens = nullptr;  // [n], kept by the caller until the prompt is done
  int32_t n = 0;
  int32_t first_position = 0;       // of tokens[0] in the logical sequence
  int32_t max_cached = 0;           // longest head of the cache
  bool positions_in_cache = false;  // RoPE at the slot index of each head instead of the original position
  const uint8_t* slides =
      nullptr;              // [L] layers of which nothing is recorded, at original positions; null: none
  int32_t window_rows = 0;  // newest query rows to record
  bool column_sums = false;
  const Reread* reread = nullptr;    // null: none
  bool seen_masks = false;           // the cache may hold entries that only some query heads see
  KvType layer_type = KvType::kF32;  // Network::LayerType of all caches that it goes to
  int32_t n_aux = 0;
  PromptSink* sink = nullptr;
};

// What a chunk of a prompt is worked on in. Holds nothing between chunks.
class ChunkBuffers {
 public:
  Status Reserve(const Network& network, const PromptRequest& request, const DeviceMemory& memory);
  void Free();
  int64_t bytes() const;

 private:
  friend class PromptRun;
  DeviceBuffer<float> q_, k_, v_, attended_, lse_;
  DeviceBuffer<uint8_t> network_, place_, fold_;
  int64_t fold_entries_ = 0;  // of a head, that fold_ is for
};

// A prompt that advances by chunks: layer by layer, within a layer a few hundred tokens at a time.
class PromptRun {
 public:
  // One layer at full length, and the activations of all tokens between layers. Before the first Advance.
  Status Begin(const Network& network, const PromptRequest& request, const DeviceMemory& memory);
  // Work on one chunk in one layer. side (Device::NewSideStream, or null): beside what the sink does at the
  // end of a layer, the rows of its last chunk go through the rest of it there; `stream` follows in the end.
  Status Advance(Stream* stream, Stream* side, ChunkBuffers* buffers);
  bool done() const { return layer_ == n_layers_; }
  // Of the last token, once done: [hidden], what Heads takes.
  DevicePtr<float> last_row() const { return residual_.last(); }
  double progress() const;  // 0 .. 1, by chunks
  void Free();
  int64_t bytes() const {
    return residual_.bytes() + layer_bytes() + observed_.bytes() + seen_.bytes() + remembered_.bytes();
  }
  int64_t layer_bytes() const { return kv_.bytes(); }  // of the one layer at full length
  const PromptExtras& extras() const { return extras_; }

 private:
  // Rows of the residual or of what is remembered, and where they stand: behind base entries of each head.
  struct Rows {
    LayerView layer;
    PromptRows where;
    int32_t first_position;  // of the row with offset 0
    int32_t row;
  };
  // finish: what goes on behind the attention of rows goes on there; `stream`, or one beside it.
  struct Streams {
    Stream *stream, *finish;
  };
  Status Embed(Stream* stream, const Rows& rows);
  Status BeginLayer(Stream* stream);
  Status EndLayer();
  Status Read(const Streams& s, const PromptTask& task, ChunkBuffers* b);
  Status ReadFirst(const Streams& s, const PromptTask& task, ChunkBuffers* b);
  Status ReadAgain(const Streams& s, const PromptTask& task, ChunkBuffers* b);
  Status Project(Stream* stream, const Rows& rows, ChunkBuffers* b);
  Status Place(Stream* stream, const Rows& rows, ChunkBuffers* b);
  // goes_on: something comes of the rows' attention; columns: it is folded.
  PromptAttentionArgs AttentionOf(const Rows& rows, bool goes_on, bool columns, ChunkBuffers* b) const;
  Status Finish(const Streams& s, const Rows& rows, int32_t skip, ChunkBuffers* b);
  Status RecordWindow(Stream* stream, const Rows& rows, ChunkBuffers* b);
  ColumnArgs ColumnsOf(const Rows& rows, int32_t limit, DevicePtr<float> into, ColumnFold fold,
                       ChunkBuffers* b) const;
  KeyTurning turning() const;
  bool Slides() const { return request_.slides != nullptr && request_.slides[layer_] != 0; }

  Network network_;
  PromptRequest request_;
  PromptResidual residual_;
  LayerBuffers kv_;
  ObservedBuffers observed_;
  SeenLayer seen_;             // by rows that do not see everything
  RememberedRows remembered_;  // rows of the prompt that are read again as they are
  PromptExtras extras_;
  int32_t chunk_ = 0;          // tokens
  std::vector<int32_t> base_;  // [G] entries cached before the prompt
  std::vector<PromptTask> tasks_;
  size_t task_ = 0;  // of the layer, the next
  int32_t n_layers_ = -1, layer_ = 0;
};

// ---- steps ----

// Called between the operations of a step.
class StepSink {
 public:
  virtual ~StepSink() = default;
  virtual Status AfterAttention(int layer, const StepArgs& args) = 0;
};

// What steps are worked on in, for so many rows.
class StepBuffers {
 public:
  Status Reserve(const Network& network, int32_t n_rows, const DeviceMemory& memory);
  void Free();
  // shape: as Step will get it.
  Status ReserveAttention(const StepShape& shape, const DeviceMemory& memory);
  int64_t bytes() const;
  // Room to make logits of n_rows rows.
  Status ReserveHeads(const Network& network, int32_t n_rows, const DeviceMemory& memory);
  DevicePtr<float> x() const { return x_.at(); }            // [rows, hidden], what Heads takes
  DevicePtr<float> logits() const { return logits_.at(); }  // [rows of Heads, V]

 private:
  friend Status RunSteps(const Network&, Stream*, const int32_t*, const StepRow*, int32_t, const StepShape&,
                         const AngleTable*, StepSink*, StepBuffers*);
  friend Status Heads(const Network&, Stream*, const DevicePtr<float>*, int32_t, StepBuffers*);
  DeviceBuffer<float> x_, q_, k_, v_, attended_, picked_, logits_;
  DeviceBuffer<uint8_t> network_, attention_;
};

// One token each of n rows, in order; rows of one session follow each other. The weights are read once for
// all. angles [L]: where some row turns keys at every step. sink: null, or called in every layer. Afterwards
// buffers->x() has the rows.
Status RunSteps(const Network& network, Stream* stream, const int32_t* tokens, const StepRow* rows, int32_t n,
                const StepShape& shape, const AngleTable* angles, StepSink* sink, StepBuffers* buffers);

// The logits of n rows x[i] [hidden], each where some step or prompt left it, into buffers->logits().
Status Heads(const Network& network, Stream* stream, const DevicePtr<float>* x, int32_t n,
             StepBuffers* buffers);

}  // namespace kvc
