#include "cuda/host_records.h"

namespace kvc::cuda {

void HostRecords::Append() const {
  for (int32_t g = 0; g < heads(); ++g) ++(HasRing(g) ? RingField(g, kRingLen) : c_.len[head(g)]);
}

bool HostRecords::HasUpdate() const {
  if (plan_.n_instrs > 0) return true;
  if (OnlyGrows(row_, layer_)) return false;
  for (int32_t g = 0; g < heads(); ++g) {
    if (Reduces(g) || (!plan_.ends_later && (Holds(g, Kept(g)) || IsFull(g)))) return true;
  }
  return false;
}

bool HostRecords::HasEnd() const {
  for (int32_t g = 0; g < heads(); ++g) {
    if (Holds(g, HeadLen(c_, head(g))) || IsFull(g)) return true;
  }
  return false;
}

// The entries of a ring are the newest ones: all of them may be protected, or the oldest go.
bool HostRecords::DropsOfMain(int32_t head, int32_t n) const {
  const Protected& part = plan_.select.protect;
  if (RingLen(c_, head) <= part.n_recent) return true;
  return plan_.rank == RankBy::kPosition && plan_.select.kind == SelectKind::kTop &&
         part.n_sink + n <= c_.len[head];
}

HostRecords::After HostRecords::AfterUpdate(int32_t g, bool end_only) const {
  const int32_t h = head(g), n = HeadLen(c_, h);
  const bool reduces = !end_only && Reduces(g), ends = end_only || !plan_.ends_later;
  const int32_t kept = reduces ? Kept(g) : n;
  const bool holds = ends && Holds(g, kept);
  After to{c_.len[h], 0, 0, reduces || holds, true};
  if (!HasRing(g)) {
    to.len = ends ? plan_.HeldOf(h, kept) : kept;
    return to;
  }
  to.ring_start = RingField(g, kRingStart), to.ring_len = RingField(g, kRingLen);
  to.known = kept == n || DropsOfMain(h, n - kept);
  to.len -= n - kept;
  if (holds) {
    // The oldest behind the first ones, of which all are in main.
    const int32_t over = kept - plan_.held[h], most = plan_.n_sinks + over;
    to.known = to.known && most <= to.len && most < kept;
    to.len -= over;
  }
  if (ends) Settle(h, &to);
  return to;
}

// As BlockSettle (head_ops.h).
void HostRecords::Settle(int32_t head, After* to) const {
  const int32_t ring_slots = c_.layout->ring_slots(head);
  if (to->ring_len != ring_slots) return;
  const PageFormat& main = c_.layout->formats[static_cast<size_t>(MainFormat(c_, head))];
  int32_t n = 1;  // with one less the ring is not full
  if (main.coding == EntryCoding::kKeyChannels) n = main.slots - to->len % main.slots;
  if (main.coding == EntryCoding::kCodebook) {
    n = c_.layout->heads[static_cast<size_t>(head)].settle;
    to->known = false;
  }
  to->len += n;
  to->ring_start = (to->ring_start + n) % ring_slots;
  to->ring_len -= n;
}

bool HostRecords::Known(bool end_only) const {
  if (OnlyGrows(row_, layer_)) return true;
  for (int32_t g = 0; g < heads(); ++g) {
    if (!AfterUpdate(g, end_only).known) return false;
  }
  return true;
}

void HostRecords::Follow(bool end_only) const {
  if (OnlyGrows(row_, layer_)) return;
  for (int32_t g = 0; g < heads(); ++g) {
    const After to = AfterUpdate(g, end_only);
    if (to.drops && row_.dropped != nullptr) row_.dropped->store(true, std::memory_order_relaxed);
    if (!to.known) continue;
    c_.len[head(g)] = to.len;
    if (HasRing(g)) RingField(g, kRingStart) = to.ring_start, RingField(g, kRingLen) = to.ring_len;
    if (to.drops && plan_.in_cache) c_.rotated[head(g)] = 0;
  }
}

}  // namespace kvc::cuda
