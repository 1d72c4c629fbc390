// Text to token ids and back, exactly as the model was trained. Immutable after Create; thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

enum class TokenizerKind : uint8_t { kByteLevelBpe = 1, kSentencePieceBpe = 2 };
enum class PieceKind : uint8_t {
  kNormal = 0,
  kUnknown = 1,
  kControl = 2,
  kByte = 3,
  kUserDefined = 4,
  kUnused = 5
};

// What the model file stores; plain data, filled by the converter, checked by Tokenizer::Create.
struct TokenizerSpec {
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  // id -> bytes as the piece prints them. Byte-level BPE: the GPT-2 byte alphabet undone. SentencePiece: ' '
  // for U+2581, and a kByte piece is its one byte. Control and unknown pieces: as written in text. Ids
  // without a piece: kUnused and empty.
  std::vector<std::string> pieces;
  std::vector<PieceKind> piece_kinds;  // same size as pieces
  std::vector<float> scores;           // SentencePiece: merge priority per piece; else empty
  std::vector<int32_t> merges;  // pairs (left id, right id), best first. SentencePiece: empty, or, from a
                                // tokenizer.json, these decide instead of scores
  std::vector<std::string> patterns;  // byte-level BPE: pre-tokenizer regular expressions, applied one after
                                      // the other (each isolates its matches)
  bool ignore_merges =
      false;         // byte-level BPE: a whole word in the vocabulary is taken before merging (Llama 3)
  bool nfc = false;  // normalise to NFC first (Qwen)
  bool add_space_prefix = false;     // SentencePiece: a space goes before the text
  bool remove_extra_spaces = false;  // SentencePiece: runs of spaces become one, ends are trimmed
  bool byte_fallback = false;        // SentencePiece: unknown characters become byte pieces
  int32_t bos = -1, eos = -1, unk = -1, pad = -1;
  std::vector<int32_t> stop_tokens;  // eos and other ends of turn
  bool add_bos = true;               // whether a prompt starts with BOS
};

class Tokenizer {
 public:
  // kBadModel with what and where when the spec is inconsistent (duplicate or missing pieces, merges of
  // pieces that do not exist, a pattern that does not compile, ids out of range).
  static Result<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  virtual ~Tokenizer() = default;
  // Appends the ids of `text` to `ids`. Time linear in the text. parse_special: special tokens written in the
  // text become their ids; otherwise they are text. add_bos: prepends BOS when the model has one.
  virtual Status Encode(Span<const uint8_t> text, bool add_bos, bool parse_special,
                        std::vector<int32_t>* ids) const = 0;
  // Bytes of one token inside a text (SentencePiece's leading space kept). Control tokens give "". id must be
  // in range.
  virtual Span<const uint8_t> Piece(int32_t id) const = 0;
  // The text of ids, as the model's own library gives it with special tokens skipped (SentencePiece: no space
  // at the start).
  virtual Status Decode(Span<const int32_t> ids, std::string* text) const = 0;
  virtual bool IsStop(int32_t id) const = 0;
  virtual const TokenizerSpec& spec() const = 0;
};

}  // namespace kvc
