// A family of models: what its sources call things, and what its layers are made of. A new one of known parts
// is a file in families/ and a line in families.list.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "models/convert/checkpoint.h"
#include "models/convert/gguf_metadata.h"
#include "models/convert/json.h"

namespace kvc {

// Which projections have biases: none, those of queries, keys and values; or these, or all four, where
// config.json says attention_bias; or the three where it says use_qkv_bias; or all four unless it says no,
// and those of router and experts.
enum class Biases : uint8_t { kNone, kQkv, kOptionalQkv, kOptionalAll, kUseQkv, kAllAndExperts };

struct Family {
  const char* name = nullptr;  // as in the model file
  const char* hf = nullptr;    // config.json: architectures
  const char* gguf = nullptr;  // general.architecture; null: GGUF has it under another family's name, or not
  RopePairing hf_pairing = RopePairing::kHalf, gguf_pairing = RopePairing::kHalf;
  Biases biases = Biases::kNone;
  bool qk_norm = false, wide_qk_norm = false;
  bool norms_before = true, norms_after = false;
  bool layer_norms = false;  // not RMS norms, and with biases
  bool attention_sinks = false;
  bool norms_less_one = false;                // safetensors hold what is added to 1
  Activation activation = Activation::kSilu;  // where config.json does not say
  double rotated_share = 1;    // of a head; 0: config.json may say (partial_rotary_factor), 1: all
  bool tied_head = false;      // where config.json does not say; without the tensor it is so in every family
  bool ropes_by_type = false;  // layers that slide have a rope of their own
  double local_theta = 0;      // its theta where nothing says; 0: that of the others
  double default_theta = 10000;
  // What transformers' class has where config.json does not say (null says: none). default_eps 0: the class
  // comes with each checkpoint, so that it must say.
  double default_eps = 1e-6;
  int32_t default_window = 0;
  bool switched_windows = false;   // none without use_sliding_window
  bool whole_attn_factor = false;  // GGUF: YaRN's attn_factor is not to be multiplied by the computed one
  // Mixtures of experts: none, all its models, or (in GGUF) those that say so.
  enum Experts : uint8_t { kNone, kAlways, kSomeGguf } experts = kNone;
  bool normalise_experts = false;              // where config.json does not say, and in GGUF
  const char* ffn_size = "intermediate_size";  // config.json: the width of dense layers
  // Names of tensors that come before the common ones.
  std::vector<TensorName> hf_names, gguf_names;
  // Members of config.json that `read` understands and other families refuse.
  std::vector<const char*> settings;
  // Refuses members of the family that are made of other parts, before anything else is read.
  Status (*take)(const JsonObject& object) = nullptr;
  // Which layers slide where config.json has no layer_types: [n_layers], all false before. null: none.
  Status (*slides)(const JsonObject& object, const ModelConfig& c, std::vector<bool>* layers) = nullptr;
  // What is the family's own, after everything else. layers [n_layers] is filled.
  Status (*read)(const JsonObject& object, ModelConfig* c) = nullptr;
  Status (*read_gguf)(GgufMetadata* metadata, const std::string& prefix, ModelConfig* c) = nullptr;
  // What GGUF says by the tensors that are there, not by its metadata.
  void (*settle_gguf)(const std::function<bool(const char*)>& has, ModelConfig* c) = nullptr;
};

const std::vector<const Family*>& Families();  // in the order of families.list
const Family* FindHfFamily(const std::string& architecture);
const Family* FindGgufFamily(const std::string& architecture);

// Every `period`-th layer sees everything, those before it slide.
void SlideButEvery(int32_t period, std::vector<bool>* layers);
// The same from GGUF: windows of c->sliding_window in the layers that its metadata marks, by a list or a
// period; without either in all but every `period`-th.
Status ReadGgufWindows(GgufMetadata* metadata, const std::string& prefix, int32_t period, ModelConfig* c);
// Experts of config.json: their number, how many work on a token, their size (moe_intermediate_size where
// that is there), norm_topk_prob. kBadModel, kUnsupported name what is missing or not supported.
Status ReadHfExperts(const JsonObject& object, const Family& family, ModelConfig* c);
Status ReadGgufExperts(GgufMetadata* metadata, const std::string& prefix, const Family& family,
                       ModelConfig* c);
// A config whose layers are all alike says so in its own fields.
void SettleLayers(ModelConfig* c);

}  // namespace kvc
