#include "lib/model/tokenizer_tables.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lib/base/limits.h"

namespace kvc {
namespace {

constexpr int kSeeds = 3;  // tried one after the other; chance alone crowds no table
constexpr char kWhat[] = "the tokenizer";

bool Has(const std::initializer_list<PieceKind>& kinds, PieceKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

bool Counts(const TokenizerView& view, const std::initializer_list<PieceKind>& kinds, size_t id) {
  return Has(kinds, view.Kind(id)) && !view.Piece(id).empty();
}

size_t Count(const TokenizerView& view, const std::initializer_list<PieceKind>& kinds) {
  size_t count = 0;
  for (size_t i = 0; i < view.n_pieces(); ++i) count += Counts(view, kinds, i);
  return count;
}

Status Twice(const TokenizerView& view, size_t a, size_t b) {
  const Span<const uint8_t> piece = view.Piece(a);
  const std::string text(reinterpret_cast<const char*>(piece.data()), piece.size());
  return Error(Code::kBadModel, "pieces %zu and %zu are both \"%.80s\"", std::min(a, b), std::max(a, b),
               text.c_str());
}

Status Crowded() {
  return Error(Code::kBadModel, "the pieces or merges of the tokenizer crowd one place of its tables");
}

int Compare(const uint8_t* a, size_t n_a, const uint8_t* b, size_t n_b) {
  const int order = std::memcmp(a, b, std::min(n_a, n_b));
  return order != 0 ? order : n_a < n_b ? -1 : n_a > n_b ? 1 : 0;
}

}  // namespace

Status HashIndex::Init(MemoryMeter* meter, size_t count, size_t limit, const char* what) {
  number_mask_ = 1;
  while (number_mask_ < limit) number_mask_ = number_mask_ << 1 | 1;
  const auto n_slots = static_cast<int64_t>(count + count * 2 / 3 + 1);
  KVC_RETURN_IF_ERROR(slots_.Allocate(meter, n_slots, what));
  std::fill_n(slots_.data(), n_slots, kNone);
  return {};
}

// ---- pieces ----

Status PieceTable::Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds,
                         MemoryMeter* meter) {
  view_ = &view;
  const size_t count = Count(view, kinds);
  for (int i = 0; i < kSeeds; ++i) {
    seed_ = RandomSeed();
    KVC_RETURN_IF_ERROR(index_.Init(meter, count, view.n_pieces(), kWhat));
    bool crowded = false;
    KVC_RETURN_IF_ERROR(Fill(kinds, &crowded));
    if (!crowded) return {};
  }
  return Crowded();
}

Status PieceTable::Fill(const std::initializer_list<PieceKind>& kinds, bool* crowded) {
  longest_ = 0;
  for (size_t id = 0; id < view_->n_pieces(); ++id) {
    if (!Counts(*view_, kinds, id)) continue;
    const Span<const uint8_t> piece = view_->Piece(id);
    uint32_t other = 0;
    const auto added = index_.Add(Hash64(piece.data(), piece.size(), seed_), static_cast<uint32_t>(id),
                                  Same{view_, piece.data(), piece.size()}, &other);
    if (added == HashIndex::Added::kThere) return Twice(*view_, other, id);
    if (added == HashIndex::Added::kCrowded) {
      *crowded = true;
      return {};
    }
    longest_ = std::max(longest_, piece.size());
  }
  return {};
}

// ---- merges ----

Status MergeTable::FindResults(const TokenizerView& view, const PieceTable& pieces, MemoryMeter* meter) {
  view_ = &view;
  const auto count = static_cast<int64_t>(view.merges.size() / 2);
  KVC_RETURN_IF_ERROR(results_.Allocate(meter, count, kWhat));
  for (uint32_t rank = 0; rank < count; ++rank) KVC_RETURN_IF_ERROR(ResultOf(rank, pieces, &results_[rank]));
  return {};
}

Status MergeTable::Build(MemoryMeter* meter) {
  const auto count = static_cast<size_t>(results_.size());
  for (int i = 0; i < kSeeds; ++i) {
    seed_ = RandomSeed();
    KVC_RETURN_IF_ERROR(index_.Init(meter, count, count, kWhat));
    bool crowded = false;
    KVC_RETURN_IF_ERROR(Fill(&crowded));
    if (!crowded) return {};
  }
  return Crowded();
}

Status MergeTable::ResultOf(uint32_t rank, const PieceTable& pieces, int32_t* id) const {
  uint8_t joined[2 * kMaxPieceBytes];
  size_t size = 0;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const int32_t part = view_->merges[2 * size_t{rank} + side];
    const PieceKind kind = view_->Kind(static_cast<size_t>(part));
    if (kind != PieceKind::kNormal && kind != PieceKind::kUserDefined)
      return Error(Code::kBadModel, "merge %u joins piece %d, which is not a piece of text", rank, part);
    const Span<const uint8_t> piece = view_->Piece(static_cast<size_t>(part));
    std::memcpy(joined + size, piece.data(), std::min(piece.size(), sizeof joined - size));
    size += piece.size();
  }
  *id = pieces.Find(joined, size);
  if (*id >= 0) return {};
  const std::string text(reinterpret_cast<const char*>(joined), std::min(size, sizeof joined));
  return Error(Code::kBadModel, "merge %u of pieces %d and %d makes \"%.80s\", which is no piece", rank,
               view_->merges[2 * size_t{rank}], view_->merges[2 * size_t{rank} + 1], text.c_str());
}

Status MergeTable::Fill(bool* crowded) {
  for (uint32_t rank = 0; rank < static_cast<uint32_t>(results_.size()); ++rank) {
    const int32_t left = view_->merges[2 * size_t{rank}], right = view_->merges[2 * size_t{rank} + 1];
    uint32_t other = 0;
    const auto added = index_.Add(Hash(left, right), rank, Same{view_, left, right}, &other);
    if (added == HashIndex::Added::kThere)
      return Error(Code::kBadModel, "merge %u of pieces %d and %d is there twice", rank, left, right);
    if (added == HashIndex::Added::kCrowded) {
      *crowded = true;
      return {};
    }
  }
  return {};
}

// ---- added tokens ----

Status TokenMatcher::Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds,
                           MemoryMeter* meter) {
  view_ = &view;
  const auto count = static_cast<int64_t>(Count(view, kinds));
  KVC_RETURN_IF_ERROR(sorted_.Allocate(meter, count, kWhat));
  const auto piece = [&view](int32_t id) { return view.Piece(static_cast<size_t>(id)); };
  int32_t* end = sorted_.data();
  for (size_t id = 0; id < view.n_pieces(); ++id) {
    if (Counts(view, kinds, id)) *end++ = static_cast<int32_t>(id);
  }
  std::sort(sorted_.data(), end, [&piece](int32_t a, int32_t b) {
    const Span<const uint8_t> x = piece(a), y = piece(b);
    return Compare(x.data(), x.size(), y.data(), y.size()) < 0;
  });
  std::fill(std::begin(first_byte_), std::end(first_byte_), 0);
  for (int64_t i = 0; i < count; ++i) ++first_byte_[piece(sorted_[i])[0] + 1];
  for (int b = 0; b < 256; ++b) first_byte_[b + 1] += first_byte_[b];
  return FindShorter(meter);
}

Status TokenMatcher::FindShorter(MemoryMeter* meter) {
  const int64_t count = sorted_.size();
  Buffer<int32_t> depth;  // how many each one begins with
  KVC_RETURN_IF_ERROR(shorter_.Allocate(meter, count, kWhat));
  KVC_RETURN_IF_ERROR(jump_.Allocate(meter, count, kWhat));
  KVC_RETURN_IF_ERROR(depth.Allocate(meter, count, kWhat));
  const auto jump_of = [this](int32_t i) { return i < 0 ? -1 : jump_[i]; };
  const auto depth_of = [&depth](int32_t i) { return i < 0 ? 0 : depth[i]; };
  for (int64_t i = 0; i < count; ++i) {
    const Span<const uint8_t> own = view_->Piece(static_cast<size_t>(sorted_[i]));
    // What it begins with stands before it, and is the one before or what that one begins with.
    int32_t at = static_cast<int32_t>(i) - 1;
    for (; at >= 0; at = shorter_[at]) {
      const Span<const uint8_t> before = view_->Piece(static_cast<size_t>(sorted_[at]));
      if (before.size() > own.size() || std::memcmp(before.data(), own.data(), before.size()) != 0) continue;
      if (before.size() == own.size())
        return Twice(*view_, static_cast<size_t>(sorted_[at]), static_cast<size_t>(sorted_[i]));
      break;
    }
    shorter_[i] = at;
    depth[i] = depth_of(at) + 1;
    const int32_t near = jump_of(at), far = jump_of(near);
    jump_[i] = depth_of(at) - depth_of(near) == depth_of(near) - depth_of(far) ? far : at;
  }
  return {};
}

size_t TokenMatcher::Longest(const uint8_t* text, size_t n, int32_t* id) const {
  int32_t low = first_byte_[text[0]], high = first_byte_[text[0] + 1];
  if (low == high) return 0;
  // The last one that is not above the text. A token the text begins with is it, or what it begins with.
  const int32_t begin = low;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    const Span<const uint8_t> token = view_->Piece(static_cast<size_t>(sorted_[middle]));
    if (Compare(token.data(), token.size(), text, n) <= 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == begin) return 0;
  const Span<const uint8_t> last = view_->Piece(static_cast<size_t>(sorted_[low - 1]));
  const size_t most = std::min(last.size(), n);
  const auto common = static_cast<size_t>(std::mismatch(text, text + most, last.data()).first - text);
  const auto size_of = [this](int32_t i) { return view_->Piece(static_cast<size_t>(sorted_[i])).size(); };
  for (int32_t at = low - 1; at >= 0;) {
    const size_t size = size_of(at);
    if (size <= common) {
      *id = sorted_[at];
      return size;
    }
    const int32_t jump = jump_[at];
    at = jump >= 0 && size_of(jump) > common ? jump : shorter_[at];
  }
  return 0;
}

// ---- borders ----

void PieceJoints::Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds) {
  for (size_t id = 0; id < view.n_pieces(); ++id) {
    if (!Has(kinds, view.Kind(id))) continue;
    const Span<const uint8_t> piece = view.Piece(id);
    for (size_t i = 1; i < piece.size(); ++i)
      inside_[piece[i - 1] * 4 + piece[i] / 64] |= uint64_t{1} << piece[i] % 64;
  }
}

}  // namespace kvc
