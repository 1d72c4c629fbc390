// Rows are grouped by expert. Bytes: of the experts those that some row has chosen, each once per call: a
// step reads n_chosen of them (fewer than n_chosen each where rows agree), a chunk of a prompt at most all of
// them. Flops: 2 a weight of an expert and row that chose it. A row's experts are added in the order of their
// numbers, so its result depends on no other row.
#include "lib/ops/cpu/experts.h"

#include <cmath>
#include <cstring>

namespace kvc::cpu {
namespace {

// Which place among all pairs each has: by expert, then row.
void Group(const NetworkShape& s, int32_t n, const Rows& r) {
  const int64_t n_pairs = int64_t{n} * s.n_chosen;
  std::fill_n(r.starts, s.n_experts + 1, 0);
  for (int64_t i = 0; i < n_pairs; ++i) ++r.starts[r.chosen[i] + 1];
  for (int32_t e = 0; e < s.n_experts; ++e) r.starts[e + 1] += r.starts[e];
  // starts[e] runs to the end of e, which is where e + 1 starts.
  for (int64_t i = 0; i < n_pairs; ++i) {
    r.places[i] = r.starts[r.chosen[i]]++;
    r.tokens[r.places[i]] = static_cast<int32_t>(i / s.n_chosen);
  }
  for (int32_t e = s.n_experts; e > 0; --e) r.starts[e] = r.starts[e - 1];
  r.starts[0] = 0;
}

// Pairs [begin, end), in whole experts; those that have some are slices.
struct Wave {
  int32_t begin, end;
  Span<const StackSlice> slices;
};

// The experts from *expert on whose pairs have room together.
Wave NextWave(const NetworkShape& s, const Rows& r, int32_t* expert) {
  Wave wave{r.starts[*expert], r.starts[*expert], {}};
  size_t n_slices = 0;
  for (; *expert < s.n_experts && r.starts[*expert + 1] - wave.begin <= r.pairs; ++*expert) {
    const int32_t n = r.starts[*expert + 1] - wave.end;
    if (n > 0) r.slices[n_slices++] = {*expert, wave.end - wave.begin, n};
    wave.end += n;
  }
  wave.slices = {r.slices, n_slices};
  return wave;
}

// What the experts of a wave give, into gathered. h: what they read, [n, hidden].
void RunExperts(const LayerMath& math, const LayerMatrices& w, const Wave& wave, const float* h) {
  const Rows& r = math.rows();
  const int64_t hidden = math.shape().hidden, ffn = math.shape().ffn;
  const auto gather = [&](int64_t i) {
    std::memcpy(r.gathered + i * hidden, h + r.tokens[wave.begin + i] * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  };
  const auto activate = [&](const OutputTile& t) {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      math.Activate(w, r.up + i * ffn + t.row, t.rows, r.gate + i * ffn + t.row);
    }
  };
  MatrixProduct halves{};
  halves.matrix = &w.gate_up, halves.x = r.gathered, halves.y[0] = r.gate, halves.y[1] = r.up;
  halves.slices = wave.slices, halves.make_row = gather, halves.finish = activate, halves.aligned = true;
  math.Product(wave.end - wave.begin, &halves);
  MatrixProduct down{};
  down.matrix = &w.down, down.x = r.gate, down.y[0] = r.gathered, down.slices = wave.slices;
  math.Product(wave.end - wave.begin, &down);
}

}  // namespace

void Route(const KernelTable& kernels, int32_t n_experts, int32_t n_chosen, bool normalise, float* logits,
           int32_t* chosen, float* weights) {
  const auto value = [&](int32_t e) { return std::isnan(logits[e]) ? -INFINITY : logits[e]; };
  // Whether a comes before b where the best stand first.
  const auto before = [&](int32_t a, int32_t b) {
    return value(a) > value(b) || (value(a) == value(b) && a < b);
  };
  for (int32_t j = 0; j < n_chosen; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < n_experts; ++e) {
      if (j > 0 && !before(chosen[j - 1], e)) continue;
      if (best < 0 || before(e, best)) best = e;
    }
    chosen[j] = best;
  }
  std::sort(chosen, chosen + n_chosen);
  kernels.softmax(logits, n_experts);
  float sum = 0;
  for (int32_t j = 0; j < n_chosen; ++j) sum += weights[j] = logits[chosen[j]];
  for (int32_t j = 0; normalise && j < n_chosen; ++j) weights[j] /= sum;
}

void AddExperts(const LayerMath& math, const LayerMatrices& w, float scale, float* x) {
  const NetworkShape& s = math.shape();
  const Rows& r = math.rows();
  MatrixProduct router{};
  router.matrix = &w.router, router.y[0] = r.routes, router.exact = true;  // experts are chosen by it
  math.NormProduct(x, w.ffn_norm, w.ffn_norm_bias, &router);
  math.ForRows([&](int64_t i, int) {
    Route(math.kernels(), s.n_experts, s.n_chosen, w.normalise_experts, r.routes + i * s.n_experts,
          r.chosen + i * s.n_chosen, r.weights + i * s.n_chosen);
    std::fill_n(r.sum + i * s.hidden, s.hidden, 0.0f);
  });
  Group(s, math.n(), r);
  for (int32_t expert = 0; expert < s.n_experts;) {
    const Wave wave = NextWave(s, r, &expert);
    if (wave.slices.empty()) continue;
    RunExperts(math, w, wave, w.ffn_norm ? r.norm : x);
    math.ForRows([&](int64_t i, int) {
      for (int64_t j = i * s.n_chosen; j < (i + 1) * s.n_chosen; ++j) {
        if (r.places[j] < wave.begin || r.places[j] >= wave.end) continue;
        math.kernels().axpy(r.weights[j], r.gathered + int64_t{r.places[j] - wave.begin} * s.hidden, s.hidden,
                            r.sum + i * s.hidden);
      }
    });
  }
  math.ForRows([&](int64_t i, int) { math.AddRow(r.sum, i, w.ffn_post_norm, scale, x); });
}

}  // namespace kvc::cpu
