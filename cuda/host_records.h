// What becomes of the records of a layer's heads in a step, on the host: by the rules that the kernels follow
// (append_newest.h, step_update.cu, head_ops.h), so that nobody has to ask the device. What the numbers do
// not say: how many entries leave the ring of a head whose scores decide who is dropped, and how many
// directions a codebook takes in; those come back (step_state.h).
#pragma once
#include "lib/ops/step_ops.h"

namespace kvc::cuda {

class HostRecords {
 public:
  HostRecords(const StepRow& row, int32_t layer)
      : row_(row), c_(*row.cache), plan_(PlanOf(row, layer)), layer_(layer) {}

  // The new entry, which kernels find counted.
  void Append() const;
  // Something is to be done to heads after the attention; when the layer ends, where the plan waits for that.
  bool HasUpdate() const;
  bool HasEnd() const;
  // Whether the lengths after the update follow from the numbers.
  bool Known(bool end_only) const;
  // The lengths after the update; those of heads of which they do not follow stay.
  void Follow(bool end_only) const;

 private:
  // One head after the update.
  struct After {
    int32_t len, ring_start, ring_len;
    bool drops, known;
  };
  After AfterUpdate(int32_t g, bool end_only) const;
  // Whether those that a reduction drops, so many, are all in main, whatever their scores.
  bool DropsOfMain(int32_t head, int32_t n) const;
  void Settle(int32_t head, After* to) const;

  int32_t heads() const { return c_.layout->n_kv_heads; }
  int32_t head(int32_t g) const { return layer_ * heads() + g; }
  bool HasRing(int32_t g) const { return c_.ring != nullptr && RingFormat(c_, head(g)) >= 0; }
  int32_t& RingField(int32_t g, RingField field) const { return c_.ring[head(g) * kRingFields + field]; }
  int32_t Kept(int32_t g) const { return plan_.KeptOf(head(g), HeadLen(c_, head(g))); }
  bool Reduces(int32_t g) const { return plan_.Reduces(head(g), HeadLen(c_, head(g))); }
  bool Holds(int32_t g, int32_t n) const { return n > plan_.HeldOf(head(g), n); }
  bool IsFull(int32_t g) const {
    return HasRing(g) && RingField(g, kRingLen) == c_.layout->ring_slots(head(g));
  }

  const StepRow& row_;
  const CacheView& c_;
  const StepPlan& plan_;
  const int32_t layer_;
};

}  // namespace kvc::cuda
