// Sources that are missing, damaged or hostile, and conversions that are interrupted: the documented status,
// a message that says what and where, and the old output in its place.
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "models/convert/json.h"
#include "models/convert/safetensors.h"
#include "models/convert/sources.h"
#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
Status Header(const std::string& json, int64_t data_bytes) {
  return ParseSafetensorsHeader(Bytes(json), data_bytes, "x.safetensors").status();
}
std::string Entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

TEST(ConvertBadInput, SafetensorsHeaders) {
  EXPECT_TRUE(Header("{" + Entry("a", "[2]", "[0,8]") + "," + Entry("b", "[0]", "[8,8]") + "," +
                         Entry("c", "[]", "[8,12]") + "}   ",
                     12)
                  .ok());
  EXPECT_TRUE(Header("{}", 0).ok());
  ExpectError(Header("", 0), Code::kBadModel, {"x.safetensors", "not valid JSON"});
  ExpectError(Header("{\"a\"", 0), Code::kBadModel, {"not valid JSON", "byte 5"});
  ExpectError(Header("[1]", 0), Code::kBadModel, {"must be a JSON object"});
  ExpectError(Header("{\"a\":1}", 0), Code::kBadModel, {"tensor a"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]") + "," + Entry("a", "[2]", "[0,8]") + "}", 8),
              Code::kBadModel, {"'a' stands twice"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]") + "," + Entry("b", "[2]", "[4,12]") + "}", 12),
              Code::kBadModel, {"tensor b", "overlapping"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]") + "," + Entry("b", "[1]", "[12,16]") + "}", 16),
              Code::kBadModel, {"tensor b", "hole"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]") + "}", 12), Code::kBadModel,
              {"4 bytes after the last tensor"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]") + "}", 4), Code::kBadModel, {"truncated"});
  ExpectError(Header("{" + Entry("a", "[2]", "[-8,0]") + "}", 8), Code::kBadModel,
              {"data_offsets must be two counts"});
  ExpectError(Header("{" + Entry("a", "[2]", "[8,0]") + "}", 8), Code::kBadModel, {"outside"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,18446744073709551615]") + "}", 8), Code::kBadModel,
              {"data_offsets"});
  ExpectError(Header("{" + Entry("a", "[-2]", "[0,8]") + "}", 8), Code::kBadModel, {"shape holds -2"});
  ExpectError(Header("{" + Entry("a", "[2.5]", "[0,8]") + "}", 8), Code::kBadModel, {"shape holds 2.5"});
  ExpectError(Header("{" + Entry("a", "[4294967296,4294967296]", "[0,8]") + "}", 8), Code::kBadModel,
              {"overflows"});
  ExpectError(Header("{" + Entry("a", "[4611686018427387904]", "[0,8]") + "}", 8), Code::kBadModel,
              {"overflows"});
  ExpectError(Header("{" + Entry("a", "[3]", "[0,8]") + "}", 8), Code::kBadModel,
              {"8 bytes of data", "need 12"});
  ExpectError(Header("{" + Entry("a", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4), Code::kBadModel,
              {"9 dimensions"});
  ExpectError(Header("{" + Entry("a", "[2]", "[0,8]", "Q9") + "}", 8), Code::kUnsupported, {"dtype 'Q9'"});
  ExpectError(Header("{\"a\":" + std::string(100000, '[') + "}", 0), Code::kBadModel,
              {"nested deeper than 64"});
  ExpectError(Header("{\"\xff\":1}", 0), Code::kBadModel, {"not valid JSON"});
}

Status ConvertWithWeights(const std::string& safetensors) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), {});
  WriteAll(scratch / "model/model.safetensors", safetensors);
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, nullptr);
  EXPECT_EQ(scratch.CountFiles(), status.ok() ? 2u : 1u);
  return status;
}

TEST(ConvertBadInput, SafetensorsFiles) {
  const std::string whole = SafetensorsFile(SmallTensors("BF16"));
  EXPECT_TRUE(ConvertWithWeights(whole).ok());
  for (const size_t n : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    ExpectError(ConvertWithWeights(whole.substr(0, n)), Code::kBadModel, {"model.safetensors", "truncated"});
  }
  ExpectError(ConvertWithWeights(whole + "x"), Code::kBadModel, {"1 bytes after the last tensor"});
  for (const uint64_t length : {UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{99999999}}) {
    ExpectError(ConvertWithWeights(std::string(reinterpret_cast<const char*>(&length), 8) + "{}"),
                Code::kBadModel, {"a header of"});
  }
  ExpectError(ConvertWithWeights("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              Code::kBadModel, {"model.safetensors: is a pointer of Git LFS", "git lfs pull"});
  TestTensors tensors = SmallTensors("BF16");
  tensors["model.norm.weight"] = {"I8", {kHidden}, std::string(kHidden, '\1')};
  ExpectError(ConvertWithWeights(SafetensorsFile(tensors)), Code::kUnsupported,
              {"model.norm.weight", "dtype I8", "F32, F16, BF16"});
}

// Files whose name says what they should be.
TEST(ConvertBadInput, FilesThatAreNoGguf) {
  ScratchDirectory scratch;
  const auto said = [&](const std::string& name, const std::string& bytes) {
    WriteAll(scratch / name, bytes);
    return Convert(scratch / name, scratch / "out.kvc", {}, nullptr);
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  ExpectError(said("model.gguf", pointer), Code::kBadModel,
              {"model.gguf: is a pointer of Git LFS", "git lfs pull fetches it"});
  for (const char* bytes : {"", "G", "<!DOCTYPE html><html>Not found</html>"}) {
    for (const char* name : {"model.gguf", "MODEL.GGUF"})
      ExpectError(said(name, bytes), Code::kBadModel,
                  {": does not begin with GGUF: not a GGUF file, or an incomplete download"});
  }
}

TEST(ConvertBadInput, WeightsThatAreNoNumbers) {
  for (const WeightChoice choice : {WeightChoice::kKeep, WeightChoice::kF32, WeightChoice::kBf16,
                                    WeightChoice::kInt8, WeightChoice::kInt4}) {
    for (const float bad : {NAN, INFINITY}) {
      ScratchDirectory scratch;
      TestTensors tensors = SmallTensors("F32");
      std::memcpy(tensors["model.layers.1.mlp.up_proj.weight"].bytes.data() + 4 * (kHidden * 7 + 3), &bad, 4);
      WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), tensors);
      ConvertOptions options;
      options.weights = choice;
      const Status status = Convert(scratch / "model", scratch / "out.kvc", options, nullptr);
      ExpectError(
          status, Code::kBadModel,
          {"model.safetensors: tensor model.layers.1.mlp.up_proj.weight: row 7, column 3: the value is "
           "not a finite number"});
      EXPECT_EQ(status.message().find("out.kvc"), std::string::npos) << status.message();
      EXPECT_EQ(scratch.CountFiles(), 1u);
    }
  }
}

TEST(ConvertBadInput, WeightsAtTheEndsOfTheRange) {
  ScratchDirectory scratch;
  TestTensors tensors = SmallTensors("F32");
  std::string& bytes = tensors["model.layers.0.mlp.up_proj.weight"].bytes;
  for (int i = 0; i < kHidden; ++i) {
    const float tiny = 1e-7f * static_cast<float>(i);  // max / 127 is below the smallest f16
    std::memcpy(bytes.data() + 4 * i, &tiny, 4);
  }
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), tensors);
  ConvertOptions options;
  options.weights = WeightChoice::kInt8;
  ASSERT_TRUE(Convert(scratch / "model", scratch / "out.kvc", options, nullptr).ok());
  const auto file = OpenModel(scratch / "out.kvc");
  const std::vector<float> got = Values(FindTensor(*file, TensorRole::kUp, 0)->weight);
  for (int i = 0; i < kHidden; ++i) EXPECT_NEAR(got[static_cast<size_t>(i)], 1e-7 * i, 0x1p-25);
  const float huge = 1e9f;
  std::memcpy(bytes.data(), &huge, 4);
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), tensors);
  ExpectError(Convert(scratch / "model", scratch / "out.kvc", options, nullptr), Code::kBadModel,
              {"layers.0.mlp.up_proj", "row 0", "too large for int8"});
}

// GGUF's blocks have a scale that may be no number.
TEST(ConvertBadInput, ScalesThatAreNoNumbers) {
  ScratchDirectory scratch;
  const std::string data = std::string(KVC_TEST_DATA) + "/convert/";
  for (const char* name : {"llama_q4_0", "qwen2_q8_0"}) {
    std::string bytes = ReadAll(data + name + ".gguf");
    bytes[bytes.size() - 2048] = '\0', bytes[bytes.size() - 2047] = '\0';
    for (size_t i = bytes.size() / 2; i + 1 < bytes.size(); i += 2) bytes[i] = '\0', bytes[i + 1] = '\x7c';
    WriteAll(scratch / "x.gguf", bytes);
    for (const WeightChoice choice : {WeightChoice::kKeep, WeightChoice::kF32, WeightChoice::kInt8}) {
      ConvertOptions options;
      options.weights = choice;
      ExpectError(Convert(scratch / "x.gguf", scratch / "out.kvc", options, nullptr), Code::kBadModel,
                  {"x.gguf: tensor blk.", "is not a finite number"});
    }
  }
}

// What no reader would take is the source's fault, not the output's.
TEST(ConvertBadInput, ContentBeyondTheLimitsOfAModelFileBlamesTheSource) {
  ScratchDirectory scratch;
  WriteHf(scratch / "model", SmallConfig("LlamaForCausalLM"), SmallTensors("BF16"));
  nlohmann::json tokenizer = nlohmann::json::parse(ReadAll(scratch / "model/tokenizer.json"));
  nlohmann::json parts = nlohmann::json::array();
  for (int i = 0; i < 1000; ++i)
    parts.push_back({{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}});
  parts.push_back(tokenizer["pre_tokenizer"]);
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
  WriteAll(scratch / "model/tokenizer.json", tokenizer.dump());
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, nullptr);
  ExpectError(status, Code::kBadModel, {"model: ", "patterns", "limit"});
  EXPECT_EQ(status.message().find("out.kvc"), std::string::npos) << status.message();
}

TEST(ConvertBadInput, Llama2c) {
  const std::string path = std::string(KVC_SOURCE_DIR) + "/models/stories260k/stories260K.bin";
  const std::string whole = ReadAll(path);
  const auto parse = [&](int field, int32_t value, int64_t file_bytes) {
    std::string bytes = whole.substr(0, 28);
    std::memcpy(bytes.data() + 4 * field, &value, 4);
    return ParseLlama2cHeader(Bytes(bytes), file_bytes, "x.bin").status();
  };
  const int64_t size = static_cast<int64_t>(whole.size());
  EXPECT_TRUE(parse(0, 64, size).ok());
  EXPECT_TRUE(parse(5, -512, size + 512 * 64 * 4).ok());  // a head of its own
  ExpectError(parse(0, 64, size - 1), Code::kBadModel, {"x.bin", "truncated"});
  ExpectError(parse(0, 64, size + 1), Code::kBadModel, {"damaged"});
  ExpectError(parse(0, 0, size), Code::kBadModel, {"dim is 0"});
  ExpectError(parse(2, 1 << 30, size), Code::kBadModel, {"n_layers"});
  ExpectError(parse(5, INT32_MIN, size), Code::kBadModel, {"vocab_size"});
  ExpectError(parse(4, 3, size), Code::kBadModel, {"3 key-value heads"});
  ExpectError(parse(3, 16, size), Code::kBadModel, {"head_dim is 4"});
  ExpectError(ParseLlama2cHeader(Bytes(whole.substr(0, 27)), 27, "x.bin").status(), Code::kBadModel,
              {"truncated"});
  ScratchDirectory scratch;
  WriteAll(scratch / "a.bin", whole);
  ExpectError(Convert(scratch / "a.bin", scratch / "out.kvc", {}, nullptr), Code::kNotFound,
              {"tok512.bin", "tokenizer.bin"});
  WriteAll(scratch / "tokenizer.bin", "cut");
  ExpectError(Convert(scratch / "a.bin", scratch / "out.kvc", {}, nullptr), Code::kBadModel,
              {"tokenizer.bin"});
}

TEST(ConvertBadInput, SourcesOfNoKnownKind) {
  ScratchDirectory scratch;
  const auto convert = [&](const std::string& bytes) {
    WriteAll(scratch / "x", bytes);
    return Convert(scratch / "x", scratch / "out.kvc", {}, nullptr);
  };
  ExpectError(Convert(scratch / "none", scratch / "out.kvc", {}, nullptr), Code::kNotFound,
              {"none", "no such file"});
  ExpectError(convert(""), Code::kBadModel, {"truncated"});
  ExpectError(convert("KVCM" + std::string(60, '\0')), Code::kInvalid, {".kvc file already"});
  ExpectError(convert("PK\3\4" + std::string(60, '\0')), Code::kUnsupported, {"PyTorch"});
  ExpectError(convert("24ka" + std::string(300, '\0')), Code::kUnsupported, {"legacy format"});
  ExpectError(convert(std::string("\2\0\0\0\0\0\0\0{}", 10)), Code::kUnsupported, {"give the directory"});
  ExpectError(convert(std::string(64, '\xee')), Code::kBadModel, {"not a llama2.c checkpoint"});
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  ExpectError(Convert(scratch / "pipe", scratch / "out.kvc", {}, nullptr), Code::kIo,
              {"pipe", "not a regular file"});
  std::filesystem::create_directory(scratch / "empty");
  ExpectError(Convert(scratch / "empty", scratch / "out.kvc", {}, nullptr), Code::kNotFound,
              {"empty: has no config.json", "GGUF or llama2.c"});
  WriteHf(scratch / "torch", SmallConfig("LlamaForCausalLM"), {});
  std::filesystem::rename(scratch / "torch/model.safetensors", scratch / "torch/pytorch_model.bin");
  ExpectError(Convert(scratch / "torch", scratch / "out.kvc", {}, nullptr), Code::kUnsupported,
              {"pytorch_model.bin"});
  WriteHf(scratch / "mute", SmallConfig("LlamaForCausalLM"), SmallTensors("BF16"));
  std::filesystem::remove(scratch / "mute/tokenizer.json");
  ExpectError(Convert(scratch / "mute", scratch / "out.kvc", {}, nullptr), Code::kNotFound,
              {"tokenizer.json"});
}

class Interrupted : public testing::Test {
 protected:
  void SetUp() override {
    WriteHf(scratch_ / "model", SmallConfig("LlamaForCausalLM"), SmallTensors("BF16"));
    WriteAll(scratch_ / "out.kvc", "the old output");
  }
  void ExpectUntouched() {
    EXPECT_EQ(ReadAll(scratch_ / "out.kvc"), "the old output");
    EXPECT_EQ(scratch_.CountFiles(), 2u);  // model, out.kvc: no partial file
  }
  ScratchDirectory scratch_;
};

TEST_F(Interrupted, CancelAtEveryCallKeepsTheOldOutput) {
  int calls = 0;
  ConvertOptions options;
  for (int last = 0; last < 20; last += 3) {
    calls = 0;
    options.progress = [&](const ConvertProgress&) { return calls++ < last; };
    ExpectError(Convert(scratch_ / "model", scratch_ / "out.kvc", options, nullptr), Code::kCancelled,
                {"cancelled"});
    ExpectUntouched();
  }
}

TEST_F(Interrupted, FullDiskKeepsTheOldOutput) {
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {0, 1000, 20000, 60000}) {
    struct rlimit tight = {limit, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const Status status = Convert(scratch_ / "model", scratch_ / "out.kvc", {}, nullptr);
    setrlimit(RLIMIT_FSIZE, &old);
    ExpectError(status, Code::kIo, {"out.kvc"});
    ExpectUntouched();
  }
  std::signal(SIGXFSZ, handler);
}

TEST_F(Interrupted, OptionsAndPlacesThatCannotWork) {
  ConvertOptions options;
  options.group = 48;
  ExpectError(Convert(scratch_ / "model", scratch_ / "out.kvc", options, nullptr), Code::kInvalid,
              {"group is 48", "32, 64, 128"});
  ExpectError(Convert(scratch_ / "model", scratch_ / "model/model.safetensors", {}, nullptr), Code::kInvalid,
              {"is a file of the source"});
  ExpectError(Convert(scratch_ / "model", scratch_ / "nowhere/out.kvc", {}, nullptr), Code::kIo,
              {"nowhere/out.kvc"});
  options = {};
  options.head_score_files = {scratch_ / "none.json"};
  ExpectError(Convert(scratch_ / "model", scratch_ / "out.kvc", options, nullptr), Code::kNotFound,
              {"none.json"});
  ExpectUntouched();
}

TEST(ConvertBadInput, MemoryStaysBelowTheLargestTensor) {
  ScratchDirectory scratch;
  constexpr int64_t kRows = 1 << 15;  // of the embedding: 32 MiB in f32
  nlohmann::json config = SmallConfig("LlamaForCausalLM");
  config.update(
      {{"vocab_size", kRows}, {"hidden_size", 256}, {"head_dim", kHeadDim}, {"num_hidden_layers", 1}});
  TestTensors tensors;
  const std::string zeros(static_cast<size_t>(kRows) * 256 * 4, '\0');
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 4;
    for (const int64_t d : shape) n *= d;
    tensors[name] = {"F32", std::move(shape), zeros.substr(0, static_cast<size_t>(n))};
  };
  const std::string b = "model.layers.0.";
  add("model.embed_tokens.weight", {kRows, 256});
  for (const char* name : {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight"})
    add(name, {256});
  add(b + "self_attn.q_proj.weight", {32, 256}), add(b + "self_attn.k_proj.weight", {16, 256}),
      add(b + "self_attn.v_proj.weight", {16, 256});
  add(b + "self_attn.o_proj.weight", {256, 32}), add(b + "mlp.gate_proj.weight", {96, 256}),
      add(b + "mlp.up_proj.weight", {96, 256});
  add(b + "mlp.down_proj.weight", {256, 96});
  WriteHf(scratch / "model", config, tensors);
  for (const WeightChoice choice :
       {WeightChoice::kKeep, WeightChoice::kBf16, WeightChoice::kInt8, WeightChoice::kInt4}) {
    ConvertOptions options;
    options.weights = choice;
    ConvertReport report;
    const Status status = Convert(scratch / "model", scratch / "out.kvc", options, &report);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(report.peak_buffer_bytes, 16 << 20);
    EXPECT_EQ(report.bytes_read,
              static_cast<int64_t>(zeros.size()) + 4 * (256 * 3 + 256 * (32 + 16 + 16 + 32 + 96 * 3)));
  }
}

}  // namespace
}  // namespace kvc
