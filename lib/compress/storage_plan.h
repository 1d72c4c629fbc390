// What a policy means for a model: formats of the heads, slots of the heads, and the bytes they take. No
// device, no memory: plain numbers.
#pragma once
#include <memory>
#include <vector>

#include "lib/cache/kv_cache.h"
#include "lib/compress/allocate.h"
#include "lib/compress/head_scores.h"

namespace kvc {

struct ModelShape {
  int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  // Of layers that attend to their newest tokens only: how many those are. They keep these, whatever the
  // policy, and have no part in its budget. [L], 0: the layer is the policy's; empty: all are.
  std::vector<int32_t> windows;
  int32_t max_tokens = 0;      // of a session; 0: any number
  int32_t trained_tokens = 0;  // positions the model knows; 0: any number
  int32_t page_slots = 0;      // of a cache that has pages already; 0: as the budget wants them
  int32_t group() const { return n_heads / n_kv_heads; }
  int32_t n_kv_heads_total() const { return n_layers * n_kv_heads; }
};

// The newest entries that wait for their codes: as given, or the method's own where a policy leaves that open
// (residual=auto); with budget_bytes no more than an eighth of the bytes: StoragePlan's policy has that
// number.
int32_t Residual(const Policy& policy);

class StoragePlan {
 public:
  static constexpr int32_t kUnbounded = AllocateInput::kUnbounded;

  // kInvalid when policy, scores or storage do not fit the shape (message says which), kNotFound when scores
  // are missing. slides: entries may come to count positions in slots (on_full=slide), whatever the policy
  // says.
  static Result<StoragePlan> Create(const Policy& policy, const ModelShape& shape, HeadScores scores,
                                    bool slides);

  const Policy& policy() const { return policy_; }
  const ModelShape& shape() const { return shape_; }
  const HeadScores& head_scores() const { return head_scores_; }
  // Layers with a window of their own, and the others, which share the budget.
  bool slides(int32_t layer) const {
    return !shape_.windows.empty() && shape_.windows[static_cast<size_t>(layer)] > 0;
  }
  const std::vector<int32_t>& sharing_layers() const { return sharing_; }
  // Which of those a layer is; of a layer that slides: how many of them are before it.
  int32_t PlaceOf(int32_t layer) const { return places_[static_cast<size_t>(layer)]; }
  const std::vector<int32_t>& places() const { return places_; }
  // Entries behind its window that a layer keeps, so that as many tokens can be taken back (at least
  // kTakenBack), or run again by a compression.
  int32_t window_slack() const { return window_slack_; }
  // Newest entries that a head of a layer that slides holds, once there are as many.
  int32_t HeldInWindow(int32_t layer) const {
    return shape_.windows[static_cast<size_t>(layer)] + window_slack_;
  }
  static constexpr int32_t kTakenBack = 32;

  // Side values of an entry: the scorer's own first.
  int32_t n_aux() const { return n_aux_; }
  int32_t scorer_aux() const { return scorer_aux_; }
  // Of them, what merging needs: the accumulated attention, and the rows it is over; -1: not wanted.
  int32_t merge_sums() const { return merge_sums_; }
  int32_t merge_counts() const { return merge_counts_; }
  bool codebook() const { return policy_.reducer != nullptr && policy_.reducer->codebook; }
  bool reobserves() const { return !policy_.keeps_all() && policy_.decode == DecodeMode::kReobserve; }
  bool evicts_at_steps() const { return !policy_.keeps_all() && policy_.decode == DecodeMode::kStep; }
  bool one_set() const {
    return !policy_.keeps_all() && policy_.scorer->one_set != nullptr && policy_.scorer->one_set(policy_);
  }
  // Whether an entry may be kept for some query heads of a group only (SpindleKV).
  bool query_heads_see_their_own() const;

  // Whether a compressed prompt is coded whole, and the residual is of what comes behind it.
  bool HasLateRings() const;
  // Storage of every head; page_slots by the average budget: 4 below 128, 16 below 256, otherwise 64. Entries
  // carry their place where positions may be counted in slots.
  CacheLayout LayoutFor(int32_t page_slots) const;
  int32_t PageSlots(int32_t expected_tokens) const;
  int32_t LeastPageSlots() const;

  // Average slots per KV head for a sequence of n tokens.
  int32_t BudgetFor(int32_t n_tokens) const;
  // Of `given` tokens behind n_before, those that a prompt reads and compresses at a time; 0: it is not
  // compressed chunk by chunk. It is where the policy says so, and where positions are counted in slots, so
  // that sequences never end, and the prompt at once would go beyond the positions that the model knows.
  int32_t ChunkFor(int32_t n_before, int32_t given) const;
  // Of `given` tokens behind n_before, those a prompt reads at once: a chunk; where a policy reads by steps,
  // what the budget holds, and the others token by token.
  int32_t TokensAtOnce(int32_t n_before, int32_t given) const;
  static constexpr int32_t kChunk = 1024, kLeastChunk = 256;
  Protected ProtectFor(int32_t budget) const { return policy_.scorer->protect(policy_, budget); }
  // Slots of every head after a prompt of n tokens, [L, G]; dynamic allocators: the average of the layer.
  // room: candidates that heads of the layers that share can have; empty: of all tokens. Bytes do not look.
  Status PlanSlots(int32_t n_tokens, std::vector<int32_t>* slots, Span<const int32_t> room = {}) const;
  // The same at steps, behind a prompt that a budget of so many slots holds whole: its length is no limit.
  Status PlanCaps(int32_t budget, std::vector<int32_t>* slots) const;
  // Entries a KV head stores at most when `slots` are planned for it: query heads may each choose their own.
  int32_t StoredSlots(int32_t n_tokens, int32_t n_protected, int32_t slots) const;
  // Bytes that no layer exceeds after a prompt unless what is always kept does; 0: no limit.
  int64_t LayerLimit() const {
    return codebook() ? static_cast<int64_t>(policy_.Real(OptionId::kSpindleMaxBytes)) : 0;
  }
  // Whether what a budget of bytes leaves goes to the next best entries; where heads evict at steps they need
  // room for one more.
  bool fills_bytes() const;
  // held [L * G]: entries of every head after a prompt of a sequence of n_tokens; next [n_next]: those that
  // are not, in any order, which is lost. The next best is held, the first head of equals, until one does not
  // fit; where a head's last page has room an entry takes no bytes.
  struct Candidate {
    uint32_t score;  // OrderedBits
    int32_t head;
  };
  void FillBytes(int32_t n_tokens, Candidate* next, int64_t n_next, std::vector<int32_t>* held) const;
  // Rows of the newest tokens that scoring a prompt needs. A later compression runs them again, unless side
  // values remember what they saw: prompts and steps add to them, and no reduction clears them.
  int32_t ReplayRows(int32_t n_tokens) const {
    const Scorer* scorer = policy_.scorer;
    return scorer == nullptr || scorer->window_rows == nullptr ? 0 : scorer->window_rows(policy_, n_tokens);
  }
  bool remembers_rows() const {
    const Scorer* scorer = policy_.scorer;
    return scorer != nullptr && scorer->n_aux != nullptr && scorer->step != nullptr &&
           !scorer->clear_after_reduce;
  }
  // Replaces the budget by slots per KV head; kInvalid when the policy cannot have it. A budget of bytes
  // stays where so many slots of a sequence of n_tokens would take more, and comes back where it was replaced
  // by fewer.
  Status SetBudget(int32_t slots, int32_t n_tokens);
  // The budget of bytes that slots have replaced, 0: none.
  double replaced_bytes() const { return replaced_bytes_; }
  Status SetReplacedBytes(double bytes);

 private:
  StoragePlan(const Policy& policy, const ModelShape& shape, HeadScores scores, bool slides);
  void SettleResidual();
  Status Validate() const;
  double EnoughBytes(bool slides) const;
  AllocateInput AllocationFor(int32_t budget, int32_t n_tokens) const;
  Status PlanFor(const AllocateInput& in, std::vector<int32_t>* slots) const;
  void FillWindows(int32_t n_tokens, std::vector<int32_t>* slots) const;
  // Of layers with windows, at most as tokens come: what budget_bytes leaves to the others does not change
  // then.
  int64_t WindowBytes(const CacheLayout& layout, int32_t n_tokens) const;
  Status PlanBytes(const CacheLayout& layout, AllocateInput in, std::vector<int32_t>* slots) const;
  int64_t BytesOf(const CacheLayout& layout, const AllocateInput& in,
                  const std::vector<int32_t>& slots) const;
  bool BytesHold(int32_t budget, int32_t page_slots) const;
  int32_t SlotsForBytes(const CacheLayout& layout, int32_t n_tokens) const;
  std::vector<double> ScoresPerKvHead() const;
  std::vector<int32_t> BitsOfHeads() const;

  Policy policy_;
  ModelShape shape_;
  HeadScores head_scores_;
  std::vector<int32_t> sharing_, places_;
  std::vector<double> sharing_scores_;  // of those layers
  int32_t window_slack_ = 0;
  int32_t n_aux_ = 0, scorer_aux_ = 0, merge_sums_ = -1, merge_counts_ = -1;
  bool ranks_ = false;  // entries carry their place
  double replaced_bytes_ = 0;

  friend class Result<StoragePlan>;
  StoragePlan() = default;
};

}  // namespace kvc
