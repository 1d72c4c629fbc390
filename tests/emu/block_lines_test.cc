// What a block does along a line (cuda/block.h, cuda/select_line.h), with few threads, so that lines are as
// long as no round, a part of one, exactly one and several; against the same thing in a line of C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/select_line.h"
#include "tests/emu/emulator.h"
#include "tests/emu/launch_at_once.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 64, kRound = 8 * kThreads, kRoundOfFloats = 16 * kThreads;

class BlockLines : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    emu::GetOptions().order = GetParam();
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    for (void* at : memory_) cudaFree(at);
    cudaStreamDestroy(stream_);
    emu::GetOptions() = {};
  }
  template <typename T>
  T* Device(int64_t n) {
    void* at = nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&at, static_cast<size_t>(n) * sizeof(T) + 64));
    memory_.push_back(at);
    return static_cast<T*>(at);
  }
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};
INSTANTIATE_TEST_SUITE_P(Orders, BlockLines, testing::Values(0, 1, 2));

// seen [2][n]: of each value, how often it came and what was loaded; late: threads whose order was another.
__global__ void look_along(const float* x, int32_t n, int32_t* seen, int32_t* late) {
  int32_t last = -1;
  EachOfLine(
      n, [&](int32_t i) { return x[i]; },
      [&](int32_t i, float v) {
        if (i <= last || i % BlockThreads() != ThreadOfBlock()) atomicAdd(late, 1);
        last = i;
        if (v == x[i]) atomicAdd(&seen[i], 1);
      });
  const auto one = [&](int32_t i, float v) {
    if (v == x[i]) atomicAdd(&seen[n + i], 1);
  };
  EachOfFloats(
      x, n,
      [&](int32_t i, const float4& v) {
        if (reinterpret_cast<uintptr_t>(x + i) % sizeof v != 0) atomicAdd(late, 1);
        one(i, v.x), one(i + 1, v.y), one(i + 2, v.z), one(i + 3, v.w);
      },
      one);
}

TEST_P(BlockLines, EveryValueComesOnce) {
  constexpr int32_t kMost = 3 * kRoundOfFloats;
  float* x = Device<float>(kMost);
  int32_t *seen = Device<int32_t>(2 * kMost), *late = Device<int32_t>(1);
  std::iota(x, x + kMost, 1.0f);
  std::vector<int32_t> lengths(40);
  std::iota(lengths.begin(), lengths.end(), 0);
  for (const int32_t round : {kThreads, kRound, 2 * kRound, kRoundOfFloats, 2 * kRoundOfFloats}) {
    for (const int32_t more : {-5, -4, -3, -1, 0, 1, 3, 4, 5, 33}) lengths.push_back(round + more);
  }
  for (const int32_t n : lengths) {
    for (int first = 0; first < 4; ++first) {
      std::fill_n(seen, 2 * n, 0);
      *late = 0;
      ASSERT_EQ(cudaSuccess,
                KVC_LAUNCH(look_along, dim3(1), dim3(kThreads), 0, stream_, x + first, n, seen, late));
      ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
      EXPECT_EQ(2 * n, std::count(seen, seen + 2 * n, 1)) << n << " from " << first;
      EXPECT_EQ(0, *late) << n << " from " << first;
    }
  }
}

// places [n]: how many of the values 1 come in front of each; ranks with the value, which is loaded again.
__global__ void rank_along(const uint8_t* x, int32_t n, int32_t* places, int32_t* wrong) {
  __shared__ BlockSpace space;
  const int32_t all = BlockRankLoaded(
      n, &space, [&](int32_t i) { return x[i]; }, [](uint8_t v) { return v == 1; },
      [&](int32_t i, uint8_t v, bool yes, int32_t place) {
        places[i] = place;
        if (v != x[i] || yes != (v == 1)) atomicAdd(wrong, 1);
      });
  if (ThreadOfBlock() == 0) places[n] = all;
}

TEST_P(BlockLines, RanksAreOfThoseInFront) {
  for (const int32_t n : {0, 1, 31, 63, 64, 65, 128, 500, 511, 512, 513, 1024, 1100, 4096, 4133}) {
    uint8_t* x = Device<uint8_t>(n);
    int32_t *places = Device<int32_t>(n + 1), *wrong = Device<int32_t>(1);
    *wrong = 0;
    for (int32_t i = 0; i < n; ++i) x[i] = static_cast<uint8_t>((i * 2654435761u >> 20) % 3);
    ASSERT_EQ(cudaSuccess, KVC_LAUNCH(rank_along, dim3(1), dim3(kThreads), 0, stream_, x, n, places, wrong));
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
    int32_t place = 0;
    for (int32_t i = 0; i < n; ++i) {
      ASSERT_EQ(place, places[i]) << n << " " << i;
      place += x[i] == 1 ? 1 : 0;
    }
    EXPECT_EQ(place, places[n]);
    EXPECT_EQ(0, *wrong);
  }
}

__global__ void mark_along(const float* x, int32_t n, int32_t count, bool has_list, uint8_t* mark) {
  __shared__ BlockSpace space;
  __shared__ int32_t list[kListed];
  if (has_list) {
    LineMarks(x, n, &space, list, mark).Best(count);
  } else {
    BlockMarkTop([&](int32_t i) { return ScoreBits(x[i]); }, n, count, &space,
                 [&](int32_t i, bool yes) { mark[i] = yes ? 1 : 0; });
  }
}

// Scores of so many kinds: apart; in a few steps, so that equal ones lie in every round; all alike; nearly
// alike, in one bucket of 22 bits and in ties there; with what is no number; more of 22 bits than the list
// has room for.
float ScoreOf(int kind, int32_t i) {
  const uint32_t mixed = (static_cast<uint32_t>(i) * 2654435761u) ^ (static_cast<uint32_t>(i) * 40503u >> 7);
  const float apart = static_cast<float>(mixed >> 8) - 8e6f;
  if (kind == 0) return apart;
  if (kind == 1) return static_cast<float>(mixed >> 30) - 1.0f;
  if (kind == 2) return -0.25f;
  if (kind == 3) return mixed % 16 == 0 ? 1.0f + static_cast<float>(mixed >> 28) * 0x1p-23f : apart * 1e-8f;
  if (kind == 4) return mixed % 5 == 0 ? NAN : mixed % 5 == 1 ? -INFINITY : mixed % 5 == 2 ? -0.0f : 0.0f;
  return mixed % 8 == 0 ? apart * 1e-8f : 1.0f + static_cast<float>(mixed >> 29) * 0x1p-23f;
}

TEST_P(BlockLines, TheBestAreMarked) {
  constexpr int32_t kMost = 3 * kRoundOfFloats;
  float* const x = Device<float>(kMost);
  uint8_t* const mark = Device<uint8_t>(kMost);
  for (int kind = 0; kind < 6; ++kind) {
    for (const int32_t n : {1, 3, 4, 18, kRoundOfFloats - 1, kRoundOfFloats, kRoundOfFloats + 3, kMost - 5}) {
      // Marks of which four are a word, and others.
      for (const auto& [first, first_mark] : {std::pair{0, 0}, {1, 1}, {3, 3}, {2, 1}}) {
        for (int32_t i = 0; i < n; ++i) x[first + i] = ScoreOf(kind, i);
        std::vector<int32_t> order(static_cast<size_t>(n));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          const auto number = [&](int32_t i) { return std::isnan(x[first + i]) ? -INFINITY : x[first + i]; };
          return number(a) > number(b);
        });
        for (const int32_t count : {0, 1, n / 5, n / 2, n - 2, n}) {
          std::vector<uint8_t> expected(static_cast<size_t>(n), 0);
          for (int32_t i = 0; i < count; ++i)
            expected[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
          for (const bool has_list : {false, true}) {
            std::fill_n(mark, n + 8, 7);
            ASSERT_EQ(cudaSuccess, KVC_LAUNCH(mark_along, dim3(1), dim3(kThreads), 0, stream_, x + first, n,
                                              count, has_list, mark + first_mark));
            ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(), mark + first_mark))
                << n << " of kind " << kind << " from " << first << ", the best " << count << ", "
                << (has_list ? "a list" : "none");
            ASSERT_TRUE(first_mark == 0 || mark[first_mark - 1] == 7);
            ASSERT_EQ(7, mark[first_mark + n]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
