#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/base/mapped_file.h"
#include "lib/ops/weight_panels.h"
#include "lib/base/philox.h"
#include "lib/model/model_check.h"

namespace kvc::test {
namespace {

constexpr int32_t kBos = 256, kEos = 257, kPad = 258;

void CheckOk(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "test support: %s\n", status.message().c_str());
  std::abort();
}

TokenizerSpec ByteTokenizer(int32_t vocab_size) {
  TokenizerSpec spec;
  for (int i = 0; i < 256; ++i) spec.pieces.push_back(std::string(1, static_cast<char>(i)));
  spec.piece_kinds.assign(256, PieceKind::kNormal);
  for (const char* name : {"<bos>", "<eos>", "<pad>"}) {
    spec.pieces.push_back(name), spec.piece_kinds.push_back(PieceKind::kControl);
  }
  for (int32_t id = 259; id < vocab_size; ++id) {
    spec.pieces.push_back(Format("<unused%d>", id)), spec.piece_kinds.push_back(PieceKind::kUnused);
  }
  spec.bos = kBos, spec.eos = kEos, spec.pad = kPad;
  spec.stop_tokens = {kEos};
  return spec;
}

// Uniform in [-1, 1) by tensor and element.
float Draw(const TensorPlan& t, int64_t element, uint64_t seed) {
  const uint32_t tensor = static_cast<uint32_t>(t.role) << 16 | static_cast<uint32_t>(t.layer + 1);
  const auto words =
      Philox(static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), tensor, 0, seed);
  return static_cast<float>(2 * Uniform(words[0]) - 1);
}

template <typename T>
void Put(std::vector<uint8_t>* out, T value) {
  uint8_t bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->insert(out->end(), bytes, bytes + sizeof(T));
}

void PutCodes(const TensorPlan& t, float amplitude, uint64_t seed, std::vector<uint8_t>* out) {
  const int64_t n = int64_t{t.rows} * t.cols;
  const bool int8 = t.type == WeightType::kInt8;
  const float steps = int8 ? 127 : 7;
  for (int64_t i = 0; i < n; i += int8 ? 1 : 2) {
    const int low = static_cast<int>(std::lround(Draw(t, i, seed) * steps));
    const int high = int8 ? 0 : static_cast<int>(std::lround(Draw(t, i + 1, seed) * steps));
    out->push_back(static_cast<uint8_t>(int8 ? low & 0xff : (low & 15) | (high & 15) << 4));
  }
  // Scales differ from group to group by up to a half, so that mixing them up shows.
  for (int64_t i = 0; i < n / t.group; ++i) {
    Put(out, FloatToF16(amplitude / steps * (1 + 0.25f * Draw(t, n + i, seed))));
  }
}

// Blocks of values around zero: scales of either size and sign, and the codes of TinyModel's bell.
void PutBlocks(const TensorPlan& t, float amplitude, uint64_t seed, std::vector<uint8_t>* out) {
  const WeightTypeInfo& info = InfoOf(t.type);
  const bool q4 = t.type == WeightType::kQ4K;
  const int64_t n_blocks = int64_t{t.rows} * t.cols / info.block;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const auto byte = [&](int64_t i) {
      return static_cast<int>((Draw(t, b * 256 + i, seed) + 1) * 128) & 255;
    };
    std::vector<uint8_t> block(static_cast<size_t>(info.block_bytes));
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(byte(static_cast<int64_t>(i)));
    const float d = amplitude / (q4 ? 63 * 7.5f : 32 * 90.0f);
    const uint16_t halves[2] = {FloatToF16(d), FloatToF16(q4 ? 7.5f * d : 0)};
    std::memcpy(block.data() + (q4 ? 0 : 208), halves, q4 ? 4 : 2);
    // q4_k: the least value of a group is about the middle of its codes away, so that they are around zero.
    for (size_t g = 0; q4 && g < 4; ++g) {
      block[8 + g] = static_cast<uint8_t>(block[4 + g] ^ (g & 1));
      block[12 + g] = static_cast<uint8_t>((block[12 + g] & 15) * 17);
    }
    out->insert(out->end(), block.begin(), block.end());
  }
}

}  // namespace

void AlignedBytes::Free::operator()(uint8_t* p) const { ::operator delete (p, std::align_val_t{64}); }

AlignedBytes::AlignedBytes(const uint8_t* data, size_t size)
    : block_(static_cast<uint8_t*>(::operator new (std::max<size_t>(size, 1), std::align_val_t{64}))),
      size_(size) {
  if (size > 0) std::memcpy(block_.get(), data, size);
}

AlignedBytes& AlignedBytes::operator=(AlignedBytes o) noexcept {
  std::swap(block_, o.block_), std::swap(size_, o.size_);
  return *this;
}

ModelFileContent TinyModelContent(const TinyModelOptions& o) {
  ModelFileContent content;
  ModelConfig& c = content.config;
  c.name = "tiny", c.architecture = o.qk_norm ? "qwen3" : o.query_key_value_bias ? "qwen2" : "llama";
  c.n_layers = o.n_layers, c.n_heads = o.n_heads, c.n_kv_heads = o.n_kv_heads, c.head_dim = o.head_dim;
  c.hidden_size = o.hidden_size, c.ffn_size = o.ffn_size, c.vocab_size = o.vocab_size;
  c.max_tokens = o.max_tokens, c.sliding_window = o.sliding_window;
  c.n_experts = o.n_experts, c.n_chosen = o.n_chosen, c.normalise_experts = o.normalise_experts;
  c.rope = o.rope, c.rope_pairing = o.rope_pairing, c.qk_norm = o.qk_norm, c.tied_head = o.tied_head;
  c.layers = o.layers;
  if (o.change) o.change(&c);
  content.tokenizer = ByteTokenizer(o.vocab_size);
  if (o.head_scores) {
    HeadScoreTable table;
    table.name = "tiny-ssv", table.estimator = "ssv", table.dataset = "random", table.tool = "tests";
    table.n_layers = o.n_layers, table.n_columns = o.n_kv_heads, table.n_samples = 1;
    table.seed = static_cast<int64_t>(o.seed);
    for (int32_t i = 0; i < o.n_layers * o.n_kv_heads; ++i) {
      table.scores.push_back(
          static_cast<float>(Uniform(Philox(static_cast<uint32_t>(i), 0, 0, 1, o.seed)[0])));
    }
    content.head_scores.push_back(table);
  }
  content.created_by = "kvc tests", content.source = "random";
  return content;
}

std::vector<TensorPlan> TinyModelTensors(const TinyModelOptions& o) {
  const ModelConfig config = TinyModelContent(o).config;
  std::vector<TensorPlan> plans;
  const auto add = [&](TensorRole role, int32_t layer) {
    TensorPlan plan{role, layer};
    if (!TensorShape(config, role, &plan.rows, &plan.cols)) return;
    if (!IsVectorRole(role) && (!HasBlocks(o.type) || plan.cols % InfoOf(o.type).block == 0))
      plan.type = o.type;
    if (HasBlocks(plan.type)) plan.group = InfoOf(plan.type).group;
    if (plan.type == WeightType::kInt8 || plan.type == WeightType::kInt4) {
      plan.group = std::min(o.group, plan.cols);
      while (plan.cols % plan.group != 0 || (plan.type == WeightType::kInt4 && plan.group % 2 != 0))
        --plan.group;
    }
    const Weight shape{plan.type, WeightLayout::kRowMajor, plan.rows, plan.cols, plan.group, nullptr,
                       nullptr,   StackOf(config, role)};
    if (!IsVectorRole(role) && FitsPanels(shape)) plan.layout = o.layout;
    plans.push_back(plan);
  };
  add(TensorRole::kEmbedding, -1);
  for (int32_t layer = 0; layer < o.n_layers; ++layer) {
    for (TensorRole role :
         {TensorRole::kAttentionNorm, TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue,
          TensorRole::kOutput, TensorRole::kQueryNorm, TensorRole::kKeyNorm, TensorRole::kFfnNorm,
          TensorRole::kGate, TensorRole::kUp, TensorRole::kDown, TensorRole::kRouter, TensorRole::kExpertGate,
          TensorRole::kExpertUp, TensorRole::kExpertDown, TensorRole::kAttentionNormBias,
          TensorRole::kFfnNormBias, TensorRole::kAttentionSinks}) {
      add(role, layer);
    }
    if (o.query_key_value_bias) {
      for (TensorRole role : {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias})
        add(role, layer);
    }
    if (o.output_bias) add(TensorRole::kOutputBias, layer);
  }
  add(TensorRole::kFinalNorm, -1);
  add(TensorRole::kFinalNormBias, -1);
  add(TensorRole::kOutputHead, -1);
  return plans;
}

std::vector<uint8_t> TinyTensorBytes(const TinyModelOptions& o, const TensorPlan& t) {
  // sqrt(3): a uniform number in [-a, a) has the deviation a / sqrt(3).
  const float amplitude = o.weight_scale * std::sqrt(3.0f / static_cast<float>(t.cols));
  const int64_t n = int64_t{t.rows} * t.cols;
  std::vector<uint8_t> out;
  if (HasCodes(t.type)) {
    HasBlocks(t.type) ? PutBlocks(t, amplitude, o.seed, &out) : PutCodes(t, amplitude, o.seed, &out);
    return out;
  }
  const std::string name = TensorRoleName(t.role);
  const bool is_bias = name.size() > 5 && name.compare(name.size() - 5, 5, "_bias") == 0;
  for (int64_t i = 0; i < n; ++i) {
    const float u = Draw(t, i, o.seed);
    const float value = t.role == TensorRole::kAttentionSinks ? 2 * u + o.sink_shift
                        : is_bias                             ? 0.1f * u
                        : IsVectorRole(t.role)                ? 1 + 0.25f * u
                                                              : amplitude * u;
    if (t.type == WeightType::kF32) Put(&out, value);
    if (t.type == WeightType::kF16) Put(&out, FloatToF16(value));
    if (t.type == WeightType::kBf16) Put(&out, FloatToBf16(value));
  }
  return out;
}

Status WriteTinyModel(const TinyModelOptions& options, const std::string& path) {
  return WriteTinyModel(options, TinyModelContent(options), path);
}

Status WriteTinyModel(const TinyModelOptions& options, ModelFileContent content, const std::string& path) {
  const std::vector<TensorPlan> plans = TinyModelTensors(options);
  auto writer = ModelWriter::Create(path, std::move(content), plans);
  if (!writer.ok()) return writer.status();
  for (const TensorPlan& plan : plans) {
    const std::vector<uint8_t> bytes = TinyTensorBytes(options, plan);
    KVC_RETURN_IF_ERROR(writer.value()->Append(bytes.data(), static_cast<int64_t>(bytes.size())));
  }
  return writer.value()->Finish();
}

AlignedBytes TinyModelBytes(const TinyModelOptions& options) {
  return TinyModelBytes(options, TinyModelContent(options));
}

AlignedBytes TinyModelBytes(const TinyModelOptions& options, ModelFileContent content) {
  const TempFolder folder;
  const std::string path = folder / "tiny.kvc";
  CheckOk(WriteTinyModel(options, std::move(content), path));
  MemoryMeter meter(0);
  const Result<MappedFile> file = MappedFile::Open(path, &meter);
  CheckOk(file.status());
  return AlignedBytes(file.value().data(), static_cast<size_t>(file.value().size()));
}

TempFolder::TempFolder() {
  std::error_code error;
  do {
    path_ = (std::filesystem::temp_directory_path(error) /
             Format("kvc-test-%llx", static_cast<unsigned long long>(RandomSeed())))
                .generic_string();
  } while (!std::filesystem::create_directory(path_, error) && !error);
  if (error) CheckOk(Error(Code::kIo, "cannot make a folder %s: %s", path_.c_str(), error.message().c_str()));
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvc::test
