// What evicting entries of one layer changes in what its attention adds to the network: the L1 eviction loss
// of Ada-KV (Feng et al., arXiv 2407.11550, definition 3.1), its bound (theorem 3.2), the attention that
// stays, and how concentrated it was. docs/quality.md says what they mean.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc::tool {

// One layer of a full cache: H query heads, G KV heads, D elements a vector.
class LayerValues {
 public:
  // projection: W_O, [hidden, H * D] row major.
  LayerValues(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim, const std::vector<float>& projection);
  // The entries of KV head g are values [n, D] from now on. Of the first n_known the norms were taken before,
  // in the last call for this head: they have not changed since.
  void Set(int32_t g, std::vector<float> values, size_t n_known);

  int32_t n_heads() const { return n_heads_; }
  int32_t n_kv_heads() const { return n_kv_heads_; }
  int32_t group() const { return n_heads_ / n_kv_heads_; }
  const std::vector<float>& values(int32_t g) const { return values_[static_cast<size_t>(g)]; }
  // Largest L1 norm of a value behind W_O, of the entries of a query head.
  double LargestNorm(int32_t head) const;
  // Sum of |heads [H, D] behind W_O| over the hidden dimensions.
  double ProjectedNorm(const std::vector<double>& heads) const;
  size_t head_dim() const { return head_dim_; }

 private:
  double NormOf(int32_t head, size_t entry) const;
  const int32_t n_heads_, n_kv_heads_;
  const size_t head_dim_;
  size_t hidden_ = 0;
  std::vector<float> transposed_;                 // [H * D, hidden]
  std::vector<std::vector<float>> values_;        // [G]
  std::vector<std::vector<double>> known_norms_;  // [H][n_known]
  std::vector<double> largest_;                   // [H]
};

struct LayerLoss {
  double loss = 0;    // || y - y' ||_1 behind W_O; y' over what is kept, its probabilities made to sum to 1
  double output = 0;  // || y ||_1
  double bound_by_head = 0;  // sum over heads of 2 (1 - S_h) V_h: S_h what is kept of the attention (an
                             // attention sink is), V_h their norm
  double bound = 0;          // the paper's: V_h the largest of all heads. loss <= bound_by_head <= bound
  double retained = 0;       // mean of S_h over heads
};

// p [H][n of the head's KV head]: attention of one query; kept [G][n]: 1 where an entry is.
LayerLoss LossOf(const LayerValues& layer, const std::vector<std::vector<float>>& p,
                 const std::vector<std::vector<uint8_t>>& kept);

// Cosine of the attention `full` and of p, which is over the entries that are there (1), ascending; what is
// gone is 0 in it. Between 0 and 1; 0 where one of them is nothing.
double AttentionSimilarity(const std::vector<float>& full, const std::vector<float>& p,
                           const std::vector<uint8_t>& there);

// Share of the attention p that the `share` (0 .. 1, at least one entry) most attended entries have.
double TopShare(std::vector<float> p, double share);

}  // namespace kvc::tool
