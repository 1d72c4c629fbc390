#include "models/convert/tokenizer_hf.h"

#include <algorithm>
#include <unordered_map>

#include "lib/base/hash.h"
#include "lib/model/model_config.h"
#include "lib/model/tokenizer_patterns.h"
#include "models/convert/json.h"
#include "models/convert/tokenizer_hf_split.h"
#include "models/convert/not_supported.h"
#include "models/convert/stop_names.h"
#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

constexpr char kWhere[] = "tokenizer.json";
constexpr char kSpaceSymbol[] = "\xE2\x96\x81";
constexpr size_t kMaxTextBytes = size_t{256} << 20;

// Names by which tokenizers that say no more are understood; config.json has the last word.
constexpr const char* kBosNames[] = {"<s>", "<|begin_of_text|>", "<|bos|>", "<bos>"};
constexpr const char* kPadNames[] = {"<pad>", "<|pad|>", "[PAD]"};

Status Unsupported(const std::string& what) {
  return Error(Code::kUnsupported, "%s: %.200s is not supported", kWhere, what.c_str());
}
Status Bad(const std::string& what) { return Error(Code::kBadModel, "%s: %.200s", kWhere, what.c_str()); }

std::string TypeOf(const Json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  return part.is_object() && type != part.end() && type->is_string() ? type->get<std::string>() : "";
}

// The parts of a normalizer, pre-tokenizer, post-processor or decoder: of a Sequence its members, else
// itself. The file's name for the list of a Sequence is `key`.
Status Parts(const JsonObject& root, const char* what, const char* key, std::vector<const Json*>* parts) {
  parts->clear();
  const Json* part = root.Find(what);
  if (part == nullptr) return {};
  if (!part->is_object()) return Bad(std::string(what) + " is not an object");
  if (TypeOf(*part) != "Sequence") {
    parts->push_back(part);
    return {};
  }
  const auto list = part->find(key);
  if (list == part->end() || !list->is_array())
    return Bad(std::string(what) + " is a Sequence without " + key);
  for (const Json& member : *list) {
    if (!member.is_object()) return Bad(std::string(what) + " has a member that is not an object");
    if (TypeOf(member) == "Sequence") return Unsupported(std::string("a Sequence inside the ") + what);
    parts->push_back(&member);
  }
  return {};
}

class HfReader {
 public:
  explicit HfReader(const Json& root) : root_(root, kWhere) {}
  Result<TokenizerSpec> Read();

 private:
  Status ReadModelOptions(const JsonObject& model);
  Status ReadNormalizer();
  Status ReadPreTokenizer();
  Status ReadBehindByteLevel(const JsonObject& object, const std::string& type);
  Status ReadSplit(const Json& part);
  Status ReadDecoder();
  Status ReadVocabulary(const JsonObject& model);
  Status SetPiece(int64_t id, const std::string& written, const std::string& bytes, PieceKind kind);
  Status ReadAddedTokens();
  Status ReadMerges(const JsonObject& model);
  Status MergeSide(const std::string& written, size_t index);
  Status ReadPostProcessor();
  Status ReadTemplate(const Json& part);
  Status TemplateIds(const Json& part, const Json& token, std::vector<int32_t>* ids);
  void FindSpecialTokens();
  int32_t Id(const std::string& written) const {
    const auto found = ids_.find(written);
    return found == ids_.end() ? -1 : found->second;
  }

  const JsonObject root_;
  TokenizerSpec spec_;
  int64_t id_limit_ = 0;
  std::unordered_map<std::string, int32_t, SecretHash> ids_;  // as the file writes them
  std::vector<int32_t> begin_;                                // what the post-processor puts before a text
  std::string unk_;
  bool byte_level_ = false, spaces_replaced_ = false, fuse_unk_ = false, template_seen_ = false;
};

Result<TokenizerSpec> HfReader::Read() {
  const Json* model_json = root_.Find("model");
  if (model_json == nullptr || !model_json->is_object()) return Bad("no model");
  const JsonObject model(*model_json, std::string(kWhere) + ": model");
  KVC_RETURN_IF_ERROR(ReadModelOptions(model));
  KVC_RETURN_IF_ERROR(ReadNormalizer());
  KVC_RETURN_IF_ERROR(ReadPreTokenizer());
  if (!byte_level_ && !spaces_replaced_) {
    return Unsupported("a BPE model with neither a ByteLevel pre-tokenizer nor \"\xE2\x96\x81\" for spaces");
  }
  if (byte_level_ && spaces_replaced_)
    return Unsupported("a ByteLevel pre-tokenizer together with \"\xE2\x96\x81\" for spaces");
  if (byte_level_ && spec_.byte_fallback) return Unsupported("byte_fallback in a byte-level model");
  if (!byte_level_ && spec_.ignore_merges)
    return Unsupported("ignore_merges in a model that is not byte-level");
  if (!byte_level_ && spec_.nfc) return Unsupported("the normalizer NFC in a model that is not byte-level");
  if (!byte_level_ && !spec_.byte_fallback && !fuse_unk_) return Unsupported("fuse_unk=false");
  spec_.kind = byte_level_ ? TokenizerKind::kByteLevelBpe : TokenizerKind::kSentencePieceBpe;
  KVC_RETURN_IF_ERROR(ReadDecoder());
  KVC_RETURN_IF_ERROR(ReadVocabulary(model));
  KVC_RETURN_IF_ERROR(ReadAddedTokens());
  KVC_RETURN_IF_ERROR(ReadMerges(model));
  FindSpecialTokens();
  KVC_RETURN_IF_ERROR(ReadPostProcessor());
  return std::move(spec_);
}

Status HfReader::ReadModelOptions(const JsonObject& model) {
  std::string type = "BPE", prefix, suffix;
  double dropout = 0;
  KVC_RETURN_IF_ERROR(model.String("type", &type));
  if (type != "BPE") {
    return Error(Code::kUnsupported, "%s: the model type %.60s is not supported%s", kWhere, type.c_str(),
                 WhyNotTokenizer(type).c_str());
  }
  KVC_RETURN_IF_ERROR(model.Number("dropout", 0, 1, &dropout));
  if (dropout != 0) return Unsupported("dropout");
  KVC_RETURN_IF_ERROR(model.String("continuing_subword_prefix", &prefix));
  if (!prefix.empty()) return Unsupported("continuing_subword_prefix");
  KVC_RETURN_IF_ERROR(model.String("end_of_word_suffix", &suffix));
  if (!suffix.empty()) return Unsupported("end_of_word_suffix");
  KVC_RETURN_IF_ERROR(model.String("unk_token", &unk_));
  KVC_RETURN_IF_ERROR(model.Bool("fuse_unk", &fuse_unk_));
  KVC_RETURN_IF_ERROR(model.Bool("byte_fallback", &spec_.byte_fallback));
  return model.Bool("ignore_merges", &spec_.ignore_merges);
}

Status HfReader::ReadNormalizer() {
  std::vector<const Json*> parts;
  KVC_RETURN_IF_ERROR(Parts(root_, "normalizer", "normalizers", &parts));
  for (const Json* part : parts) {
    const std::string type = TypeOf(*part);
    const JsonObject object(*part, std::string(kWhere) + ": normalizer " + type);
    if (type == "NFC") {
      spec_.nfc = true;
    } else if (type == "Prepend") {
      std::string text;
      KVC_RETURN_IF_ERROR(object.String("prepend", &text));
      if ((text != kSpaceSymbol && (text != " " || spaces_replaced_)) || spec_.add_space_prefix) {
        return Unsupported("the normalizer Prepend \"" + text + "\" here");
      }
      spec_.add_space_prefix = true;
    } else if (type == "Replace") {
      std::string content, pattern;
      KVC_RETURN_IF_ERROR(object.String("content", &content));
      const Json* from = object.Find("pattern");
      if (from != nullptr && from->is_object()) {
        KVC_RETURN_IF_ERROR(JsonObject(*from, object.where()).String("String", &pattern));
      }
      if (content != kSpaceSymbol || pattern != " ") {
        return Unsupported("the normalizer Replace by \"" + content + "\"");
      }
      spaces_replaced_ = true;
    } else {
      return Unsupported("the normalizer " + type);
    }
  }
  return {};
}

Status HfReader::ReadPreTokenizer() {
  std::vector<const Json*> parts;
  KVC_RETURN_IF_ERROR(Parts(root_, "pre_tokenizer", "pretokenizers", &parts));
  for (const Json* part : parts) {
    const std::string type = TypeOf(*part);
    const JsonObject object(*part, std::string(kWhere) + ": pre_tokenizer " + type);
    if (byte_level_) {
      KVC_RETURN_IF_ERROR(ReadBehindByteLevel(object, type));
    } else if (type == "Split") {
      KVC_RETURN_IF_ERROR(ReadSplit(*part));
    } else if (type == "Punctuation") {
      std::string behavior = "Isolated";
      KVC_RETURN_IF_ERROR(object.String("behavior", &behavior));
      if (behavior != "Contiguous")
        return Unsupported("the pre-tokenizer Punctuation with behavior " + behavior);
      spec_.patterns.push_back(kPatternPunctuation);
    } else if (type == "Digits") {
      bool individual = false;
      KVC_RETURN_IF_ERROR(object.Bool("individual_digits", &individual));
      spec_.patterns.push_back(individual ? kPatternDigit : kPatternDigits);
    } else if (type == "ByteLevel") {
      bool prefix = true, use_regex = true;
      KVC_RETURN_IF_ERROR(object.Bool("add_prefix_space", &prefix));
      KVC_RETURN_IF_ERROR(object.Bool("use_regex", &use_regex));
      if (prefix) return Unsupported("add_prefix_space in ByteLevel");
      if (use_regex) spec_.patterns.push_back(kPatternGpt2);
      byte_level_ = true;
    } else if (type == "Metaspace") {
      std::string symbol = kSpaceSymbol, scheme = "always";
      bool split = true, prefix = true;
      KVC_RETURN_IF_ERROR(object.String("replacement", &symbol));
      KVC_RETURN_IF_ERROR(object.String("prepend_scheme", &scheme));
      KVC_RETURN_IF_ERROR(object.Bool("split", &split));
      KVC_RETURN_IF_ERROR(object.Bool("add_prefix_space", &prefix));
      const bool never = scheme == "never" || !prefix;
      if (symbol != kSpaceSymbol || split)
        return Unsupported("the pre-tokenizer Metaspace with split or another symbol");
      if (!never && ((scheme != "always" && scheme != "first") || spec_.add_space_prefix))
        return Unsupported("the pre-tokenizer Metaspace with prepend_scheme " + scheme + " here");
      spaces_replaced_ = true;
      spec_.add_space_prefix = spec_.add_space_prefix || !never;
      if (!never) spec_.space_prefix = scheme == "first" ? SpacePrefix::kFirst : SpacePrefix::kUnlessSpace;
    } else {
      return Unsupported("the pre-tokenizer " + type);
    }
  }
  if (!byte_level_ && !spec_.patterns.empty())
    return Unsupported("the pre-tokenizer Split or Digits without ByteLevel");
  return {};
}

// What stands there sees the alphabet of bytes.
Status HfReader::ReadBehindByteLevel(const JsonObject& object, const std::string& type) {
  if (type == "Digits") {
    bool individual = false;
    KVC_RETURN_IF_ERROR(object.Bool("individual_digits", &individual));
    spec_.patterns.push_back(individual ? kPatternByteNumber : kPatternByteNumbers);
  } else {
    std::string behavior, regex;
    KVC_RETURN_IF_ERROR(object.String("behavior", &behavior));
    const Json* pattern = object.Find("pattern");
    if (pattern != nullptr && pattern->is_object())
      KVC_RETURN_IF_ERROR(JsonObject(*pattern, object.where()).String("Regex", &regex));
    if (type != "Split" || behavior != "Isolated" || regex != kPatternThreeAsciiDigits)
      return Unsupported("the pre-tokenizer " + type + " behind ByteLevel");
    spec_.patterns.push_back(regex);
  }
  ++spec_.n_byte_patterns;
  return {};
}

Status HfReader::ReadSplit(const Json& part) {
  const JsonObject object(part, std::string(kWhere) + ": pre_tokenizer Split");
  HfSplit split;
  KVC_RETURN_IF_ERROR(object.String("behavior", &split.behavior));
  KVC_RETURN_IF_ERROR(object.Bool("invert", &split.invert));
  const Json* pattern = object.Find("pattern");
  if (pattern == nullptr || !pattern->is_object()) return Bad("a Split without a pattern");
  KVC_RETURN_IF_ERROR(JsonObject(*pattern, object.where()).String("Regex", &split.regex));
  KVC_RETURN_IF_ERROR(JsonObject(*pattern, object.where()).String("String", &split.plain));
  // Gemma cuts at spaces, of which its normalizer has left none.
  if (spaces_replaced_ && split.regex.empty() && split.plain == " ") return {};
  auto isolating = IsolatingPattern(split);
  if (!isolating.ok())
    return Error(isolating.status().code(), "%s: %s", kWhere, isolating.status().message().c_str());
  spec_.patterns.push_back(isolating.value());
  return {};
}

Status HfReader::ReadDecoder() {
  std::vector<const Json*> parts;
  KVC_RETURN_IF_ERROR(Parts(root_, "decoder", "decoders", &parts));
  bool strips = false;
  for (const Json* part : parts) {
    const std::string type = TypeOf(*part);
    const bool known = byte_level_ ? type == "ByteLevel"
                                   : type == "Replace" || type == "ByteFallback" || type == "Fuse" ||
                                         type == "Strip" || type == "Metaspace";
    if (!known) return Unsupported("the decoder " + type);
    strips = strips || type == "Strip" || type == "Metaspace";
  }
  if (spec_.add_space_prefix && !strips)
    return Unsupported("a decoder that leaves the space before the text");
  return {};
}

Status HfReader::SetPiece(int64_t id, const std::string& written, const std::string& bytes, PieceKind kind) {
  if (id < 0 || id >= id_limit_) {
    return Bad("token \"" + written.substr(0, 80) + "\" has the id " + std::to_string(id) +
               ", which is out of range");
  }
  const auto i = static_cast<size_t>(id);
  if (i >= spec_.pieces.size()) {
    spec_.pieces.resize(i + 1);
    spec_.piece_kinds.resize(i + 1, PieceKind::kUnused);
  }
  const auto [known, is_new] = ids_.emplace(written, static_cast<int32_t>(id));
  const bool taken = is_new && (spec_.piece_kinds[i] != PieceKind::kUnused || !spec_.pieces[i].empty());
  if (taken || known->second != id) return Bad("token \"" + written + "\" has an id that is not its own");
  spec_.pieces[i] = bytes;
  spec_.piece_kinds[i] = kind;
  return {};
}

Status HfReader::ReadVocabulary(const JsonObject& model) {
  const Json* vocab = model.Find("vocab");
  if (vocab == nullptr || !vocab->is_object()) return Bad("the model has no vocab");
  if (vocab->empty()) return Bad("the vocab is empty");
  // Every id up to the largest takes memory. Files leave some out, but not most of them.
  const Json* added = root_.Find("added_tokens");
  const size_t n_tokens = vocab->size() + (added == nullptr ? 0 : added->size());
  id_limit_ = std::min<int64_t>(kMaxVocab, static_cast<int64_t>(4 * n_tokens + (1 << 16)));
  // Tokens outside the byte alphabet can only be added tokens that stand in the vocabulary too; those come
  // later and replace them.
  for (const auto& [written, id] : vocab->items()) {
    if (!id.is_number_integer()) return Bad("token \"" + written + "\" has no id");
    PieceKind kind = PieceKind::kNormal;
    std::string bytes;
    if (byte_level_) {
      Result<std::string> undone = UndoByteAlphabet(written);
      if (undone.ok()) bytes = undone.value();
      if (!undone.ok() || bytes.empty()) kind = PieceKind::kUnused, bytes = written;
    } else {
      const int byte = spec_.byte_fallback ? ParseBytePiece(written) : -1;
      kind = byte >= 0 ? PieceKind::kByte : written == unk_ ? PieceKind::kUnknown : PieceKind::kNormal;
      bytes = byte >= 0 ? std::string(1, static_cast<char>(byte)) : UndoSpaceSymbol(written);
      if (bytes.empty()) kind = PieceKind::kUnused;
    }
    KVC_RETURN_IF_ERROR(SetPiece(id.get<int64_t>(), written, bytes, kind));
  }
  return {};
}

Status HfReader::ReadAddedTokens() {
  const Json* tokens = root_.Find("added_tokens");
  if (tokens == nullptr) return {};
  if (!tokens->is_array()) return Bad("added_tokens is not a list");
  for (const Json& token : *tokens) {
    if (!token.is_object()) return Bad("an added token is not an object");
    const JsonObject object(token, std::string(kWhere) + ": an added token");
    int64_t id = -1;
    std::string content;
    bool special = false, normalized = false, single_word = false, lstrip = false, rstrip = false;
    KVC_RETURN_IF_ERROR(object.Int("id", int64_t{0}, int64_t{kMaxVocab} - 1, &id));
    KVC_RETURN_IF_ERROR(object.String("content", &content));
    KVC_RETURN_IF_ERROR(object.Bool("special", &special));
    KVC_RETURN_IF_ERROR(object.Bool("normalized", &normalized));
    KVC_RETURN_IF_ERROR(object.Bool("single_word", &single_word));
    KVC_RETURN_IF_ERROR(object.Bool("lstrip", &lstrip));
    KVC_RETURN_IF_ERROR(object.Bool("rstrip", &rstrip));
    if (content.empty()) return Bad("an added token is empty");
    if (single_word) return Unsupported("single_word of the added token \"" + content + "\"");
    if (!special && !byte_level_ && (lstrip || rstrip || (spec_.add_space_prefix && !normalized))) {
      // Cut out of the text before its spaces count (Phi-3's "</s>"): special in all but name, and it counts
      // where special tokens do.
      if (normalized) return Unsupported("lstrip or rstrip of the added token \"" + content + "\"");
      special = true;
    }
    if (!special && spec_.add_space_prefix) {
      return Unsupported("the added token \"" + content +
                         "\", not special, in a model that puts a space before the text,");
    }
    // Gemma's runs of "▁" stand for themselves there; runs of spaces are merged to them.
    const std::string bytes = byte_level_ ? content : UndoSpaceSymbol(content);
    const bool spaces = !byte_level_ && bytes.find_first_not_of(' ') == std::string::npos;
    PieceKind kind = special ? PieceKind::kControl : spaces ? PieceKind::kNormal : PieceKind::kUserDefined;
    if (content == unk_ && !byte_level_) kind = PieceKind::kUnknown;
    KVC_RETURN_IF_ERROR(SetPiece(id, content, bytes, kind));
    if (kind == PieceKind::kUnknown || (!lstrip && !rstrip)) continue;
    const auto i = static_cast<size_t>(id);
    if (spec_.piece_strips.size() <= i) spec_.piece_strips.resize(i + 1);
    spec_.piece_strips[i] = static_cast<uint8_t>((lstrip ? kStripLeft : 0) | (rstrip ? kStripRight : 0));
  }
  return {};
}

Status HfReader::MergeSide(const std::string& written, size_t index) {
  const int32_t id = Id(written);
  if (id < 0)
    return Bad("merge " + std::to_string(index) + " names \"" + written + "\", which is not in the vocab");
  spec_.merges.push_back(id);
  return {};
}

Status HfReader::ReadMerges(const JsonObject& model) {
  const Json* merges = model.Find("merges");
  if (merges == nullptr || !merges->is_array()) return Bad("the model has no merges");
  size_t index = 0;
  for (const Json& merge : *merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string& pair = merge.get_ref<const std::string&>();
      const size_t space = pair.find(' ');
      if (space != std::string::npos && pair.find(' ', space + 1) == std::string::npos) {
        left = pair.substr(0, space), right = pair.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty())
      return Bad("merge " + std::to_string(index) + " is not a pair of tokens");
    KVC_RETURN_IF_ERROR(MergeSide(left, index));
    KVC_RETURN_IF_ERROR(MergeSide(right, index));
    ++index;
  }
  // A model of single characters has nothing to merge; then equal scores say so, as SentencePiece wants one
  // or the other.
  if (!byte_level_ && spec_.merges.empty()) spec_.scores.assign(spec_.pieces.size(), 0.0f);
  return {};
}

void HfReader::FindSpecialTokens() {
  const auto find = [this](const char* name) {
    const int32_t id = Id(name);
    return id >= 0 && spec_.piece_kinds[static_cast<size_t>(id)] == PieceKind::kControl ? id : -1;
  };
  spec_.add_bos = false;
  for (const char* name : kBosNames) spec_.bos = spec_.bos < 0 ? find(name) : spec_.bos;
  for (const char* name : kPadNames) spec_.pad = spec_.pad < 0 ? find(name) : spec_.pad;
  for (const char* name : kStopNames) {
    const int32_t id = find(name);
    if (id < 0) continue;
    if (spec_.eos < 0) spec_.eos = id;
    spec_.stop_tokens.push_back(id);
  }
  if (!unk_.empty()) spec_.unk = Id(unk_);
}

Status HfReader::ReadPostProcessor() {
  std::vector<const Json*> parts;
  KVC_RETURN_IF_ERROR(Parts(root_, "post_processor", "processors", &parts));
  for (const Json* part : parts) {
    const std::string type = TypeOf(*part);
    if (type == "TemplateProcessing") {
      KVC_RETURN_IF_ERROR(ReadTemplate(*part));
    } else if (type != "ByteLevel") {  // which moves offsets only
      return Unsupported("the post-processor " + type);
    }
  }
  spec_.add_bos = !begin_.empty();
  if (begin_.empty()) return {};
  spec_.bos = begin_.front();
  if (begin_.size() > 1) spec_.begin_tokens = std::move(begin_);
  return {};
}

// The ids that {"id": "<s>", ...} stands for: "special_tokens" says, {"<s>": {"ids": [1], ...}}.
Status HfReader::TemplateIds(const Json& part, const Json& token, std::vector<int32_t>* ids) {
  const std::string where = std::string(kWhere) + ": post_processor";
  std::string name;
  KVC_RETURN_IF_ERROR(JsonObject(token, where).String("id", &name));
  const auto all = part.find("special_tokens");
  if (all == part.end() || !all->is_object() || !all->contains(name)) {
    if (Id(name) < 0) return Bad("the post-processor adds \"" + name + "\", which is not in the vocab");
    ids->push_back(Id(name));
    return {};
  }
  const Json& about = (*all)[name];
  const auto list = about.is_object() ? about.find("ids") : about.end();
  if (list == about.end() || !list->is_array())
    return Bad("the post-processor has no ids for \"" + name + "\"");
  for (const Json& id : *list) {
    const int64_t number = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (number < 0 || number >= static_cast<int64_t>(spec_.pieces.size()))
      return Bad("the post-processor adds \"" + name + "\", whose ids are not in the vocab");
    ids->push_back(static_cast<int32_t>(number));
  }
  return {};
}

// {"single": [{"SpecialToken": {"id": "<s>", ...}}, {"Sequence": {"id": "A", ...}}], ...}: tokens in front. A
// template behind another takes what that one added for texts of their own.
Status HfReader::ReadTemplate(const Json& part) {
  const auto single = part.find("single");
  if (single == part.end() || !single->is_array()) return Bad("the post-processor has no template");
  if (template_seen_) return Unsupported("a post-processor of several templates");
  template_seen_ = true;
  bool text_seen = false;
  for (const Json& item : *single) {
    if (!item.is_object()) return Bad("the post-processor has a damaged template");
    if (item.contains("Sequence")) {
      if (text_seen) return Unsupported("a post-processor that repeats the text");
      text_seen = true;
      continue;
    }
    const auto token = item.find("SpecialToken");
    if (token == item.end() || !token->is_object()) return Bad("the post-processor has a damaged template");
    if (text_seen) {
      std::string name;
      KVC_RETURN_IF_ERROR(JsonObject(*token, std::string(kWhere) + ": post_processor").String("id", &name));
      return Unsupported("a post-processor that adds \"" + name + "\" behind the text");
    }
    KVC_RETURN_IF_ERROR(TemplateIds(part, *token, &begin_));
    if (begin_.size() > size_t{kMaxBeginTokens})  // now: every item may stand for a list of any length
      return Unsupported("a post-processor that adds more than " + std::to_string(kMaxBeginTokens) +
                         " tokens before the text");
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> ReadHfTokenizer(const std::string& json_text) {
  if (json_text.size() > kMaxTextBytes) {
    return Error(Code::kBadModel, "%s: %zu bytes, the limit is %zu", kWhere, json_text.size(), kMaxTextBytes);
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(json_text.data());
  Result<Json> root = ParseJson(Span<const uint8_t>(bytes, json_text.size()), kWhere);
  if (!root.ok()) return root.status();
  if (!root.value().is_object()) return Bad("not an object");
  // "truncation" and "padding" are settings of a call, not of the vocabulary; they do not count here.
  return HfReader(root.value()).Read();
}

}  // namespace kvc
