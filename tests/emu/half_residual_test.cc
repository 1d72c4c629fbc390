// What stands between the layers of a long prompt in f16: rows are rounded as on the processor, sessions stay
// near those that keep them in f32, and take what was planned.
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr char kSwitch[] = "KVC_CUDA_FLOAT_ROWS";

using HalfRows = DeviceParity;

TEST_F(HalfRows, AreThoseOfTheProcessor) {
  constexpr int kExponents[] = {0, 14, 16, 60, -1, -4, -60, -140, 120};
  constexpr int32_t n = static_cast<int32_t>(std::size(kExponents)) + 1;
  for (const int32_t width : {1, 38, 96, 100, 4104}) {
    const size_t all = static_cast<size_t>(n * width);
    std::vector<float> rows = Random(all);
    for (size_t i = 0; i < all; ++i) {
      const size_t row = i / static_cast<size_t>(width);
      rows[i] = row + 1 == n ? 0 : std::ldexp(std::fmin(rows[i], 1.5f), kExponents[row]);
    }
    const auto x = pair_->Copy(rows), factors = pair_->Copy(std::vector<float>(n));
    const auto halves = pair_->Copy(std::vector<uint16_t>(all));
    for (int i = 0; i < 2; ++i) {
      const HalfRowsArgs args{x.at[i], halves.at[i], factors.at[i], n, width};
      ASSERT_TRUE(devices_[i]->StoreHalves(streams_[i].get(), args).ok());
      ASSERT_TRUE(devices_[i]->LoadHalves(streams_[i].get(), args).ok());
    }
    EXPECT_EQ(pair_->Read(factors, 0), pair_->Read(factors, 1)) << width;
    EXPECT_EQ(pair_->Read(halves, 0), pair_->Read(halves, 1)) << width;
    EXPECT_EQ(pair_->Read(x, 0), pair_->Read(x, 1)) << width;
    const std::vector<float> got = pair_->Read(x, 0);
    for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
      float largest = 0;
      for (size_t i = row * static_cast<size_t>(width); i < (row + 1) * static_cast<size_t>(width); ++i)
        largest = std::fmax(largest, std::fabs(rows[i]));
      for (size_t i = row * static_cast<size_t>(width); i < (row + 1) * static_cast<size_t>(width); ++i) {
        const float most = std::fmax(std::ldexp(std::fabs(rows[i]), -11), std::ldexp(largest, -23));
        EXPECT_LE(std::fabs(got[i] - rows[i]), std::fmax(most, std::ldexp(1.0f, -104)))
            << width << ", " << row;
      }
    }
    pair_->blocks.clear();
  }
}

class HalfResidual : public testing::Test {
 protected:
  static constexpr int32_t kHidden = 48;
  static std::shared_ptr<const Model> Open(const char* most_float_rows) {
    static const test::AlignedBytes bytes = [] {
      test::TinyModelOptions options;
      options.n_layers = 3, options.n_heads = 6, options.hidden_size = kHidden,
      options.type = WeightType::kBf16;
      return test::TinyModelBytes(options);
    }();
    test::SetVariable(kSwitch, most_float_rows);
    return OpenOn(kOther, bytes);
  }
  const test::KeptVariable kept_{kSwitch};
};

// One chunk and several, prompts behind others, and what is read again, as it was and with what comes before.
TEST_F(HalfResidual, SessionsStayNearThoseInF32) {
  const std::pair<const char*, int> cases[] = {{"full", 1100},
                                               {"snapkv:budget=24,window=8", 300},
                                               {"h2o:budget=24", 300},
                                               {"kvzip:budget=24,reread_part=256", 600},
                                               {"kvzip:budget=24,reread=own,reread_part=256", 600}};
  for (const auto& [policy, n] : cases) {
    SCOPED_TRACE(policy);
    const auto halves = Open("16"), floats = Open(nullptr);
    const auto a = test::FedSession(halves, policy, n), b = test::FedSession(floats, policy, n);
    const double behind_one = test::LargestDifference(*a, *b);
    EXPECT_GT(behind_one, 0) << "nothing was rounded";
    EXPECT_LE(behind_one, 5e-3);
    EXPECT_EQ(test::LogitsOf(*test::FedSession(halves, policy, n)), test::LogitsOf(*a));
    for (auto* s : {a.get(), b.get()}) ASSERT_TRUE(s->Prefill(test::TinyPrompt(40, 3), true).ok());
    EXPECT_LE(test::LargestDifference(*a, *b), 5e-3);
  }
}

// Prompts that are no longer than the switch says, and what is asked for in f32.
TEST_F(HalfResidual, SomeStayInF32) {
  const auto halves = Open("16"), floats = Open(nullptr);
  for (const auto& [policy, n] : {std::pair{"full", 16}, std::pair{"full:kv=f32", 100}}) {
    EXPECT_EQ(test::LogitsOf(*test::FedSession(halves, policy, n)),
              test::LogitsOf(*test::FedSession(floats, policy, n)));
  }
}

TEST_F(HalfResidual, PlansKnowThem) {
  for (const int n : {300, 1100}) {
    test::PlannedAndTaken of[2];
    for (const bool in_halves : {false, true}) {
      SessionParams params;
      params.max_tokens = 1200;
      of[in_halves] =
          test::WorkspaceOf(Open(in_halves ? "16" : nullptr), "snapkv:budget=24,window=8", n, params);
    }
    const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t in_floats = aligned(int64_t{4} * kHidden * n),
                  in_halves = aligned(int64_t{2} * kHidden * n) + aligned(int64_t{4} * n) +
                              aligned(int64_t{4} * kHidden * (1024 + 1));
    EXPECT_EQ(of[1].taken - of[0].taken, in_halves - in_floats) << n;
    EXPECT_EQ(of[1].planned - of[0].planned, in_halves - in_floats) << n;
  }
}

}  // namespace
}  // namespace kvc
