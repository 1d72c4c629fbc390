// SentencePiece BPE: Llama 2, Mistral, llama2.c. Text → spaces by its rules → characters → merges by score →
// byte fallback.
//
// A space stands as ' ' here, in the text and in the pieces, where SentencePiece has U+2581; a U+2581 in the
// text is therefore a space, as it is there. Bytes that are not valid UTF-8 become byte pieces, and U+FFFD
// without byte fallback. After a special token that was parsed the space rules start anew, as in
// tokenizer.json files with a "Prepend" normalizer.
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_impl.h"
#include "lib/model/tokenizer_merge.h"

namespace kvc {
namespace {

class SentencePieceTokenizer final : public TokenizerBase {
 public:
  explicit SentencePieceTokenizer(TokenizerSpec spec)
      : TokenizerBase(std::move(spec)), table_(&spec_.pieces) {}
  Status Init() override;
  Status Decode(Span<const int32_t> ids, std::string* text) const override;

 protected:
  Status EncodeSegments(Span<const uint8_t> text, const std::vector<TextSegment>& segments,
                        std::vector<int32_t>* ids) const override;

 private:
  // Working memory of one Encode.
  struct Work {
    std::string text;  // after the space rules
    bool unknown_before = false;
    Merger merger;
    std::unordered_map<int32_t, uint32_t>
        splits;  // unused piece -> size of the left part it was last merged from
    std::vector<TextRange> parts;
  };
  void ApplySpaceRules(Span<const uint8_t> in, std::string* out) const;
  size_t WordEnd(const std::string& text, size_t begin) const;
  void MakeSymbols(const uint8_t* bytes, size_t begin, size_t end, std::vector<Symbol>* symbols) const;
  void EncodeWord(size_t begin, size_t end, Work* work, std::vector<int32_t>* ids) const;
  void Emit(const uint8_t* bytes, TextRange part, int32_t id, Work* work, std::vector<int32_t>* ids) const;
  void EmitUnused(const uint8_t* bytes, const Symbol& symbol, Work* work, std::vector<int32_t>* ids) const;
  Status CheckUtf8() const;
  Status RankScores();
  bool MayCutBeforeSpaces() const;

  PieceTable table_;               // normal, user-defined and unused pieces
  std::vector<uint32_t> ranks_;    // by id: 0 for the highest score; equal scores share a rank
  FlatMap merges_;                 // PairKey -> rank << 32 | result, when the spec has merges
  std::vector<int32_t> byte_ids_;  // [256] with byte fallback
  bool cut_before_spaces_ = false;
};

Status SentencePieceTokenizer::Init() {
  if (!spec_.patterns.empty() || spec_.nfc || spec_.ignore_merges) {
    return Error(Code::kBadModel,
                 "a SentencePiece tokenizer has patterns, NFC or ignore_merges, which are byte-level BPE's");
  }
  KVC_RETURN_IF_ERROR(CheckUtf8());
  std::vector<int32_t> ids;
  KVC_RETURN_IF_ERROR(
      UniquePieces({PieceKind::kNormal, PieceKind::kUserDefined, PieceKind::kUnused}, &table_, &ids));
  if (spec_.byte_fallback) {
    KVC_RETURN_IF_ERROR(BytePieces(PieceKind::kByte, &byte_ids_));
  } else if (spec_.unk < 0) {
    return Error(Code::kBadModel, "the tokenizer has neither byte fallback nor an unknown piece");
  }
  PieceTable added(&spec_.pieces);
  KVC_RETURN_IF_ERROR(UniquePieces({PieceKind::kControl, PieceKind::kUnknown}, &added, &ids));
  special_tokens_.Build(spec_.pieces, ids);
  KVC_RETURN_IF_ERROR(UniquePieces({PieceKind::kUserDefined}, &added, &ids));
  user_tokens_.Build(spec_.pieces, ids);
  cut_user_tokens_ = false;  // they stand inside the text, after the space rules
  cut_before_spaces_ = MayCutBeforeSpaces();
  return spec_.merges.empty() ? RankScores() : BuildMerges(table_, &merges_);
}

// When no piece has a space behind another character, nothing merges across such a place, and the words
// between can be merged one by one: the same ids with far less to sort. Unused pieces forbid it: what they
// fall apart into depends on the whole text.
bool SentencePieceTokenizer::MayCutBeforeSpaces() const {
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    const PieceKind kind = spec_.piece_kinds[i];
    if (kind == PieceKind::kUnused && !spec_.pieces[i].empty()) return false;
    if (kind != PieceKind::kNormal && kind != PieceKind::kUserDefined) continue;
    const std::string& piece = spec_.pieces[i];
    for (size_t at = 1; at < piece.size(); ++at) {
      if (piece[at] == ' ' && piece[at - 1] != ' ') return false;
    }
  }
  return true;
}

Status SentencePieceTokenizer::CheckUtf8() const {
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    if (spec_.piece_kinds[i] == PieceKind::kByte) {
      if (spec_.pieces[i].size() == 1) continue;
      return Error(Code::kBadModel, "piece %zu is a byte piece of %zu bytes", i, spec_.pieces[i].size());
    }
    if (!IsUtf8(spec_.pieces[i])) return Error(Code::kBadModel, "piece %zu is not UTF-8", i);
  }
  return {};
}

Status SentencePieceTokenizer::RankScores() {
  if (spec_.scores.size() != spec_.pieces.size()) {
    return Error(Code::kBadModel, "the tokenizer has %zu pieces, %zu scores and no merges",
                 spec_.pieces.size(), spec_.scores.size());
  }
  for (size_t i = 0; i < spec_.scores.size(); ++i) {
    if (!std::isfinite(spec_.scores[i]))
      return Error(Code::kBadModel, "the score of piece %zu is not finite", i);
  }
  std::vector<float> sorted = spec_.scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  ranks_.resize(spec_.scores.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), spec_.scores[i], std::greater<float>());
    ranks_[i] = static_cast<uint32_t>(at - sorted.begin());
  }
  return {};
}

Status SentencePieceTokenizer::EncodeSegments(Span<const uint8_t> text,
                                              const std::vector<TextSegment>& segments,
                                              std::vector<int32_t>* ids) const {
  Work work;
  for (const TextSegment& segment : segments) {
    if (segment.id >= 0) {
      ids->push_back(segment.id);
      continue;
    }
    ApplySpaceRules(text.subspan(segment.range.begin, segment.range.end - segment.range.begin), &work.text);
    if (work.text.size() > INT32_MAX) {
      return Error(Code::kInvalid, "the text has %zu bytes after its invalid bytes were replaced",
                   work.text.size());
    }
    work.unknown_before = false;
    for (size_t begin = 0; begin < work.text.size();) {
      const size_t end = WordEnd(work.text, begin);
      EncodeWord(begin, end, &work, ids);
      begin = end;
    }
  }
  return {};
}

void SentencePieceTokenizer::ApplySpaceRules(Span<const uint8_t> in, std::string* out) const {
  static constexpr uint8_t kSpaceSymbol[] = {0xE2, 0x96, 0x81};
  const bool squeeze = spec_.remove_extra_spaces;
  out->clear();
  size_t at = 0;
  while (squeeze && at < in.size() && in[at] == ' ') ++at;
  if (at == in.size()) return;
  if (spec_.add_space_prefix) *out += ' ';
  bool after_space = squeeze;
  while (at < in.size()) {
    const size_t length = Utf8Length(in.data() + at, in.size() - at);
    const bool space = in[at] == ' ';
    if (space) {
      if (!after_space) *out += ' ';
    } else if (length == 3 && std::equal(kSpaceSymbol, kSpaceSymbol + 3, in.data() + at)) {
      *out += ' ';  // not squeezed, as SentencePiece squeezes before it writes U+2581
    } else if (length == 0 && !spec_.byte_fallback) {
      *out += kReplacementChar;
    } else {
      out->append(reinterpret_cast<const char*>(in.data() + at), std::max<size_t>(length, 1));
    }
    after_space = squeeze && space;
    at += std::max<size_t>(length, 1);
  }
  while (squeeze && !out->empty() && out->back() == ' ') out->pop_back();
}

size_t SentencePieceTokenizer::WordEnd(const std::string& text, size_t begin) const {
  if (!cut_before_spaces_) return text.size();
  return std::min(text.find(' ', std::min(text.find_first_not_of(' ', begin), text.size())), text.size());
}

void SentencePieceTokenizer::MakeSymbols(const uint8_t* bytes, size_t begin, size_t end,
                                         std::vector<Symbol>* symbols) const {
  symbols->clear();
  for (size_t at = begin; at < end;) {
    Symbol symbol;
    size_t size = user_tokens_.Longest(bytes + at, end - at, &symbol.id);
    symbol.frozen = size > 0;
    if (size == 0) {
      size = Utf8Length(bytes + at, end - at);
      symbol.frozen = size == 0;  // a byte that is not UTF-8
      size = std::max<size_t>(size, 1);
      symbol.id = symbol.frozen ? -1 : table_.Find(bytes + at, size);
    }
    symbol.begin = static_cast<uint32_t>(at), symbol.size = static_cast<uint32_t>(size);
    symbols->push_back(symbol);
    at += size;
  }
}

void SentencePieceTokenizer::EncodeWord(size_t begin, size_t end, Work* work,
                                        std::vector<int32_t>* ids) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(work->text.data());
  std::vector<Symbol>& symbols = work->merger.symbols();
  MakeSymbols(bytes, begin, end, &symbols);
  work->splits.clear();
  if (spec_.merges.empty()) {
    work->merger.Run([&](const Symbol& left, const Symbol& right) {
      const int32_t id = table_.Find(bytes + left.begin, left.size + right.size);
      if (id < 0) return Merge{};
      if (KindOf(id) == PieceKind::kUnused) work->splits[id] = left.size;
      return Merge{ranks_[static_cast<size_t>(id)], id};
    });
  } else {
    work->merger.Run([&](const Symbol& left, const Symbol& right) {
      const uint64_t* merge = merges_.Find(PairKey(left.id, right.id));
      return merge == nullptr ? Merge{}
                              : Merge{static_cast<uint32_t>(*merge >> 32), static_cast<int32_t>(*merge)};
    });
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0 && KindOf(symbol.id) == PieceKind::kUnused) {
      EmitUnused(bytes, symbol, work, ids);
    } else {
      Emit(bytes, TextRange{symbol.begin, symbol.begin + symbol.size}, symbol.id, work, ids);
    }
  }
}

// One piece, or the bytes of what is none. Unknown characters next to each other are one unknown token.
void SentencePieceTokenizer::Emit(const uint8_t* bytes, TextRange part, int32_t id, Work* work,
                                  std::vector<int32_t>* ids) const {
  if (id >= 0) {
    ids->push_back(id);
  } else if (spec_.byte_fallback) {
    for (uint32_t at = part.begin; at < part.end; ++at) ids->push_back(byte_ids_[bytes[at]]);
  } else if (!work->unknown_before) {
    ids->push_back(spec_.unk);
  }
  work->unknown_before = id < 0;
}

// Unused pieces take part in merges, but in the end fall apart again into what they were merged from.
void SentencePieceTokenizer::EmitUnused(const uint8_t* bytes, const Symbol& symbol, Work* work,
                                        std::vector<int32_t>* ids) const {
  work->parts.assign(1, TextRange{symbol.begin, symbol.begin + symbol.size});
  while (!work->parts.empty()) {
    const TextRange part = work->parts.back();
    work->parts.pop_back();
    const int32_t id = table_.Find(bytes + part.begin, part.end - part.begin);
    const auto split =
        id >= 0 && KindOf(id) == PieceKind::kUnused ? work->splits.find(id) : work->splits.end();
    if (split == work->splits.end()) {
      Emit(bytes, part, id, work, ids);
      continue;
    }
    work->parts.push_back(TextRange{part.begin + split->second, part.end});
    work->parts.push_back(TextRange{part.begin, part.begin + split->second});
  }
}

Status SentencePieceTokenizer::Decode(Span<const int32_t> ids, std::string* text) const {
  KVC_RETURN_IF_ERROR(CheckIds(ids));
  text->clear();
  const bool strip = spec_.add_space_prefix || spec_.remove_extra_spaces;
  bool at_start = strip;
  for (int32_t id : ids) {
    const Span<const uint8_t> piece = Piece(id);
    size_t from = 0;
    const bool plain = KindOf(id) != PieceKind::kByte && KindOf(id) != PieceKind::kUnknown;
    if (at_start && plain && !piece.empty() && piece[0] == ' ') {
      from = 1;
      at_start = spec_.remove_extra_spaces;  // then every space at the start goes
    }
    text->append(reinterpret_cast<const char*>(piece.data()) + from, piece.size() - from);
    if (!text->empty()) at_start = false;
  }
  return {};
}

}  // namespace

std::unique_ptr<TokenizerBase> NewSentencePieceTokenizer(TokenizerSpec spec) {
  return std::make_unique<SentencePieceTokenizer>(std::move(spec));
}

}  // namespace kvc
