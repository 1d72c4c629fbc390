// The attention of a prompt over keys and values of f16 gives what sums in f64 over the same numbers give, as
// near as exponentials of f16 allow, and the same bits in every order of blocks and warps and for every part
// of a prompt that is read at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/attend_prompt_half.h"
#include "cuda/gpu.h"
#include "tests/emu/emulator.h"
#include "tests/emu/kernel_test.h"

namespace kvc::cuda {
namespace {

constexpr float kNothing = 12345;
constexpr uint16_t kNoNumber = 0x7e00;

struct Case {
  int32_t d, group;
  std::vector<int32_t> bases;  // of the KV heads
  int32_t n, offset = 0, window = 0;
  float cap = 0, queries = 1;
  bool seen = false, rest = false, sinks = false;
  float scale = 0.11f;

  std::string Name() const {
    return std::to_string(n) + " rows behind " + std::to_string(bases[0]) + " and " + std::to_string(offset) +
           ", " + std::to_string(group) + " heads of size " + std::to_string(d) + ", scale " +
           std::to_string(scale) + (window > 0 ? ", window" : "") + (cap > 0 ? ", cap" : "") +
           (seen ? ", masks" : "") + (rest ? ", rest" : "") + (sinks ? ", sinks" : "");
  }
};

struct Results {
  std::vector<float> out, lse;
  bool operator==(const Results& o) const {
    return out.size() == o.out.size() && lse.size() == o.lse.size() &&
           std::memcmp(out.data(), o.out.data(), out.size() * sizeof(float)) == 0 &&
           std::memcmp(lse.data(), o.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

// A layer whose heads have keys and values up to the prompt's last row, and no numbers behind it.
class Prompt {
 public:
  explicit Prompt(const Case& c)
      : c_(c), heads_(static_cast<int32_t>(c.bases.size())), n_heads_(heads_ * c.group) {
    capacity_ = *std::max_element(c.bases.begin(), c.bases.end()) + c.offset + c.n + 3;
    const size_t entries = static_cast<size_t>(heads_ * capacity_), d = static_cast<size_t>(c.d);
    // 8 numbers more: vectors of 16 bytes begin anywhere that is a multiple of as many.
    keys_.assign(entries * d + 8, kNoNumber), values_ = keys_;
    positions_.assign(entries, 5), seen_.assign(entries, ~0u);
    std::normal_distribution<float> normal;
    for (int32_t g = 0; g < heads_; ++g) {
      const int64_t first = g * capacity_;
      const int32_t before = c.bases[static_cast<size_t>(g)];
      for (int64_t i = first * c.d; i < (first + before + c.offset + c.n) * c.d; ++i)
        Keys()[i] = ToHalfBits(normal(random_)), Values()[i] = ToHalfBits(normal(random_));
      for (int32_t i = 0; i < before; ++i) seen_[static_cast<size_t>(first + i)] = DrawMask();
      if (c.rest) positions_[static_cast<size_t>(first)] = -37;
    }
    std::normal_distribution<float> wide(0, c.queries);
    q_.resize(static_cast<size_t>(c.n * n_heads_) * d);
    for (float& x : q_) x = wide(random_);
    for (int32_t h = 0; h < n_heads_; ++h) sinks_.push_back(h % 3 == 2 ? -INFINITY : 3 * normal(random_));
  }

  // Rows [first, first + n). stride of lse: 5 more than there are rows.
  void Run(int32_t first, int32_t n, bool out, CudaStream* stream, Results* results) {
    results->out.assign(q_.size(), kNothing);
    results->lse.assign(static_cast<size_t>(n_heads_ * stride()), kNothing);
    PromptHalfParams p{};
    p.keys = Keys(), p.values = Values(), p.positions = positions_.data();
    p.seen = c_.seen ? seen_.data() : nullptr;
    p.capacity = capacity_, p.d = c_.d, p.n_kv_heads = heads_, p.n_heads = n_heads_;
    p.base = c_.bases.data(), p.offset = c_.offset + first, p.n = n, p.window = c_.window;
    p.scale = c_.scale, p.cap = c_.cap;
    const int64_t row = int64_t{n_heads_} * c_.d;
    p.q = q_.data() + first * row;
    if (out) p.out = results->out.data() + first * row;
    p.lse = results->lse.data() + first, p.lse_stride = stride();
    p.sinks = c_.sinks ? sinks_.data() : nullptr;
    ASSERT_EQ(cudaSuccess, AttendPromptHalf(p, *stream));
    ASSERT_TRUE(stream->Wait("test").ok());
  }

  // Of the exponentials, what f16 rounds is at most 2^-11 of each: half a unit of its last place, of numbers
  // above 2^-14 where those that count are (what is less is 2^-24 of the greatest, and what f16 loses of it
  // 2^-35). Logits are products in f32, cut off a bit or two below the last one, and as much more of an
  // exponential as they are off; 2^-18 is for sums of exponentials and values, and for rounding of f32.
  void ExpectNear(const Results& results) const {
    for (int32_t i = 0; i < c_.n; ++i) {
      for (int32_t h = 0; h < n_heads_; ++h) {
        SCOPED_TRACE("row " + std::to_string(i) + ", head " + std::to_string(h));
        const Row row = Reference(i, h);
        const float lse = results.lse[static_cast<size_t>(h * stride() + i)];
        ASSERT_LE(std::fabs(lse - row.lse), row.off + std::ldexp(1 + std::fabs(row.lse), -19));
        for (int32_t j = 0; j < c_.d; ++j) {
          const size_t at = static_cast<size_t>(j);
          const float out = results.out[static_cast<size_t>((i * n_heads_ + h) * c_.d + j)];
          ASSERT_LE(std::fabs(out - row.out[at]), row.sizes[at] * (0x1p-11 + 2 * row.off + 0x1p-18)) << j;
        }
      }
    }
    for (int32_t h = 0; h < n_heads_; ++h) {
      for (int32_t i = c_.n; i < stride(); ++i)
        ASSERT_EQ(kNothing, results.lse[static_cast<size_t>(h * stride() + i)]);
    }
  }

 private:
  struct Row {
    std::vector<double> out, sizes;  // sums of values, and of their absolute values
    double lse, off;                 // off: what a logit may be
  };
  static double Number(uint16_t bits) { return double{HalfBits(bits)}; }
  uint16_t* Aligned(std::vector<uint16_t>& x) const {
    return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(x.data()) + 15) & ~uintptr_t{15});
  }
  uint16_t* Keys() { return Aligned(keys_); }
  uint16_t* Values() { return Aligned(values_); }
  const uint16_t* Keys() const { return const_cast<Prompt*>(this)->Keys(); }
  const uint16_t* Values() const { return const_cast<Prompt*>(this)->Values(); }
  int32_t stride() const { return c_.n + 5; }
  // Every third query head sees no entry before the prompt, all others about half of them.
  uint32_t DrawMask() { return static_cast<uint32_t>(random_()) & 0xb6db6db6u; }

  Row Reference(int32_t i, int32_t h) const {
    const int32_t g = h / c_.group, end = c_.bases[static_cast<size_t>(g)] + c_.offset + i + 1,
                  begin = c_.window > 0 ? std::max(end - c_.window, 0) : 0;
    const float* q = q_.data() + static_cast<size_t>(i * n_heads_ + h) * static_cast<size_t>(c_.d);
    std::vector<double> z;
    std::vector<int32_t> at;
    double most_product = 0, m = c_.sinks ? double{sinks_[static_cast<size_t>(h)]} : -INFINITY;
    const double sink = m;
    for (int32_t t = begin; t < end; ++t) {
      const int64_t entry = g * capacity_ + t;
      if (c_.seen && (seen_[static_cast<size_t>(entry)] >> (h % c_.group) & 1) == 0) continue;
      double sum = 0, size = 0;
      for (int32_t j = 0; j < c_.d; ++j) {
        const double x = Number(ToHalfBits(q[j])) * Number(Keys()[entry * c_.d + j]);
        sum += x, size += std::fabs(x);
      }
      double logit = sum * double{c_.scale};
      if (c_.cap > 0) logit = double{c_.cap} * std::tanh(logit / double{c_.cap});
      if (t == 0 && c_.rest) logit += std::log(37.0);
      z.push_back(logit), at.push_back(t);
      m = std::max(m, logit), most_product = std::max(most_product, size);
    }
    const size_t d = static_cast<size_t>(c_.d);
    Row row{std::vector<double>(d), std::vector<double>(d), 0, 0};
    double l = std::isinf(sink) ? 0 : std::exp(sink - m);
    for (const double x : z) l += std::exp(x - m);
    for (size_t k = 0; k < z.size(); ++k) {
      const double p = std::exp(z[k] - m) / l;
      for (size_t j = 0; j < d; ++j) {
        const double v = Number(Values()[(g * capacity_ + at[k]) * c_.d + static_cast<int64_t>(j)]);
        row.out[j] += p * v, row.sizes[j] += p * std::fabs(v);
      }
    }
    row.lse = m + std::log(l), row.off = std::ldexp(std::fabs(double{c_.scale}) * most_product + 1, -20);
    return row;
  }

  const Case c_;
  const int32_t heads_, n_heads_;
  int64_t capacity_ = 0;
  std::mt19937 random_{17};
  std::vector<uint16_t> keys_, values_;
  std::vector<int32_t> positions_;
  std::vector<uint32_t> seen_;
  std::vector<float> q_, sinks_;
};

class AttendPromptTest : public KernelTest {
 protected:
  // lse alone is the same bits.
  void ExpectNear(const Case& c) {
    SCOPED_TRACE(c.Name());
    Prompt prompt(c);
    Results results, alone;
    ASSERT_NO_FATAL_FAILURE(prompt.Run(0, c.n, true, stream_.get(), &results));
    ASSERT_NO_FATAL_FAILURE(prompt.ExpectNear(results));
    ASSERT_NO_FATAL_FAILURE(prompt.Run(0, c.n, false, stream_.get(), &alone));
    EXPECT_EQ(std::vector<float>(alone.out.size(), kNothing), alone.out);
    results.out = alone.out;
    EXPECT_TRUE(results == alone);
  }
};

// Rows around those of a warp, heads around those of a block, lengths around a step and what comes at once.
TEST_F(AttendPromptTest, IsWhatSumsInDoubleGive) {
  for (const int32_t d : {64, 128}) {
    ExpectNear({d, 1, {0}, 1});
    ExpectNear({d, 1, {0, 31}, 33});
    ExpectNear({d, 4, {64}, 64});
    ExpectNear({d, 3, {63, 0}, 65, 1});
    ExpectNear({d, 7, {5}, 32, 27});
    ExpectNear({d, 2, {190, 65}, 150});
    ExpectNear({d, 5, {0}, 96});
  }
}

TEST_F(AttendPromptTest, WindowsMasksCapsSinksAndRests) {
  for (const int32_t d : {64, 128}) {
    Case c{d, 3, {70, 129}, 70, 3};
    c.rest = true;
    ExpectNear(c);
    c.sinks = true, c.window = 48;
    ExpectNear(c);
    c.seen = true, c.window = 0;
    ExpectNear(c);
    c.cap = 3, c.window = 150;
    ExpectNear(c);
    // The last row of a block begins to see behind the first entry of a step.
    c = {d, 4, {200}, 32};
    c.window = 135;
    ExpectNear(c);
    c = {d, 2, {0}, 140};
    c.window = 1;
    ExpectNear(c);
    c.window = 64, c.sinks = true;
    ExpectNear(c);
  }
}

// Logits that grow from tile to tile, so that what exponentials are relative to is raised, and of which most
// are far below the greatest; scales that are none, and negative.
TEST_F(AttendPromptTest, WideLogitsAndOddScales) {
  for (const int32_t d : {64, 128}) {
    Case c{d, 2, {150}, 40};
    for (const float queries : {0.01f, 10.0f, 100.0f}) {
      c.queries = queries;
      ExpectNear(c);
    }
    c.queries = 2, c.scale = -0.3f;
    ExpectNear(c);
    c.scale = 0;
    ExpectNear(c);
  }
}

TEST_F(AttendPromptTest, TheSameBitsInEveryOrder) {
  Case c{128, 3, {33, 90}, 100};
  c.sinks = true;
  Results first;
  for (const int order : {0, 1, 2}) {
    emu::GetOptions().order = order;
    Prompt prompt(c);
    Results results;
    ASSERT_NO_FATAL_FAILURE(prompt.Run(0, c.n, true, stream_.get(), &results));
    if (order == 0) first = results;
    EXPECT_TRUE(first == results) << order;
  }
}

// What a row gets does not depend on the rows beside it.
TEST_F(AttendPromptTest, TheSameBitsForPartsOfAPrompt) {
  for (const int32_t window : {0, 50}) {
    Case c{64, 3, {33, 90}, 100};
    c.window = window, c.rest = true, c.queries = 4;
    Prompt prompt(c);
    Results whole, part;
    ASSERT_NO_FATAL_FAILURE(prompt.Run(0, c.n, true, stream_.get(), &whole));
    Results parts = whole;
    std::fill(parts.out.begin(), parts.out.end(), kNothing);
    for (int32_t at = 0, n = 1; at < c.n; at += n, n = std::min(2 * n + 5, c.n - at)) {
      ASSERT_NO_FATAL_FAILURE(prompt.Run(at, n, true, stream_.get(), &part));
      for (size_t i = 0; i < part.out.size(); ++i) {
        if (part.out[i] != kNothing) parts.out[i] = part.out[i];
      }
      for (size_t i = 0; i < part.lse.size(); ++i) {
        if (part.lse[i] != kNothing) {
          EXPECT_EQ(whole.lse[i], part.lse[i]) << i;
        }
      }
    }
    EXPECT_TRUE(whole == parts) << window;
  }
}

}  // namespace
}  // namespace kvc::cuda
