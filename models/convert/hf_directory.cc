// Hugging Face directories: which file says what.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "lib/base/file_names.h"
#include "models/convert/chat_template.h"
#include "models/convert/hf_added_tokens.h"
#include "models/convert/hf_config.h"
#include "models/convert/safetensors.h"
#include "models/convert/packed_mxfp4.h"
#include "models/convert/sources.h"
#include "models/convert/stop_names.h"
#include "models/convert/tokenizer_hf.h"
#include "models/convert/tokenizer_sentencepiece.h"

namespace kvc {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 22, kMaxTokenizerBytes = 1 << 28;
constexpr size_t kMaxShards = 4096;

// A file of the directory, remembered as an input.
Result<std::string> ReadInput(const std::string& path, int64_t max_bytes, Checkpoint* out) {
  out->inputs.Add(path);
  return ReadWholeFile(path, max_bytes);
}

Status OpenShard(const std::string& path, Checkpoint* out, std::vector<FoundTensor>* found) {
  out->inputs.Add(path);
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  out->files.push_back(std::move(file.value()));
  return ReadSafetensors(*out->files.back(), found);
}

// The index names for each tensor the file that has it; both must agree exactly.
Status ReadShards(const std::string& directory, const std::string& index_path, Checkpoint* out,
                  std::vector<FoundTensor>* found) {
  auto text = ReadInput(index_path, kMaxTokenizerBytes, out);
  if (!text.ok()) return text.status();
  auto json = ParseJson(BytesOf(text.value()), index_path);
  if (!json.ok()) return json.status();
  const JsonObject object(json.value(), index_path);
  const Json* map = object.Find("weight_map");
  if (map == nullptr || !map->is_object())
    return Error(Code::kBadModel, "%s: weight_map is missing", index_path.c_str());
  std::map<std::string, std::string> promised;
  std::set<std::string> shards;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      return Error(Code::kBadModel, "%s: weight_map names no file for %.80s", index_path.c_str(),
                   name.c_str());
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard[0] == '.' || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos) {
      return Error(Code::kBadModel, "%s: '%.80s' is no name of a file in the same directory",
                   index_path.c_str(), shard.c_str());
    }
    promised[name] = shard;
    shards.insert(shard);
  }
  if (shards.size() > kMaxShards)
    return Error(Code::kUnsupported, "%s: %zu shards", index_path.c_str(), shards.size());
  for (const std::string& shard : shards) {
    const size_t first = found->size();
    KVC_RETURN_IF_ERROR(OpenShard(directory + "/" + shard, out, found));
    for (size_t i = first; i < found->size(); ++i) {
      const auto it = promised.find((*found)[i].name);
      if (it == promised.end() || it->second != shard) {
        return Error(Code::kBadModel, "%s: tensor %.80s is in %s, the index does not say so",
                     index_path.c_str(), (*found)[i].name.c_str(), shard.c_str());
      }
      promised.erase(it);
    }
  }
  if (promised.empty()) return {};
  return Error(Code::kBadModel, "%s: tensor %.80s is not in %s", index_path.c_str(),
               promised.begin()->first.c_str(), promised.begin()->second.c_str());
}

Status ReadWeights(const std::string& directory, Checkpoint* out, std::vector<FoundTensor>* found) {
  const std::string single = directory + "/model.safetensors", index = single + ".index.json";
  if (FileExists(index)) return ReadShards(directory, index, out, found);
  if (FileExists(single)) return OpenShard(single, out, found);
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth",
                            "tf_model.h5", "model.onnx"}) {
    if (FileExists(directory + "/" + other)) {
      return Error(Code::kUnsupported, "%s: %s is not supported: save the weights as safetensors",
                   directory.c_str(), other);
    }
  }
  return Error(Code::kNotFound, "%s: neither model.safetensors nor model.safetensors.index.json is there",
               directory.c_str());
}

// Packed weights among what was found. Older checkpoints say how they are packed in a file of its own.
Status Unpack(const std::string& directory, PackedScheme scheme, Checkpoint* out,
              std::vector<FoundTensor>* found) {
  const std::string path = directory + "/quantize_config.json";
  if (scheme.kind == PackedScheme::kNone && FileExists(path)) {
    auto text = ReadInput(path, kMaxConfigBytes, out);
    if (!text.ok()) return text.status();
    auto json = ParseJson(BytesOf(text.value()), path);
    if (!json.ok()) return json.status();
    auto read = ReadPackedScheme(JsonObject(json.value(), path));
    if (!read.ok()) return read.status();
    scheme = read.value();
  }
  if (scheme.kind != PackedScheme::kNone) {
    const Status status = scheme.kind == PackedScheme::kMxfp4 ? CollectMxfp4(found, &out->packed)
                                                              : CollectPacked(scheme, found, &out->packed);
    if (!status.ok()) return Status(status.code(), directory + ": " + status.message());
  }
  for (const FoundTensor& tensor : *found) {
    if (tensor.type != SourceType::kI32 && tensor.type != SourceType::kU8) continue;
    return Error(Code::kUnsupported, "%s: tensor %s: dtype %s is not supported; supported: F32, F16, BF16",
                 tensor.file->path().c_str(), tensor.name.c_str(),
                 tensor.type == SourceType::kI32 ? "I32" : "U8");
  }
  return {};
}

bool HasTensor(const BindRules& rules, TensorRole role, const std::vector<FoundTensor>& found) {
  return std::any_of(found.begin(), found.end(), [&](const FoundTensor& tensor) {
    return std::any_of(rules.names.begin(), rules.names.end(), [&](const TensorName& name) {
      return name.use == TensorName::kTensor && name.role == role && tensor.name == name.pattern;
    });
  });
}

// A token given as its id's text: "</s>" or {"content": "</s>", ...}. -1: not given or not in the vocabulary.
int32_t TokenNamed(const JsonObject& object, const char* key, const TokenizerSpec& spec) {
  const Json* value = object.Find(key);
  if (value != nullptr && value->is_object()) value = JsonObject(*value, "").Find("content");
  if (value == nullptr || !value->is_string()) return -1;
  const auto it = std::find(spec.pieces.begin(), spec.pieces.end(), value->get<std::string>());
  return it == spec.pieces.end() ? -1 : static_cast<int32_t>(it - spec.pieces.begin());
}

Result<TokenizerSpec> ReadTokenizerFile(const std::string& directory, bool* is_sentencepiece,
                                        Checkpoint* out) {
  const std::string json = directory + "/tokenizer.json", sentencepiece = directory + "/tokenizer.model";
  *is_sentencepiece = !FileExists(json);
  if (*is_sentencepiece && !FileExists(sentencepiece)) {
    return Error(Code::kNotFound, "%s: neither tokenizer.json nor tokenizer.model is there",
                 directory.c_str());
  }
  const std::string& path = *is_sentencepiece ? sentencepiece : json;
  auto bytes = ReadInput(path, kMaxTokenizerBytes, out);
  if (!bytes.ok()) return bytes.status();
  auto spec = *is_sentencepiece ? ReadSentencePiece(BytesOf(bytes.value())) : ReadHfTokenizer(bytes.value());
  if (spec.ok()) return spec;
  const std::string &text = spec.status().message(), name = BaseName(path) + ": ";
  const size_t own = text.compare(0, name.size(), name) == 0 ? name.size() : 0;  // said with its folder here
  return Status(spec.status().code(), path + ": " + text.substr(own));
}

// Special tokens behind the last row of the embedding: a text model has those of its siblings that see (Gemma
// 3's image token). They are no tokens of this one, and their names are text.
void DropBeyondVocabulary(int32_t vocab_size, TokenizerSpec* spec, std::vector<std::string>* warnings) {
  const size_t n = static_cast<size_t>(vocab_size);
  if (spec->pieces.size() <= n || spec->piece_kinds.size() != spec->pieces.size()) return;
  const bool special =
      std::all_of(spec->piece_kinds.begin() + vocab_size, spec->piece_kinds.end(),
                  [](PieceKind k) { return k == PieceKind::kControl || k == PieceKind::kUnused; });
  const auto inside = [vocab_size](int32_t id) { return id < vocab_size; };
  if (!special || !std::all_of(spec->merges.begin(), spec->merges.end(), inside) ||
      !std::all_of(spec->begin_tokens.begin(), spec->begin_tokens.end(), inside))
    return;  // refused by its number of pieces
  warnings->push_back(
      Format("%zu special tokens have no row in the embedding and are left out, the first is %.80s",
             spec->pieces.size() - n, spec->pieces[n].c_str()));
  if (spec->scores.size() == spec->pieces.size()) spec->scores.resize(n);
  spec->pieces.resize(n), spec->piece_kinds.resize(n);
  spec->piece_strips.resize(std::min(spec->piece_strips.size(), n));
  std::vector<int32_t>& stops = spec->stop_tokens;
  stops.erase(std::remove_if(stops.begin(), stops.end(), [&](int32_t id) { return !inside(id); }),
              stops.end());
  for (int32_t* id : {&spec->bos, &spec->eos, &spec->unk, &spec->pad}) *id = inside(*id) ? *id : -1;
}

// A special token that the tokenizer's configuration says is none is none to its chat template either.
Status ReadChatTemplate(const std::string& directory, const JsonObject& config, Checkpoint* out) {
  auto text = FindChatTemplate(directory, &config.json(), out);
  if (!text.ok()) return text.status();
  ChatTemplate chat = ChatTemplateOf(std::move(text.value()), out->content.tokenizer);
  const std::pair<const char*, std::string*> tokens[] = {
      {"bos_token", &chat.bos}, {"eos_token", &chat.eos}, {"unk_token", &chat.unk}, {"pad_token", &chat.pad}};
  for (const auto& [name, token] : tokens) {
    if (config.json().contains(name) && !config.Has(name)) token->clear();
  }
  KeepChatTemplate(chat, out);
  return {};
}

// Which files say what about special tokens, the later the stronger: the tokenizer, config.json,
// tokenizer_config.json for BOS and EOS; all of them, and generation_config.json, for stop tokens.
Status ReadSpecialTokens(const std::string& directory, const HfConfig& config, bool is_sentencepiece,
                         Checkpoint* out) {
  TokenizerSpec* spec = &out->content.tokenizer;
  const int32_t vocab_size = config.model.vocab_size;
  const bool begins = !is_sentencepiece && spec->add_bos && spec->begin_tokens.empty();
  const int32_t first = begins ? spec->bos : -1;  // what the post-processor puts before a text
  if (config.bos >= 0) spec->bos = config.bos;
  if (config.pad >= 0) spec->pad = config.pad;
  if (!config.eos.empty()) spec->eos = config.eos[0];
  for (const int32_t id : config.eos) AddStop(id, spec);
  const std::string tokenizer_path = directory + "/tokenizer_config.json",
                    generation_path = directory + "/generation_config.json";
  if (FileExists(tokenizer_path)) {
    auto text = ReadInput(tokenizer_path, kMaxConfigBytes, out);
    if (!text.ok()) return text.status();
    auto json = ParseJson(BytesOf(text.value()), tokenizer_path);
    if (!json.ok()) return json.status();
    const JsonObject object(json.value(), tokenizer_path);
    if (is_sentencepiece) {
      spec->add_bos = true;
      KVC_RETURN_IF_ERROR(AddHfTokens(directory, object, vocab_size, out));
    }
    KVC_RETURN_IF_ERROR(object.Bool("add_bos_token", &spec->add_bos));
    bool add_eos = false;
    KVC_RETURN_IF_ERROR(object.Bool("add_eos_token", &add_eos));
    if (add_eos)
      return Error(Code::kUnsupported, "%s: add_eos_token = true is not supported", tokenizer_path.c_str());
    const int32_t bos = TokenNamed(object, "bos_token", *spec), eos = TokenNamed(object, "eos_token", *spec);
    if (bos >= 0) spec->bos = bos;
    if (eos >= 0) spec->eos = eos;
    KVC_RETURN_IF_ERROR(ReadChatTemplate(directory, object, out));
  } else {
    if (config.bos >= 0 && is_sentencepiece)
      spec->add_bos = true;  // nobody says otherwise, and a model that has a BOS was trained behind it
    const Json nothing = Json::object();
    if (is_sentencepiece)
      KVC_RETURN_IF_ERROR(AddHfTokens(directory, JsonObject(nothing, directory), vocab_size, out));
    KVC_RETURN_IF_ERROR(ReadChatTemplate(directory, JsonObject(nothing, directory), out));
  }
  if (FileExists(generation_path)) {
    auto text = ReadInput(generation_path, kMaxConfigBytes, out);
    if (!text.ok()) return text.status();
    auto json = ParseJson(BytesOf(text.value()), generation_path);
    if (!json.ok()) return json.status();
    std::vector<int32_t> ids;
    KVC_RETURN_IF_ERROR(
        ReadTokenIds(JsonObject(json.value(), generation_path), "eos_token_id", vocab_size - 1, &ids));
    for (const int32_t id : ids) AddStop(id, spec);
  }
  AddStop(spec->eos, spec);
  if (first >= 0 && first != spec->bos) spec->begin_tokens = {first};
  if (spec->bos < 0) spec->add_bos = false;
  return {};
}

}  // namespace

Result<Checkpoint> ReadHfDirectory(const std::string& directory, const RopeOptions& options) {
  Checkpoint out;
  out.kind = "hugging face";
  const std::string config_path = directory + "/config.json";
  // Its other files, though not read, are not to be lost either; a model file in it may be made again.
  out.inputs.AddFolder(directory, kModelFileMagic);
  if (!FileExists(config_path))
    return Error(Code::kNotFound,
                 "%s: has no config.json, so no checkpoint of Hugging Face; a GGUF or llama2.c model is "
                 "converted by the path of its file",
                 directory.c_str());
  auto text = ReadInput(config_path, kMaxConfigBytes, &out);
  if (!text.ok()) return text.status();
  auto parsed = ParseHfConfig(BytesOf(text.value()), config_path, options);
  if (!parsed.ok()) return parsed.status();
  HfConfig& config = parsed.value();
  out.content.config = config.model;
  out.warnings = config.warnings, out.extended = config.extended;
  out.biases = config.biases;
  std::vector<FoundTensor> found;
  KVC_RETURN_IF_ERROR(ReadWeights(directory, &out, &found));
  KVC_RETURN_IF_ERROR(Unpack(directory, config.packed, &out, &found));
  const BindRules rules{HfTensorNames(config.family->hf_names), config.family->norms_less_one};
  if (!config.says_tied && !HasTensor(rules, TensorRole::kOutputHead, found))
    out.content.config.tied_head = true;
  KVC_RETURN_IF_ERROR(BindTensors(rules, found, directory, &out));
  bool is_sentencepiece = false;
  auto tokenizer = ReadTokenizerFile(directory, &is_sentencepiece, &out);
  if (!tokenizer.ok()) return tokenizer.status();
  out.content.tokenizer = std::move(tokenizer.value());
  DropBeyondVocabulary(out.content.config.vocab_size, &out.content.tokenizer, &out.warnings);
  KVC_RETURN_IF_ERROR(ReadSpecialTokens(directory, config, is_sentencepiece, &out));
  return out;
}

}  // namespace kvc
