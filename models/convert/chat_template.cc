#include "models/convert/chat_template.h"

#include <ctime>

#include "models/convert/printable.h"
#include "models/convert/stop_names.h"
#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

constexpr int64_t kMaxTemplateFile = 1 << 22;

std::string PieceOf(const TokenizerSpec& spec, int32_t id) {
  return id >= 0 && static_cast<size_t>(id) < spec.pieces.size() ? spec.pieces[static_cast<size_t>(id)] : "";
}

// "..", or [{"name": "default", "template": ".."}, ..]
std::string TemplateIn(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string first;
  for (const Json& one : value.is_array() ? value : Json::array()) {
    const JsonObject object(one, "chat_template");
    const Json *name = object.Find("name"), *text = object.Find("template");
    if (text == nullptr || !text->is_string()) continue;
    if (name != nullptr && *name == "default") return text->get<std::string>();
    if (first.empty()) first = text->get<std::string>();
  }
  return first;
}

// The special token that an assistant's turn ends with ends an answer, whatever else the source calls its
// end. Some sources give it the type of words; then it is known by its look, as turns end with words too.
void StopAt(const std::string& assistant_suffix, TokenizerSpec* spec) {
  int32_t longest = -1;
  for (size_t i = 0; i < spec->pieces.size(); ++i) {
    const std::string& piece = spec->pieces[i];
    if (piece.empty() || assistant_suffix.compare(0, piece.size(), piece) != 0) continue;
    const PieceKind kind = spec->piece_kinds[i];
    const bool words = kind == PieceKind::kNormal || kind == PieceKind::kUserDefined;
    const bool special = kind == PieceKind::kControl || (words && LooksSpecial(piece));
    if (special && (longest < 0 || piece.size() > spec->pieces[static_cast<size_t>(longest)].size()))
      longest = static_cast<int32_t>(i);
  }
  if (longest < 0 || longest == spec->bos) return;
  if (spec->piece_kinds[static_cast<size_t>(longest)] != PieceKind::kControl) MakeControl(longest, spec);
  AddStop(longest, spec);
}

}  // namespace

ChatTemplate ChatTemplateOf(std::string text, const TokenizerSpec& spec) {
  return {std::move(text), PieceOf(spec, spec.bos), PieceOf(spec, spec.eos), PieceOf(spec, spec.unk),
          PieceOf(spec, spec.pad)};
}

Result<std::string> FindChatTemplate(const std::string& directory, const Json* config, Checkpoint* out) {
  const std::string jinja = directory + "/chat_template.jinja", json = directory + "/chat_template.json";
  for (const std::string& path : {jinja, json}) {
    if (!FileExists(path)) continue;
    out->inputs.Add(path);
    auto text = ReadWholeFile(path, kMaxTemplateFile);
    if (!text.ok() || path == jinja) return text;
    auto parsed = ParseJson(BytesOf(text.value()), path);
    if (!parsed.ok()) return parsed.status();
    const Json* found = JsonObject(parsed.value(), path).Find("chat_template");
    if (found != nullptr) return TemplateIn(*found);
  }
  const Json* found = config == nullptr ? nullptr : JsonObject(*config, "").Find("chat_template");
  return found == nullptr ? std::string() : TemplateIn(*found);
}

void KeepChatTemplate(const ChatTemplate& chat, Checkpoint* out) {
  if (chat.text.empty()) return;
  const std::time_t now = std::time(nullptr);
  auto format = CompileTurnFormat(chat, *std::gmtime(&now), &out->warnings);
  if (format.ok()) {
    StopAt(format.value().assistant_suffix, &out->content.tokenizer);
    out->content.turn_format = std::move(format.value());
  } else {
    out->warnings.push_back(Printable(format.status().message()) + "; the turn format stays empty");
  }
}

}  // namespace kvc
