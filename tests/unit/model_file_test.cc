// A written model file read back by every way in: the same content, shapes, bytes and description.
#include "lib/model/model_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/model/model_check.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::RawModelFile;
using test::TempFolder;
using test::TinyModelOptions;

// The file keeps the bytes, which it refers to.
std::shared_ptr<const ModelFile> OpenBytes(const AlignedBytes& bytes) {
  struct Holder {
    AlignedBytes bytes;
    std::unique_ptr<ModelFile> file;
  };
  const auto holder = std::make_shared<Holder>();
  holder->bytes = bytes;
  auto file = ModelFile::OpenMemory(holder->bytes.data(), static_cast<int64_t>(bytes.size()), nullptr);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return nullptr;
  holder->file = std::move(file.value());
  return std::shared_ptr<const ModelFile>(holder, holder->file.get());
}

uint64_t FingerprintOf(const RawModelFile& raw) { return OpenBytes(raw.Build())->fingerprint(); }

// Everything that was announced comes back, for each weight type and each optional tensor.
class RoundTrip : public ::testing::TestWithParam<WeightType> {};

TEST_P(RoundTrip, GivesBackContentAndBytes) {
  TinyModelOptions options;
  options.type = GetParam();
  options.qk_norm = options.query_key_value_bias = options.output_bias = true;
  options.ffn_size = 88;  // no power of two: groups of 16 become 11 (int8) or 8 (int4)
  options.rope.scaling = RopeScaling::kYarn, options.rope.factor = 4, options.rope.original_max_tokens = 1024;
  const AlignedBytes bytes = test::TinyModelBytes(options);
  const auto file = OpenBytes(bytes);
  ASSERT_NE(file, nullptr);

  const ModelFileContent want = test::TinyModelContent(options);
  EXPECT_EQ(file->config().n_layers, want.config.n_layers);
  EXPECT_EQ(file->config().head_dim, want.config.head_dim);
  EXPECT_EQ(file->config().ffn_size, 88);
  EXPECT_EQ(file->config().architecture, want.config.architecture);
  EXPECT_EQ(file->config().norm_eps, want.config.norm_eps);
  EXPECT_EQ(file->config().rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(file->config().rope.factor, 4);
  EXPECT_EQ(file->config().rope.original_max_tokens, 1024);
  EXPECT_TRUE(file->config().qk_norm);
  EXPECT_FALSE(file->config().tied_head);
  EXPECT_EQ(file->tokenizer_spec().pieces, want.tokenizer.pieces);
  EXPECT_EQ(file->tokenizer_spec().piece_kinds, want.tokenizer.piece_kinds);
  EXPECT_EQ(file->tokenizer_spec().stop_tokens, want.tokenizer.stop_tokens);
  EXPECT_EQ(file->tokenizer_spec().bos, 256);
  EXPECT_TRUE(file->tokenizer_spec().add_bos);
  ASSERT_EQ(file->head_scores().size(), 1u);
  EXPECT_EQ(file->head_scores()[0].scores, want.head_scores[0].scores);
  EXPECT_EQ(file->created_by(), "kvc tests");
  EXPECT_EQ(file->source(), "random");
  EXPECT_EQ(file->version(), 1u);  // nothing of it needs a newer one
  EXPECT_EQ(file->file_bytes(), static_cast<int64_t>(bytes.size()));

  const std::vector<TensorPlan> plans = test::TinyModelTensors(options);
  ASSERT_EQ(file->tensors().size(), plans.size());
  int64_t weight_bytes = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const TensorEntry& t = file->tensors()[i];
    SCOPED_TRACE(TensorTitle(t.role, t.layer));
    EXPECT_EQ(t.role, plans[i].role);
    EXPECT_EQ(t.layer, plans[i].layer);
    EXPECT_EQ(t.weight.type, plans[i].type);
    EXPECT_EQ(t.weight.group, plans[i].group);
    EXPECT_EQ(t.offset % 4096, 0);
    const std::vector<uint8_t> data = test::TinyTensorBytes(options, plans[i]);
    const int64_t data_bytes = WeightRowBytes(t.weight.type, t.weight.cols) * t.weight.rows;
    EXPECT_EQ(std::memcmp(t.weight.data, data.data(), static_cast<size_t>(data_bytes)), 0);
    const bool coded = t.weight.group > 0;
    ASSERT_EQ(t.weight.scales != nullptr, coded);
    if (coded) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.weight.scales) % 64, 0u);
      const size_t scales_bytes = data.size() - static_cast<size_t>(data_bytes);
      EXPECT_EQ(std::memcmp(t.weight.scales, data.data() + data_bytes, scales_bytes), 0);
    }
    weight_bytes += t.size;
  }
  EXPECT_EQ(file->weight_bytes(), weight_bytes);
}

INSTANTIATE_TEST_SUITE_P(Types, RoundTrip,
                         ::testing::Values(WeightType::kF32, WeightType::kF16, WeightType::kBf16,
                                           WeightType::kInt8, WeightType::kInt4),
                         [](const auto& type) { return std::string(WeightTypeName(type.param)); });

TEST(ModelFile, ContentOfEveryFieldSurvives) {
  RawModelFile raw = RawModelFile::Tiny({});
  ModelFileContent& c = raw.content;
  c.config.name = "n\xc3\xa4me", c.config.sliding_window = 77, c.config.max_tokens = 123,
  c.config.norm_eps = 1.25e-6;
  c.config.rope_pairing = RopePairing::kInterleaved;
  c.config.rope = {5e5, RopeScaling::kLlama3, 8, 1.5, 4.5, 31, 2, 0.5, 8192, true, 0, {}};
  TokenizerSpec& t = c.tokenizer;
  t.kind = TokenizerKind::kSentencePieceBpe;
  t.scores.assign(t.pieces.size(), -1.5f);
  t.merges = {0, 1, 2, 3};
  t.patterns = {"\\p{L}+", std::string("a\0b", 3)};
  t.ignore_merges = t.nfc = t.add_space_prefix = t.remove_extra_spaces = t.byte_fallback = true;
  t.add_bos = false, t.bos = -1, t.eos = 5, t.unk = 6, t.pad = -1;
  t.stop_tokens = {5, 7};
  t.space_prefix = SpacePrefix::kFirst;
  t.piece_strips.resize(257), t.piece_strips[256] = kStripLeft | kStripRight;
  c.turn_format = {"a", "b", "c", "d", "e", std::string("f\0", 2), "g", "", std::nullopt, "i"};
  c.turn_format.trim = kTrimAll, c.turn_format.system_turns = SystemTurns::kFirst;
  c.turn_format.bos_in_marks = true;
  c.head_scores[0].note = "why", c.head_scores[0].seed = -3, c.head_scores[0].n_samples = int64_t{1} << 40;
  c.head_scores[0].budget = 128, c.head_scores[0].alpha = 9;
  const auto file = OpenBytes(raw.Build());
  ASSERT_NE(file, nullptr);
  const ModelConfig& config = file->config();
  EXPECT_EQ(config.name, c.config.name);
  EXPECT_EQ(config.sliding_window, 77);
  EXPECT_EQ(config.max_tokens, 123);
  EXPECT_EQ(config.norm_eps, 1.25e-6);
  EXPECT_EQ(config.rope_pairing, RopePairing::kInterleaved);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope.low_freq_factor, 1.5);
  EXPECT_EQ(config.rope.high_freq_factor, 4.5);
  EXPECT_EQ(config.rope.beta_fast, 31);
  EXPECT_EQ(config.rope.beta_slow, 2);
  EXPECT_EQ(config.rope.attention_factor, 0.5);
  EXPECT_EQ(config.rope.original_max_tokens, 8192);
  const TokenizerSpec& got = file->tokenizer_spec();
  EXPECT_EQ(got.kind, t.kind);
  EXPECT_EQ(got.scores, t.scores);
  EXPECT_EQ(got.merges, t.merges);
  EXPECT_EQ(got.patterns, t.patterns);
  EXPECT_TRUE(got.ignore_merges && got.nfc && got.add_space_prefix && got.remove_extra_spaces &&
              got.byte_fallback);
  EXPECT_FALSE(got.add_bos);
  EXPECT_EQ(got.bos, -1);
  EXPECT_EQ(got.eos, 5);
  EXPECT_EQ(got.unk, 6);
  EXPECT_EQ(got.pad, -1);
  EXPECT_EQ(got.stop_tokens, t.stop_tokens);
  EXPECT_EQ(got.space_prefix, SpacePrefix::kFirst);
  EXPECT_EQ(got.piece_strips, t.piece_strips);
  EXPECT_EQ(file->turn_format().system_prefix, "a");
  EXPECT_EQ(file->turn_format().system_suffix, "b");
  EXPECT_EQ(file->turn_format().user_prefix, "c");
  EXPECT_EQ(file->turn_format().user_suffix, "d");
  EXPECT_EQ(file->turn_format().assistant_prefix, "e");
  EXPECT_EQ(file->turn_format().assistant_suffix, std::string("f\0", 2));
  EXPECT_EQ(file->turn_format().first_system_prefix, "g");
  EXPECT_EQ(file->turn_format().first_user_prefix, "");
  EXPECT_EQ(file->turn_format().user_prefix_after_system, std::nullopt);
  EXPECT_EQ(file->turn_format().answer_prefix, "i");
  EXPECT_EQ(file->turn_format().trim, kTrimAll);
  EXPECT_EQ(file->turn_format().system_turns, SystemTurns::kFirst);
  EXPECT_TRUE(file->turn_format().bos_in_marks);
  const HeadScoreTable& table = file->head_scores()[0];
  EXPECT_EQ(table.note, "why");
  EXPECT_EQ(table.seed, -3);
  EXPECT_EQ(table.n_samples, int64_t{1} << 40);
  EXPECT_EQ(table.budget, 128);
  EXPECT_EQ(table.alpha, 9);
}

// A model that uses all that version 2 brought, at the shapes of the tiny one.
RawModelFile Version2() {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.version = kModelFileVersion;
  ModelConfig& c = raw.content.config;
  c.embedding_scale = 2, c.residual_scale = 0.5f, c.logit_scale = 0.25f, c.attention_scale = 0.125f;
  c.attention_cap = 50, c.logit_cap = 30, c.activation = Activation::kGeluTanh;
  c.rope.rotated = 4, c.rope.scaling = RopeScaling::kDivisors, c.rope.divisors = {1, 2.5f};
  c.rope.attention_factor = 1.25;
  RopeConfig local;
  local.theta = 123;
  c.more_ropes = {local};
  c.layers = {{7, 1}, {0, -1}};
  return raw;
}

TEST(ModelFile, ContentOfVersion2Survives) {
  RawModelFile raw = Version2();
  const auto file = OpenBytes(raw.Build());
  ASSERT_NE(file, nullptr);
  const ModelConfig& c = file->config();
  EXPECT_EQ(c.embedding_scale, 2.0f);
  EXPECT_EQ(c.residual_scale, 0.5f);
  EXPECT_EQ(c.logit_scale, 0.25f);
  EXPECT_EQ(c.attention_scale, 0.125f);
  EXPECT_EQ(c.attention_cap, 50.0f);
  EXPECT_EQ(c.logit_cap, 30.0f);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_EQ(c.rope.rotated, 4);
  EXPECT_EQ(c.rope.scaling, RopeScaling::kDivisors);
  EXPECT_EQ(c.rope.divisors, std::vector<float>({1, 2.5f}));
  EXPECT_EQ(c.rope.attention_factor, 1.25);
  ASSERT_EQ(c.more_ropes.size(), 1u);
  EXPECT_EQ(c.more_ropes[0].theta, 123);
  ASSERT_EQ(c.layers.size(), 2u);
  EXPECT_EQ(c.layers[0].attention_window, 7);
  EXPECT_EQ(c.layers[0].rope, 1);
  EXPECT_EQ(c.layers[1].attention_window, 0);
  EXPECT_EQ(c.layers[1].rope, -1);
  EXPECT_TRUE(c.norms_before);
  EXPECT_FALSE(c.norms_after || c.wide_qk_norm);
}

// What a file of version 1 says of all layers is what each has.
TEST(ModelFile, Version1FillsTheLayers) {
  test::TinyModelOptions options;
  options.sliding_window = 19;
  const TempFolder folder;
  ASSERT_TRUE(test::WriteTinyModel(options, folder / "m.kvc").ok());
  MemoryMeter meter(0);
  const auto file = ModelFile::Open(folder / "m.kvc", &meter);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file.value()->version(), 1u);  // older libraries read it
  ASSERT_EQ(file.value()->config().layers.size(), 2u);
  for (const LayerConfig& layer : file.value()->config().layers) {
    EXPECT_EQ(layer.attention_window, 19);
    EXPECT_EQ(layer.rope, 0);
  }
}

// Sessions that were saved with a model are of that model as long as its file reads.
TEST(ModelFile, FingerprintsStayAsTheyAre) {
  const auto of = [](int32_t window, std::vector<LayerConfig> layers) {
    test::TinyModelOptions options;
    options.sliding_window = window, options.layers = std::move(layers);
    return OpenBytes(test::TinyModelBytes(options))->fingerprint();
  };
  EXPECT_EQ(of(0, {}), 0x8748b56784958122u);
  EXPECT_EQ(of(64, {}), 0x29276210e896158cu);
  EXPECT_EQ(of(0, {{64, 0}, {0, 0}}), 0x980fbb9a50514797u);
  EXPECT_EQ(of(0, {{0, -1}, {0, -1}}), 0xa4b3af393a8a7bbdu);
  EXPECT_EQ(of(0, {{64, 0}, {64, 0}}), 0xaf24817dfcc8fecau);
  EXPECT_EQ(of(64, {{64, 0}, {64, 0}}), of(64, {})) << "said twice";
}

// Windows of layers that are all alike are no fewer than others.
TEST(ModelFile, WindowsOfLayersThatAreAlikeAreWrittenAndTold) {
  std::set<uint64_t> seen;
  for (const int32_t of_all : {0, 16}) {
    for (const int32_t window : {0, 64, 32}) {
      test::TinyModelOptions options;
      options.sliding_window = of_all;
      options.layers.assign(2, {window, 0});
      const auto file = OpenBytes(test::TinyModelBytes(options));
      EXPECT_EQ(file->version(), window == of_all ? 1u : 2u);
      for (const LayerConfig& layer : file->config().layers) EXPECT_EQ(layer.attention_window, window);
      EXPECT_TRUE(seen.insert(file->fingerprint()).second) << window;
      auto json = nlohmann::json::parse(file->DescribeJson());
      if (window != of_all) {
        EXPECT_EQ(json["config"]["layers"][1]["window"], window);
      }
    }
  }
}

// Every field of version 2 tells models apart.
TEST(ModelFile, FingerprintOfVersion2) {
  std::set<uint64_t> seen = {OpenBytes(RawModelFile::Tiny({}).Build())->fingerprint()};
  const auto expect_new = [&seen](const std::function<void(ModelConfig*)>& change) {
    RawModelFile raw = Version2();
    change(&raw.content.config);
    const auto file = OpenBytes(raw.Build());
    ASSERT_NE(file, nullptr);
    EXPECT_TRUE(seen.insert(file->fingerprint()).second) << seen.size();
  };
  expect_new([](ModelConfig*) {});
  expect_new([](ModelConfig* c) { c->embedding_scale = 3; });
  expect_new([](ModelConfig* c) { c->residual_scale = 3; });
  expect_new([](ModelConfig* c) { c->logit_scale = 3; });
  expect_new([](ModelConfig* c) { c->attention_scale = 3; });
  expect_new([](ModelConfig* c) { c->attention_cap = 3; });
  expect_new([](ModelConfig* c) { c->logit_cap = 3; });
  expect_new([](ModelConfig* c) { c->activation = Activation::kSilu; });
  expect_new([](ModelConfig* c) { c->rope.divisors[1] = 3; });
  expect_new([](ModelConfig* c) { c->rope.rotated = 6, c->rope.divisors.push_back(9); });
  expect_new([](ModelConfig* c) { c->more_ropes[0].theta = 3; });
  expect_new([](ModelConfig* c) { c->more_ropes.push_back({}); });
  expect_new([](ModelConfig* c) { c->layers[0].attention_window = 3; });
  expect_new([](ModelConfig* c) { c->layers[0].rope = 0; });
}

// What only version 4 has raises the version, survives and tells models apart.
TEST(ModelFile, WhatNeedsVersion4) {
  std::set<uint64_t> seen;
  const auto written = [&seen](const std::function<void(ModelConfig*)>& change) {
    test::TinyModelOptions options;
    options.qk_norm = true;
    options.change = change;
    const TempFolder folder;
    const Status status = test::WriteTinyModel(options, folder / "m.kvc");
    EXPECT_TRUE(status.ok()) << status.message();
    MemoryMeter meter(0);
    auto file = ModelFile::Open(folder / "m.kvc", &meter);
    EXPECT_TRUE(file.ok()) << file.status().message();
    EXPECT_TRUE(seen.insert(file.value()->fingerprint()).second);
    return std::pair(file.value()->version(), file.value()->config());
  };
  EXPECT_EQ(written([](ModelConfig*) {}).first, 1u);
  const auto norms = written([](ModelConfig* c) { c->layer_norms = true; });
  EXPECT_EQ(norms.first, 4u);
  EXPECT_TRUE(norms.second.layer_norms && !norms.second.own_qk_norms && !norms.second.parallel_blocks);
  const auto own = written([](ModelConfig* c) { c->own_qk_norms = true; });
  EXPECT_EQ(own.first, 4u);
  EXPECT_TRUE(!own.second.layer_norms && own.second.own_qk_norms && !own.second.parallel_blocks);
  const auto sinks = written([](ModelConfig* c) { c->attention_sinks = true; });
  EXPECT_EQ(sinks.first, 4u);
  EXPECT_TRUE(sinks.second.attention_sinks && !sinks.second.layer_norms);
  const auto clamped = written([](ModelConfig* c) {
    c->activation = Activation::kClampedSwiglu, c->activation_gain = 1.5f, c->activation_limit = 6;
  });
  EXPECT_EQ(clamped.first, 4u);
  EXPECT_EQ(clamped.second.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(clamped.second.activation_gain, 1.5f);
  EXPECT_EQ(clamped.second.activation_limit, 6);
  const auto ramp = written([](ModelConfig* c) {
    c->rope.scaling = RopeScaling::kYarn, c->rope.factor = 4, c->rope.original_max_tokens = 64;
    c->rope.whole_ramp = false;
  });
  EXPECT_EQ(ramp.first, 4u);
  EXPECT_FALSE(ramp.second.rope.whole_ramp);
  EXPECT_TRUE(clamped.second.rope.whole_ramp);
  const auto parallel = written([](ModelConfig* c) { c->parallel_blocks = true; });
  EXPECT_EQ(parallel.first, 4u);
  EXPECT_TRUE(!parallel.second.layer_norms && !parallel.second.own_qk_norms &&
              parallel.second.parallel_blocks);
}

// Several tokens before a text: older readers, who would put BOS there, refuse the file, and no other file.
TEST(ModelFile, WhatNeedsVersion5) {
  std::set<uint64_t> seen;
  for (const std::vector<int32_t>& ids :
       {std::vector<int32_t>(), {256, 65}, {65, 256}, {65}, std::vector<int32_t>(kMaxBeginTokens, 7)}) {
    test::TinyModelOptions options;
    ModelFileContent content = test::TinyModelContent(options);
    content.tokenizer.begin_tokens = ids;
    const auto file = OpenBytes(test::TinyModelBytes(options, content));
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(file->version(), ids.empty() ? 1u : 5u);
    EXPECT_EQ(file->tokenizer_spec().begin_tokens, ids);
    EXPECT_TRUE(seen.insert(file->fingerprint()).second) << "they decide what is computed";
  }
  EXPECT_EQ(seen.count(FingerprintOf(RawModelFile::Tiny({}))), 1u)
      << "of files that have none it is as it was";
}

// Patterns that see bytes: to older readers they would be patterns of characters.
TEST(ModelFile, WhatNeedsVersion6) {
  std::set<uint64_t> seen;
  for (const int32_t n : {0, 1, 2}) {
    test::TinyModelOptions options;
    ModelFileContent content = test::TinyModelContent(options);
    content.tokenizer.patterns = {"a", "b"};
    content.tokenizer.n_byte_patterns = n;
    const auto file = OpenBytes(test::TinyModelBytes(options, content));
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(file->version(), n == 0 ? 1u : 6u);
    EXPECT_EQ(file->tokenizer_spec().n_byte_patterns, n);
    EXPECT_TRUE(seen.insert(file->fingerprint()).second) << "they decide what is computed";
  }
}

TEST(ModelFile, OpensAPathAndARangeOfADescriptor) {
  const TempFolder folder;
  const AlignedBytes bytes = test::TinyModelBytes({});
  ASSERT_TRUE(test::WriteTinyModel({}, folder / "m.kvc").ok());
  MemoryMeter meter(0);
  const auto by_path = ModelFile::Open(folder / "m.kvc", &meter);
  ASSERT_TRUE(by_path.ok()) << by_path.status().message();
  const uint64_t fingerprint = by_path.value()->fingerprint();
  const int64_t copied = meter.used();
  EXPECT_LT(copied, 4096) << "a mapping is not charged, what is copied out of the directory is";
  // Offsets as in a package: on a page, on 64 bytes, and where only reading gives aligned weights.
  for (const int64_t offset : {0, 4096, 64, 4096 + 128, 4, 4097}) {
    SCOPED_TRACE(offset);
    const std::string path = folder / "package";
    {
      std::ofstream out(path, std::ios::binary);
      out << std::string(static_cast<size_t>(offset), 'x');
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      out << "and more";
    }
    const int fd = ::open(path.c_str(), O_RDONLY);
    ASSERT_GE(fd, 0);
    {
      const auto file = ModelFile::OpenFd(fd, offset, static_cast<int64_t>(bytes.size()), &meter);
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_EQ(file.value()->fingerprint(), fingerprint);
      EXPECT_EQ(meter.used() > 2 * copied, offset % 64 != 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(file.value()->tensors()[0].weight.data) % 64, 0u);
    }
    EXPECT_EQ(meter.used(), copied);
    const auto longer = ModelFile::OpenFd(fd, offset, 0, &meter);
    EXPECT_EQ(longer.status().code(), Code::kBadModel) << "what follows the model is not part of it";
    const auto beyond = ModelFile::OpenFd(fd, offset, static_cast<int64_t>(bytes.size()) + 9, &meter);
    EXPECT_EQ(beyond.status().code(), Code::kIo);
    ::close(fd);
  }
}

TEST(ModelFile, ReadingIntoMemoryHonoursTheLimit) {
  const TempFolder folder;
  ASSERT_TRUE(test::WriteTinyModel({}, folder / "m.kvc").ok());
  std::ifstream in(folder / "m.kvc", std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::ofstream(folder / "shifted", std::ios::binary) << 'x' << content;
  const int fd = ::open((folder / "shifted").c_str(), O_RDONLY);
  MemoryMeter meter(1000);
  const auto file = ModelFile::OpenFd(fd, 1, 0, &meter);
  EXPECT_EQ(file.status().code(), Code::kMemory);
  EXPECT_EQ(meter.used(), 0);
  ::close(fd);
}

TEST(ModelFile, RefusesWhatIsNoFile) {
  const TempFolder folder;
  MemoryMeter meter(0);
  const auto code = [&meter](const std::string& path) { return ModelFile::Open(path, &meter).status(); };
  const Status missing = code(folder / "none.kvc");
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_NE(missing.message().find("none.kvc: cannot open: No such file"), std::string::npos)
      << missing.message();
  EXPECT_EQ(code(folder.path()).code(), Code::kIo);
  EXPECT_NE(code(folder.path()).message().find("is a directory"), std::string::npos);
  EXPECT_EQ(code(std::string("a\0b", 3)).code(), Code::kInvalid);
  std::ofstream(folder / "empty").close();
  EXPECT_NE(code(folder / "empty").message().find("truncated: the file has 0 bytes"), std::string::npos);
  EXPECT_EQ(code(folder / "empty").code(), Code::kBadModel);
  std::ofstream(folder / "gguf") << "GGUF and so on, longer than a header of forty bytes";
  EXPECT_NE(code(folder / "gguf").message().find("GGUF"), std::string::npos);
  EXPECT_EQ(ModelFile::OpenFd(-1, 0, 0, &meter).status().code(), Code::kIo);
  EXPECT_EQ(ModelFile::OpenFd(0, -1, 0, &meter).status().code(), Code::kInvalid);
}

TEST(ModelFile, MemoryMustBeAligned) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const int64_t n = static_cast<int64_t>(bytes.size());
  EXPECT_EQ(ModelFile::OpenMemory(bytes.data() + 1, n - 1, nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(ModelFile::OpenMemory(nullptr, 5, nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(ModelFile::OpenMemory(bytes.data(), -1, nullptr).status().code(), Code::kInvalid);
  EXPECT_EQ(ModelFile::OpenMemory(nullptr, 0, nullptr).status().code(), Code::kBadModel);
}

TEST(ModelFile, FingerprintCoversWhatDecidesTheOutput) {
  const RawModelFile plain = RawModelFile::Tiny({});
  const uint64_t fingerprint = FingerprintOf(plain);
  std::map<std::string, RawModelFile> same, other;
  same["no scores"] = plain, same["no scores"].content.head_scores.clear();
  same["turns"] = plain, same["turns"].content.turn_format.user_prefix = "<user>";
  same["names"] = plain, same["names"].content.config.name = "x", same["names"].content.source = "y";
  RawModelFile& order = same["order"] = plain;
  std::swap(order.tensors[1], order.tensors[2]), std::swap(order.section_bytes[1], order.section_bytes[2]);
  other["weight"] = plain, other["weight"].section_bytes[5][0] ^= 1;
  other["eps"] = plain, other["eps"].content.config.norm_eps = 1e-6;
  other["theta"] = plain, other["theta"].content.config.rope.theta = 9999;
  other["piece"] = plain, other["piece"].content.tokenizer.pieces[3] = "zz";
  other["merge"] = plain, other["merge"].content.tokenizer.merges = {1, 2};
  other["bos"] = plain, other["bos"].content.tokenizer.add_bos = false;
  other["strip"] = plain, other["strip"].content.tokenizer.piece_strips.resize(257, 0);
  other["strip"].content.tokenizer.piece_strips[256] = kStripRight;
  TokenizerSpec& spaces = (other["space"] = plain).content.tokenizer;
  spaces.add_space_prefix = true, spaces.space_prefix = SpacePrefix::kUnlessSpace;
  other["always"] = plain, other["always"].content.tokenizer.add_space_prefix = true;
  EXPECT_NE(FingerprintOf(other["space"]), FingerprintOf(other["always"]));
  for (const auto& [name, raw] : same) EXPECT_EQ(FingerprintOf(raw), fingerprint) << name;
  for (const auto& [name, raw] : other) EXPECT_NE(FingerprintOf(raw), fingerprint) << name;
}

TEST(ModelFile, UnknownSectionsAreCheckedAndSkipped) {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.section_bytes.push_back({1, 2, 3});
  EXPECT_NE(OpenBytes(raw.Build()), nullptr);
  raw.edit_sections = [](std::vector<SectionEntry>* sections) { sections->back().checksum ^= 1; };
  const AlignedBytes bytes = raw.Build();
  EXPECT_EQ(ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr).status().code(),
            Code::kBadModel);
}

TEST(ModelFile, DescribesItselfAsJson) {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.content.config.name = "quote \" and \xff";
  const auto file = OpenBytes(raw.Build());
  const auto json = nlohmann::json::parse(file->DescribeJson());
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["config"]["name"], "quote \" and \xef\xbf\xbd");
  EXPECT_EQ(json["config"]["n_kv_heads"], 2);
  EXPECT_EQ(json["config"]["rope"]["theta"], 10000);
  EXPECT_EQ(json["config"]["norm_eps"].get<double>(), file->config().norm_eps);
  EXPECT_EQ(json["tokenizer"]["kind"], "byte-level-bpe");
  EXPECT_EQ(json["tokenizer"]["n_pieces"], 262);
  EXPECT_FALSE(json["tokenizer"].contains("space_prefix"));
  EXPECT_EQ(json["head_scores"][0]["name"], "tiny-ssv");
  EXPECT_EQ(json["head_scores"][0]["scores"].size(), 2u);
  EXPECT_EQ(json["head_scores"][0]["scores"][1][1].get<float>(), file->head_scores()[0].scores[3]);
  ASSERT_EQ(json["tensors"].size(), file->tensors().size());
  int64_t n_parameters = 0;
  for (size_t i = 0; i < file->tensors().size(); ++i) {
    const TensorEntry& t = file->tensors()[i];
    const auto& j = json["tensors"][i];
    EXPECT_EQ(j["role"], TensorRoleName(t.role));
    EXPECT_EQ(j.value("layer", -1), t.layer);
    EXPECT_EQ(j["offset"], t.offset);
    EXPECT_EQ(j["size"], t.size);
    EXPECT_EQ(std::stoull(j["checksum"].get<std::string>(), nullptr, 16), t.checksum);
    n_parameters += j["shape"][0].get<int64_t>() * j["shape"][1].get<int64_t>();
  }
  EXPECT_EQ(json["n_parameters"], n_parameters);
  EXPECT_EQ(std::stoull(json["fingerprint"].get<std::string>(), nullptr, 16), file->fingerprint());
}

TEST(ModelFile, TellsWhereASpaceGoesBeforeTexts) {
  for (const auto& [rule, name] :
       std::map<SpacePrefix, std::string>{{SpacePrefix::kAlways, "always"},
                                          {SpacePrefix::kUnlessSpace, "unless-space"},
                                          {SpacePrefix::kFirst, "first"}}) {
    RawModelFile raw = RawModelFile::Tiny({});
    raw.content.tokenizer.add_space_prefix = true, raw.content.tokenizer.space_prefix = rule;
    const auto json = nlohmann::json::parse(OpenBytes(raw.Build())->DescribeJson());
    EXPECT_EQ(json["tokenizer"]["space_prefix"], name);
  }
}

TEST(ModelConfig, RolesHaveNamesAndShapes) {
  ModelConfig c;
  c.n_layers = 1, c.n_heads = 4, c.n_kv_heads = 2, c.head_dim = 16;
  c.hidden_size = 32, c.ffn_size = 48, c.vocab_size = 9;
  const auto shape = [&c](TensorRole role) {
    int32_t rows = 0, cols = 0;
    return TensorShape(c, role, &rows, &cols) ? std::make_pair(rows, cols) : std::make_pair(0, 0);
  };
  using P = std::pair<int32_t, int32_t>;
  EXPECT_EQ(shape(TensorRole::kEmbedding), P(9, 32));
  EXPECT_EQ(shape(TensorRole::kQuery), P(64, 32));
  EXPECT_EQ(shape(TensorRole::kKey), P(32, 32));
  EXPECT_EQ(shape(TensorRole::kOutput), P(32, 64));
  EXPECT_EQ(shape(TensorRole::kQueryBias), P(1, 64));
  EXPECT_EQ(shape(TensorRole::kValueBias), P(1, 32));
  EXPECT_EQ(shape(TensorRole::kGate), P(48, 32));
  EXPECT_EQ(shape(TensorRole::kDown), P(32, 48));
  EXPECT_EQ(shape(TensorRole::kQueryNorm), P(0, 0));
  EXPECT_EQ(shape(TensorRole::kOutputHead), P(9, 32));
  c.qk_norm = c.tied_head = true;
  EXPECT_EQ(shape(TensorRole::kQueryNorm), P(1, 16));
  EXPECT_EQ(shape(TensorRole::kOutputHead), P(0, 0));
  EXPECT_STREQ(TensorRoleName(TensorRole::kAttentionNorm), "attention_norm");
  EXPECT_STREQ(TensorRoleName(static_cast<TensorRole>(999)), "unknown");
  EXPECT_TRUE(IsVectorRole(TensorRole::kKeyBias));
  EXPECT_FALSE(IsVectorRole(TensorRole::kDown));
}

}  // namespace
}  // namespace kvc
