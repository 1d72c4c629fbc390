// Runs the parts of a policy on one session's cache: score, allocate, select, merge, compact (methods.md 1.5
// and 1.6).
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/archive.h"
#include "lib/cache/attend.h"
#include "lib/compress/scoring.h"

namespace kvc {

struct CompressorShape {
  int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float scale = 1;
  const Rope* rope = nullptr;
  RopePairing pairing = RopePairing::kHalf;
};

// Head scores a policy was given or found in the model file.
struct HeadScores {
  std::vector<double> values;  // [L, G] or [L, H]; empty: none
  int32_t alpha = 0;           // chosen on validation; 0 = not
};

// What a prompt must have recorded.
struct PromptNeeds {
  int32_t window_rows = 0;
  bool column_sums = false;
  bool reread = false;
};

class Compressor {
 public:
  // kInvalid when policy, scores or storage do not fit the shape (message says which), kNotFound when scores
  // are missing.
  static Result<std::unique_ptr<Compressor>> Create(const Policy& policy, const CompressorShape& shape,
                                                    HeadScores scores, const OpContext& ops,
                                                    MemoryMeter* meter);

  const Policy& policy() const { return policy_; }
  int32_t n_aux() const { return n_aux_; }
  // Storage of every head; page_slots by the average budget (design.md 3).
  CacheConfig MakeCacheConfig(int32_t expected_tokens) const;
  CacheConfig FormatsFor(int32_t page_slots) const;

  // Before a prompt that brings every head to at most n_entries entries and the sequence to n_tokens tokens:
  // budgets and needs.
  Status BeginPrompt(int32_t n_tokens, PromptNeeds* needs);
  // Entries a KV head stores at most when `slots` are planned for it: query heads may each choose their own.
  int32_t StoredSlots(int32_t n_tokens, int32_t n_protected, int32_t slots) const;
  // Average slots per KV head for a sequence of n tokens.
  int32_t BudgetFor(int32_t n_tokens) const;
  // Bytes that no layer exceeds after a prompt unless what is always kept does; 0: no limit.
  int64_t LayerLimit() const {
    return codebook_ ? static_cast<int64_t>(policy_.Real(OptionId::kSpindleMaxBytes)) : 0;
  }
  // Slots of every head after a prompt of n tokens, [L, G]; dynamic allocators: the average of the layer.
  Status PlanSlots(int32_t n_tokens, std::vector<int32_t>* slots) const;

  // Compresses one layer of the prompt into the cache. compress false: keeps everything (side values are
  // still updated).
  Status CompressLayer(int layer, LayerKv* kv, Observation* observed, bool compress, KvCache* cache);

  // Token scores [len] that the last CompressLayer gave head g; for tests and reports. Null: nothing had to
  // be scored.
  const float* last_scores(int32_t g) const {
    return scored_ ? scores_.data() + g * scratch_stride_ : nullptr;
  }

  // Appends the entries [first[g], len) of a layer without touching older ones; only for scorers without side
  // values.
  Status AppendLayer(int layer, LayerKv* kv, const Observation& observed, const std::vector<int32_t>& first,
                     KvCache* cache);

  // Decode. Whether Attend must give probabilities.
  bool wants_probabilities() const { return wants_probabilities_; }
  // Steps 3 and 4 of 1.6 for one layer, after its attention. q [H, D] as Attend got it, new_values [G, D].
  void AfterAttend(int layer, const float* q, const float* new_values, AttendWorkspace* attended,
                   KvCache* cache);
  // Whether keys of the layer are stored with their rotation. In-cache sessions keep it until the first entry
  // is dropped.
  bool KeysRotated(int layer) const { return keys_rotated_[static_cast<size_t>(layer)] != 0; }
  // Turns loaded keys of a layer to their slots when they are stored without rotation.
  void RotateLoaded(int layer, LayerKv* kv) const;
  // How Attend must turn the stored keys of the layer.
  KeyRotation RotationOf(int layer) const {
    return KeysRotated(layer) ? KeyRotation::kStored
           : in_cache_        ? KeyRotation::kByRank
                              : KeyRotation::kByPosition;
  }
  bool in_cache() const { return in_cache_; }
  bool codebook() const { return codebook_; }
  // Rows of RoPE angles that Attend needs for heads of `longest` entries in a sequence of n tokens; 0: none.
  int32_t AngleRows(int32_t longest, int32_t n_tokens) const {
    return in_cache_ ? longest : codebook_ ? n_tokens : 0;
  }
  // Rows of the newest tokens that scoring needs and no side value remembers (kvc_session_compress and _trim
  // run them again).
  int32_t ReplayRows(int32_t n_tokens) const;
  // From now on every head of a sequence of n_tokens holds what it holds: an older entry (never the first
  // four) leaves for each new one. in_cache: positions too.
  void KeepLengths(const KvCache& cache, bool in_cache, int32_t n_tokens);
  bool keeps_lengths() const { return keep_lengths_; }
  // The same lengths again, after a prompt that compressed.
  void HoldLengths(const KvCache& cache);
  // Before n_new tokens of a prompt: takes as many old entries from the loaded layer as its heads have no
  // room for.
  void MakeRoom(int layer, int32_t n_new, LayerKv* kv);
  // The newest n tokens were taken back.
  void Rewind(int32_t n);
  // Replaces the budget by slots per KV head; kInvalid when the policy cannot have it. A budget of bytes
  // stays where so many slots of a sequence of n_tokens would take more.
  Status SetBudget(int32_t slots, int32_t n_tokens);
  // Makes room for a step over heads of max_len entries.
  Status ReserveStep(int32_t max_len);
  // True when some entry was dropped or merged since the last call.
  bool TakeChanged() {
    const bool c = changed_;
    changed_ = false;
    return c;
  }
  void Reset();
  Result<std::unique_ptr<Compressor>> Fork() const;
  int64_t bytes() const;
  const HeadScores& head_scores() const { return head_scores_; }
  // Budgets, lengths and observed queries, to a file of `version` or back. slides: KeepLengths is called with
  // in_cache, if at all. kBadModel for a state that nothing leaves.
  template <typename Archive>
  Status ArchiveState(Archive& archive, bool slides, uint32_t version);
  // Scratch to compress layers of at most `longest` entries.
  Status ReservePrompt(int32_t longest);
  // Entries a head may have between steps, [L, G]; only where decode evicts.
  const std::vector<int32_t>& caps() const { return caps_; }
  int32_t n_protected() const { return protect_.n_sink + protect_.n_recent; }
  MemoryMeter* meter() const { return meter_; }

 private:
  static constexpr int32_t kUnbounded = 1 << 28;  // a length no prompt has
  static constexpr int32_t kSinks = 4;  // on_full: StreamingLLM's published default (methods.md 2.2)
  Compressor(const Policy& policy, const CompressorShape& shape, HeadScores scores, const OpContext& ops,
             MemoryMeter* meter);
  static Result<std::unique_ptr<Compressor>> Build(const Policy& policy, const CompressorShape& shape,
                                                   HeadScores scores, const OpContext& ops,
                                                   MemoryMeter* meter);
  Status Validate();
  Status CheckRestored(bool slides) const;
  Status ReserveScoring(int32_t longest);
  AllocateInput AllocationFor(int32_t budget, int32_t n_tokens) const;
  Status PlanFor(const AllocateInput& in, std::vector<int32_t>* slots) const;
  Status PlanBytes(const CacheConfig& config, AllocateInput in, std::vector<int32_t>* slots) const;
  int64_t BytesOf(const CacheConfig& config, const AllocateInput& in,
                  const std::vector<int32_t>& slots) const;
  Status ChooseCounts(int layer, const LayerKv& kv, int32_t* counts);
  Status MarkKept(const SelectInput& in) const;
  Status MarkHead(int layer, int32_t g, const LayerKv& kv, int32_t count, int thread);
  void UnrotateKeys(LayerKv* kv, const std::vector<int32_t>& first, bool marked);
  void MergeInPrompt(int layer, LayerKv* kv);
  void AddColumnSums(const Observation& observed, LayerKv* kv);
  Status MarkLayer(int layer, const std::vector<int32_t>& counts, bool query_heads, LayerKv* kv,
                   bool* dropped);
  Status FitLayer(int layer, std::vector<int32_t> counts, LayerKv* kv, KvCache* cache);
  void ReduceHead(int layer, int32_t g, float* const* aux, const int32_t* positions, const float* scores,
                  KvCache* cache);
  void Rotate(int64_t position, float* x, int32_t n) const;
  void Unrotate(int32_t position, float* x, int32_t n) const;
  void DropRotation(int layer, KvCache* cache);
  float* RankLine(int i) { return decode_.data() + i * decode_stride_; }
  int32_t Cap(int layer, int32_t g) const {
    const size_t i = static_cast<size_t>(layer * shape_.n_kv_heads + g);
    return keep_lengths_ ? std::min(caps_[i], held_[i]) : caps_[i];
  }
  int32_t Held(int layer, int32_t g) const {
    return held_[static_cast<size_t>(layer * shape_.n_kv_heads + g)];
  }
  bool UnmarkOldest(int layer, const LayerKv& kv);
  bool QueryHeadsSeeTheirOwn() const;
  std::vector<double> ScoresPerKvHead() const;
  std::vector<int32_t> BitsOfHeads() const;
  int32_t PageSlotsForBytes() const;
  int32_t SlotsForBytes(const CacheConfig& config, int32_t n_tokens) const;
  Protected ProtectFor(int32_t budget) const;
  void MarkQueryHeads(int32_t g, const LayerKv& kv, int32_t count);
  bool Reobserves() const;
  float* RingRow(int layer, int32_t i);
  float* PushRow(int layer, const float* q);
  void PushPromptQueries(int layer, const LayerKv& kv, const Observation& observed);
  void PushStepQueries(int layer, const float* q, const KvCache& cache);
  void UnrotateRing(int32_t n_tokens);
  void ViewRing(int layer);
  void Reobserve(int layer, KvCache* cache);
  void MarkBest(int layer, int32_t g, int32_t n, const float* scores, const int32_t* positions, float* line);
  void RemoveUnmarked(int layer, int32_t g, KvCache* cache);
  void EvictOldest(int layer, int32_t g, KvCache* cache);

  Policy policy_;
  CompressorShape shape_;
  HeadScores head_scores_;
  OpContext ops_;
  MemoryMeter* meter_;
  int32_t n_aux_ = 0, scorer_aux_ = 0;
  int32_t accumulated_ = -1,
          accumulated_count_ = -1;  // side values that hold the summed attention and its rows, for merging
  bool wants_probabilities_ = false, changed_ = false, scored_ = false;
  bool codebook_ = false, in_cache_ = false, keep_lengths_ = false;
  int32_t budget_ = 0;
  Protected protect_;
  std::vector<int32_t> counts_;        // [L, G] candidates for the prompt at hand
  std::vector<int32_t> caps_;          // [L, G] entries at decode
  std::vector<int32_t> held_;          // [L, G] entries at most, where keep_lengths_
  std::vector<uint8_t> keys_rotated_;  // [L]

  ScoreScratch scratch_;
  int64_t scratch_stride_ = 0;
  Buffer<float> scores_, per_head_, rows_, lines_;
  Buffer<uint64_t> keys_;            // [threads, 2 * stride]
  Buffer<uint8_t> marks_;            // [G, stride]
  Buffer<uint32_t> seen_;            // [G, stride]
  Buffer<float> ring_;               // reobserve: [L, w, H, D] newest queries, row n % w is the next to go;
                                     // without rotation where positions are counted in slots
  std::vector<int32_t> ring_count_;  // [L] rows pushed, kept below 2 w
  LayerKv reobserved_;               // reobserve: one layer loaded back
  Observation ring_view_;
  Buffer<float> decode_;       // lines in rank order: p, scratch, scores, one line for selection, side values
  Buffer<int32_t> positions_;  // [decode_stride]
  Buffer<int32_t> links_;      // scratch of merging [3, stride]
  int64_t decode_stride_ = 0;
};

}  // namespace kvc
