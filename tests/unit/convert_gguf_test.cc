// GGUF: values against the package gguf's own dequantisation (tests/vectors/make_convert_vectors.py), and
// damaged headers.
#include "models/convert/gguf.h"

#include "models/convert/sources.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

const std::string kData = std::string(KVC_TEST_DATA) + "/convert/";

// name.f32 holds the tensors in the order of name.gguf, which is this.
std::vector<std::pair<TensorRole, int32_t>> FileOrder(const ModelFile& file) {
  using R = TensorRole;
  std::vector<std::pair<R, int32_t>> order = {{R::kEmbedding, -1}, {R::kFinalNorm, -1}, {R::kOutputHead, -1}};
  for (int32_t i = 0; i < file.config().n_layers; ++i) {
    for (const R role : {R::kAttentionNorm, R::kQuery, R::kKey, R::kValue, R::kOutput, R::kQueryBias,
                         R::kKeyBias, R::kValueBias, R::kQueryNorm, R::kKeyNorm, R::kFfnNorm, R::kGate,
                         R::kUp, R::kDown, R::kRouter, R::kExpertGate, R::kExpertUp, R::kExpertDown}) {
      order.push_back({role, i});
    }
  }
  return order;
}

void ExpectValues(const std::string& name, const ModelFile& file) {
  const std::string bytes = ReadAll(kData + name + ".f32");
  ASSERT_FALSE(bytes.empty());
  size_t at = 0;
  for (const auto& [role, layer] : FileOrder(file)) {
    const TensorEntry* t = FindTensor(file, role, layer);
    if (t == nullptr) continue;
    const std::vector<float> got = Values(t->weight);
    ASSERT_LE(at + got.size() * 4, bytes.size());
    EXPECT_EQ(std::memcmp(got.data(), bytes.data() + at, got.size() * 4), 0)
        << name << " " << TensorRoleName(role) << " " << layer;
    at += got.size() * 4;
  }
  EXPECT_EQ(at, bytes.size());
}

struct Case {
  const char *name, *architecture;
  RopePairing pairing;
  WeightType query;
  bool tied;
};

class GgufFixtures : public testing::TestWithParam<Case> {};

TEST_P(GgufFixtures, KeepExactlyWhatGgufDequantises) {
  ScratchDirectory scratch;
  for (const WeightChoice weights : {WeightChoice::kKeep, WeightChoice::kF32}) {
    ConvertOptions options;
    options.weights = weights;
    ConvertReport report;
    const Status status = Convert(kData + GetParam().name + ".gguf", scratch / "out.kvc", options, &report);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(report.kind, "gguf");
    const auto file = OpenModel(scratch / "out.kvc");
    ASSERT_NE(file, nullptr);
    const ModelConfig& c = file->config();
    EXPECT_EQ(c.architecture, GetParam().architecture);
    EXPECT_EQ(c.name, GetParam().name);
    EXPECT_EQ(c.rope_pairing, GetParam().pairing);
    EXPECT_EQ(c.rope.theta, 500000.0);
    EXPECT_EQ(c.tied_head, GetParam().tied);
    EXPECT_EQ(std::vector<int32_t>(
                  {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.ffn_size, c.max_tokens}),
              std::vector<int32_t>({2, 4, 2, 8, 32, 64, 128}));
    EXPECT_EQ(FindTensor(*file, TensorRole::kQuery, 0)->weight.type,
              weights == WeightChoice::kF32 ? WeightType::kF32 : GetParam().query);
    ExpectValues(GetParam().name, *file);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GgufFixtures,
    testing::Values(Case{"qwen2_q8_0", "qwen2", RopePairing::kHalf, WeightType::kInt8, true},
                    Case{"llama_q4_0", "llama", RopePairing::kInterleaved, WeightType::kInt4, false},
                    Case{"qwen3_mixed", "qwen3", RopePairing::kHalf, WeightType::kF16, true},
                    Case{"qwen3moe_mixed", "qwen3moe", RopePairing::kHalf, WeightType::kInt8, true},
                    Case{"llama_single_experts", "llama", RopePairing::kInterleaved, WeightType::kInt4,
                         true}));

TEST(ConvertGguf, ExpertsOfMetadata) {
  for (const char* name : {"qwen3moe_mixed", "llama_single_experts"}) {
    ScratchDirectory scratch;
    ASSERT_TRUE(Convert(kData + name + ".gguf", scratch / "a.kvc", {}, nullptr).ok());
    const auto file = OpenModel(scratch / "a.kvc");
    EXPECT_EQ(file->config().n_experts, 3);
    EXPECT_EQ(file->config().n_chosen, 2);
    EXPECT_TRUE(file->config().normalise_experts);
  }
}

TEST(ConvertGguf, TokenizerOfMetadata) {
  ScratchDirectory scratch;
  ASSERT_TRUE(Convert(kData + "qwen2_q8_0.gguf", scratch / "a.kvc", {}, nullptr).ok());
  ASSERT_TRUE(Convert(kData + "llama_q4_0.gguf", scratch / "b.kvc", {}, nullptr).ok());
  const auto bpe = OpenModel(scratch / "a.kvc"), spm = OpenModel(scratch / "b.kvc");
  const TokenizerSpec& a = bpe->tokenizer_spec();
  EXPECT_EQ(a.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_EQ(a.pieces[0], std::string(1, '\0'));
  EXPECT_EQ(a.pieces[259], "hello");
  EXPECT_EQ(a.pieces[260], " w");
  EXPECT_EQ(a.merges, std::vector<int32_t>({'h', 'e', 'l', 'l', 256, 257, 258, 'o', ' ', 'w'}));
  EXPECT_EQ(a.stop_tokens, std::vector<int32_t>({262, 263}));
  EXPECT_EQ(a.bos, 261);
  EXPECT_FALSE(a.add_bos);
  EXPECT_TRUE(a.nfc);
  EXPECT_EQ(a.piece_kinds[264], PieceKind::kUserDefined);
  EXPECT_EQ(a.pieces[264], "<tool> call");
  EXPECT_EQ(a.piece_kinds[265], PieceKind::kUnused);
  const TokenizerSpec& b = spm->tokenizer_spec();
  EXPECT_EQ(b.kind, TokenizerKind::kSentencePieceBpe);
  EXPECT_TRUE(b.add_bos && b.add_space_prefix && b.byte_fallback);
  EXPECT_EQ(b.pieces[264], " ab");
  EXPECT_EQ(b.scores[264], -3.0f);
  EXPECT_EQ(b.pieces[3 + 0x41], "A");
  EXPECT_EQ(b.piece_kinds[3 + 0x41], PieceKind::kByte);
}

TEST(ConvertGguf, FrequencyDivisorsAreLlama3Scaling) {
  ScratchDirectory scratch;
  const Status status = Convert(kData + "llama3_scaled.gguf", scratch / "out.kvc", {}, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  const auto file = OpenModel(scratch / "out.kvc");
  const RopeConfig& rope = file->config().rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(rope.factor, 32);
  EXPECT_EQ(rope.low_freq_factor, 1);
  EXPECT_EQ(rope.high_freq_factor, 4);
  EXPECT_EQ(rope.original_max_tokens, 8192);
  EXPECT_TRUE(file->tokenizer_spec().ignore_merges);
  RopeConfig other;
  EXPECT_FALSE(MatchLlama3Factors({1, 2, 3, 4}, file->config(), &other));
}

// ---- headers made here

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string Text(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }
std::string Header(uint64_t n_tensors, uint64_t n_metadata, uint32_t version = 3) {
  return "GGUF" + Raw(version) + Raw(n_tensors) + Raw(n_metadata);
}
std::string U32Entry(const std::string& key, uint32_t value) {
  return Text(key) + Raw<uint32_t>(4) + Raw(value);
}
std::string TensorInfo(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                       uint64_t offset) {
  std::string out = Text(name) + Raw(static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) out += Raw(d);
  return out + Raw(type) + Raw(offset);
}
Status Parse(const std::string& bytes) {
  return ParseGguf({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                   static_cast<int64_t>(bytes.size()), "x.gguf")
      .status();
}

TEST(ConvertGguf, DamagedHeaders) {
  const std::string pad(64, '\0');
  ExpectError(Parse("GGUG" + pad), Code::kBadModel, {"x.gguf", "not a GGUF file"});
  ExpectError(Parse("GG"), Code::kBadModel, {"truncated"});
  ExpectError(Parse(Header(0, 0, 1)), Code::kUnsupported, {"version 1", "2, 3"});
  ExpectError(Parse(Header(0, 0, 0x03000000)), Code::kUnsupported, {"big-endian"});
  ExpectError(Parse(Header(UINT64_MAX, 0)), Code::kBadModel, {"18446744073709551615 tensors"});
  ExpectError(Parse(Header(0, uint64_t{1} << 40) + pad), Code::kBadModel, {"metadata entries"});
  ExpectError(Parse(Header(1, 0) + pad.substr(0, 8)), Code::kBadModel, {"1 tensors"});
  ExpectError(Parse(Header(0, 1) + Raw<uint64_t>(UINT64_MAX) + pad), Code::kBadModel, {"bytes of text"});
  ExpectError(Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(13) + pad), Code::kBadModel, {"value type 13"});
  ExpectError(Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(9) + Raw<uint32_t>(9) + pad), Code::kUnsupported,
              {"array of arrays"});
  ExpectError(
      Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(9) + Raw<uint32_t>(8) + Raw<uint64_t>(1u << 30) + pad),
      Code::kBadModel, {"array elements"});
  ExpectError(Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(9) + Raw<uint32_t>(12) +
                    Raw<uint64_t>(uint64_t{1} << 62) + pad),
              Code::kBadModel, {"array elements"});
  ExpectError(Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(7) + "\2" + pad), Code::kBadModel,
              {"truth value"});
  ExpectError(Parse(Header(0, 1) + Text("a") + Raw<uint32_t>(10) + Raw<uint64_t>(UINT64_MAX) + pad),
              Code::kBadModel, {"2^63"});
  ExpectError(Parse(Header(0, 2) + U32Entry("a", 1) + U32Entry("a", 2) + pad), Code::kBadModel,
              {"a stands twice"});
  for (const uint32_t alignment : {0u, 4u, 48u, 1u << 30}) {
    ExpectError(Parse(Header(0, 1) + U32Entry("general.alignment", alignment) + pad), Code::kBadModel,
                {"general.alignment"});
  }
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {}, 0, 0) + pad), Code::kBadModel, {"t has 0 dimensions"});
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {1, 1, 1, 1, 1}, 0, 0) + pad), Code::kBadModel,
              {"5 dimensions"});
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {0}, 0, 0) + pad), Code::kBadModel,
              {"impossible dimension 0"});
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0) + pad),
              Code::kBadModel, {"impossible dimension"});
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {1}, 0, 8) + pad), Code::kBadModel, {"not aligned to 32"});
  ExpectError(Parse(Header(1, 0) + TensorInfo("t", {1}, 0, uint64_t{1} << 63) + pad), Code::kBadModel,
              {"beyond the end"});
  ExpectError(Parse(Header(2, 0) + TensorInfo("t", {1}, 0, 0) + TensorInfo("t", {1}, 0, 32) + pad),
              Code::kBadModel, {"t stands twice"});
  EXPECT_TRUE(Parse(Header(1, 0) + TensorInfo("t", {1}, 0, 0) + pad).ok());
}

TEST(ConvertGguf, AHeaderCutAnywhereAsksForMoreOrIsRefused) {
  const std::string whole = ReadAll(kData + "llama3_scaled.gguf");
  const auto* data = reinterpret_cast<const uint8_t*>(whole.data());
  const auto header = ParseGguf({data, whole.size()}, static_cast<int64_t>(whole.size()), "x");
  ASSERT_TRUE(header.ok());
  for (size_t n = 0; n < static_cast<size_t>(header.value().data_start) - 32; n += 7) {
    EXPECT_EQ(ParseGguf({data, n}, static_cast<int64_t>(whole.size()), "x").status().code(),
              Code::kBufferTooSmall)
        << n;
    EXPECT_EQ(ParseGguf({data, n}, static_cast<int64_t>(n), "x").status().code(), Code::kBadModel) << n;
  }
}

// One byte sequence of a whole file replaced by another of the same length.
Status ConvertEdited(const std::string& name, const std::string& from, const std::string& to,
                     bool keep_length = true) {
  ScratchDirectory scratch;
  std::string bytes = ReadAll(kData + name + ".gguf");
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_TRUE(!keep_length || from.size() == to.size());
  bytes.replace(at, from.size(), to);
  WriteAll(scratch / "x.gguf", bytes);
  const Status status = Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr);
  EXPECT_FALSE(std::filesystem::exists(scratch / "out.kvc"));
  return status;
}

TEST(ConvertGguf, WhatIsNotSupportedIsNamed) {
  ExpectError(ConvertEdited("qwen2_q8_0", Text("qwen2"), Text("bloom")), Code::kUnsupported,
              {"architecture bloom", "llama, qwen2, qwen3, qwen3moe, gemma"});
  ExpectError(ConvertEdited("qwen2_q8_0", Text("gpt2"), Text("bert")), Code::kUnsupported,
              {"tokenizer model 'bert'"});
  ExpectError(ConvertEdited("qwen2_q8_0", "pre" + Raw<uint32_t>(8) + Text("qwen2"),
                            "pre" + Raw<uint32_t>(8) + Text("dbrx5")),
              Code::kUnsupported, {"pre-tokenizer 'dbrx5'"});
  ExpectError(ConvertEdited("qwen2_q8_0", "rope.freq_base", "rope.freq_bass"), Code::kUnsupported,
              {"qwen2.rope.freq_bass"});
  ExpectError(ConvertEdited("qwen2_q8_0", "blk.1.attn_q.bias", "blk.1.attn_q.rust"), Code::kUnsupported,
              {"blk.1.attn_q.rust", "no place"});
  ExpectError(ConvertEdited("qwen2_q8_0", "blk.1.ffn_up.weight", "blk.7.ffn_up.weight"), Code::kBadModel,
              {"blk.7.ffn_up.weight", "2 layers"});
  ExpectError(ConvertEdited("llama_q4_0",
                            "blk.0.attn_k.weight" + Raw<uint32_t>(2) + Raw<uint64_t>(32) + Raw<uint64_t>(16) +
                                Raw<uint32_t>(2),
                            "blk.0.attn_k.weight" + Raw<uint32_t>(2) + Raw<uint64_t>(32) + Raw<uint64_t>(16) +
                                Raw<uint32_t>(29)),
              Code::kUnsupported, {"blk.0.attn_k.weight", "IQ1_M (29)", "Q4_K", "MXFP4"});
  ExpectError(ConvertEdited("llama_q4_0",
                            "blk.0.attn_k.weight" + Raw<uint32_t>(2) + Raw<uint64_t>(32) + Raw<uint64_t>(16) +
                                Raw<uint32_t>(2),
                            "blk.0.attn_k.weight" + Raw<uint32_t>(2) + Raw<uint64_t>(32) + Raw<uint64_t>(16) +
                                Raw<uint32_t>(12)),
              Code::kBadModel, {"blk.0.attn_k.weight", "blocks of 256"});
  ExpectError(ConvertEdited("qwen2_q8_0", "rope.dimension_count" + Raw<uint32_t>(4) + Raw<uint32_t>(8),
                            "rope.dimension_count" + Raw<uint32_t>(4) + Raw<uint32_t>(4)),
              Code::kUnsupported, {"4 of 8 dimensions"});
  ExpectError(ConvertEdited("llama_q4_0", Text("b"), Text("a")), Code::kBadModel, {"tokenizer"});
}

// Biases of queries, keys and values in one: 32, 16 and 16.
TEST(ConvertGguf, FusedVectorsOfAnotherLength) {
  const auto bias = [](uint64_t n) { return "blk.0.attn_qkv.bias" + Raw<uint32_t>(1) + Raw<uint64_t>(n); };
  ExpectError(ConvertEdited("../reference_gguf/glm_chat_fused", bias(64), bias(63)), Code::kBadModel,
              {"blk.0.attn_qkv.bias", "shape [63]", "[64]"});
  for (const auto& [type, block] : {std::pair(8, "32"), {2, "32"}}) {  // Q8_0, Q4_0
    ExpectError(ConvertEdited("../reference_gguf/glm_chat_fused", bias(64) + Raw<uint32_t>(0),
                              bias(64) + Raw<uint32_t>(static_cast<uint32_t>(type))),
                Code::kUnsupported, {"blk.0.attn_qkv.bias", std::string("blocks of ") + block + " elements"});
  }
}

TEST(ConvertGguf, TensorsBeyondOrOverEachOther) {
  const auto info = [](uint64_t rows, uint64_t offset) {
    return "blk.0.attn_k.weight" + Raw<uint32_t>(2) + Raw<uint64_t>(32) + Raw<uint64_t>(rows) +
           Raw<uint32_t>(2) + Raw<uint64_t>(offset);
  };
  const std::string whole = ReadAll(kData + "llama_q4_0.gguf");
  const size_t at = whole.find("blk.0.attn_k.weight") + 19 + 4 + 8 + 8 + 4;
  uint64_t offset = 0;
  std::memcpy(&offset, whole.data() + at, 8);
  ExpectError(ConvertEdited("llama_q4_0", info(16, offset), info(16, offset - 32)), Code::kBadModel,
              {"overlap", "blk.0.attn_k.weight"});
  ExpectError(ConvertEdited("llama_q4_0", info(16, offset), info(16 << 20, offset)), Code::kBadModel,
              {"beyond the end"});
  ExpectError(ConvertEdited("llama_q4_0", info(16, offset), info(uint64_t{1} << 57, offset)), Code::kBadModel,
              {"beyond the end"});
  ExpectError(ConvertEdited("llama_q4_0", info(16, offset), info(15, offset)), Code::kBadModel,
              {"shape [15, 32]", "[16, 32]"});
  ExpectError(ConvertEdited("llama_q4_0", whole.substr(whole.size() - 64), "", false), Code::kBadModel,
              {"truncated"});
}

// ---- files with more metadata, or in several parts

std::string F32Entry(const std::string& key, float value) {
  return Text(key) + Raw<uint32_t>(6) + Raw(value);
}
std::string TextEntry(const std::string& key, const std::string& text) {
  return Text(key) + Raw<uint32_t>(8) + Text(text);
}

constexpr size_t kFixedHeader = 24;  // magic, version, numbers of tensors and of metadata

// More metadata in front, and filling, so that tensors lie as far behind 32 as before. removed: bytes that
// are gone from the header.
std::string WithEntries(std::string bytes, const std::vector<std::string>& entries, size_t removed = 0) {
  std::string more;
  for (const std::string& entry : entries) more += entry;
  const size_t filling =
      (2 * 32 - (more.size() + TextEntry("filling", "").size() + 32 - removed % 32) % 32) % 32;
  more += TextEntry("filling", std::string(filling, '.'));
  uint64_t n = 0;
  std::memcpy(&n, bytes.data() + 16, 8);
  n += entries.size() + 1;
  std::memcpy(&bytes[16], &n, 8);
  return bytes.insert(kFixedHeader, more);
}

std::unique_ptr<ModelFile> ConvertedWith(const std::string& name, const std::vector<std::string>& entries,
                                         Status* status = nullptr) {
  ScratchDirectory scratch;
  WriteAll(scratch / "x.gguf", WithEntries(ReadAll(kData + name + ".gguf"), entries));
  const Status converted = Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr);
  if (status != nullptr) *status = converted;
  EXPECT_TRUE(status != nullptr || converted.ok()) << converted.message();
  return converted.ok() ? OpenModel(scratch / "out.kvc") : nullptr;
}

// llama.cpp computes YaRN's factor itself, and multiplies it by attn_factor.
TEST(ConvertGguf, YarnsFactorIsComputedAndMultiplied) {
  const std::vector<std::string> yarn = {TextEntry("qwen3.rope.scaling.type", "yarn"),
                                         F32Entry("qwen3.rope.scaling.factor", 4),
                                         U32Entry("qwen3.rope.scaling.original_context_length", 32)};
  const auto factor = [&](const std::string& entry) {
    std::vector<std::string> entries(yarn);
    entries.push_back(entry);
    const auto file = ConvertedWith("qwen3_mixed", entries);
    EXPECT_EQ(file->config().rope.scaling, RopeScaling::kYarn);
    return file->config().rope.attention_factor;
  };
  EXPECT_EQ(factor(F32Entry("qwen3.rope.scaling.yarn_attn_factor", 0.8782f)), 0) << "0.1 ln 4 + 1";
  EXPECT_EQ(factor(F32Entry("qwen3.rope.scaling.yarn_attn_factor", 1.25f)), 1.25) << "in its place";
  EXPECT_NEAR(factor(F32Entry("qwen3.rope.scaling.attn_factor", 0.5f)), 0.5 * (0.1 * std::log(4.0) + 1),
              1e-9);
}

// Qwen3-Coder's files say how wide the experts of every token are: they have none.
TEST(ConvertGguf, NoExpertsForEveryToken) {
  const std::string key = "qwen3moe.expert_shared_feed_forward_length";
  ConvertedWith("qwen3moe_mixed", {U32Entry(key, 0)});
  Status status;
  ConvertedWith("qwen3moe_mixed", {U32Entry(key, 64)}, &status);
  ExpectError(status, Code::kUnsupported, {key + " = 64"});
}

TEST(ConvertGguf, EndsOfTextAreStopsByTheirNames) {
  const auto before = ConvertedWith("qwen2_q8_0", {});
  for (size_t i = 0; i < before->tokenizer_spec().pieces.size(); ++i) {
    const TokenizerSpec& spec = before->tokenizer_spec();
    const bool stops =
        std::count(spec.stop_tokens.begin(), spec.stop_tokens.end(), static_cast<int32_t>(i)) > 0;
    const bool control = spec.piece_kinds[i] == PieceKind::kControl;
    EXPECT_TRUE(!control || stops || spec.pieces[i] != "<|endoftext|>");
    EXPECT_TRUE(control || !stops) << spec.pieces[i];
  }
}

// Texts of a file replaced, each where it stands, and the tensors as far behind 32 as before. types: of
// tokens.
std::string Retyped(const std::string& name, const std::vector<std::pair<std::string, std::string>>& texts,
                    const std::map<size_t, int32_t>& types, const std::vector<std::string>& entries = {}) {
  std::string bytes = ReadAll(kData + name + ".gguf");
  const size_t before = bytes.size(), key = bytes.find(Text("tokenizer.ggml.token_type"));
  EXPECT_NE(key, std::string::npos);
  const size_t first = key + Text("tokenizer.ggml.token_type").size() + 4 + 4 + 8;
  for (const auto& [id, type] : types) std::memcpy(&bytes[first + 4 * id], &type, 4);
  for (const auto& [from, to] : texts) {
    const size_t at = bytes.find(Text(from));
    EXPECT_NE(at, std::string::npos) << from;
    bytes.replace(at, Text(from).size(), Text(to));
  }
  return WithEntries(bytes, entries,
                     (before - bytes.size()) % 32);  // a multiple of 32 past zero where it grew
}

std::unique_ptr<ModelFile> ConvertedBytes(const std::string& bytes) {
  ScratchDirectory scratch;
  WriteAll(scratch / "x.gguf", bytes);
  const Status status = Convert(scratch / "x.gguf", scratch / "out.kvc", {}, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  return status.ok() ? OpenModel(scratch / "out.kvc") : nullptr;
}

bool Stops(const TokenizerSpec& spec, int32_t id) {
  return std::count(spec.stop_tokens.begin(), spec.stop_tokens.end(), id) == 1;
}

constexpr int32_t kNormalType = 1, kControlType = 3, kUserDefinedType = 4, kUnusedType = 5;

// Rows of the embedding may be fewer than the tokenizer has had tokens. llama.cpp warns and goes on without.
TEST(ConvertGguf, PaddingOutOfTheVocabularyIsNone) {
  const std::string key = "tokenizer.ggml.padding_token_id";
  EXPECT_EQ(ConvertedWith("qwen2_q8_0", {U32Entry(key, 265)})->tokenizer_spec().pad, 265);
  for (const uint32_t id : {uint32_t{266}, UINT32_MAX}) {
    Status status;
    const auto file = ConvertedWith("qwen2_q8_0", {U32Entry(key, id)}, &status);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(file->tokenizer_spec().pad, -1);
  }
  Status status;
  ConvertedWith("qwen2_q8_0", {TextEntry(key, "5")}, &status);
  ExpectError(status, Code::kBadModel, {key, "whole number"});
  ConvertedWith("qwen2_q8_0", {U32Entry("tokenizer.ggml.unknown_token_id", 266)}, &status);
  ExpectError(status, Code::kBadModel, {"unknown_token_id"});
}

// llama.cpp's list (llama-vocab.cpp), which goes by the text of a token and makes it a control token.
TEST(ConvertGguf, EndsOfTextAreStopsWhateverTheirType) {
  const std::string bars = "\xEF\xBD\x9C", low = "\xE2\x96\x81";
  for (const std::string& end :
       {std::string("<|im_end|>"), std::string("<|end|>"), std::string("<EOT>"), std::string("_<EOT>"),
        std::string("<end_of_utterance>"), std::string("<end_of_turn>"), std::string("</s>"),
        "<" + bars + "end" + low + "of" + low + "sentence" + bars + ">"}) {
    for (const int32_t type : {kNormalType, kUserDefinedType, kControlType, kUnusedType}) {
      const auto file = ConvertedBytes(Retyped("qwen2_q8_0", {{"<tool> call", end}}, {{size_t{264}, type}}));
      ASSERT_NE(file, nullptr);
      const TokenizerSpec& spec = file->tokenizer_spec();
      EXPECT_EQ(Stops(spec, 264), type != kUnusedType) << end << " of type " << type;
      if (type == kUnusedType) continue;
      EXPECT_EQ(spec.piece_kinds[264], PieceKind::kControl) << end << " of type " << type;
      EXPECT_EQ(spec.pieces[264], end);
    }
  }
}

// gpt-oss: <|end|> ends a channel, not the answer.
TEST(ConvertGguf, AnEndBesideReturnAndCallIsNoStop) {
  const auto file = ConvertedBytes(Retyped(
      "qwen2_q8_0", {{"<tool> call", "<|end|>"}, {"<|bos|>", "<|return|>"}, {"<|eot_id|>", "<|call|>"}},
      {{size_t{264}, kUserDefinedType}}));
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(Stops(file->tokenizer_spec(), 264));
  EXPECT_TRUE(Stops(file->tokenizer_spec(), 261) && Stops(file->tokenizer_spec(), 263));
  EXPECT_EQ(file->tokenizer_spec().piece_kinds[264], PieceKind::kUserDefined);
}

// Gemma: </s> closes what is struck through in HTML, and texts end with <eos>.
TEST(ConvertGguf, ATagBesideAnEndIsText) {
  for (const char* end : {"<eos>", "<end_of_turn>"}) {
    for (const int32_t type : {kNormalType, kUserDefinedType, kControlType}) {
      const auto file = ConvertedBytes(
          Retyped("qwen2_q8_0", {{"<tool> call", "</s>"}, {"<|bos|>", end}}, {{size_t{264}, type}}));
      ASSERT_NE(file, nullptr);
      const TokenizerSpec& spec = file->tokenizer_spec();
      EXPECT_TRUE(Stops(spec, 261));
      EXPECT_EQ(Stops(spec, 264), type == kControlType) << end << " and </s> of type " << type;
      EXPECT_EQ(spec.piece_kinds[264], type == kNormalType    ? PieceKind::kNormal
                                       : type == kControlType ? PieceKind::kControl
                                                              : PieceKind::kUserDefined);
    }
  }
}

// Text does not become a special token; what is left of the merges makes all other pieces.
TEST(ConvertGguf, AnEndThatMergesMakeIsNoText) {
  const auto merges = [](const char* from, const char* to) {
    return std::pair<std::string, std::string>(from, to);
  };
  const auto file = ConvertedBytes(Retyped(
      "qwen2_q8_0",
      {merges("he", "<E"), merges("ll", "OT"), merges("hell", "<EOT"), merges("hello", "<EOT>"),
       merges("h e", "< E"), merges("l l", "O T"), merges("he ll", "<E OT"), merges("hell o", "<EOT >")},
      {}));
  ASSERT_NE(file, nullptr);
  const TokenizerSpec& spec = file->tokenizer_spec();
  EXPECT_EQ(spec.piece_kinds[259], PieceKind::kControl);
  EXPECT_TRUE(Stops(spec, 259));
  EXPECT_EQ(spec.merges, std::vector<int32_t>({'<', 'E', 'O', 'T', 256, 257, ' ', 'w'}));
}

// The end of an assistant's turn by the chat template, under a name that no list has.
TEST(ConvertGguf, TheEndOfATurnIsAStopWhateverItsType) {
  const auto chat = [](const std::string& end) {
    return TextEntry("tokenizer.chat_template",
                     "{% for m in messages %}{{ m.role + ':' + m.content }}" + end + "{% endfor %}");
  };
  for (const int32_t type : {kNormalType, kUserDefinedType, kControlType, kUnusedType}) {
    const auto file = ConvertedBytes(
        Retyped("qwen2_q8_0", {{"<tool> call", "<|fin|>"}}, {{size_t{264}, type}}, {chat("<|fin|>\n")}));
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(file->turn_format().assistant_suffix, "<|fin|>\n");
    EXPECT_EQ(Stops(file->tokenizer_spec(), 264), type != kUnusedType) << type;
    EXPECT_EQ(file->tokenizer_spec().piece_kinds[264] == PieceKind::kControl, type != kUnusedType) << type;
  }
  // A line's end, and what only looks like words, end no answer.
  for (const std::string& end : {std::string("\n"), std::string("hello")}) {
    const auto file = ConvertedWith("qwen2_q8_0", {chat(end)});
    EXPECT_EQ(file->turn_format().assistant_suffix, end);
    EXPECT_EQ(file->tokenizer_spec().stop_tokens, std::vector<int32_t>({262, 263}));
  }
}

// As llama-gguf-split leaves a model: metadata and some tensors in the first file, the last tensor in a
// second.
TEST(ConvertGguf, SeveralFilesAreOneModel) {
  const std::string name = "qwen2_q8_0";
  std::string first = ReadAll(kData + name + ".gguf");
  const std::string last_tensor = "blk.1.ffn_down.weight";
  const size_t at = first.find(Text(last_tensor));
  ASSERT_NE(at, std::string::npos);
  const size_t info_bytes = Text(last_tensor).size() + 4 + 2 * 8 + 4 + 8;
  const std::string info = first.substr(at, info_bytes);
  uint64_t offset = 0, n_tensors = 0;
  std::memcpy(&offset, &info[info_bytes - 8], 8);
  const auto whole = ConvertedWith(name, {});
  const Weight& weight = FindTensor(*whole, TensorRole::kDown, 1)->weight;
  const size_t n_bytes = static_cast<size_t>(weight.rows) * static_cast<size_t>(weight.cols) / 32 * 34;
  const auto parsed = ParseGguf({reinterpret_cast<const uint8_t*>(first.data()), first.size()},
                                static_cast<int64_t>(first.size()), "x");
  ASSERT_TRUE(parsed.ok());
  const size_t data = static_cast<size_t>(parsed.value().data_start);
  const std::string tensor = first.substr(data + offset, n_bytes);
  first.erase(at, info_bytes);
  std::memcpy(&n_tensors, &first[8], 8);
  --n_tensors;
  std::memcpy(&first[8], &n_tensors, 8);
  const auto part = [](uint16_t value) { return Raw<uint32_t>(2) + Raw(value); };
  first = WithEntries(first, {Text("split.count") + part(2), Text("split.no") + part(0)}, info_bytes);
  std::string second = Header(1, 2) + Text("split.count") + part(2) + Text("split.no") + part(1) +
                       info.substr(0, info_bytes - 8) + Raw<uint64_t>(0);
  second.resize((second.size() + 31) / 32 * 32, '\0');
  second += tensor;
  ScratchDirectory scratch;
  WriteAll(scratch / "m-00001-of-00002.gguf", first);
  WriteAll(scratch / "m-00002-of-00002.gguf", second);
  const Status status = Convert(scratch / "m-00001-of-00002.gguf", scratch / "out.kvc", {}, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  ExpectValues(name, *OpenModel(scratch / "out.kvc"));
  ExpectError(Convert(scratch / "m-00002-of-00002.gguf", scratch / "b.kvc", {}, nullptr), Code::kUnsupported,
              {"give the first"});
  WriteAll(scratch / "other.gguf", first);
  ExpectError(Convert(scratch / "other.gguf", scratch / "b.kvc", {}, nullptr), Code::kUnsupported,
              {"split.count", "-00001-of-00002.gguf"});
  WriteAll(scratch / "m-00002-of-00002.gguf", first);
  ExpectError(Convert(scratch / "m-00001-of-00002.gguf", scratch / "b.kvc", {}, nullptr), Code::kBadModel,
              {"says it is part 0", "should be part 1"});
  std::filesystem::remove(scratch / "m-00002-of-00002.gguf");
  ExpectError(Convert(scratch / "m-00001-of-00002.gguf", scratch / "b.kvc", {}, nullptr), Code::kNotFound,
              {"m-00002-of-00002.gguf"});
}

}  // namespace
}  // namespace kvc
