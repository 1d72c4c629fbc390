#include "models/convert/gguf_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "lib/base/hash.h"
#include "lib/model/model_config.h"
#include "models/convert/not_supported.h"
#include "models/convert/pre_tokenizers.h"
#include "models/convert/stop_names.h"
#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

// tokenizer.ggml.token_type
Status KindOf(const std::string& where, int64_t type, size_t id, PieceKind* kind) {
  switch (type) {
    case 1:
      *kind = PieceKind::kNormal;
      return {};
    case 2:
      *kind = PieceKind::kUnknown;
      return {};
    case 3:
      *kind = PieceKind::kControl;
      return {};
    case 4:
      *kind = PieceKind::kUserDefined;
      return {};
    case 5:
      *kind = PieceKind::kUnused;
      return {};
    case 6:
      *kind = PieceKind::kByte;
      return {};
    default:
      return Error(Code::kUnsupported, "%s: token %zu has type %lld, which is not known", where.c_str(), id,
                   static_cast<long long>(type));
  }
}

Status ReadKinds(GgufMetadata* metadata, size_t n_pieces, std::vector<PieceKind>* kinds) {
  kinds->assign(n_pieces, PieceKind::kNormal);
  const GgufValue* types = metadata->Find("tokenizer.ggml.token_type");
  if (types == nullptr) return {};
  if (!types->is_array || types->n_whole() != n_pieces) {
    return Error(Code::kBadModel,
                 "%s: tokenizer.ggml.token_type must have one number for each of the %zu tokens",
                 metadata->where().c_str(), n_pieces);
  }
  for (size_t i = 0; i < n_pieces; ++i)
    KVC_RETURN_IF_ERROR(KindOf(metadata->where(), types->Whole(i), i, &(*kinds)[i]));
  return {};
}

// Merges stand as "left right" in the byte alphabet; the pieces of `printed` are their names.
Status ReadMerges(GgufMetadata* metadata, const std::vector<std::string>& printed, TokenizerSpec* spec) {
  const std::vector<std::string>* merges = nullptr;
  KVC_RETURN_IF_ERROR(metadata->Strings("tokenizer.ggml.merges", &merges));
  if (merges == nullptr)
    return Error(Code::kBadModel, "%s: tokenizer.ggml.merges is missing", metadata->where().c_str());
  std::unordered_map<std::string, int32_t, SecretHash> ids;
  for (size_t i = 0; i < printed.size(); ++i) ids.emplace(printed[i], static_cast<int32_t>(i));
  spec->merges.reserve(merges->size() * 2);
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string& merge = (*merges)[i];
    const size_t space = merge.find(' ', 1);
    const auto left = space == std::string::npos ? ids.end() : ids.find(merge.substr(0, space));
    const auto right = space == std::string::npos ? ids.end() : ids.find(merge.substr(space + 1));
    if (left == ids.end() || right == ids.end()) {
      return Error(Code::kBadModel, "%s: merge %zu \"%.60s\" names no two tokens", metadata->where().c_str(),
                   i, merge.c_str());
    }
    spec->merges.push_back(left->second);
    spec->merges.push_back(right->second);
  }
  return {};
}

Status ReadByteLevel(GgufMetadata* metadata, const std::vector<std::string>& printed, TokenizerSpec* spec) {
  spec->kind = TokenizerKind::kByteLevelBpe;
  std::string pre;
  KVC_RETURN_IF_ERROR(metadata->String("tokenizer.ggml.pre", &pre));
  const PreTokenizerRules* known = FindPreTokenizer(pre);
  if (known == nullptr) {
    return Error(
        Code::kUnsupported,
        "%s: the pre-tokenizer '%.60s' is not supported: try the Hugging Face directory of the model, "
        "whose tokenizer.json says its rules; supported: %s",
        metadata->where().c_str(), pre.c_str(), PreTokenizerNames().c_str());
  }
  spec->patterns.assign(known->patterns.begin(), known->patterns.end());
  spec->n_byte_patterns = known->n_byte_patterns;
  spec->ignore_merges = known->ignore_merges, spec->nfc = known->nfc, spec->add_bos = known->add_bos;
  for (size_t i = 0; i < printed.size(); ++i) {
    if (spec->piece_kinds[i] == PieceKind::kUnused) {
      spec->pieces.emplace_back();  // a name that only fills the place
    } else if (spec->piece_kinds[i] == PieceKind::kNormal) {
      // Command R has some outside the alphabet, which no text can become.
      auto piece = UndoByteAlphabet(printed[i]);
      if (!piece.ok()) spec->piece_kinds[i] = PieceKind::kUnused;
      spec->pieces.push_back(piece.ok() ? std::move(piece.value()) : printed[i]);
    } else {
      spec->pieces.push_back(printed[i]);
    }
  }
  return ReadMerges(metadata, printed, spec);
}

Status ReadSentencePieceLike(GgufMetadata* metadata, const std::vector<std::string>& printed,
                             TokenizerSpec* spec) {
  spec->kind = TokenizerKind::kSentencePieceBpe;
  const GgufValue* scores = metadata->Find("tokenizer.ggml.scores");
  if (scores == nullptr || !scores->is_array || scores->n_floating() != printed.size()) {
    return Error(Code::kBadModel, "%s: tokenizer.ggml.scores must have one number for each of the %zu tokens",
                 metadata->where().c_str(), printed.size());
  }
  for (size_t i = 0; i < printed.size(); ++i) spec->scores.push_back(static_cast<float>(scores->Floating(i)));
  spec->unk = 0, spec->bos = 1, spec->eos = 2, spec->add_bos = true, spec->add_space_prefix = true;
  int n_bytes = 0;
  for (size_t i = 0; i < printed.size(); ++i) {
    const PieceKind kind = spec->piece_kinds[i];
    if (kind == PieceKind::kByte) {
      const int byte = ParseBytePiece(printed[i]);
      if (byte < 0)
        return Error(Code::kBadModel, "%s: token %zu is a byte token, but not <0x00> to <0xFF>",
                     metadata->where().c_str(), i);
      spec->pieces.emplace_back(1, static_cast<char>(byte));
      ++n_bytes;
    } else if (kind == PieceKind::kNormal || kind == PieceKind::kUserDefined) {
      spec->pieces.push_back(UndoSpaceSymbol(printed[i]));
    } else {
      spec->pieces.push_back(printed[i]);
    }
  }
  spec->byte_fallback = n_bytes > 0;
  KVC_RETURN_IF_ERROR(metadata->Bool("tokenizer.ggml.add_space_prefix", &spec->add_space_prefix));
  return metadata->Bool("tokenizer.ggml.remove_extra_whitespaces", &spec->remove_extra_spaces);
}

// The tokens of Phi-3's chats take the white space behind them along. GGUF has no place for that; llama.cpp
// goes by the name of the model.
void StripAsPhi3(GgufMetadata* metadata, TokenizerSpec* spec) {
  std::string architecture;
  if (!metadata->String("general.architecture", &architecture).ok() || architecture != "phi3") return;
  spec->piece_strips.assign(spec->pieces.size(), 0);
  for (size_t i = 0; i < spec->pieces.size(); ++i) {
    const std::string& piece = spec->pieces[i];
    const bool control = spec->piece_kinds[i] == PieceKind::kControl;
    const bool plain = piece == "<s>" || piece == "<unk>" || piece == "<|endoftext|>";
    if (control && !plain) spec->piece_strips[i] = kStripRight;
  }
}

// What GLM's texts begin with. GGUF has one place for it, in which files have another token, or none, and
// llama.cpp puts that one there, or nothing. Whether a text begins so, they say.
void BeginAsGlm(GgufMetadata* metadata, TokenizerSpec* spec) {
  std::string pre;
  if (!metadata->String("tokenizer.ggml.pre", &pre).ok()) return;
  const PreTokenizerRules* known = FindPreTokenizer(pre);
  if (known == nullptr || !known->glm) return;
  std::vector<int32_t> ids;
  for (const char* name : {"[gMASK]", "<sop>"}) {
    const auto piece = std::find(spec->pieces.begin(), spec->pieces.end(), name);
    const auto id = piece - spec->pieces.begin();
    if (piece == spec->pieces.end() || spec->piece_kinds[static_cast<size_t>(id)] != PieceKind::kControl)
      return;
    ids.push_back(static_cast<int32_t>(id));
  }
  spec->bos = ids.front(), spec->begin_tokens = std::move(ids);
}

// Tokens that end an answer by their names, whatever type they have: files give them every one.
std::vector<int32_t> EndsByName(const std::vector<std::string>& printed,
                                const std::vector<PieceKind>& kinds) {
  const auto is_there = [&](const char* name) {
    return std::find(printed.begin(), printed.end(), name) != printed.end();
  };
  // gpt-oss: "<|end|>" ends a channel. Gemma: "</s>" ends text that is struck through.
  const bool channels = is_there("<|return|>") && is_there("<|call|>"),
             tags = is_there("<eos>") || is_there("<end_of_turn>");
  const auto is_named = [&](const std::string& piece, PieceKind kind) {
    const auto same = [&](const char* name) { return piece == name; };
    return !(channels && piece == "<|end|>") && !(tags && kind != PieceKind::kControl && piece == "</s>") &&
           (std::any_of(std::begin(kStopNames), std::end(kStopNames), same) ||
            std::any_of(std::begin(kMoreGgufStopNames), std::end(kMoreGgufStopNames), same));
  };
  std::vector<int32_t> ids;
  const size_t most = static_cast<size_t>(kMaxStopTokens);  // pieces may all have one name
  for (size_t i = 0; i < printed.size() && ids.size() < most; ++i) {
    if (kinds[i] != PieceKind::kUnused && kinds[i] != PieceKind::kByte && is_named(printed[i], kinds[i]))
      ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// Nothing is computed with it: where files name a token that they do not have, it is none.
Status ReadPadding(GgufMetadata* metadata, int64_t last, int32_t* pad) {
  constexpr char kKey[] = "tokenizer.ggml.padding_token_id";
  const GgufValue* value = metadata->Find(kKey);
  const bool one = value != nullptr && !value->is_array && value->n_whole() == 1;
  if (one && (value->Whole(0) < 0 || value->Whole(0) > last)) return {};
  return metadata->Int(kKey, 0, last, pad);
}

Status ReadSpecialTokens(GgufMetadata* metadata, const std::vector<int32_t>& ends, TokenizerSpec* spec) {
  const int64_t last = static_cast<int64_t>(spec->pieces.size()) - 1;
  KVC_RETURN_IF_ERROR(metadata->Int("tokenizer.ggml.bos_token_id", 0, last, &spec->bos));
  KVC_RETURN_IF_ERROR(metadata->Int("tokenizer.ggml.eos_token_id", 0, last, &spec->eos));
  KVC_RETURN_IF_ERROR(metadata->Int("tokenizer.ggml.unknown_token_id", 0, last, &spec->unk));
  KVC_RETURN_IF_ERROR(ReadPadding(metadata, last, &spec->pad));
  KVC_RETURN_IF_ERROR(metadata->Bool("tokenizer.ggml.add_bos_token", &spec->add_bos));
  int32_t end_of_turn = -1, end_of_message = -1;
  KVC_RETURN_IF_ERROR(metadata->Int("tokenizer.ggml.eot_token_id", 0, last, &end_of_turn));
  KVC_RETURN_IF_ERROR(metadata->Int("tokenizer.ggml.eom_token_id", 0, last, &end_of_message));
  for (const int32_t id : {spec->eos, end_of_turn, end_of_message}) AddStop(id, spec);
  for (const int32_t id : ends) {
    MakeControl(id, spec);
    if (spec->stop_tokens.size() < static_cast<size_t>(kMaxStopTokens)) AddStop(id, spec);
  }
  bool add_eos = false;
  KVC_RETURN_IF_ERROR(metadata->Bool("tokenizer.ggml.add_eos_token", &add_eos));
  if (add_eos)
    return Error(Code::kUnsupported, "%s: tokenizer.ggml.add_eos_token is not supported",
                 metadata->where().c_str());
  const GgufValue* map = metadata->Find("tokenizer.ggml.precompiled_charsmap");
  if (map != nullptr && !map->numbers.empty())
    return Error(Code::kUnsupported, "%s: tokenizer.ggml.precompiled_charsmap is not supported",
                 metadata->where().c_str());
  return {};
}

}  // namespace

Result<TokenizerSpec> ReadGgufTokenizer(GgufMetadata* metadata) {
  std::string model;
  KVC_RETURN_IF_ERROR(metadata->String("tokenizer.ggml.model", &model));
  const std::vector<std::string>* printed = nullptr;
  KVC_RETURN_IF_ERROR(metadata->Strings("tokenizer.ggml.tokens", &printed));
  if (printed == nullptr || printed->empty() || printed->size() > static_cast<size_t>(kMaxVocab)) {
    return Error(Code::kBadModel, "%s: tokenizer.ggml.tokens is missing, empty or too long",
                 metadata->where().c_str());
  }
  TokenizerSpec spec;
  KVC_RETURN_IF_ERROR(ReadKinds(metadata, printed->size(), &spec.piece_kinds));
  const std::vector<int32_t> ends = EndsByName(*printed, spec.piece_kinds);
  for (const int32_t id : ends)  // before pieces are read: as text some are outside the alphabet of bytes
    spec.piece_kinds[static_cast<size_t>(id)] = PieceKind::kControl;
  if (model == "gpt2") {
    KVC_RETURN_IF_ERROR(ReadByteLevel(metadata, *printed, &spec));
  } else if (model == "llama") {
    KVC_RETURN_IF_ERROR(ReadSentencePieceLike(metadata, *printed, &spec));
    StripAsPhi3(metadata, &spec);
  } else {
    return Error(Code::kUnsupported,
                 "%s: the tokenizer model '%.60s' is not supported%s; supported: gpt2, llama",
                 metadata->where().c_str(), model.c_str(), WhyNotTokenizer(model).c_str());
  }
  KVC_RETURN_IF_ERROR(ReadSpecialTokens(metadata, ends, &spec));
  BeginAsGlm(metadata, &spec);
  return spec;
}

}  // namespace kvc
