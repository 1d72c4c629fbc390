// What a model may consist of, within the limits of lib/base/limits.h. The reader and the writer of model
// files hold them to these same rules. kBadModel: it contradicts itself or a limit; kUnsupported: a value
// this version does not know. The text names the field, its value and what would be right; the caller puts
// the file in front.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/model/model_config.h"
#include "lib/model/model_file.h"
#include "lib/model/tokenizer_spec.h"
#include "lib/ops/weight_panels.h"

namespace kvc {

// count <= limit, else "<name> has <count> <things>, the limit is <limit>".
Status CheckCount(const char* name, int64_t count, int64_t limit, const char* things);
Status CheckConfig(const ModelConfig& config);
// What can be seen without tables; Tokenizer::Create checks the rest. n_pieces: of the vocabulary.
Status CheckTokenizer(const TokenizerView& view, int64_t n_pieces);
Status CheckTokenizerSpec(const TokenizerSpec& spec, const ModelConfig& config);
// All of it, but how many pieces there must be: a tokenizer is created on trial.
Status TryTokenizer(const TokenizerSpec& spec);
Status CheckTurnFormat(const TurnFormat& turns);
Status CheckHeadScores(const std::vector<HeadScoreTable>& tables, const ModelConfig& config);
// Role, layer, type, shape and group of each; every tensor the config needs is there, once. A kind of bias is
// there for all layers or for none. Looks at no data, offsets or sizes.
Status CheckTensors(const std::vector<TensorEntry>& tensors, const ModelConfig& config);

// "tensor query of layer 3", "tensor embedding"
std::string TensorTitle(TensorRole role, int32_t layer);
const char* WeightTypeName(WeightType type);  // of kWeightTypes; never null

const char* WeightLayoutName(WeightLayout layout);  // "rows", "panels16"; never null

// Index of the first NaN or infinity among elements of f32, f16 or bf16; -1: all are finite.
int64_t FirstNotFinite(WeightType type, const void* data, int64_t n_elements);

}  // namespace kvc
