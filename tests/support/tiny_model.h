// Small models with random weights for tests, made through ModelWriter: the same file for the same options,
// everywhere.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "models/convert/model_writer.h"

namespace kvc::test {

struct TinyModelOptions {
  int32_t n_layers = 2, n_heads = 4, n_kv_heads = 2, head_dim = 16, hidden_size = 32, ffn_size = 64;
  int32_t vocab_size =
      262;  // >= 259: the 256 bytes, then <bos> 256, <eos> 257, <pad> 258, then unused pieces
  int32_t max_tokens = 4096, sliding_window = 0;
  WeightType type = WeightType::kF32;  // of all matrices; f32 where blocks do not divide the columns
  int32_t group = 16;                  // int8, int4: clipped to the largest divisor of the columns below it
  WeightLayout layout = WeightLayout::kRowMajor;  // of all matrices that fit it
  bool qk_norm = false, query_key_value_bias = false, output_bias = false, tied_head = false;
  RopeConfig rope;
  RopePairing rope_pairing = RopePairing::kHalf;
  std::vector<LayerConfig> layers;      // [n_layers] windows and ropes, or empty: all alike
  int32_t n_experts = 0, n_chosen = 0;  // of ffn_size each
  bool normalise_experts = false;
  bool head_scores = true;  // a table "tiny-ssv", estimator "ssv", [L, G], values in [0, 1)
  float sink_shift = 0;     // of attention sinks, where `change` asks for some
  float weight_scale = 1;   // matrices are uniform with deviation weight_scale / sqrt(cols)
  uint64_t seed = 1;
  std::function<void(ModelConfig*)> change;  // of what the options above do not say
};

// 64-byte aligned bytes, as ModelFile::OpenMemory and kvc_model_open_memory want them.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  AlignedBytes(const uint8_t* data, size_t size);
  AlignedBytes(const AlignedBytes& o) : AlignedBytes(o.data(), o.size()) {}
  AlignedBytes(AlignedBytes&& o) noexcept = default;
  AlignedBytes& operator=(AlignedBytes o) noexcept;
  uint8_t* data() { return block_.get(); }
  const uint8_t* data() const { return block_.get(); }
  size_t size() const { return size_; }
  uint8_t& operator[](size_t i) { return block_.get()[i]; }
  const uint8_t& operator[](size_t i) const { return block_.get()[i]; }

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> block_;
  size_t size_ = 0;
};

// What a tiny model consists of, for tests that change it before writing.
ModelFileContent TinyModelContent(const TinyModelOptions& options);
std::vector<TensorPlan> TinyModelTensors(const TinyModelOptions& options);
// The bytes of one tensor as ModelWriter::Append takes them (codes or elements, then scales).
std::vector<uint8_t> TinyTensorBytes(const TinyModelOptions& options, const TensorPlan& tensor);

Status WriteTinyModel(const TinyModelOptions& options, const std::string& path);
Status WriteTinyModel(const TinyModelOptions& options, ModelFileContent content, const std::string& path);
// The same file in memory. Aborts the test program with a message when it cannot be made.
AlignedBytes TinyModelBytes(const TinyModelOptions& options);
AlignedBytes TinyModelBytes(const TinyModelOptions& options, ModelFileContent content);

// A fresh folder below the system's temporary folder, removed with everything in it at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace kvc::test
