// Output projections read back from model files of every weight type and layout.
#include "models/convert/stored_matrix.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "lib/base/half.h"
#include "lib/model/model_file.h"
#include "lib/ops/weight_blocks.h"
#include "tests/support/write_bytes.h"

namespace kvc {
namespace {

// Rows of whole blocks.
test::TinyModelOptions Options(WeightType type, WeightLayout layout) {
  test::TinyModelOptions options;
  options.hidden_size = 256, options.ffn_size = 256, options.n_heads = 8, options.n_kv_heads = 2,
  options.head_dim = 32;
  options.type = type, options.layout = layout;
  return options;
}

std::vector<std::vector<float>> Projections(WeightType type, WeightLayout layout) {
  const test::TinyModelOptions options = Options(type, layout);
  const std::string path =
      (std::filesystem::temp_directory_path() / ("stored_matrix" + std::to_string(static_cast<int>(type)) +
                                                 "_" + std::to_string(static_cast<int>(layout)) + ".kvc"))
          .string();
  test::WriteBytes(path, test::TinyModelBytes(options));
  auto read = ReadOutputProjections(path);
  std::filesystem::remove(path);
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? read.value() : std::vector<std::vector<float>>();
}

// An element by the definition of lib/ops/tensor.h.
float ElementOf(const Weight& w, size_t i) {
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data);
  const uint16_t* halves = static_cast<const uint16_t*>(w.data);
  switch (w.type) {
    case WeightType::kF32:
      return static_cast<const float*>(w.data)[i];
    case WeightType::kF16:
      return F16ToFloat(halves[i]);
    case WeightType::kBf16:
      return Bf16ToFloat(halves[i]);
    case WeightType::kInt8:
      return static_cast<float>(static_cast<int8_t>(bytes[i])) *
             F16ToFloat(w.scales[i / static_cast<size_t>(w.group)]);
    case WeightType::kInt4:
      break;
    case WeightType::kQ4K:
    case WeightType::kQ6K: {
      WeightBlock block;
      const int32_t row = static_cast<int32_t>(i) / w.cols, column = static_cast<int32_t>(i) % w.cols;
      ReadBlock(w, row, column / kBlockColumns, &block);
      const int32_t at = column % kBlockColumns, group = at / w.group;
      return block.scale[group] * static_cast<float>(block.code[at]) - block.least[group];
    }
  }
  const int nibble = bytes[i / 2] >> (i % 2 * 4) & 15;
  return static_cast<float>(nibble < 8 ? nibble : nibble - 16) *
         F16ToFloat(w.scales[i / static_cast<size_t>(w.group)]);
}

TEST(StoredMatrix, IsWhatTheFileHoldsInEveryTypeAndInPanels) {
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBf16, WeightType::kInt8,
                                WeightType::kInt4, WeightType::kQ4K, WeightType::kQ6K}) {
    SCOPED_TRACE(static_cast<int>(type));
    const test::AlignedBytes bytes = test::TinyModelBytes(Options(type, WeightLayout::kRowMajor));
    const auto file = ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr);
    ASSERT_TRUE(file.ok());
    const std::vector<std::vector<float>> found = Projections(type, WeightLayout::kRowMajor);
    ASSERT_EQ(found.size(), 2u);
    int n_compared = 0;
    for (const TensorEntry& tensor : file.value()->tensors()) {
      if (tensor.role != TensorRole::kOutput) continue;
      ASSERT_EQ(tensor.weight.type, type);
      const std::vector<float>& matrix = found[static_cast<size_t>(tensor.layer)];
      ASSERT_EQ(matrix.size(),
                static_cast<size_t>(tensor.weight.rows) * static_cast<size_t>(tensor.weight.cols));
      for (size_t i = 0; i < matrix.size(); ++i) ASSERT_EQ(matrix[i], ElementOf(tensor.weight, i));
      ++n_compared;
    }
    EXPECT_EQ(n_compared, 2);
    EXPECT_EQ(found, Projections(type, WeightLayout::kPanels16));
  }
}

TEST(StoredMatrix, WhatIsNoModelFileIsAnError) {
  EXPECT_EQ(ReadOutputProjections("/nowhere/model.kvc").status().code(), Code::kIo);
}

}  // namespace
}  // namespace kvc
