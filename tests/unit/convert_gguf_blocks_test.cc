// The quantised types of GGUF: values against the package gguf's own dequantisation (tests/vectors/
// make_convert_vectors.py) and ggml's (make_ggml_vectors.py), bit for bit, what becomes of them, and blocks
// that are no numbers.
#include "models/convert/gguf_blocks.h"

#include "lib/base/hash.h"
#include "lib/model/model_check.h"
#include "models/convert/gguf.h"
#include "models/convert/weight_codec.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

const std::string kData = std::string(KVC_TEST_DATA) + "/convert/";

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

const BlockFormat& FormatOf(const std::string& name) {
  for (const BlockFormat& format : BlockFormats()) {
    if (name == GgmlTypeName(format.number)) return format;
  }
  throw std::runtime_error("no format " + name);
}

std::string HashOf(const std::vector<float>& values) {
  return Format("%016llx", static_cast<unsigned long long>(Hash64(values.data(), values.size() * 4)));
}

TEST(GgufBlocks, EveryTypeIsWhatThePackageAndGgmlDequantise) {
  const nlohmann::json all = nlohmann::json::parse(ReadAll(kData + "blocks.json"));
  const nlohmann::json ggml = nlohmann::json::parse(ReadAll(kData + "ggml.json"));
  ASSERT_EQ(all.size(), BlockFormats().size());
  ASSERT_EQ(ggml["blocks"].size(), BlockFormats().size());
  for (const auto& [name, entry] : all.items()) {
    SCOPED_TRACE(name);
    const BlockFormat& format = FormatOf(name);
    const std::vector<uint8_t> blocks = FromHex(entry["blocks"]), expected = FromHex(entry["values"]);
    const int64_t n = static_cast<int64_t>(blocks.size()) / format.bytes * format.elements;
    EXPECT_GE(n, 16 * format.elements);
    EXPECT_EQ(SourceBytes(format.type, n), static_cast<int64_t>(blocks.size()));
    ASSERT_EQ(expected.size(), static_cast<size_t>(n) * 4);
    std::vector<float> values(static_cast<size_t>(n));
    EXPECT_EQ(FirstNotFiniteElement(format.type, blocks.data(), n), -1);
    DecodeElements(format.type, blocks.data(), n, values.data());
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size()), 0);
    EXPECT_EQ(HashOf(values), ggml["blocks"][name].get<std::string>());
    BlockCodes block;
    for (int64_t b = 0; b < n / format.elements; ++b) {
      format.unpack(blocks.data() + b * format.bytes, &block);
      for (int32_t i = 0; i < format.elements; ++i) {
        ASSERT_GE(block.code[i], format.least);
        ASSERT_LE(block.code[i], format.most);
      }
    }
  }
}

// Where the codes of the source are kept, nothing is lost but what scales round to f16; where they are not,
// what is lost is far below what the source itself lost (its codes have 2 to 6 bits).
TEST(GgufBlocks, WhatIsKeptOfEveryType) {
  const nlohmann::json all = nlohmann::json::parse(ReadAll(kData + "blocks.json"));
  for (const BlockFormat& format : BlockFormats()) {
    const std::string name = GgmlTypeName(format.number);
    SCOPED_TRACE(name);
    const std::vector<uint8_t> all_blocks = FromHex(all[name]["blocks"]);
    // Behind the extreme scales, which f16 cannot hold once they are multiplied.
    const size_t skip = size_t{8} * static_cast<size_t>(format.bytes);
    const std::vector<uint8_t> blocks(all_blocks.begin() + static_cast<int64_t>(skip), all_blocks.end());
    const int64_t n = static_cast<int64_t>(blocks.size()) / format.bytes * format.elements;
    const WeightTarget target = KeptAs(format.type);
    std::vector<float> values(static_cast<size_t>(n)), stored(static_cast<size_t>(n));
    std::vector<uint8_t> codes(static_cast<size_t>(WeightRowBytes(target.type, n)));
    std::vector<uint16_t> scales(static_cast<size_t>(n / target.group));
    DecodeElements(format.type, blocks.data(), n, values.data());
    const bool keeps_bytes = format.type == SourceType::kQ4_K || format.type == SourceType::kQ6_K;
    EXPECT_EQ(KeepsBytes(format.type, target), keeps_bytes);
    const bool keeps = KeepsCodes(format.type, target);
    EXPECT_EQ(keeps, !format.has_offset && !keeps_bytes);
    if (keeps_bytes) {
      EXPECT_TRUE(IsExact(format.type, target));
      ASSERT_EQ(codes.size(), blocks.size());
      DecodeStored(target, blocks.data(), nullptr, n, stored.data());
      EXPECT_EQ(stored, values);
      continue;
    }
    ASSERT_EQ(keeps ? KeepCodes(format.type, target, blocks.data(), n, codes.data(), scales.data())
                    : EncodeInt8(values.data(), n, target.group, codes.data(), scales.data()),
              -1);
    DecodeStored(target, codes.data(), scales.data(), n, stored.data());
    double squares = 0, lost = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += double{values[i]} * values[i];
      lost += (double{values[i]} - stored[i]) * (double{values[i]} - stored[i]);
    }
    const double loss = std::sqrt(lost / squares);
    if (IsExact(format.type, target)) {
      EXPECT_EQ(loss, 0);
    } else {
      EXPECT_LT(loss, keeps ? 1.0 / 2048 : 0.008);
    }
  }
}

double LossAs(WeightTarget target, const std::vector<float>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<uint8_t> codes(values.size());
  std::vector<uint16_t> scales(values.size() / 32);
  std::vector<float> stored(values.size());
  const auto encode = target.type == WeightType::kInt8 ? EncodeInt8 : EncodeInt4;
  EXPECT_EQ(encode(values.data(), n, target.group, codes.data(), scales.data()), -1);
  DecodeStored(target, codes.data(), scales.data(), n, stored.data());
  double squares = 0, lost = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    squares += double{values[i]} * values[i];
    lost += (double{values[i]} - stored[i]) * (double{values[i]} - stored[i]);
  }
  return std::sqrt(lost / squares);
}

// Why types with a least value become int8: weights as they are in models (a bell around zero), as Q4_1 has
// them. Its codes lose 8 %; coded again in four bits around zero they would lose as much once more.
TEST(GgufBlocks, FourBitsAroundZeroLoseAsMuchAgain) {
  constexpr int kBlocks = 256;
  std::vector<uint8_t> blocks;
  uint32_t state = 1;
  for (int b = 0; b < kBlocks; ++b) {
    float x[32];
    for (float& v : x) {
      v = -6;
      for (int i = 0; i < 12; ++i)
        v += static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f;
    }
    const float low = *std::min_element(x, x + 32), step = (*std::max_element(x, x + 32) - low) / 15;
    for (const uint16_t half : {FloatToF16(step), FloatToF16(low)}) {
      blocks.push_back(static_cast<uint8_t>(half & 255));
      blocks.push_back(static_cast<uint8_t>(half >> 8));
    }
    for (int i = 0; i < 16; ++i) {
      blocks.push_back(static_cast<uint8_t>(static_cast<int>((x[i] - low) / step + 0.5f) |
                                            static_cast<int>((x[16 + i] - low) / step + 0.5f) << 4));
    }
  }
  std::vector<float> values(32 * kBlocks);
  DecodeElements(SourceType::kQ4_1, blocks.data(), 32 * kBlocks, values.data());
  EXPECT_LT(LossAs({WeightType::kInt8, 32}, values), 0.006);
  EXPECT_GT(LossAs({WeightType::kInt4, 32}, values), 0.08);
}

TEST(GgufBlocks, BlocksThatAreNoNumbers) {
  for (const BlockFormat& format : BlockFormats()) {
    SCOPED_TRACE(GgmlTypeName(format.number));
    std::vector<uint8_t> blocks(static_cast<size_t>(2 * format.bytes), 0x11);
    const int64_t n = 2 * format.elements;
    EXPECT_EQ(FirstNotFiniteElement(format.type, blocks.data(), n), -1);
    std::fill(blocks.begin() + format.bytes, blocks.end(), uint8_t{0xff});  // every f16 in it is a NaN
    EXPECT_EQ(FirstNotFiniteElement(format.type, blocks.data(), n), format.elements);
  }
  // A power of two that is a number, but not times every value.
  uint8_t block[17] = {252};
  EXPECT_EQ(FirstNotFiniteElement(SourceType::kMxfp4, block, 32), -1);
  block[0] = 253;
  EXPECT_EQ(FirstNotFiniteElement(SourceType::kMxfp4, block, 32), 0);
  // Beyond f16: refused where codes are kept.
  uint8_t codes[32];
  uint16_t scale;
  block[0] = 145;
  EXPECT_EQ(KeepCodes(SourceType::kMxfp4, KeptAs(SourceType::kMxfp4), block, 32, codes, &scale), 0);
  block[0] = 143;  // 2^15
  EXPECT_EQ(KeepCodes(SourceType::kMxfp4, KeptAs(SourceType::kMxfp4), block, 32, codes, &scale), -1);
}

struct MixedTensor {
  const char* name;
  TensorRole role;
  int32_t layer;
};
using R = TensorRole;
constexpr MixedTensor kMixed[] = {
    {"token_embd.weight", R::kEmbedding, -1},    {"output.weight", R::kOutputHead, -1},
    {"blk.0.attn_q.weight", R::kQuery, 0},       {"blk.0.attn_k.weight", R::kKey, 0},
    {"blk.0.attn_v.weight", R::kValue, 0},       {"blk.0.attn_output.weight", R::kOutput, 0},
    {"blk.0.ffn_gate.weight", R::kGate, 0},      {"blk.0.ffn_up.weight", R::kUp, 0},
    {"blk.0.ffn_down.weight", R::kDown, 0},      {"blk.1.attn_q.weight", R::kQuery, 1},
    {"blk.1.attn_k.weight", R::kKey, 1},         {"blk.1.attn_v.weight", R::kValue, 1},
    {"blk.1.attn_output.weight", R::kOutput, 1}, {"blk.1.ffn_gate.weight", R::kGate, 1},
    {"blk.1.ffn_up.weight", R::kUp, 1},          {"blk.1.ffn_down.weight", R::kDown, 1},
};

TEST(GgufBlocks, AFileThatMixesThemAll) {
  const nlohmann::json hashes = nlohmann::json::parse(ReadAll(kData + "mixed.json"));
  const nlohmann::json ggml = nlohmann::json::parse(ReadAll(kData + "ggml.json"))["mixed"];
  ASSERT_EQ(hashes.size(), std::size(kMixed));
  ASSERT_EQ(ggml.size(), std::size(kMixed));
  ScratchDirectory scratch;
  ConvertOptions options;
  options.weights = WeightChoice::kF32;
  ConvertReport report;
  Status status = Convert(kData + "mixed.gguf", scratch / "f32.kvc", options, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const ConvertedType& t : report.types) EXPECT_TRUE(t.exact()) << t.source;
  const auto f32 = OpenModel(scratch / "f32.kvc");
  for (const MixedTensor& t : kMixed) {
    const std::string hash = HashOf(Values(FindTensor(*f32, t.role, t.layer)->weight));
    EXPECT_EQ(hash, hashes[t.name]["hash"].get<std::string>()) << t.name;
    EXPECT_EQ(hash, ggml[t.name].get<std::string>()) << t.name;
  }
  status = Convert(kData + "mixed.gguf", scratch / "kept.kvc", {}, &report);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(report.types.size(), BlockFormats().size() - 1);  // no Q8_0 among them
  const auto kept = OpenModel(scratch / "kept.kvc");
  for (const MixedTensor& t : kMixed) {
    const std::string type = hashes[t.name]["type"];
    const BlockFormat& format = FormatOf(type);
    const Weight& w = FindTensor(*kept, t.role, t.layer)->weight;
    EXPECT_TRUE((WeightTarget{w.type, w.group}) == KeptAs(format.type)) << t.name;
    if (!HasBlocks(w.type)) continue;
    EXPECT_EQ(HashOf(Values(w)), hashes[t.name]["hash"].get<std::string>()) << t.name;
  }
  // What is lost, by hand: the values that are stored against those of the file.
  std::map<std::string, std::pair<double, double>> squares;
  for (const MixedTensor& t : kMixed) {
    const std::vector<float> wanted = Values(FindTensor(*f32, t.role, t.layer)->weight),
                             got = Values(FindTensor(*kept, t.role, t.layer)->weight);
    auto& [all, lost] = squares[hashes[t.name]["type"]];
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double x = static_cast<double>(wanted[i]), apart = x - static_cast<double>(got[i]);
      all += x * x, lost += apart * apart;
    }
  }
  for (const ConvertedType& t : report.types) {
    ASSERT_EQ(squares.count(t.source), 1u) << t.source;
    const auto& [all, lost] = squares[t.source];
    EXPECT_NEAR(t.Loss(), std::sqrt(lost / all), 1e-6) << t.source;
    EXPECT_EQ(t.exact(), lost == 0) << t.source;
    EXPECT_LT(t.Loss(), 0.008) << t.source;
    EXPECT_GT(t.n_tensors, 0) << t.source;
  }
}

}  // namespace
}  // namespace kvc
