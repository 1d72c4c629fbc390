#include "models/convert/hf_added_tokens.h"

#include <set>

#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

constexpr int64_t kMaxBytes = 1 << 22;

// What a token may be besides its text.
struct Traits {
  bool special = false, lstrip = false, rstrip = false;
};

// is_control: the place has a special token as it is.
Status ReadTraits(const JsonObject& token, const std::string& content, bool is_control,
                  const TokenizerSpec& spec, Traits* traits) {
  bool single_word = false;
  traits->special = is_control || LooksSpecial(content);  // where the file does not say
  KVC_RETURN_IF_ERROR(token.Bool("special", &traits->special));
  KVC_RETURN_IF_ERROR(token.Bool("single_word", &single_word));
  KVC_RETURN_IF_ERROR(token.Bool("lstrip", &traits->lstrip));
  KVC_RETURN_IF_ERROR(token.Bool("rstrip", &traits->rstrip));
  bool normalized = !traits->special;
  KVC_RETURN_IF_ERROR(token.Bool("normalized", &normalized));
  if (single_word) {
    return Error(Code::kUnsupported, "%s: single_word of \"%.80s\" is not supported", token.where().c_str(),
                 content.c_str());
  }
  const bool strips = traits->lstrip || traits->rstrip;
  if (traits->special || !(strips || (spec.add_space_prefix && !normalized))) return {};
  // Cut out of the text before its spaces count: special in all but name, as in tokenizer.json.
  if (normalized) {
    return Error(Code::kUnsupported,
                 "%s: lstrip or rstrip of \"%.80s\", which is not special, is not supported",
                 token.where().c_str(), content.c_str());
  }
  traits->special = true;
  return {};
}

Status TakePlace(const JsonObject& token, size_t id, const std::string& content, const Traits& traits,
                 TokenizerSpec* spec) {
  while (spec->pieces.size() <= id) {
    spec->pieces.emplace_back();
    spec->piece_kinds.push_back(PieceKind::kUnused);
    spec->scores.push_back(0);
  }
  std::string& piece = spec->pieces[id];
  PieceKind& kind = spec->piece_kinds[id];
  if (piece == content || piece == UndoSpaceSymbol(content)) {
    if (kind == PieceKind::kUnknown || kind == PieceKind::kByte) return {};
    // transformers cuts every added token out of the text, before pieces are merged.
    if (traits.special)
      kind = PieceKind::kControl;
    else if (kind == PieceKind::kNormal && piece == content)
      kind = PieceKind::kUserDefined;
  } else {
    // Files keep places for tokens to come under names like [UNUSED_TOKEN_141] (InternLM 2).
    const bool kept_free = kind == PieceKind::kUnused || piece.rfind("[UNUSED", 0) == 0;
    if (!kept_free) {
      return Error(Code::kBadModel, "%s: the id is taken by \"%.40s\"", token.where().c_str(), piece.c_str());
    }
    kind = traits.special ? PieceKind::kControl : PieceKind::kUserDefined;
  }
  if (kind == PieceKind::kControl || kind == PieceKind::kUserDefined) piece = content;
  if (!traits.lstrip && !traits.rstrip) return {};
  if (spec->piece_strips.size() <= id) spec->piece_strips.resize(id + 1);
  spec->piece_strips[id] =
      static_cast<uint8_t>((traits.lstrip ? kStripLeft : 0) | (traits.rstrip ? kStripRight : 0));
  return {};
}

// {"32000": {"content": "<|im_start|>", "special": true}}
Status AddTokens(const Json& added, const std::string& where, int32_t vocab_size, TokenizerSpec* spec) {
  for (const auto& [key, value] : added.items()) {
    const JsonObject token(value, where + " " + key);
    if (key.empty() || key.size() > 7 || key.find_first_not_of("0123456789") != std::string::npos)
      return Error(Code::kBadModel, "%s: no id", token.where().c_str());
    const size_t id = static_cast<size_t>(std::stoi(key));
    std::string content;
    Traits traits;
    KVC_RETURN_IF_ERROR(token.String("content", &content));
    if (content.empty()) return Error(Code::kBadModel, "%s: is empty", token.where().c_str());
    const bool is_control = id < spec->pieces.size() && spec->piece_kinds[id] == PieceKind::kControl;
    KVC_RETURN_IF_ERROR(ReadTraits(token, content, is_control, *spec, &traits));
    if (id >= static_cast<size_t>(vocab_size)) {
      if (traits.special) continue;  // nobody can say it (DropBeyondVocabulary)
      return Error(Code::kBadModel, "%s: no id in the vocabulary of %d", token.where().c_str(), vocab_size);
    }
    KVC_RETURN_IF_ERROR(TakePlace(token, id, content, traits, spec));
  }
  return {};
}

Result<Json> ReadJsonOf(const std::string& path, Checkpoint* out) {
  if (!FileExists(path)) return Json::object();
  out->inputs.Add(path);
  auto text = ReadWholeFile(path, kMaxBytes);
  if (!text.ok()) return text.status();
  auto json = ParseJson(BytesOf(text.value()), path);
  if (json.ok() && !json.value().is_object())
    return Error(Code::kBadModel, "%s: must be a JSON object", path.c_str());
  return json;
}

// "</s>", {"content": "</s>", ..}, or a list of these.
void CollectNames(const Json& value, std::set<std::string>* names) {
  for (const Json& one : value.is_array() ? value : Json::array({value})) {
    const Json* content = one.is_object() ? JsonObject(one, "").Find("content") : &one;
    if (content != nullptr && content->is_string()) names->insert(content->get<std::string>());
  }
}

}  // namespace

Status AddHfTokens(const std::string& directory, const JsonObject& config, int32_t vocab_size,
                   Checkpoint* out) {
  TokenizerSpec* spec = &out->content.tokenizer;
  const Json* decoder = config.Find("added_tokens_decoder");
  if (decoder != nullptr && decoder->is_object())
    return AddTokens(*decoder, config.where() + ": added_tokens_decoder", vocab_size, spec);
  const std::string path = directory + "/added_tokens.json";
  auto added = ReadJsonOf(path, out);
  if (!added.ok()) return added.status();
  if (added.value().empty()) return {};
  auto map = ReadJsonOf(directory + "/special_tokens_map.json", out);
  if (!map.ok()) return map.status();
  std::set<std::string> special;
  for (const auto& [key, value] : map.value().items()) CollectNames(value, &special);
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                          "mask_token", "additional_special_tokens"}) {
    if (const Json* value = config.Find(key)) CollectNames(*value, &special);
  }
  Json by_id = Json::object();
  for (const auto& [content, id] : added.value().items()) {
    const std::string key = id.is_number_unsigned() ? std::to_string(id.get<uint64_t>()) : "";
    if (by_id.contains(key)) {
      return Error(Code::kBadModel, "%s: \"%.80s\" has an id that is not its own", path.c_str(),
                   content.c_str());
    }
    by_id[key] = {{"content", content}, {"special", special.count(content) > 0 || LooksSpecial(content)}};
  }
  return AddTokens(by_id, path + ":", vocab_size, spec);
}

}  // namespace kvc
