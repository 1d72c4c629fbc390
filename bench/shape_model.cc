// Model files with random weights in the shapes of models people run (bench/model_shapes.h), to measure speed
// and memory with: what a pass costs does not depend on what the weights are. Rows are put together from one
// pool of random blocks, so that making a file costs no more than writing it; the same shape, type and seed
// give the same bytes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/model_shapes.h"
#include "lib/base/half.h"
#include "lib/base/philox.h"
#include "models/convert/model_writer.h"

namespace {

using kvc::TensorPlan;
using kvc::TensorRole;
using kvc::WeightType;
using kvc::bench::kModelShapes;
using kvc::bench::ModelShape;

constexpr const char* kUsage =
    "usage: shape_model SHAPE TYPE OUT.kvc [--seed N] [--layers N] [--vocabulary N]\n"
    "       shape_model --list    the shapes as JSON, and the bytes that a file of each type takes\n"
    "SHAPE: 0.5b, 1b, 8b, tiny. TYPE: bf16, int8, int4, q4_k. --layers, --vocabulary: a smaller part of "
    "it.\n";
constexpr WeightType kTypes[] = {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K};
constexpr int32_t kGroup = 32;  // columns that share a scale of int8 and int4
constexpr int64_t kPoolUnits =
    1 << 11;                    // of a pool: half a megabyte to one, which stays in a processor's cache
constexpr int32_t kUnit = 256;  // numbers that are taken from it together
constexpr int64_t kBufferBytes = 1 << 20;
constexpr float kMostDeviations = 3.4641016f;  // of a number of the pool

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "shape_model: %s\n", why.c_str());
  std::exit(1);
}
void Check(const kvc::Status& status) {
  if (!status.ok()) Fail(status.message());
}

// What a number of draws is for, so that those of one seed stay apart.
enum Draw : uint32_t { kNumbers = 1, kBlocks = 2, kPlaces = 3, kVectors = 4 };

// Near to normal with deviation 1: the sum of four uniform numbers.
float Bell(uint32_t i, Draw what, uint32_t tensor, uint64_t seed) {
  double sum = -2;
  for (const uint32_t word : kvc::Philox(i, tensor, 0, what, seed)) sum += kvc::Uniform(word);
  return static_cast<float>(sum * std::sqrt(3.0));
}

// The pieces that rows of one type and deviation are made of, as the file has them.
struct Pool {
  std::vector<uint8_t> units;
  int64_t unit_bytes = 0;
  uint16_t scale = 0;  // f16, of every group
};

Pool NumberPool(WeightType type, float deviation, uint64_t seed) {
  Pool pool;
  const float steps = type == WeightType::kInt8 ? 127 : 7;
  pool.scale = kvc::FloatToF16(deviation * kMostDeviations / steps);
  uint8_t low = 0;
  for (uint32_t i = 0; i < kPoolUnits * kUnit; ++i) {
    const float x = Bell(i, kNumbers, 0, seed);
    if (type == WeightType::kBf16) {
      const uint16_t half = kvc::FloatToBf16(deviation * x);
      pool.units.insert(pool.units.end(), {static_cast<uint8_t>(half), static_cast<uint8_t>(half >> 8)});
      continue;
    }
    const auto code = static_cast<uint8_t>(std::lround(x / kMostDeviations * steps));
    if (type == WeightType::kInt8) pool.units.push_back(code);
    if (type == WeightType::kInt4 && i % 2 == 1)
      pool.units.push_back(static_cast<uint8_t>((low & 15) | code << 4));
    low = code;
  }
  pool.unit_bytes = static_cast<int64_t>(pool.units.size()) / kPoolUnits;
  return pool;
}

// Random codes under scales of any size; least values in the middle of the codes, so that weights are around
// zero.
Pool BlockPool(float deviation, uint64_t seed) {
  Pool pool;
  pool.unit_bytes = kvc::InfoOf(WeightType::kQ4K).block_bytes;
  pool.units.resize(static_cast<size_t>(kPoolUnits * pool.unit_bytes));
  const float d = deviation / (36 * 4.6f);
  const uint16_t halves[2] = {kvc::FloatToF16(d), kvc::FloatToF16(7.5f * d)};
  for (uint32_t b = 0; b < kPoolUnits; ++b) {
    uint8_t* block = pool.units.data() + b * pool.unit_bytes;
    for (uint32_t i = 0; i < pool.unit_bytes; i += 16)
      std::memcpy(block + i, kvc::Philox(b, i, 0, kBlocks, seed).data(), 16);
    std::memcpy(block, halves, 4);
    std::memcpy(block + 8, block + 4, 4);
    for (int i = 12; i < 16; ++i) block[i] = static_cast<uint8_t>((block[i] & 15) * 17);
  }
  return pool;
}

kvc::ModelFileContent ContentOf(const ModelShape& s) {
  kvc::ModelFileContent content;
  kvc::ModelConfig& c = content.config;
  c.name = std::string("random ") + s.name, c.architecture = "llama";
  c.n_layers = s.layers, c.n_heads = s.heads, c.n_kv_heads = s.kv_heads, c.head_dim = s.head_size;
  c.hidden_size = s.hidden, c.ffn_size = s.feed_forward, c.vocab_size = s.vocabulary;
  c.max_tokens = s.context, c.rope.theta = s.theta, c.tied_head = true;
  kvc::TokenizerSpec& spec = content.tokenizer;  // bytes and two marks; the writer fills the vocabulary up
  for (int i = 0; i < 256; ++i) spec.pieces.push_back(std::string(1, static_cast<char>(i)));
  spec.piece_kinds.assign(256, kvc::PieceKind::kNormal);
  for (const char* mark : {"<|begin|>", "<|end|>"}) {
    spec.pieces.push_back(mark), spec.piece_kinds.push_back(kvc::PieceKind::kControl);
  }
  spec.bos = 256, spec.eos = 257, spec.stop_tokens = {257};
  content.created_by = "shape_model", content.source = "random";
  return content;
}

// Vectors in f32; rows that blocks do not divide in int8.
std::vector<TensorPlan> TensorsOf(const kvc::ModelConfig& config, WeightType type) {
  std::vector<TensorPlan> plans;
  const auto add = [&](TensorRole role, int32_t layer) {
    TensorPlan plan{role, layer};
    kvc::TensorShape(config, role, &plan.rows, &plan.cols);
    if (!kvc::IsVectorRole(role)) plan.type = type;
    if (plan.type == WeightType::kQ4K && plan.cols % kUnit != 0) plan.type = WeightType::kInt8;
    const kvc::WeightTypeInfo& info = kvc::InfoOf(plan.type);
    plan.group = info.scales_apart ? kGroup : info.group;
    plans.push_back(plan);
  };
  add(TensorRole::kEmbedding, -1);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    for (const TensorRole role :
         {TensorRole::kAttentionNorm, TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue,
          TensorRole::kOutput, TensorRole::kFfnNorm, TensorRole::kGate, TensorRole::kUp, TensorRole::kDown})
      add(role, layer);
  }
  add(TensorRole::kFinalNorm, -1);
  return plans;
}

// As a model has it that was just initialised: activations keep their size from layer to layer.
float DeviationOf(const TensorPlan& plan, int32_t n_layers) {
  if (plan.role == TensorRole::kEmbedding) return 0.02f;
  const bool adds = plan.role == TensorRole::kOutput || plan.role == TensorRole::kDown;
  return 1 / std::sqrt(static_cast<float>(plan.cols) * (adds ? 2.0f * static_cast<float>(n_layers) : 1.0f));
}

class ShapeWriter {
 public:
  ShapeWriter(const ModelShape& shape, WeightType type, uint64_t seed)
      : content_(ContentOf(shape)), plans_(TensorsOf(content_.config, type)), seed_(seed) {}

  void Write(const std::string& path) {
    kvc::Result<std::unique_ptr<kvc::ModelWriter>> made = kvc::ModelWriter::Create(path, content_, plans_);
    Check(made.status());
    writer_ = std::move(made.value());
    for (index_ = 0; index_ < plans_.size(); ++index_) {
      kvc::IsVectorRole(plans_[index_].role) ? WriteVector() : WriteMatrix();
    }
    Check(writer_->Finish(/*durable=*/false));  // made to be measured and deleted
  }

 private:
  const Pool& PoolOf(const TensorPlan& plan) {
    const float deviation = DeviationOf(plan, content_.config.n_layers);
    Pool& pool = pools_[{plan.type, deviation}];
    if (pool.units.empty()) {
      pool = plan.type == WeightType::kQ4K ? BlockPool(deviation, seed_)
                                           : NumberPool(plan.type, deviation, seed_);
    }
    return pool;
  }

  void WriteVector() {
    std::vector<float> values(static_cast<size_t>(plans_[index_].cols));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 1 + 0.1f * Bell(static_cast<uint32_t>(i), kVectors, static_cast<uint32_t>(index_), seed_);
    }
    Check(writer_->Append(values.data(), static_cast<int64_t>(values.size() * sizeof(float))));
  }

  // Rows follow each other in the file without a gap: the matrix is one run of units, the last perhaps in
  // part.
  void WriteMatrix() {
    const TensorPlan& plan = plans_[index_];
    const Pool& pool = PoolOf(plan);
    const int64_t n = int64_t{plan.rows} * plan.cols;
    int64_t left = n * pool.unit_bytes / kUnit;
    std::vector<uint8_t> buffer(static_cast<size_t>(kBufferBytes));
    for (uint32_t draw = 0; left > 0;) {
      int64_t filled = 0;
      while (filled < std::min(left, kBufferBytes - kBufferBytes % (4 * pool.unit_bytes))) {
        for (const uint32_t word : kvc::Philox(draw++, static_cast<uint32_t>(index_), 0, kPlaces, seed_)) {
          std::memcpy(buffer.data() + filled, pool.units.data() + word % kPoolUnits * pool.unit_bytes,
                      static_cast<size_t>(pool.unit_bytes));
          filled += pool.unit_bytes;
        }
      }
      filled = std::min(filled, left);
      Check(writer_->Append(buffer.data(), filled));
      left -= filled;
    }
    if (!kvc::InfoOf(plan.type).scales_apart) return;
    const std::vector<uint16_t> scales(static_cast<size_t>(kBufferBytes / 2), pool.scale);
    for (left = 2 * n / plan.group; left > 0; left -= kBufferBytes)
      Check(writer_->Append(scales.data(), std::min(left, kBufferBytes)));
  }

  const kvc::ModelFileContent content_;
  const std::vector<TensorPlan> plans_;
  const uint64_t seed_;
  size_t index_ = 0;  // of the tensor being written
  std::map<std::pair<WeightType, float>, Pool> pools_;
  std::unique_ptr<kvc::ModelWriter> writer_;
};

int64_t WeightBytesOf(const ModelShape& shape, WeightType type) {
  int64_t n_bytes = 0;
  for (const TensorPlan& plan : TensorsOf(ContentOf(shape).config, type)) {
    n_bytes += plan.rows * kvc::WeightRowBytes(plan.type, plan.cols);
    if (kvc::InfoOf(plan.type).scales_apart) n_bytes += int64_t{2} * plan.rows * (plan.cols / plan.group);
  }
  return n_bytes;
}

void List() {
  std::printf("{");
  for (const ModelShape& s : kModelShapes) {
    std::printf("%s\n \"%s\": {\"layers\": %d, \"hidden\": %d, \"feed_forward\": %d, \"heads\": %d, ",
                &s == kModelShapes ? "" : ",", s.name, s.layers, s.hidden, s.feed_forward, s.heads);
    std::printf("\"kv_heads\": %d, \"head_size\": %d, \"vocabulary\": %d, \"context\": %d, \"theta\": %g,\n",
                s.kv_heads, s.head_size, s.vocabulary, s.context, s.theta);
    std::printf("  \"weight_bytes\": {");
    for (const WeightType type : kTypes) {
      std::printf("%s\"%s\": %lld", type == kTypes[0] ? "" : ", ", kvc::InfoOf(type).name,
                  static_cast<long long>(WeightBytesOf(s, type)));
    }
    std::printf("}}");
  }
  std::printf("\n}\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    List();
    return 0;
  }
  uint64_t seed = 1;
  int32_t layers = 0, vocabulary = 0;  // of the shape; 0: all
  bool good = argc >= 4 && argc % 2 == 0;
  for (int i = 4; good && i < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0) {
      seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else if (std::strcmp(argv[i], "--layers") == 0 || std::strcmp(argv[i], "--vocabulary") == 0) {
      const int32_t n = std::atoi(argv[i + 1]);
      (argv[i][2] == 'l' ? layers : vocabulary) = n;
      good = n > 0;
    } else {
      good = false;
    }
  }
  for (ModelShape shape : kModelShapes) {
    if (!good || std::strcmp(argv[1], shape.name) != 0) continue;
    for (const WeightType type : kTypes) {
      if (std::strcmp(argv[2], kvc::InfoOf(type).name) != 0) continue;
      if (layers > shape.layers || vocabulary > shape.vocabulary) Fail("the shape has no more than that");
      shape.layers = layers > 0 ? layers : shape.layers;
      shape.vocabulary = vocabulary > 0 ? vocabulary : shape.vocabulary;
      ShapeWriter(shape, type, seed).Write(argv[3]);
      return 0;
    }
  }
  std::fputs(kUsage, stderr);
  return 2;
}
