// Sessions of models with weights of q4_k and q6_k: logits near those of the same values in f32, as those of
// int8 are, and their bits whatever the batch, the threads and the cut of the prompt.
#include <gtest/gtest.h>

#include "lib/base/mapped_file.h"
#include "models/convert/weight_codec.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FedSession;
using test::LogitsOf;
using test::OpenTiny;
using test::TinyModelOptions;

constexpr WeightType kTypes[] = {WeightType::kQ4K, WeightType::kQ6K};
constexpr char kSpec[] = "snapkv:budget=24,window=8";

TinyModelOptions Options(WeightType type, WeightLayout layout) {
  TinyModelOptions o;
  o.hidden_size = 256, o.ffn_size = 512, o.n_heads = 8, o.n_kv_heads = 2, o.head_dim = 32;
  o.type = type, o.group = 32, o.layout = layout;
  return o;
}

// The same model with every matrix as f32.
test::AlignedBytes InF32(const TinyModelOptions& options) {
  const test::TempFolder folder;
  const std::vector<TensorPlan> from = test::TinyModelTensors(options);
  std::vector<TensorPlan> plans = from;
  for (TensorPlan& plan : plans) plan.type = WeightType::kF32, plan.group = 0;
  auto writer = ModelWriter::Create(folder / "m.kvc", test::TinyModelContent(options), plans);
  EXPECT_TRUE(writer.ok()) << writer.status().message();
  for (const TensorPlan& plan : from) {
    const std::vector<uint8_t> bytes = test::TinyTensorBytes(options, plan);
    const int64_t n = int64_t{plan.rows} * plan.cols;
    std::vector<float> values(static_cast<size_t>(n));
    const uint8_t* scales = bytes.data() + WeightRowBytes(plan.type, n);
    DecodeStored({plan.type, plan.group}, bytes.data(), reinterpret_cast<const uint16_t*>(scales), n,
                 values.data());
    EXPECT_TRUE(writer.value()->Append(values.data(), 4 * n).ok());
  }
  EXPECT_TRUE(writer.value()->Finish().ok());
  MemoryMeter meter(0);
  const auto file = MappedFile::Open(folder / "m.kvc", &meter);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return {file.value().data(), static_cast<size_t>(file.value().size())};
}

// Root of the mean square of the difference, by that of the logits in f32.
double Distance(WeightType type, WeightLayout layout) {
  const TinyModelOptions options = Options(type, layout);
  TinyModelOptions plain = options;
  plain.layout = WeightLayout::kRowMajor;
  const test::AlignedBytes bytes = test::TinyModelBytes(options), f32 = InF32(plain);
  const auto of_type = OpenTiny(bytes), of_f32 = OpenTiny(f32);
  const std::vector<float> got = LogitsOf(*FedSession(of_type, "full", 60)),
                           wanted = LogitsOf(*FedSession(of_f32, "full", 60));
  double squares = 0, lost = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    squares += double{wanted[i]} * wanted[i];
    lost += (double{wanted[i]} - got[i]) * (double{wanted[i]} - got[i]);
  }
  return std::sqrt(lost / squares);
}

// What is lost is the rounding of activations to eight bits: as much as with int8 in groups of 32.
TEST(EngineBlocks, LogitsAreThoseOfTheValues) {
  const double int8 = Distance(WeightType::kInt8, WeightLayout::kRowMajor);
  EXPECT_LT(int8, 0.03);
  for (WeightType type : kTypes) {
    for (WeightLayout layout : {WeightLayout::kRowMajor, WeightLayout::kPanels16})
      EXPECT_LT(Distance(type, layout), 0.03) << static_cast<int>(type) << ", int8: " << int8;
  }
}

TEST(EngineBlocks, ABatchGivesTheBitsOfSingleSteps) {
  for (WeightType type : kTypes) {
    const test::AlignedBytes bytes = test::TinyModelBytes(Options(type, WeightLayout::kRowMajor));
    const auto one = OpenTiny(bytes, 1), three = OpenTiny(bytes, 3);
    if (!one->device().info().batch_invariant) GTEST_SKIP() << "the device promises nothing of batches";
    std::vector<std::unique_ptr<Session>> alone, together;
    std::vector<Session*> batch;
    for (int i = 0; i < 5; ++i) {
      alone.push_back(FedSession(one, kSpec, 40 + 13 * i));
      together.push_back(FedSession(three, kSpec, 40 + 13 * i));
      batch.push_back(together.back().get());
    }
    for (int32_t step = 0; step < 3; ++step) {
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 5; ++i) tokens.push_back((31 * step + 7 * i) % 250);
      ASSERT_TRUE(Session::FeedBatch({batch.data(), batch.size()}, tokens.data()).ok());
      for (size_t i = 0; i < alone.size(); ++i) {
        test::FeedTokens(*alone[i], {tokens[i]});
        ASSERT_EQ(LogitsOf(*alone[i]), LogitsOf(*together[i])) << "step " << step << " session " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
