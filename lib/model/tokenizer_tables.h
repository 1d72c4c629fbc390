// Lookups of the tokenizers: bytes to a piece, a pair of pieces to their merge, the longest added token at a
// place, places where no piece goes on. All refer to the view they were built from, which must stay, and take
// their memory through a meter.
//
// Pieces and merges come from files that others made. The hashes are seeded with a secret and a search looks
// at no more than kMaxProbes places, so that no choice of keys makes a table slow.
#pragma once
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "lib/base/hash.h"
#include "lib/base/memory_meter.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

// Numbers found by the hash of a key that the caller keeps: open addressing, one 32-bit word a slot, which
// holds the number and in its upper bits a part of the hash.
class HashIndex {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr int kMaxProbes = 512;  // at the load of three fifths a random table of 2^21 keys needs 80

  // Room for `count` numbers, all below `limit` (at most 2^31). Drops what was there.
  Status Init(MemoryMeter* meter, size_t count, size_t limit, const char* what);
  // The number n under this hash for which same(n); kNone: there is none.
  template <typename Same>
  uint32_t Find(uint64_t hash, const Same& same) const {
    const Place place = Search(hash, same);
    return place.found ? slots_[place.at] & number_mask_ : kNone;
  }
  enum class Added { kYes, kThere, kCrowded };
  // kThere: a number for which same() is there, and goes to *other. kCrowded: too many keys share this place.
  template <typename Same>
  Added Add(uint64_t hash, uint32_t number, const Same& same, uint32_t* other) {
    const Place place = Search(hash, same);
    if (place.found) {
      *other = slots_[place.at] & number_mask_;
      return Added::kThere;
    }
    if (place.probes == kMaxProbes) return Added::kCrowded;
    slots_[place.at] = Tag(hash) | number;
    return Added::kYes;
  }
  void Free() { slots_.Free(); }
  int64_t bytes() const { return slots_.bytes(); }

 private:
  struct Place {
    int64_t at;
    int probes;
    bool found;
  };
  uint32_t Tag(uint64_t hash) const { return static_cast<uint32_t>(hash) & ~number_mask_; }
  // The upper half of the hash chooses the place.
  template <typename Same>
  Place Search(uint64_t hash, const Same& same) const {
    int64_t at = static_cast<int64_t>((hash >> 32) * static_cast<uint64_t>(slots_.size()) >> 32);
    for (int probes = 0; probes < kMaxProbes && slots_.size() > 0; ++probes) {
      const uint32_t slot = slots_[at];
      if (slot == kNone) return {at, probes, false};
      if ((slot & ~number_mask_) == Tag(hash) && same(slot & number_mask_)) return {at, probes, true};
      if (++at == slots_.size()) at = 0;
    }
    return {0, kMaxProbes, false};
  }
  Buffer<uint32_t> slots_;  // kNone: free
  uint32_t number_mask_ = 0;
};

// Bytes -> id.
class PieceTable {
 public:
  // The pieces of some kinds, empty ones left out. kBadModel: two of them are equal.
  Status Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds, MemoryMeter* meter);
  // -1: no such piece. Costs nothing when `size` is beyond the longest piece.
  int32_t Find(const uint8_t* bytes, size_t size) const {
    if (size > longest_ || size == 0) return -1;
    return static_cast<int32_t>(index_.Find(Hash64(bytes, size, seed_), Same{view_, bytes, size}));
  }
  void Free() { index_.Free(), longest_ = 0; }
  int64_t bytes() const { return index_.bytes(); }

 private:
  struct Same {
    const TokenizerView* view;
    const uint8_t* bytes;
    size_t size;
    bool operator()(uint32_t id) const {
      const Span<const uint8_t> piece = view->Piece(id);
      return piece.size() == size && std::memcmp(piece.data(), bytes, size) == 0;
    }
  };
  Status Fill(const std::initializer_list<PieceKind>& kinds, bool* crowded);
  const TokenizerView* view_ = nullptr;
  HashIndex index_;
  uint64_t seed_ = 0;
  size_t longest_ = 0;
};

// What a pair of neighbours would become.
struct Merge {
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t rank = kNone;  // smaller merges first, equal ranks from the left; kNone: never
  int32_t id = -1;
};

// A pair of ids -> their merge. The rank is the number of the merge in the view.
class MergeTable {
 public:
  // In two steps, so that the pieces need not be there in the second. kBadModel names a merge of what is no
  // text or with a result that is no piece; or one that is there twice.
  Status FindResults(const TokenizerView& view, const PieceTable& pieces, MemoryMeter* meter);
  Status Build(MemoryMeter* meter);
  Merge Find(int32_t left, int32_t right) const {
    const uint32_t rank = index_.Find(Hash(left, right), Same{view_, left, right});
    return rank == HashIndex::kNone ? Merge{} : Merge{rank, results_[rank]};
  }
  int64_t bytes() const { return index_.bytes() + results_.bytes(); }

 private:
  struct Same {
    const TokenizerView* view;
    int32_t left, right;
    bool operator()(uint32_t rank) const {
      return view->merges[2 * size_t{rank}] == left && view->merges[2 * size_t{rank} + 1] == right;
    }
  };
  uint64_t Hash(int32_t left, int32_t right) const {
    const int32_t pair[2] = {left, right};
    return Hash64(pair, sizeof pair, seed_);
  }
  Status ResultOf(uint32_t rank, const PieceTable& pieces, int32_t* id) const;
  Status Fill(bool* crowded);
  const TokenizerView* view_ = nullptr;
  HashIndex index_;
  Buffer<int32_t> results_;  // by rank
  uint64_t seed_ = 0;
};

// The longest of some pieces that starts at a place: they lie sorted, and each knows the longest one that it
// begins with. A look costs at most a search among those with the same first byte, and a logarithm of how
// many begin with each other.
class TokenMatcher {
 public:
  // Pieces of some kinds, empty ones left out. kBadModel: two of them are equal.
  Status Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds, MemoryMeter* meter);
  bool empty() const { return sorted_.size() == 0; }
  // Bytes of the longest piece at the start of text[0, n), n >= 1; 0 when there is none. Its id goes to *id.
  size_t Longest(const uint8_t* text, size_t n, int32_t* id) const;
  int64_t bytes() const { return sorted_.bytes() + shorter_.bytes() + jump_.bytes(); }

 private:
  Status FindShorter(MemoryMeter* meter);
  const TokenizerView* view_ = nullptr;
  Buffer<int32_t> sorted_;         // ids, ascending by their bytes
  Buffer<int32_t> shorter_;        // [i]: place of the longest one that sorted_[i] begins with, or -1
  Buffer<int32_t> jump_;           // [i]: of one further on that way (Myers' skew-binary jumps), or -1
  int32_t first_byte_[257] = {0};  // sorted_[first_byte_[b], first_byte_[b + 1]) begin with b
};

// Which two bytes stand next to each other inside some piece. Where a text has two that never do, no piece
// goes on, and what stands before and after can be encoded apart.
class PieceJoints {
 public:
  void Build(const TokenizerView& view, std::initializer_list<PieceKind> kinds);
  bool IsBorder(uint8_t before, uint8_t after) const {
    return (inside_[before * 4 + after / 64] >> after % 64 & 1) == 0;
  }

 private:
  uint64_t inside_[1024] = {};  // a bit for each pair of bytes
};

}  // namespace kvc
