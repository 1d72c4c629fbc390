// Small sources for the converter's tests, written into a directory of their own that goes away at the end.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/half.h"
#include "lib/model/model_file.h"
#include "models/convert/convert.h"
#include "models/convert/weight_codec.h"
#include "tests/support/tiny_model.h"

namespace kvc {

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

class ScratchDirectory {
 public:
  std::string operator/(const std::string& name) const { return folder_ / name; }
  size_t CountFiles() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) ++n;
    return n;
  }

 private:
  test::TempFolder folder_;
};

struct TestTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using TestTensors = std::map<std::string, TestTensor>;

inline TestTensor MakeTensor(const std::string& dtype, std::vector<int64_t> shape, uint32_t seed) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  std::string bytes;
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = (static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * 0.25f;
    const uint16_t half = dtype == "BF16" ? FloatToBf16(value) : FloatToF16(value);
    if (dtype == "F32")
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    else
      bytes.append(reinterpret_cast<const char*>(&half), 2);
  }
  return {dtype, std::move(shape), std::move(bytes)};
}

// header: the JSON text; data follows it.
inline std::string SafetensorsFile(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

inline std::string SafetensorsFile(const TestTensors& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return SafetensorsFile(header.dump(), data);
}

constexpr int kHidden = 32, kFfn = 96, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kVocab = 260, kTestLayers = 2;

inline nlohmann::json SmallConfig(const std::string& architecture) {
  return {{"architectures", {architecture}},
          {"hidden_size", kHidden},
          {"intermediate_size", kFfn},
          {"num_hidden_layers", kTestLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"vocab_size", kVocab},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"bos_token_id", 256},
          {"eos_token_id", 257}};
}

inline TestTensors SmallTensors(const std::string& dtype) {
  const int64_t q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
  TestTensors t;
  uint32_t seed = 1;
  t["model.embed_tokens.weight"] = MakeTensor(dtype, {kVocab, kHidden}, seed++);
  t["model.norm.weight"] = MakeTensor(dtype, {kHidden}, seed++);
  for (int i = 0; i < kTestLayers; ++i) {
    const std::string b = "model.layers." + std::to_string(i) + ".";
    t[b + "input_layernorm.weight"] = MakeTensor(dtype, {kHidden}, seed++);
    t[b + "post_attention_layernorm.weight"] = MakeTensor(dtype, {kHidden}, seed++);
    t[b + "self_attn.q_proj.weight"] = MakeTensor(dtype, {q, kHidden}, seed++);
    t[b + "self_attn.k_proj.weight"] = MakeTensor(dtype, {kv, kHidden}, seed++);
    t[b + "self_attn.v_proj.weight"] = MakeTensor(dtype, {kv, kHidden}, seed++);
    t[b + "self_attn.o_proj.weight"] = MakeTensor(dtype, {kHidden, q}, seed++);
    t[b + "mlp.gate_proj.weight"] = MakeTensor(dtype, {kFfn, kHidden}, seed++);
    t[b + "mlp.up_proj.weight"] = MakeTensor(dtype, {kFfn, kHidden}, seed++);
    t[b + "mlp.down_proj.weight"] = MakeTensor(dtype, {kHidden, kFfn}, seed++);
  }
  return t;
}

// Bytes and four special tokens; no merges.
inline std::string SmallTokenizer() {
  nlohmann::json vocab;
  int spare = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
    const int c = printable ? b : spare++;
    std::string text;
    if (c < 0x80)
      text = std::string(1, static_cast<char>(c));
    else
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    vocab[text] = b;
  }
  nlohmann::json added = nlohmann::json::array();
  const char* names[] = {"<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 4; ++i) {
    added.push_back({{"id", 256 + i},
                     {"content", names[i]},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  const nlohmann::json pre = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json model = {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}};
  return nlohmann::json{
      {"version", "1.0"},     {"added_tokens", added},     {"normalizer", nullptr},
      {"pre_tokenizer", pre}, {"post_processor", nullptr}, {"decoder", {{"type", "ByteLevel"}}},
      {"model", model}}
      .dump();
}

inline void WriteHf(const std::string& directory, const nlohmann::json& config, const TestTensors& tensors) {
  std::filesystem::create_directories(directory);
  WriteAll(directory + "/config.json", config.dump());
  WriteAll(directory + "/tokenizer.json", SmallTokenizer());
  WriteAll(directory + "/model.safetensors", SafetensorsFile(tensors));
}

inline std::unique_ptr<ModelFile> OpenModel(const std::string& path) {
  auto file = ModelFile::Open(path, nullptr);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file.value()) : nullptr;
}

inline const TensorEntry* FindTensor(const ModelFile& file, TensorRole role, int32_t layer) {
  for (const TensorEntry& t : file.tensors()) {
    if (t.role == role && t.layer == layer) return &t;
  }
  return nullptr;
}

// Every value of a weight as f32, by the definition in lib/ops/tensor.h.
inline std::vector<float> Values(const Weight& w) {
  if (HasBlocks(w.type)) {  // which tests/unit/convert_gguf_blocks_test.cc compares with the package gguf
    const SourceType source = w.type == WeightType::kQ4K ? SourceType::kQ4_K : SourceType::kQ6_K;
    std::vector<float> values(static_cast<size_t>(w.rows) * static_cast<size_t>(w.cols));
    DecodeElements(source, static_cast<const uint8_t*>(w.data), static_cast<int64_t>(values.size()),
                   values.data());
    return values;
  }
  std::vector<float> out;
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  for (int64_t i = 0; i < int64_t{w.rows} * w.cols; ++i) {
    uint16_t half = 0;
    float value = 0;
    switch (w.type) {
      case WeightType::kF32:
        std::memcpy(&value, bytes + 4 * i, 4);
        break;
      case WeightType::kF16:
        std::memcpy(&half, bytes + 2 * i, 2);
        value = F16ToFloat(half);
        break;
      case WeightType::kBf16:
        std::memcpy(&half, bytes + 2 * i, 2);
        value = Bf16ToFloat(half);
        break;
      case WeightType::kInt8:
        value = static_cast<float>(static_cast<int8_t>(bytes[i])) * F16ToFloat(w.scales[i / w.group]);
        break;
      case WeightType::kInt4: {
        const int nibble = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
        value = static_cast<float>(nibble < 8 ? nibble : nibble - 16) * F16ToFloat(w.scales[i / w.group]);
        break;
      }
      case WeightType::kQ4K:
      case WeightType::kQ6K:
        break;
    }
    out.push_back(value);
  }
  return out;
}

inline std::vector<float> Values(const TestTensor& tensor) {
  std::vector<float> out;
  const size_t size = tensor.dtype == "F32" ? 4 : 2;
  for (size_t i = 0; i < tensor.bytes.size(); i += size) {
    uint16_t half = 0;
    float value = 0;
    std::memcpy(size == 4 ? static_cast<void*>(&value) : &half, tensor.bytes.data() + i, size);
    out.push_back(size == 4 ? value : tensor.dtype == "BF16" ? Bf16ToFloat(half) : F16ToFloat(half));
  }
  return out;
}

// The status and, in its message, all of the texts.
inline void ExpectError(const Status& status, Code code, const std::vector<std::string>& texts) {
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code)) << status.message();
  for (const std::string& text : texts)
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message() << "\nlacks: " << text;
}

}  // namespace kvc
