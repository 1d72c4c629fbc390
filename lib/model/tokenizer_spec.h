// What a tokenizer consists of, twice: as a converter fills it, and as it lies in a model file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/span.h"

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

// Added tokens that take the white space of the text next to them along (Phi).
constexpr uint8_t kStripLeft = 1, kStripRight = 2;

// Where add_space_prefix puts its space.
enum class SpacePrefix : uint8_t {
  kAlways = 0,       // before a text, and behind each special token within it
  kUnlessSpace = 1,  // the same, but not where a space stands (Metaspace "always")
  kFirst = 2,        // as kUnlessSpace, but only where the whole text begins (Metaspace "first")
};

struct TokenizerRules {
  TokenizerKind kind = TokenizerKind::kByteLevelBpe;
  bool ignore_merges =
      false;         // byte-level BPE: a whole word in the vocabulary is taken before merging (Llama 3)
  bool nfc = false;  // normalise to NFC first (Qwen)
  bool add_space_prefix = false;  // SentencePiece: a space goes before the text
  SpacePrefix space_prefix = SpacePrefix::kAlways;
  bool remove_extra_spaces = false;  // SentencePiece: runs of spaces become one, ends are trimmed
  bool byte_fallback = false;        // SentencePiece: unknown characters become byte pieces
  bool add_bos = true;               // whether a prompt starts with BOS
  int32_t bos = -1, eos = -1, unk = -1, pad = -1;
  int32_t n_byte_patterns = 0;  // the last so many patterns see bytes, not characters (Falcon)
};

// Owns its parts; easy to fill. What it may hold: CheckTokenizer (model_check.h).
struct TokenizerSpec : TokenizerRules {
  // id -> bytes as the piece prints them. Byte-level BPE: the GPT-2 byte alphabet undone. SentencePiece: ' '
  // for U+2581, and a kByte piece is its one byte. Control and unknown pieces: as written in text. Ids
  // without a piece: kUnused and empty.
  std::vector<std::string> pieces;
  std::vector<PieceKind> piece_kinds;  // same size as pieces
  std::vector<uint8_t> piece_strips;   // kStripLeft and kStripRight of the first pieces; behind its end none
  std::vector<float> scores;           // SentencePiece: merge priority per piece; else empty
  std::vector<int32_t> merges;  // pairs (left id, right id), best first. SentencePiece: empty, or, from a
                                // tokenizer.json, these decide instead of scores
  std::vector<std::string> patterns;  // byte-level BPE: pre-tokenizer regular expressions, applied one after
                                      // the other (each isolates its matches)
  std::vector<int32_t> stop_tokens;   // eos and other ends of turn
  std::vector<int32_t> begin_tokens;  // what stands before a prompt where bos would; empty: bos
};

// The same in flat arrays that lie elsewhere, such as the directory of a mapped file. Does not own.
struct TokenizerView : TokenizerRules {
  Span<const uint8_t> piece_bytes;  // all pieces, one after the other
  Span<const uint32_t> piece_ends;  // piece i is piece_bytes[ends[i - 1], ends[i])
  Span<const uint8_t> piece_kinds;  // of each: PieceKind + 16 * strips
  Span<const float> scores;
  Span<const int32_t> merges, stop_tokens, begin_tokens;
  std::vector<std::string_view> patterns;

  size_t n_pieces() const { return piece_ends.size(); }
  PieceKind Kind(size_t id) const { return static_cast<PieceKind>(piece_kinds[id] % 16); }
  uint8_t Strips(size_t id) const { return piece_kinds[id] / 16; }
  // The ends are looked at each time: in a mapping they may change after they were checked, and then a piece
  // is empty or another one, but never outside.
  Span<const uint8_t> Piece(size_t id) const {
    const size_t begin = id == 0 ? 0 : piece_ends[id - 1], end = piece_ends[id];
    if (begin > end || end > piece_bytes.size()) return {};
    return Span<const uint8_t>(piece_bytes.data() + begin, end - begin);
  }
  TokenizerSpec ToSpec() const;
};

// TokenizerView::piece_kinds of a spec.
std::vector<uint8_t> FlatPieceKinds(const TokenizerSpec& spec);

// A spec as flat arrays, for those who need a view of one.
class FlatTokenizer {
 public:
  explicit FlatTokenizer(const TokenizerSpec& spec);  // the spec is copied
  FlatTokenizer(const FlatTokenizer&) = delete;
  FlatTokenizer& operator=(const FlatTokenizer&) = delete;
  const TokenizerView& view() const { return view_; }

 private:
  const TokenizerSpec spec_;
  std::vector<uint8_t> bytes_, kinds_;
  std::vector<uint32_t> ends_;
  TokenizerView view_;
};

}  // namespace kvc
