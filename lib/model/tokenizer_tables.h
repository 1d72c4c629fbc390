// Lookups of the tokenizers: bytes to a piece, a pair of pieces to their merge, the longest added token at a
// place.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/hash.h"

namespace kvc {

// A map from 64-bit keys to 64-bit values that is filled once: open addressing, at most half full. The key ~0
// is not allowed.
class FlatMap {
 public:
  // Room for `count` keys. Drops what was there.
  void Reserve(size_t count) {
    size_t size = 16;
    while (size < count * 2) size *= 2;
    slots_.assign(size, Slot{});
    mask_ = size - 1;
  }
  // Adds a key; false, and no change, when it is there already. Not more keys than were reserved.
  bool Add(uint64_t key, uint64_t value) {
    Slot& slot = slots_[Place(key)];
    if (slot.key == key) return false;
    slot = Slot{key, value};
    return true;
  }
  const uint64_t* Find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    const Slot& slot = slots_[Place(key)];
    return slot.key == key && key != kFree ? &slot.value : nullptr;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree, value = 0;
  };
  // The slot that holds the key, or the free one where it belongs.
  size_t Place(uint64_t key) const {
    uint64_t h = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    size_t at = static_cast<size_t>(h ^ h >> 32) & mask_;
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & mask_;
    return at;
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Bytes -> id. Refers to the pieces, which must stay where they are.
class PieceTable {
 public:
  explicit PieceTable(const std::vector<std::string>* pieces) : pieces_(pieces) {}
  void Reserve(size_t count) {
    size_t size = 16;
    while (size < count * 2) size *= 2;
    ids_.assign(size, -1);
  }
  // Adds piece `id`. Returns the id that already has these bytes, else -1. Not more pieces than were
  // reserved.
  int32_t Add(int32_t id) {
    const std::string& piece = (*pieces_)[static_cast<size_t>(id)];
    int32_t& slot = ids_[Place(reinterpret_cast<const uint8_t*>(piece.data()), piece.size())];
    if (slot >= 0) return slot;
    slot = id;
    if (piece.size() > longest_) longest_ = piece.size();
    return -1;
  }
  // -1: no such piece. Costs nothing when `size` is beyond the longest piece.
  int32_t Find(const uint8_t* bytes, size_t size) const {
    if (size > longest_ || size == 0) return -1;
    return ids_[Place(bytes, size)];
  }

 private:
  size_t Place(const uint8_t* bytes, size_t size) const {
    const size_t mask = ids_.size() - 1;
    size_t at = static_cast<size_t>(Hash64(bytes, size)) & mask;
    while (ids_[at] >= 0) {
      const std::string& piece = (*pieces_)[static_cast<size_t>(ids_[at])];
      if (piece.size() == size && piece.compare(0, size, reinterpret_cast<const char*>(bytes), size) == 0)
        break;
      at = (at + 1) & mask;
    }
    return at;
  }
  const std::vector<std::string>* pieces_;
  std::vector<int32_t> ids_;  // open addressing, at most half full; -1 free
  size_t longest_ = 0;
};

// A trie over some pieces: the longest of them that starts at a place. A look costs at most the longest
// piece.
class PieceTrie {
 public:
  // `ids` name pieces that are not empty.
  void Build(const std::vector<std::string>& pieces, const std::vector<int32_t>& ids) {
    size_t bytes = 0;
    for (int32_t id : ids) bytes += pieces[static_cast<size_t>(id)].size();
    edges_.Reserve(bytes);
    ids_.assign(1, -1);
    for (int32_t id : ids) {
      uint64_t node = 0;
      for (char c : pieces[static_cast<size_t>(id)]) {
        const uint64_t key = node << 8 | static_cast<uint8_t>(c);
        if (edges_.Add(key, ids_.size())) ids_.push_back(-1);
        node = *edges_.Find(key);
      }
      ids_[node] = id;
    }
  }
  bool empty() const { return ids_.size() <= 1; }
  // Bytes of the longest piece at the start of text[0, n), 0 when there is none; its id goes to *id.
  size_t Longest(const uint8_t* text, size_t n, int32_t* id) const {
    size_t best = 0;
    uint64_t node = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t* next = edges_.Find(node << 8 | text[i]);
      if (next == nullptr) break;
      node = *next;
      if (ids_[node] >= 0) best = i + 1, *id = ids_[node];
    }
    return best;
  }

 private:
  FlatMap edges_;             // node << 8 | byte -> node
  std::vector<int32_t> ids_;  // of each node: the piece that ends there, or -1
};

}  // namespace kvc
