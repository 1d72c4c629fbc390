// Pages that the cache of a session takes, counted from the lengths of its heads: numbers, before there is a
// page.
#pragma once
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "lib/compress/policy.h"
#include "lib/ops/cache_ops.h"

namespace kvc {

// How long the heads are, and for how many steps they grow.
struct Growth {
  std::vector<int32_t> slots;  // [L * G] after the prompt
  std::vector<int32_t> caps;   // [L * G] before a step
  int32_t n_steps = 0;
  bool spread = false;      // the slots are averages: heads end anywhere in their last page
  int64_t layer_limit = 0;  // bytes of a layer after the prompt, 0: none
  int32_t n_least = 0;      // entries a head keeps whatever the limit
  int64_t filled = 0;       // bytes after the prompt where entries are kept until they are used; 0: no such

  // Entries before the last step; without steps one less than there are.
  int32_t Last(size_t head) const {
    const int64_t longest = int64_t{slots[head]} + n_steps - 1;
    return static_cast<int32_t>(std::min<int64_t>(longest, std::max(caps[head], slots[head])));
  }
};

// Pages by size, as arenas hold them.
class PageCount {
 public:
  void Add(int64_t page_bytes, double at_prompt, double at_end) {
    Arena& arena = arenas_[page_bytes];
    arena.at_prompt += at_prompt;
    arena.at_end += std::max(at_end, at_prompt);
  }
  // A layer that a limit makes smaller: of what it keeps only the bytes are known. While it is fitted two
  // versions of it are there, each at most as large as without the limit.
  void AddLimited(int64_t kept, int64_t unlimited) {
    limited_ += kept;
    fitting_ = std::max(fitting_, 2 * unlimited - kept);
  }
  int64_t FittingBytes() const { return fitting_; }
  int64_t n_arenas() const { return static_cast<int64_t>(arenas_.size()); }
  int64_t PromptBytes() const { return Bytes(&Arena::at_prompt); }
  int64_t EndBytes() const { return Bytes(&Arena::at_end); }

 private:
  struct Arena {
    double at_prompt = 0, at_end = 0;
  };
  int64_t Bytes(double Arena::*when) const {
    double bytes = static_cast<double>(limited_);
    for (const auto& [page_bytes, arena] : arenas_)
      bytes += std::ceil(arena.*when) * static_cast<double>(page_bytes);
    return static_cast<int64_t>(bytes);
  }
  std::map<int64_t, Arena> arenas_;
  int64_t limited_ = 0, fitting_ = 0;
};

PageCount CountPages(const CacheLayout& layout, const Growth& growth);

// Of n tokens, uncompressed; of layers with windows what those hold.
int64_t FullCacheBytes(const CacheLayout& layout, const Policy& policy, int64_t n);

}  // namespace kvc
