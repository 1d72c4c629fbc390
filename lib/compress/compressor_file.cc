// A compressor to a file and back: budgets, lengths and observed queries. What was read is used without
// another look, so it must be a state that prompts and steps can leave.
#include <algorithm>

#include "lib/base/archive.h"
#include "lib/compress/compressor.h"

namespace kvc {

Status Compressor::CheckRestored(bool made_room, bool slides) const {
  const auto rotated = [](uint8_t v) { return v == 1; };
  const auto unrotated = [](uint8_t v) { return v == 0; };
  const auto flag = [](uint8_t v) { return v <= 1; };
  const auto& keys = keys_rotated_;
  const bool in_cache = policy_.positions == PositionMode::kInCache || (made_room && slides);
  bool sane = keep_lengths_ == made_room && in_cache_ == in_cache;
  sane = sane && (codebook_  ? std::all_of(keys.begin(), keys.end(), unrotated)
                  : in_cache ? std::all_of(keys.begin(), keys.end(), flag)
                             : std::all_of(keys.begin(), keys.end(), rotated));
  if (!sane) return Error(Code::kBadModel, "damaged: positions that this policy does not count by");

  sane = budget_ >= 0 && budget_ <= kUnbounded;
  const Protected expected = sane && budget_ > 0 && !policy_.keeps_all() ? ProtectFor(budget_) : Protected();
  sane = sane && protect_.n_sink == expected.n_sink && protect_.n_recent == expected.n_recent;
  for (size_t i = 0; i < caps_.size(); ++i)
    sane = sane && counts_[i] >= 0 && counts_[i] <= kUnbounded && caps_[i] > 0 && caps_[i] <= kUnbounded;
  for (int32_t n : ring_count_) sane = sane && n >= 0 && n < 2 * policy_.Int(OptionId::kWindow);
  return sane ? Status() : Error(Code::kBadModel, "damaged: budgets out of range");
}

template <typename Archive>
Status Compressor::ArchiveState(Archive& archive, bool made_room, bool slides) {
  uint8_t flags = static_cast<uint8_t>((in_cache_ ? 1 : 0) | (keep_lengths_ ? 2 : 0));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, flags));
  in_cache_ = (flags & 1) != 0, keep_lengths_ = (flags & 2) != 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, budget_));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, protect_));
  for (std::vector<int32_t>* v : {&counts_, &caps_, &ring_count_})
    KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, *v));
  KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, keys_rotated_));
  if (Archive::kReading) KVC_RETURN_IF_ERROR(CheckRestored(made_room, slides));
  return ring_.size() == 0 ? Status()
                           : archive.Bytes(ring_.data(), ring_.size() * static_cast<int64_t>(sizeof(float)));
}

template Status Compressor::ArchiveState(ArchiveReader&, bool, bool);
template Status Compressor::ArchiveState(ArchiveWriter&, bool, bool);

}  // namespace kvc
