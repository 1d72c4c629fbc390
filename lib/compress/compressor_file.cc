// A compressor to a file and back: budgets, lengths and observed queries. What was read is used without
// another look, so it must be a state that prompts and steps can leave.
#include "lib/base/archive.h"
#include "lib/compress/compressor.h"

namespace kvc {

Status Compressor::CheckRestored(bool slides) const {
  const bool in_cache = policy_.positions == PositionMode::kInCache || (keep_lengths_ && slides);
  bool sane = in_cache_ == in_cache;
  for (uint8_t rotated : keys_rotated_)
    sane = sane && (codebook_ ? rotated == 0 : in_cache ? rotated <= 1 : rotated == 1);
  if (!sane) return Error(Code::kBadModel, "damaged: positions that this policy does not count by");

  sane = budget_ >= 0 && budget_ <= kUnbounded;
  const Protected expected = sane && budget_ > 0 && !policy_.keeps_all() ? ProtectFor(budget_) : Protected();
  sane = sane && protect_.n_sink == expected.n_sink && protect_.n_recent == expected.n_recent;
  for (size_t i = 0; i < caps_.size(); ++i) {
    sane = sane && counts_[i] >= 0 && counts_[i] <= kUnbounded && caps_[i] > 0 && caps_[i] <= kUnbounded;
    sane = sane && held_[i] >= 2 && held_[i] <= kUnbounded;
  }
  for (int32_t n : ring_count_) sane = sane && n >= 0 && n < 2 * policy_.Int(OptionId::kWindow);
  return sane ? Status() : Error(Code::kBadModel, "damaged: budgets out of range");
}

template <typename Archive>
Status Compressor::ArchiveState(Archive& archive, bool slides, uint32_t version) {
  uint8_t flags = static_cast<uint8_t>((in_cache_ ? 1 : 0) | (keep_lengths_ ? 2 : 0));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, flags));
  in_cache_ = (flags & 1) != 0, keep_lengths_ = (flags & 2) != 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, budget_));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, protect_));
  for (std::vector<int32_t>* v : {&counts_, &caps_, &ring_count_})
    KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, *v));
  KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, keys_rotated_));
  if (version >= 3) {
    KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, held_));
  } else if (keep_lengths_) {
    held_ = caps_;
  }
  if (Archive::kReading) KVC_RETURN_IF_ERROR(CheckRestored(slides));
  return ring_.size() == 0 ? Status()
                           : archive.Bytes(ring_.data(), ring_.size() * static_cast<int64_t>(sizeof(float)));
}

template Status Compressor::ArchiveState(ArchiveReader&, bool, uint32_t);
template Status Compressor::ArchiveState(ArchiveWriter&, bool, uint32_t);

}  // namespace kvc
