// The second reading of a prompt, for scorers that ask what it looks at: which rows there are, what they see,
// and the layer that those see which do not see everything.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/cache/layer_kv.h"

namespace kvc {

// Rows that stand directly behind what they see, in parts that do not see each other. Nothing of them is
// kept.
struct Reread {
  struct Part {
    int32_t begin, end;   // rows: of `tokens`, or (own) of the prompt
    int32_t first, last;  // tokens of the prompt that are seen
  };
  std::vector<int32_t> tokens;  // run behind the prompt; empty when own
  std::vector<Part> parts;      // in the order of the prompt
  int32_t n_tokens = 0;         // as many as `tokens`, which plans do not have
  // The prompt's own queries, keys and values once more, instead of tokens that are run.
  bool own = false;
  // Parts see the tokens [first, last) and the first kFirst entries of a head. Otherwise the prompt and what
  // was cached before it.
  bool local = false;
  bool squares = false;  // sums of squared probabilities are looked for, not the largest
  static constexpr int32_t kFirst = 4;

  int32_t LongestPart() const;   // rows
  int32_t LongestSight() const;  // last - first
  // Entries that a head needs room for behind the prompt.
  int32_t Behind() const { return local ? 0 : LongestPart(); }
  // Rows of the prompt whose queries, keys and values are there at once.
  int32_t Remembered() const { return own ? LongestSight() : 0; }
};

// Work on at most a chunk of rows in one layer.
struct PromptTask {
  int32_t part;   // of the second reading; -1: the prompt
  int32_t at, n;  // rows [at, at + n) of the part
};
// Those of a layer, in their order: parts that see only themselves are read when the prompt has come to their
// end, so that little must be remembered; the others behind the prompt. reread: null for none.
std::vector<PromptTask> TasksOf(int32_t n, const Reread* reread, int32_t chunk);

// What the rows of a part see where that is not everything: a copy of these entries, with room for the rows.
class SeenLayer {
 public:
  Status Reserve(const DeviceMemory& memory, const Reread& reread, int32_t n_kv_heads, int32_t head_dim,
                 bool has_seen, KvType type);
  void Free() { kv_.Free(), maxima_.Free(); }
  int64_t bytes() const { return kv_.bytes() + maxima_.bytes(); }
  // base[g]: entries of the head before the prompt. maxima: what was found so far, [G, capacity] of `from`.
  Status Load(Stream* stream, Device* device, const Reread::Part& part, const std::vector<int32_t>& base,
              const LayerView& from, DevicePtr<float> maxima);
  // The maxima of the entries that Load took go back.
  Status Store(Stream* stream, Device* device) const;

  const LayerView& view() const { return kv_.view(); }
  const int32_t* base() const { return n_.data(); }  // [G] entries before the rows
  DevicePtr<float> maxima() const { return maxima_.at(); }

 private:
  LayerBuffers kv_;
  DeviceBuffer<float> maxima_;
  std::vector<int32_t> n_;
  std::vector<PageCopy> back_;
};

// Queries, keys and values of rows of a prompt before they are turned.
class RememberedRows {
 public:
  struct At {
    DevicePtr<float> q, k, v;  // [n, H, D], [n, G, D]
  };
  Status Reserve(const DeviceMemory& memory, int32_t n_rows, int32_t n_heads, int32_t n_kv_heads,
                 int32_t head_dim);
  void Free() { q_.Free(), k_.Free(), v_.Free(); }
  int64_t bytes() const { return q_.bytes() + k_.bytes() + v_.bytes(); }
  // Of a chunk's rows, which begin at `row` of the prompt, in either direction. Rows that are n_rows apart
  // take each other's place.
  Status Store(Stream* stream, Device* device, const At& from, int32_t row, int32_t n) const;
  Status Load(Stream* stream, Device* device, const At& to, int32_t row, int32_t n) const;

 private:
  DeviceBuffer<float> q_, k_, v_;
  int32_t n_rows_ = 0;
  int64_t queries_ = 0, keys_ = 0;  // floats of a row
};

}  // namespace kvc
