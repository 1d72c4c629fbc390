// What every source becomes before it is written: the content of a model file, and where each tensor's rows
// lie.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/convert/model_writer.h"
#include "models/convert/rope_extension.h"
#include "models/convert/source_file.h"

namespace kvc {

// How elements are stored in a source; from kQ4_0 on blocks of GGUF (gguf_blocks.h). Those behind them are
// what is made of packed weights (packed_linear.h) before they are converted: groups of so many columns with
// a scale and codes that fit four bits or do not, and values one by one where the groups are not neighbours.
enum class SourceType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kNear128,
  kNear64,
  kNear32,
  kFar128,
  kFar64,
  kFar32,
  kUnordered4,
  kI32,  // these two only in packed weights
  kU8,
};
const char* SourceTypeName(SourceType type);               // "bf16", "Q4_K", ...
int32_t SourceBlock(SourceType type);                      // elements of one block: 1, 32 or 256
int64_t SourceBytes(SourceType type, int64_t n_elements);  // n_elements a multiple of the block

struct PackedLinear;

// A tensor as a source names it. shape slowest first.
struct FoundTensor {
  std::string name;
  SourceType type{};
  std::vector<int64_t> shape;
  const SourceFile* file = nullptr;
  int64_t offset = 0, n_bytes = 0;
  const PackedLinear* packed = nullptr;  // where it comes from; its offset is 0 then
  bool all_zero = false;                 // a bias beside packed weights that says nothing
};

// A tensor of the model: rows gathered from runs of rows of the source.
struct SourceTensor {
  struct Run {
    int64_t offset;  // of the first row, from the start of the file
    int32_t rows;
    const SourceFile* file = nullptr;      // null: the tensor's
    const PackedLinear* packed = nullptr;  // likewise; the offset counts in its rows as they are read
    int32_t step = 1;                      // rows of the source from one to the next
    // Of a matrix that is stored columns first: bytes from one column to the next; the elements of a column
    // are neighbours, or `step` apart. 0: rows are stored one after the other.
    int64_t column_bytes = 0;
  };
  TensorRole role{};
  int32_t layer = -1;
  SourceType type{};
  int32_t rows = 0, cols = 0;
  const SourceFile* file = nullptr;
  std::vector<Run> runs;
  std::string name;
  float add = 0;  // to every element of a vector
  // Of vectors: element i of a row is element order[i] of the source's. Empty: as it comes.
  std::vector<int32_t> order;
  int32_t source_cols = 0;  // where order leaves some out; 0: cols
  const PackedLinear* packed = nullptr;
};

struct Checkpoint {
  Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();
  std::string kind;  // "hugging face", "gguf", "llama2.c"
  ModelFileContent content;
  std::vector<SourceTensor> tensors;
  std::vector<FoundTensor> found;  // what tensors were bound from; empty where a source has no names
  std::vector<std::unique_ptr<SourceFile>> files;
  std::vector<std::unique_ptr<PackedLinear>> packed;
  ExtendedRope extended;
  InputFiles inputs;  // everything that was read for it
  std::vector<std::string> warnings;
  // The biases the configuration promises in every layer. Absent: the configuration does not say, the tensors
  // decide.
  std::optional<std::vector<TensorRole>> biases;
};

// One way a source names a tensor: '%' stands for the layer number, '#' for that of an expert, or of a head,
// whose part is a tensor of its own.
struct TensorName {
  // kPackedQkv: the rows of each KV head's group together: its query heads, its key, its value. kFusedQkv:
  // all queries, all keys, all values, or elements of their biases. kFusedGateUp: gate, up. kStackedGateUp:
  // gate, up of every expert, [experts, rows of both, columns]. kInterleavedGateUp: the same, a row of gate
  // and one of up taking turns, or elements of their biases. kColumnsFirst: [experts, columns, rows].
  // kInterleavedColumnsFirst: the same of gate and up in turn.
  enum Use : uint8_t {
    kTensor,
    kIgnored,
    kPackedQkv,
    kFusedQkv,
    kFusedGateUp,
    kStackedGateUp,
    kInterleavedGateUp,
    kColumnsFirst,
    kInterleavedColumnsFirst
  };
  const char* pattern;
  TensorRole role;
  Use use = kTensor;
};
// Those of a family, then the common ones.
std::vector<TensorName> HfTensorNames(const std::vector<TensorName>& family);
std::vector<TensorName> GgufTensorNames(const std::vector<TensorName>& family);

constexpr TensorRole kAttentionBiasRoles[] = {TensorRole::kQueryBias, TensorRole::kKeyBias,
                                              TensorRole::kValueBias, TensorRole::kOutputBias};
constexpr TensorRole kExpertBiasRoles[] = {TensorRole::kRouterBias, TensorRole::kExpertGateBias,
                                           TensorRole::kExpertUpBias, TensorRole::kExpertDownBias};

struct BindRules {
  std::vector<TensorName> names;
  bool norms_less_one = false;  // the source has what is added to 1
};

// Fills checkpoint->tensors from what was found, checked against checkpoint->content.config: every tensor
// known, none twice, none missing, shapes as the config says. kUnsupported: a tensor without a place in the
// model. kBadModel: the rest.
Status BindTensors(const BindRules& rules, const std::vector<FoundTensor>& found, const std::string& where,
                   Checkpoint* checkpoint);
// Sorts into the order of the model file and checks that the set is complete. BindTensors does this last.
Status CompleteTensors(const std::string& where, Checkpoint* checkpoint);

}  // namespace kvc
