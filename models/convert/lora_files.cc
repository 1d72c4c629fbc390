// Adapters as their makers write them.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "models/convert/gguf_metadata.h"
#include "models/convert/gguf_tensors.h"
#include "models/convert/json.h"
#include "models/convert/lora.h"
#include "models/convert/safetensors.h"

namespace kvc {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 22;
constexpr int64_t kMaxRank = 4096;

// What makes an adapter more than one sum over whole matrices; absent, null, false or empty in those that are
// none.
constexpr const char* kBeyondLora[] = {
    "use_dora",          "use_qalora",
    "fan_in_fan_out",    "lora_bias",
    "modules_to_save",   "target_parameters",
    "layer_replication", "trainable_token_indices",
    "alpha_pattern",     "alora_invocation_tokens",
    "use_bdlora",        "kasa_config",
    "lora_ga_config",    "monteclora_config",
    "velora_config",     "arrow_config",
};
// Ways to begin training that leave the model's own weights as they were.
constexpr const char* kPlainStarts[] = {"gaussian", "orthogonal", "eva"};

struct LoraSettings {
  double alpha = 0;
  int32_t rank = 0;  // 0: the tensors say
  bool by_root = false;
  double Scale(int64_t rank_of_pair) const {
    const double n = static_cast<double>(rank_of_pair);
    return alpha / (by_root ? std::sqrt(n) : n);
  }
};

bool SaysNothing(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

Status RefuseWord(const std::string& path, const char* key, const std::string& value) {
  return Error(Code::kUnsupported, "%s: %s = %.60s is not supported: merge the adapter where it was made",
               path.c_str(), key, value.c_str());
}

Result<LoraSettings> ReadPeftConfig(const std::string& path, const Json& json) {
  const JsonObject object(json, path);
  std::string type, bias = "none";
  KVC_RETURN_IF_ERROR(object.String("peft_type", &type));
  if (type != "LORA") return RefuseWord(path, "peft_type", type);
  KVC_RETURN_IF_ERROR(object.String("bias", &bias));
  if (bias != "none") return RefuseWord(path, "bias", bias);
  for (const char* key : kBeyondLora) {
    const Json* value = object.Find(key);
    if (value != nullptr && !SaysNothing(*value)) return RefuseWord(path, key, value->dump());
  }
  const Json* start = object.Find("init_lora_weights");
  if (start != nullptr && !start->is_boolean() &&
      std::none_of(std::begin(kPlainStarts), std::end(kPlainStarts), [&](const char* plain) {
        return start->is_string() && start->get<std::string>() == plain;
      })) {
    return RefuseWord(path, "init_lora_weights", start->dump());
  }
  LoraSettings settings;
  settings.rank = 8, settings.alpha = 8;  // PEFT's own
  KVC_RETURN_IF_ERROR(object.Int("r", 1, static_cast<int32_t>(kMaxRank), &settings.rank));
  KVC_RETURN_IF_ERROR(object.Number("lora_alpha", -1e6, 1e6, &settings.alpha));
  KVC_RETURN_IF_ERROR(object.Bool("use_rslora", &settings.by_root));
  const Json* ranks = object.Find("rank_pattern");
  if (ranks != nullptr && !SaysNothing(*ranks)) settings.rank = 0;
  return settings;
}

// A name without `prefix` in front and `end` behind; empty: it has not both.
std::string Inside(const std::string& name, const std::string& prefix, const std::string& end) {
  if (name.size() <= prefix.size() + end.size() || name.compare(0, prefix.size(), prefix) != 0 ||
      name.compare(name.size() - end.size(), end.size(), end) != 0)
    return "";
  return name.substr(prefix.size(), name.size() - prefix.size() - end.size());
}

// How names say what a tensor is: PREFIX MATRIX A, and with B.
struct LoraNames {
  const char *prefix, *a, *b, *behind;  // behind: what the matrix's own name goes on with
};
constexpr LoraNames kPeftNames = {"base_model.model.", ".lora_A.weight", ".lora_B.weight", ".weight"};
constexpr LoraNames kGgufNames = {"", ".lora_a", ".lora_b", ""};

Result<std::vector<LoraPair>> Pair(const std::vector<FoundTensor>& found, const LoraNames& names,
                                   const LoraSettings& settings, float strength, const std::string& where) {
  std::map<std::string, LoraPair> pairs;
  for (const FoundTensor& tensor : found) {
    const std::string a = Inside(tensor.name, names.prefix, names.a),
                      b = Inside(tensor.name, names.prefix, names.b);
    if (a.empty() && b.empty()) {
      return Error(Code::kUnsupported, "%s: tensor %.200s is no part of a low-rank sum", where.c_str(),
                   tensor.name.c_str());
    }
    if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1 ||
        tensor.type == SourceType::kI32 || tensor.type == SourceType::kU8)
      return Error(Code::kBadModel, "%s: tensor %.200s is no matrix", where.c_str(), tensor.name.c_str());
    LoraPair& pair = pairs[a.empty() ? b : a];
    (a.empty() ? pair.b : pair.a) = tensor;
  }
  if (pairs.empty()) return Error(Code::kBadModel, "%s: changes nothing", where.c_str());
  std::vector<LoraPair> out;
  for (auto& [name, pair] : pairs) {
    pair.target = name + names.behind;
    if (pair.a.file == nullptr || pair.b.file == nullptr) {
      return Error(Code::kBadModel, "%s: one of the two matrices of %.200s is missing", where.c_str(),
                   name.c_str());
    }
    const int64_t rank = pair.a.shape[0];
    if (pair.b.shape[1] != rank || rank > kMaxRank || (settings.rank != 0 && settings.rank != rank)) {
      return Error(Code::kBadModel, "%s: %.200s: ranks %lld and %lld; the adapter has %d", where.c_str(),
                   name.c_str(), static_cast<long long>(rank), static_cast<long long>(pair.b.shape[1]),
                   settings.rank);
    }
    pair.scale = static_cast<float>(settings.Scale(rank) * double{strength});
    out.push_back(std::move(pair));
  }
  return out;
}

Result<const SourceFile*> Open(const std::string& path, Checkpoint* checkpoint) {
  checkpoint->inputs.Add(path);
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  checkpoint->files.push_back(std::move(file.value()));
  return checkpoint->files.back().get();
}

Result<std::vector<LoraPair>> ReadPeft(const std::string& folder, float strength, Checkpoint* checkpoint) {
  const std::string config_path = folder + "/adapter_config.json",
                    path = folder + "/adapter_model.safetensors";
  checkpoint->inputs.Add(config_path);
  auto text = ReadWholeFile(config_path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  auto json = ParseJson(BytesOf(text.value()), config_path);
  if (!json.ok()) return json.status();
  auto settings = ReadPeftConfig(config_path, json.value());
  if (!settings.ok()) return settings.status();
  if (FileExists(folder + "/adapter_model.bin") && !FileExists(path)) {
    return Error(Code::kUnsupported,
                 "%s: adapter_model.bin is not supported: save the adapter as safetensors", folder.c_str());
  }
  auto file = Open(path, checkpoint);
  if (!file.ok()) return file.status();
  std::vector<FoundTensor> found;
  KVC_RETURN_IF_ERROR(ReadSafetensors(*file.value(), &found));
  return Pair(found, kPeftNames, settings.value(), strength, path);
}

Result<std::vector<LoraPair>> ReadGgufLora(const std::string& path, float strength, Checkpoint* checkpoint) {
  auto file = Open(path, checkpoint);
  if (!file.ok()) return file.status();
  auto header = ReadGgufHeader(*file.value());
  if (!header.ok()) return header.status();
  GgufMetadata metadata(header.value(), path);
  std::string type, adapter, architecture;
  KVC_RETURN_IF_ERROR(metadata.String("general.type", &type));
  KVC_RETURN_IF_ERROR(metadata.String("adapter.type", &adapter));
  KVC_RETURN_IF_ERROR(metadata.String("general.architecture", &architecture));
  if (type != "adapter") return Error(Code::kInvalid, "%s: is no adapter", path.c_str());
  if (adapter != "lora") return RefuseWord(path, "adapter.type", adapter);
  if (architecture != checkpoint->content.config.architecture) {
    return Error(Code::kInvalid, "%s: is of another model: an adapter of %.40s for one of %.40s",
                 path.c_str(), architecture.c_str(), checkpoint->content.config.architecture.c_str());
  }
  double alpha = 0;
  KVC_RETURN_IF_ERROR(metadata.Number("adapter.lora.alpha", -1e6, 1e6, &alpha));
  std::vector<FoundTensor> found;
  KVC_RETURN_IF_ERROR(LocateGgufTensors(header.value(), *file.value(), &found));
  LoraSettings settings;
  settings.alpha = alpha;
  auto pairs = Pair(found, kGgufNames, settings, strength, path);
  if (!pairs.ok() || alpha != 0) return pairs;
  for (LoraPair& pair : pairs.value()) pair.scale = strength;  // llama.cpp: without alpha nothing is divided
  return pairs;
}

}  // namespace

Result<std::vector<LoraPair>> ReadLora(const LoraChoice& choice, Checkpoint* checkpoint) {
  const bool peft = DirectoryExists(choice.path);
  if (!peft && !FileExists(choice.path))
    return Error(Code::kNotFound, "%s: there is no such file", choice.path.c_str());
  if (checkpoint->kind != (peft ? "hugging face" : "gguf")) {
    return Error(Code::kUnsupported,
                 "%s: adapters of PEFT fit Hugging Face directories, those in GGUF fit models in GGUF",
                 choice.path.c_str());
  }
  if (peft) return ReadPeft(choice.path, choice.strength, checkpoint);
  return ReadGgufLora(choice.path, choice.strength, checkpoint);
}

}  // namespace kvc
