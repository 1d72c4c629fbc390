// A compressor to a file and back: budgets, lengths and observed queries. What was read is used without
// another look, so it must be a state that prompts and steps can leave.
#include <algorithm>

#include "lib/base/archive.h"
#include "lib/compress/compressor.h"

namespace kvc {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;  // of queries, on their way

}  // namespace

Status Compressor::CheckRestored(bool slides) const {
  const bool in_cache = policy().positions == PositionMode::kInCache || (keep_lengths_ && slides);
  if (in_cache_ != in_cache)
    return Error(Code::kBadModel, "damaged: positions that this policy does not count by");

  bool sane = budget_ >= 0 && budget_ <= kUnbounded;
  const Protected expected =
      sane && budget_ > 0 && !policy().keeps_all() ? plan_.ProtectFor(budget_) : Protected();
  sane = sane && protect_.n_sink == expected.n_sink && protect_.n_recent == expected.n_recent;
  for (size_t i = 0; i < caps_.size(); ++i) {
    sane = sane && counts_[i] >= 0 && counts_[i] <= kUnbounded && caps_[i] > 0 && caps_[i] <= kUnbounded;
    sane = sane && held_[i] >= 2 && held_[i] <= kUnbounded;
    if (!plan_.one_set()) continue;
    // The heads of a layer hold the same entries, and drop the same ones.
    const size_t first = i - i % static_cast<size_t>(plan_.shape().n_kv_heads);
    sane = sane && counts_[i] == counts_[first] && caps_[i] == caps_[first] && held_[i] == held_[first];
  }
  const int32_t rows = ring_len_.empty() ? 0 : policy().Int(OptionId::kWindow);
  int32_t pushed = -1;  // all layers push once per token, but those that slide
  for (size_t i = 0; i < ring_len_.size(); ++i) {
    sane = sane && ring_len_[i] >= 0 && ring_len_[i] <= rows && ring_start_[i] >= 0 && ring_start_[i] < rows;
    if (this->slides(static_cast<int32_t>(i))) {
      sane = sane && ring_len_[i] == 0 && ring_start_[i] == 0;
    } else {
      sane = sane && (pushed < 0 || ring_len_[i] == pushed);
      pushed = ring_len_[i];
    }
  }
  return sane ? Status() : Error(Code::kBadModel, "damaged: budgets out of range");
}

template <typename Archive>
Status Compressor::ArchiveState(Archive& archive, bool slides, Device* device, Stream* stream) {
  uint8_t flags = static_cast<uint8_t>((in_cache_ ? 1 : 0) | (keep_lengths_ ? 2 : 0));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, flags));
  in_cache_ = (flags & 1) != 0, keep_lengths_ = (flags & 2) != 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, budget_));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, protect_));
  for (std::vector<int32_t>* v : {&counts_, &caps_, &held_, &ring_start_, &ring_len_})
    KVC_RETURN_IF_ERROR(ArchiveFixedSequence(archive, *v));
  if (Archive::kReading) KVC_RETURN_IF_ERROR(CheckRestored(slides));
  if (ring_.size() == 0) return {};
  if constexpr (Archive::kReading) {
    if (4 * ring_.size() > archive.left())
      return Error(Code::kBadModel, "damaged: a part ends behind the end of the file");
  }
  const int64_t rows = policy().Int(OptionId::kWindow),
                row_bytes = int64_t{4} * plan_.shape().n_heads * plan_.shape().head_dim,
                at_once = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, rows);
  std::vector<uint8_t> block(static_cast<size_t>(at_once * row_bytes));
  for (const int32_t layer : plan_.sharing_layers()) {
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t n = std::min(at_once, rows - row);
      const DeviceBytes at = RingAt(layer).As<uint8_t>() + row * row_bytes;
      if (!Archive::kReading) {
        KVC_RETURN_IF_ERROR(device->Read(stream, at, block.data(), n * row_bytes));
        const size_t l = static_cast<size_t>(layer);
        for (int64_t i = 0; i < n; ++i) {  // of tokens that were taken back, or that have not come
          if ((row + i - ring_start_[l] + rows) % rows >= ring_len_[l])
            std::fill_n(block.begin() + i * row_bytes, row_bytes, uint8_t{0});
        }
      }
      KVC_RETURN_IF_ERROR(archive.Bytes(block.data(), n * row_bytes));
      if (Archive::kReading) KVC_RETURN_IF_ERROR(device->Write(stream, at, block.data(), n * row_bytes));
    }
  }
  return {};
}

template Status Compressor::ArchiveState(ArchiveReader&, bool, Device*, Stream*);
template Status Compressor::ArchiveState(ArchiveWriter&, bool, Device*, Stream*);

}  // namespace kvc
