#include "lib/cache/codebook.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvc {
namespace {

// The greedy cover of the vectors listed in `open` (indices into u): repeatedly the alive vertex with the
// largest degree, ties the smallest index, takes its neighbours with it. Rows of the graph are recomputed
// when a vertex leaves, so the graph is never stored.
class Cover {
 public:
  Cover(const KernelTable& kernels, int32_t d, float theta, CodeScratch* scratch)
      : kernels_(kernels),
        u_(scratch->units.data()),
        d_(d),
        theta_(theta),
        open_(scratch->open),
        alive_(scratch->alive),
        degree_(scratch->degree),
        members_(scratch->members) {
    alive_.assign(open_.size(), 1);
    degree_.assign(open_.size(), 0);
    for (size_t a = 0; a < open_.size(); ++a) {
      for (size_t b = 0; b < open_.size(); ++b) degree_[a] += Adjacent(a, b);
    }
  }

  // f(centre, members): vectors by their index in u.
  template <typename F>
  void ForEachCentre(F&& f) {
    while (true) {
      size_t best = open_.size();
      for (size_t a = 0; a < open_.size(); ++a) {
        if (alive_[a] && (best == open_.size() || degree_[a] > degree_[best])) best = a;
      }
      if (best == open_.size()) return;
      members_.clear();
      for (size_t b = 0; b < open_.size(); ++b) {
        if (alive_[b] && Adjacent(best, b)) members_.push_back(b);
      }
      for (size_t m : members_) alive_[m] = 0;
      for (size_t m : members_) {
        for (size_t b = 0; b < open_.size(); ++b) {
          if (alive_[b]) degree_[b] -= Adjacent(m, b);
        }
      }
      f(open_[best]);
      for (size_t m : members_) f.Member(open_[m]);
    }
  }

 private:
  int32_t Adjacent(size_t a, size_t b) const {
    return a == b || kernels_.dot(u_ + int64_t{open_[a]} * d_, u_ + int64_t{open_[b]} * d_, d_) > theta_;
  }

  const KernelTable& kernels_;
  const float* u_;
  const int32_t d_;
  const float theta_;
  const std::vector<int32_t>& open_;
  std::vector<uint8_t>& alive_;
  std::vector<int32_t>& degree_;
  std::vector<size_t>& members_;
};

// Appends a centre's direction and points its members at it.
struct Collect {
  const float* u;
  int32_t d, next;
  CodedVector* codes;
  std::vector<float>* added;
  void operator()(int32_t centre) {
    added->insert(added->end(), u + int64_t{centre} * d, u + int64_t{centre + 1} * d);
    ++next;
  }
  void Member(int32_t i) { codes[i].ref = static_cast<uint32_t>(next - 1); }
};

}  // namespace

void CodeScratch::Reserve(int32_t n, int32_t d) {
  const size_t vectors = static_cast<size_t>(n);
  units.reserve(vectors * static_cast<size_t>(d));
  open.reserve(vectors), degree.reserve(vectors), members.reserve(vectors), alive.reserve(vectors);
}

void CodeVectors(const KernelTable& kernels, const float* x, int32_t n, int32_t d, float theta,
                 const DirectionSource& existing, CodedVector* codes, std::vector<float>* added,
                 CodeScratch* scratch) {
  added->clear();
  std::vector<float>& u = scratch->units;
  u.assign(static_cast<size_t>(n) * static_cast<size_t>(d), 0.0f);
  scratch->open.clear();
  for (int32_t i = 0; i < n; ++i) {
    const float* xi = x + int64_t{i} * d;
    float* ui = u.data() + int64_t{i} * d;
    const float magnitude = std::sqrt(kernels.dot(xi, xi, d));
    codes[i] = {0, magnitude};
    if (!(magnitude > 0)) continue;
    for (int32_t j = 0; j < d; ++j) ui[j] = xi[j] / magnitude;
    float best = theta;
    bool found = false;
    for (int32_t e = 0; e < existing.n; ++e) {
      const float cosine = kernels.dot(ui, existing.at(existing.owner, e), d);
      if (cosine > best) best = cosine, codes[i].ref = static_cast<uint32_t>(e), found = true;
    }
    if (!found) scratch->open.push_back(i);
  }
  Cover cover(kernels, d, theta, scratch);
  Collect collect{u.data(), d, existing.n, codes, added};
  cover.ForEachCentre(collect);
  if (n > 0 && existing.n == 0 && added->empty()) added->assign(static_cast<size_t>(d), 0.0f);
}

}  // namespace kvc
