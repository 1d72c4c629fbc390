// The method of one session: what its policy has decided so far, and what is to be done next. Its parts:
// StoragePlan (what the policy means for the model), the prompt side (prompt_compressor.cc), the step side
// (step_method.cc). It holds records; bytes are worked on by the device, in buffers that the caller lends.
#pragma once
#include <memory>
#include <vector>

#include "lib/base/archive.h"
#include "lib/compress/storage_plan.h"
#include "lib/compress/waiting_scores.h"

namespace kvc {

// What a prompt must have recorded.
struct PromptNeeds {
  int32_t window_rows = 0;
  bool column_sums = false;
  SecondReading reading;
};

// How keys are turned, and how large attention logits are: the same for all sessions of a model.
struct AttentionRule {
  const Rope* const* ropes = nullptr;  // [L]
  RopePairing pairing = RopePairing::kHalf;
  float scale = 1;
  float cap = 0;                                  // 0: none
  const DevicePtr<const float>* sinks = nullptr;  // [L] of each layer's query heads [H], or null
};

// Buffers to choose entries in, for layers of heads of at most `longest` entries.
class ChoiceBuffers {
 public:
  // For layers of at most `longest` entries that this program scores by at most n_rows rows.
  Status Reserve(const DeviceMemory& memory, const StoragePlan& plan, const ScoreProgram& program,
                 int64_t longest, int32_t n_rows);
  void Free();
  int64_t bytes() const;

  int64_t stride = 0;
  DeviceBuffer<float> scores, per_head;  // [G, stride], [H, stride]
  DeviceBuffer<uint8_t> marks;           // [G, stride]
  DeviceBuffer<uint32_t> seen;           // [G, stride], where query heads choose for themselves
  DeviceBuffer<uint8_t> scratch;         // of scoring, choosing, merging
  DeviceBuffer<uint8_t> codes;           // of storing
};

// What the work on one layer takes place in.
struct LayerWork {
  Device* device;
  Stream* stream;
  MemoryMeter* meter;
  ChoiceBuffers* choice;
  DeviceMemory memory() const { return {device, meter}; }
};

class Compressor {
 public:
  // kInvalid when policy, scores or storage do not fit the shape (message says which), kNotFound when scores
  // are missing. slides: KeepLengths may be called with in_cache.
  static Result<std::unique_ptr<Compressor>> Create(const Policy& policy, const ModelShape& shape,
                                                    HeadScores scores, bool slides, const AttentionRule& rule,
                                                    const DeviceMemory& memory);
  Result<std::unique_ptr<Compressor>> Fork(Stream* stream) const;
  void Reset();

  const StoragePlan& plan() const { return plan_; }
  const Policy& policy() const { return plan_.policy(); }
  int64_t bytes() const { return ring_.bytes(); }
  // Whether a layer holds its window, and the policy has no say in it. [L], or null: none does.
  bool slides(int32_t layer) const { return !slides_.empty() && slides_[static_cast<size_t>(layer)] != 0; }
  const std::vector<uint8_t>& sliding_layers() const { return slides_; }

  // ---- prompts ----
  // Before a prompt that brings the sequence to n_tokens tokens: budgets and needs. compress: as in
  // StoreLayer; what scores have split otherwise stays as it is. cache: what there is before n_new of the
  // tokens; null: nothing is known of it.
  Status BeginPrompt(int32_t n_tokens, PromptNeeds* needs, bool compress = true,
                     const KvCache* cache = nullptr, int32_t n_new = 0);
  Status ReservePrompt(const DeviceMemory& memory, int32_t longest, int32_t n_rows,
                       ChoiceBuffers* choice) const;
  // What scoring, choosing and storing a layer of so many entries need, of which n_rows rows were recorded.
  Status ReserveChoice(const DeviceMemory& memory, int64_t longest, int32_t n_rows,
                       ChoiceBuffers* choice) const;
  // Fills kv with what is cached of a layer, keys as the prompt's attention needs them, and makes room for
  // n_new tokens where heads hold their lengths; kNothingComes: as it is.
  static constexpr int32_t kNothingComes = -1;
  Status LoadLayer(const LayerWork& work, int32_t layer, int32_t n_new, const KvCache& cache,
                   LayerBuffers* kv);
  // Compresses one layer of the prompt into the cache. compress false: keeps everything (side values are
  // still updated). n_before [G]: entries each head had before the prompt.
  Status StoreLayer(const LayerWork& work, int32_t layer, const LayerBuffers& kv,
                    const ObservedBuffers& observed, bool compress, const std::vector<int32_t>& n_before,
                    KvCache* cache);
  // Where layers share one budget a prompt is stored whole. When its last layer is: the scores of every
  // layer, which LoadLayer has filled or which are here from when it was stored, then the counts; then
  // StoreLayer takes every layer again.
  bool waits_for_all_layers() const { return !policy().keeps_all() && policy().allocator->across_layers; }
  bool HasScores(int32_t layer) const { return waiting_.Has(WaitingLine(layer, 0)); }
  // Before a prompt after which no head has more than `longest` entries; before layers are compared. Nothing
  // where nothing waits.
  Status ReserveWaiting(MemoryMeter* meter, int64_t longest);
  Status ReserveComparison(MemoryMeter* meter, int64_t longest);
  int64_t waiting_bytes() const { return waiting_.bytes(); }
  Status AddScores(const LayerWork& work, int32_t layer, const LayerBuffers& kv,
                   const ObservedBuffers& observed);
  void ChooseAcrossLayers();
  void EndAcrossLayers() { waiting_.Free(), reduces_all_ = false; }
  // Positions of the prompt's rows count in slots.
  bool in_cache() const { return in_cache_; }
  // How a layer's keys are turned when they are attended.
  KeyTurning turning(int32_t layer) const {
    return {rule_.ropes[layer], rule_.pairing, in_cache_ && !slides(layer)};
  }
  // Whether the last StoreLayer scored: token scores [G, stride] are in choice->scores then. For tests and
  // reports.
  bool scored() const { return scored_; }

  // ---- steps ----
  // For Device::Step; valid as long as the compressor stays where it is.
  const StepPlan& step_plan() {
    if (step_stale_) MakeStepPlan();
    return step_;
  }
  // The same; the attention of the newest token goes to `attention`, null: nowhere.
  const StepPlan& StepPlanWith(DevicePtr<float> attention, int64_t stride);
  // Whether a step may write any entry, not only the newest.
  bool writes_all() const {
    return plan_.n_aux() > 0 || plan_.evicts_at_steps() || plan_.reobserves() || keep_lengths_;
  }
  // Whether keys may be turned at every step.
  bool turns_keys() const { return plan_.codebook() || in_cache_; }
  bool ends_later() const { return plan_.reobserves(); }
  // Whether a head that is above its length goes far below it.
  bool drops_several() const { return plan_.reobserves() || step_.select.kind == SelectKind::kLowest; }
  // After a step's attention over a layer, where ends_later: whether a head is above its budget by more than
  // the slack, and then its entries scored again and those beyond the budget dropped.
  bool IsOver(int32_t layer, const KvCache& cache) const;
  Status Reobserve(const LayerWork& work, int32_t layer, LayerBuffers* kv, ObservedBuffers* observed,
                   KvCache* cache);
  // Entries of the longest head that Reobserve may load, or that is turned: of layers that do not slide.
  int32_t LongestHead(const KvCache& cache) const;

  // ---- the end of the context ----
  // From now on every head of a sequence of n_tokens holds what it holds: an older entry (never the first
  // four) leaves for each new one. in_cache: positions are counted in slots too.
  Status KeepLengths(Device* device, Stream* stream, const KvCache& cache, bool in_cache, int32_t n_tokens);
  bool keeps_lengths() const { return keep_lengths_; }
  // As if KeepLengths had not been called, where no token came since. Queries that lost their rotation with
  // it stay as they are, and then everything does.
  void ForgetLengths();
  // The same lengths again, after a prompt that compressed.
  void HoldLengths(const KvCache& cache);

  // The newest n tokens were taken back.
  void Rewind(int32_t n);
  Status SetBudget(int32_t slots, int32_t n_tokens) {
    step_stale_ = true;
    return plan_.SetBudget(slots, n_tokens);
  }
  Status SetReplacedBytes(double bytes) { return plan_.SetReplacedBytes(bytes); }
  // True when a prompt, or Reobserve, dropped or merged some entry since the last call.
  bool TakeChanged() {
    const bool c = changed_;
    changed_ = false;
    return c;
  }
  // Budgets, lengths and observed queries, to a file or back. slides: KeepLengths is called with in_cache, if
  // at all. kBadModel for a state that nothing leaves.
  template <typename Archive>
  Status ArchiveState(Archive& archive, bool slides, Device* device, Stream* stream);
  // Entries a head may have between steps, [L, G]; only where decode evicts.
  const std::vector<int32_t>& caps() const { return caps_; }
  // Entries a head has whatever the scores are: the protected part, and the one that stands for the rest.
  int32_t n_protected() const { return protect_.n_sink + protect_.n_recent + policy().n_rest(); }

 private:
  static constexpr int32_t kUnbounded = StoragePlan::kUnbounded;
  static constexpr int32_t kSinks = 4;  // on_full: StreamingLLM's published default (methods.md 2.2)
  Compressor(StoragePlan plan, const AttentionRule& rule);
  static Result<std::unique_ptr<Compressor>> Make(StoragePlan plan, const AttentionRule& rule,
                                                  const DeviceMemory& memory);
  size_t At(int32_t layer, int32_t g) const {
    return static_cast<size_t>(layer * plan_.shape().n_kv_heads + g);
  }
  DevicePtr<float> RingAt(int32_t layer) const;
  Status PlanBudgets(int32_t n_tokens, const KvCache* cache, int32_t n_new);
  bool SplitByScores() const;
  Status StoreWindow(const LayerWork& work, int32_t layer, const LayerBuffers& kv, bool compress,
                     const std::vector<int32_t>& n_before, KvCache* cache);
  SelectRule SelectRuleNow() const;
  MergeRule MergeRuleNow() const;
  ScoreProgram PromptProgram() const;
  // One layer while it is chosen from.
  struct LayerChoice {
    const LayerWork& work;
    int32_t layer;
    const LayerBuffers& kv;
    const ObservedBuffers& observed;
    std::vector<int32_t>& counts;   // [G] candidates
    std::vector<int32_t>& kept;     // [G] entries that are marked
    std::vector<uint8_t>& all_see;  // [G] whether every query head chose all that is kept
    bool marked = false;            // what is kept; otherwise all is
    bool dropped = false;
  };
  Status Score(const LayerChoice& c) const;
  Status ChooseCounts(LayerChoice* c);
  Status Mark(LayerChoice* c, const std::vector<int32_t>& wanted);
  Status PushPromptQueries(const LayerChoice& c);
  Status StoreMarked(const LayerChoice& c, KvCache* cache);
  Status FitLayer(LayerChoice* c, KvCache* cache);
  void MakeStepPlan();
  bool IsOver(int32_t layer, int32_t head, const KvCache& cache) const;
  // Of n entries, those that compete: not what is always kept.
  int32_t Candidates(int32_t n) const { return std::max(n - n_protected() + policy().n_rest(), 0); }
  Span<const float> CandidatesOf(size_t head) const;
  int32_t WaitingLine(int32_t layer, int32_t g) const {
    return plan_.PlaceOf(layer) * plan_.shape().n_kv_heads + g;
  }
  // Of entries that remember no score: it is here from when a layer is stored until it is reduced.
  bool keeps_scores_waiting() const { return waits_for_all_layers() && plan_.n_aux() == 0; }
  Status ReserveLines(MemoryMeter* meter, int64_t longest);
  // A layer is scored now, and has these scores when it is reduced.
  Status LetWait(const LayerChoice& c);
  Status TakeWaiting(const LayerChoice& c) const;
  int32_t Cap(size_t i) const { return keep_lengths_ ? std::min(caps_[i], held_[i]) : caps_[i]; }
  Status CheckRestored(bool slides) const;

  StoragePlan plan_;
  AttentionRule rule_;
  int32_t budget_ = 0, n_tokens_ = 0;  // average slots; of the sequence, with the prompt at hand
  Protected protect_;
  std::vector<int32_t> counts_;  // [L, G] candidates for the prompt at hand
  std::vector<int32_t> caps_;    // [L, G] entries at decode
  std::vector<int32_t> held_;    // [L, G] entries at most, where keep_lengths_
  bool in_cache_ = false, keep_lengths_ = false, changed_ = false, scored_ = false, reduces_all_ = false;
  std::vector<uint8_t> slides_;  // [L], or empty
  WaitingScores waiting_;        // of heads of layers that share
  std::vector<int32_t> layer_counts_, layer_kept_, layer_slots_, layer_drop_;  // [G] of the layer at hand
  std::vector<uint8_t> layer_all_see_;                                         // [G]
  std::vector<uint8_t>
      loaded_rotated_;              // [G] of the layer at hand: whether its heads' stored keys are rotated
  StepPlan step_, sliding_step_;    // of layers, of those that slide
  bool step_stale_ = true;          // caps, lengths or rules changed since it was made
  std::vector<int32_t> step_caps_;  // [L, G]
  DeviceBuffer<float> ring_;        // reobserve: [layers that do not slide, w, H, D] newest queries
  std::vector<int32_t> ring_start_, ring_len_;  // [L]
};

}  // namespace kvc
