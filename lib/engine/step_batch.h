// Steps of any sessions of one model in one pass over the weights.
#pragma once
#include <atomic>

#include "lib/engine/session.h"

namespace kvc {

// Angles for keys that may be turned at every step, of heads of at most `reach` entries where positions are
// counted in slots, else of so many tokens. memory: as in ReserveSteps.
Status ReserveTurns(Executor* executor, const DeviceMemory& memory, int32_t reach, Workspace* w);
// What steps of a session take beside the network's buffers, with heads (of layers that do not slide) of at
// most `longest` entries, the new ones included, of a sequence of n_tokens. memory: the executor's, or one
// that only counts.
Status ReserveSteps(Executor* executor, const DeviceMemory& memory, const Compressor& compressor,
                    int32_t longest, int32_t ring_slots, int32_t n_tokens, Workspace* w);
// Makes a shape large enough for such a session's attention. Leaves its number of rows.
void GrowShape(const Executor& executor, const CacheLayout& layout, const StepPlan& plan, int32_t longest,
               int32_t ring_slots, StepShape* shape);

// One call to many sessions, in one pass over the weights. In this order: the sessions make room (MakeRoom;
// what did not come is undone by LeaveRoom); all memory is reserved, so that behind it nothing but the device
// can fail; tokens are fed in groups of at most kMostRows rows, during which a session is torn (some layers
// have its token, others not) and behind which it takes them (Fed); then the next tokens are chosen by the
// logits. A session's last token is fed by the call that wants the next one (Session::PrepareRow).
class StepRunner final : public StepSink {
 public:
  static constexpr int32_t kMostRows = 256;  // of one pass
  explicit StepRunner(Executor* executor) : executor_(executor) {}
  ~StepRunner() override = default;
  // Sessions of the executor's model, each at most once. A wish that cannot be had changes nothing of its
  // session and is told in its status; with `all` the first such ends the call, and no session has changed.
  Status Run(Span<StepWish> wishes, bool all);

  Status AfterAttention(int layer, const StepArgs& args) override;

 private:
  static constexpr int32_t kMostHeads = 32;  // rows of logits at once: a vocabulary may be large
  Status Reserve(Span<StepWish> wishes);
  Status ReserveAll(Span<StepWish> wishes, StepWish** newest);
  Status ReserveSession(const StepWish& wish);
  Status ReserveShared(Span<StepWish> wishes);
  Status ReserveChoices(Span<const StepWish> wishes);
  Span<StepWish> NextGroup(Span<StepWish> wishes) const;
  StepShape ShapeOf(Span<const StepWish> group) const;
  Status Feed(Span<StepWish> group);
  Status Choose(Span<StepWish> wishes);
  Status ChooseSome(StepWish* const* some, int32_t n);
  Status Sample(Span<const SampleRow> rows, int32_t* tokens);
  Status ChooseDrafted(StepWish* wish);
  Status SampleDrafted(const StepWish& wish, int32_t first, int32_t n, int32_t* tokens);

  Executor* const executor_;
  Executor::Lease workspace_;
  Span<StepWish> group_;  // that is being fed
  std::atomic<bool> dropped_[kMostRows];
};

}  // namespace kvc
