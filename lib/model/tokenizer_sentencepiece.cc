// SentencePiece BPE: Llama 2, Mistral, llama2.c. Text → spaces by its rules → characters → merges by score →
// byte fallback.
//
// A space stands as ' ' here, in the text and in the pieces, where SentencePiece has U+2581; a U+2581 in the
// text is therefore a space, as it is there. Bytes that are not valid UTF-8 become byte pieces, and U+FFFD
// without byte fallback. After a special token that was parsed the space rules start anew, as in
// tokenizer.json files with a "Prepend" normalizer.
//
// The text is rewritten and encoded a few words at a time: words end where no piece goes on (PieceJoints), so
// that each can be merged by itself with the same ids as in the whole.
#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_map>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_impl.h"
#include "lib/model/tokenizer_merge.h"
#include "lib/model/tokenizer_regex.h"

namespace kvc {
namespace {

constexpr size_t kBufferBytes = 2 * kMaxWordBytes, kMaxCharacter = 4;

// Scores are finite. The better one gets the smaller number, equal ones the same.
uint32_t RankOf(float score) {
  score += 0.0f;  // -0 is 0
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof bits);
  const bool negative = (bits >> 31) != 0;
  return negative ? bits : ~(bits | 0x80000000u);
}

class SentencePieceTokenizer final : public TokenizerBase {
 public:
  using TokenizerBase::TokenizerBase;
  Status Init() override;
  int64_t bytes() const override { return TokenizerBase::bytes() + table_.bytes() + merges_.bytes(); }

 protected:
  std::unique_ptr<EncodeWork> StartWork(size_t n_bytes) const override {
    return std::make_unique<Work>(n_bytes);
  }
  Status EncodePlain(Span<const uint8_t> text, bool begins, EncodeWork* work, TokenList* ids) const override;

 private:
  struct Work final : EncodeWork {
    // A byte becomes at most the three of U+FFFD, and a space comes before them all.
    explicit Work(size_t n_bytes) {
      const size_t most = std::min(3 * n_bytes + 1, kBufferBytes) + kMaxCharacter;
      if (!text.Allocate(nullptr, static_cast<int64_t>(most), "text").ok()) throw std::bad_alloc();
    }
    Buffer<uint8_t> text;  // by the space rules, not encoded yet
    size_t size = 0;
    size_t pending_spaces = 0;  // where extra spaces go: they count when something follows
    bool unknown_before = false;
    Merger merger;
    std::unordered_map<int32_t, uint32_t>
        splits;  // unused piece -> size of the left part it was last merged from
    std::vector<TextRange> parts;
  };
  void PutSpace(Work* work, TokenList* ids) const;
  void Put(const void* bytes, size_t n, Work* work, TokenList* ids) const;
  void EncodeBuffer(bool all, Work* work, TokenList* ids) const;
  size_t WordEnd(const Work& work, size_t begin) const;
  void AddSymbols(const uint8_t* word, size_t size, Merger* merger) const;
  void EncodeWord(const uint8_t* word, size_t size, Work* work, TokenList* ids) const;
  void Emit(const uint8_t* bytes, TextRange part, int32_t id, Work* work, TokenList* ids) const;
  void EmitUnused(const uint8_t* bytes, const Symbol& symbol, Work* work, TokenList* ids) const;
  Status CheckPieces() const;

  PieceTable table_;  // normal, user-defined and unused pieces
  MergeTable merges_;
  int32_t byte_ids_[256] = {};  // with byte fallback
  bool has_unused_ = false;
};

Status SentencePieceTokenizer::Init() {
  if (!view_.patterns.empty() || view_.nfc || view_.ignore_merges) {
    return Error(Code::kBadModel,
                 "a SentencePiece tokenizer has patterns, NFC or ignore_merges, which are byte-level BPE's");
  }
  KVC_RETURN_IF_ERROR(CheckPieces());
  KVC_RETURN_IF_ERROR(charge_.Add(meter_, sizeof *this, "the tokenizer"));
  KVC_RETURN_IF_ERROR(
      table_.Build(view_, {PieceKind::kNormal, PieceKind::kUserDefined, PieceKind::kUnused}, meter_));
  if (view_.byte_fallback) {
    KVC_RETURN_IF_ERROR(BytePieces(PieceKind::kByte, byte_ids_));
  } else if (view_.unk < 0) {
    return Error(Code::kBadModel, "the tokenizer has neither byte fallback nor an unknown piece");
  }
  KVC_RETURN_IF_ERROR(special_tokens_.Build(view_, {PieceKind::kControl, PieceKind::kUnknown}, meter_));
  KVC_RETURN_IF_ERROR(user_tokens_.Build(view_, {PieceKind::kUserDefined}, meter_));
  cut_user_tokens_ = false;  // they stand inside the text, after the space rules
  joints_.Build(view_, {PieceKind::kNormal, PieceKind::kUserDefined, PieceKind::kUnused});
  for (size_t i = 0; i < view_.n_pieces(); ++i)
    has_unused_ = has_unused_ || (view_.Kind(i) == PieceKind::kUnused && !view_.Piece(i).empty());
  if (!view_.merges.empty()) {
    KVC_RETURN_IF_ERROR(merges_.FindResults(view_, table_, meter_));
    return merges_.Build(meter_);
  }
  if (view_.scores.size() == view_.n_pieces()) return {};
  return Error(Code::kBadModel, "the tokenizer has %zu pieces, %zu scores and no merges", view_.n_pieces(),
               view_.scores.size());
}

Status SentencePieceTokenizer::CheckPieces() const {
  for (size_t i = 0; i < view_.n_pieces(); ++i) {
    const Span<const uint8_t> piece = view_.Piece(i);
    if (view_.Kind(i) == PieceKind::kByte) {
      if (piece.size() == 1) continue;
      return Error(Code::kBadModel, "piece %zu is a byte piece of %zu bytes", i, piece.size());
    }
    bool valid = true;
    if (!piece.empty() && (Utf8RunEnd(piece.data(), piece.size(), 0, &valid) != piece.size() || !valid))
      return Error(Code::kBadModel, "piece %zu is not UTF-8", i);
  }
  return {};
}

Status SentencePieceTokenizer::EncodePlain(Span<const uint8_t> in, bool begins, EncodeWork* base,
                                           TokenList* ids) const {
  static constexpr uint8_t kSpaceSymbol[] = {0xE2, 0x96, 0x81};
  Work* work = static_cast<Work*>(base);
  work->unknown_before = false;
  const bool squeeze = view_.remove_extra_spaces;
  size_t at = 0;
  while (squeeze && begins && at < in.size() && in[at] == ' ') ++at;
  if (at == in.size()) return {};
  const bool has_space =
      in[at] == ' ' || (in.size() - at >= 3 && std::equal(kSpaceSymbol, kSpaceSymbol + 3, in.data() + at));
  if (view_.add_space_prefix && begins && !(has_space && view_.space_prefix != SpacePrefix::kAlways))
    PutSpace(work, ids);
  bool after_space = squeeze && begins;
  while (at < in.size()) {
    const size_t length = Utf8Length(in.data() + at, in.size() - at);
    const bool space = in[at] == ' ';
    if (space) {
      if (!after_space) PutSpace(work, ids);
    } else if (length == 3 && std::equal(kSpaceSymbol, kSpaceSymbol + 3, in.data() + at)) {
      PutSpace(work, ids);  // not squeezed, as SentencePiece squeezes before it writes U+2581
    } else if (length == 0 && !view_.byte_fallback) {
      Put(kReplacementChar, sizeof kReplacementChar - 1, work, ids);
    } else {
      Put(in.data() + at, std::max<size_t>(length, 1), work, ids);
    }
    after_space = squeeze && space;
    at += std::max<size_t>(length, 1);
  }
  work->pending_spaces = 0;
  EncodeBuffer(true, work, ids);
  return {};
}

// Where extra spaces are removed those at the end go: each waits for what follows.
void SentencePieceTokenizer::PutSpace(Work* work, TokenList* ids) const {
  if (!view_.remove_extra_spaces) return Put(" ", 1, work, ids);
  ++work->pending_spaces;
}

void SentencePieceTokenizer::Put(const void* bytes, size_t n, Work* work, TokenList* ids) const {
  for (; work->pending_spaces > 0; --work->pending_spaces) {
    work->text[static_cast<int64_t>(work->size++)] = ' ';
    if (work->size >= kBufferBytes) EncodeBuffer(false, work, ids);
  }
  std::memcpy(work->text.data() + work->size, bytes, n);
  work->size += n;
  if (work->size >= kBufferBytes) EncodeBuffer(false, work, ids);
}

// Encodes the words of the buffer, all or those whose end is seen, and removes them.
void SentencePieceTokenizer::EncodeBuffer(bool all, Work* work, TokenList* ids) const {
  size_t begin = 0;
  while (begin < work->size) {
    const size_t end = WordEnd(*work, begin);
    if (end == work->size && !all) break;
    EncodeWord(work->text.data() + begin, end - begin, work, ids);
    begin = end;
  }
  work->size -= begin;
  std::memmove(work->text.data(), work->text.data() + begin, work->size);
}

// Unused pieces forbid to cut: what they fall apart into depends on the whole text.
size_t SentencePieceTokenizer::WordEnd(const Work& work, size_t begin) const {
  const uint8_t* bytes = work.text.data();
  const size_t most = std::min(work.size, begin + kMaxWordBytes);
  for (size_t at = begin + 1; at < most && !has_unused_; ++at) {
    if (joints_.IsBorder(bytes[at - 1], bytes[at])) return at;
  }
  return work.size - begin > kMaxWordBytes ? PartEnd(bytes, begin) : work.size;
}

void SentencePieceTokenizer::AddSymbols(const uint8_t* word, size_t size, Merger* merger) const {
  merger->Begin(size);
  for (size_t at = 0; at < size;) {
    Symbol symbol;
    size_t length = user_tokens_.Longest(word + at, size - at, &symbol.id);
    bool frozen = length > 0;
    if (length == 0) {
      length = Utf8Length(word + at, size - at);
      frozen = length == 0;  // a byte that is not UTF-8
      length = std::max<size_t>(length, 1);
      if (!frozen) symbol.id = table_.Find(word + at, length);
    }
    symbol.begin = static_cast<uint32_t>(at), symbol.size = static_cast<uint32_t>(length);
    merger->Add(symbol, frozen);
    at += length;
  }
}

void SentencePieceTokenizer::EncodeWord(const uint8_t* word, size_t size, Work* work, TokenList* ids) const {
  Merger& merger = work->merger;
  AddSymbols(word, size, &merger);
  work->splits.clear();
  if (view_.merges.empty()) {
    merger.Run([&](const Symbol& left, const Symbol& right) {
      const int32_t id = table_.Find(word + left.begin, left.size + right.size);
      if (id < 0) return Merge{};
      if (KindOf(id) == PieceKind::kUnused) work->splits[id] = left.size;
      return Merge{RankOf(view_.scores[static_cast<size_t>(id)]), id};
    });
  } else {
    merger.Run([&](const Symbol& left, const Symbol& right) { return merges_.Find(left.id, right.id); });
  }
  merger.ForEach([&](const Symbol& symbol) {
    if (symbol.id >= 0 && KindOf(symbol.id) == PieceKind::kUnused) {
      EmitUnused(word, symbol, work, ids);
    } else {
      Emit(word, TextRange{symbol.begin, symbol.begin + symbol.size}, symbol.id, work, ids);
    }
  });
}

// One piece, or the bytes of what is none. Unknown characters next to each other are one unknown token.
void SentencePieceTokenizer::Emit(const uint8_t* bytes, TextRange part, int32_t id, Work* work,
                                  TokenList* ids) const {
  if (id >= 0) {
    ids->Push(id);
  } else if (view_.byte_fallback) {
    for (uint32_t at = part.begin; at < part.end; ++at) ids->Push(byte_ids_[bytes[at]]);
  } else if (!work->unknown_before) {
    ids->Push(view_.unk);
  }
  work->unknown_before = id < 0;
}

// Unused pieces take part in merges, but in the end fall apart again into what they were merged from.
void SentencePieceTokenizer::EmitUnused(const uint8_t* bytes, const Symbol& symbol, Work* work,
                                        TokenList* ids) const {
  work->parts.assign(1, TextRange{symbol.begin, symbol.begin + symbol.size});
  while (!work->parts.empty()) {
    const TextRange part = work->parts.back();
    work->parts.pop_back();
    const int32_t id = table_.Find(bytes + part.begin, part.end - part.begin);
    const auto split =
        id >= 0 && KindOf(id) == PieceKind::kUnused ? work->splits.find(id) : work->splits.end();
    // In a mapping the piece may have been a longer one when it was merged.
    if (split == work->splits.end() || split->second >= part.end - part.begin) {
      Emit(bytes, part, id, work, ids);
      continue;
    }
    work->parts.push_back(TextRange{part.begin + split->second, part.end});
    work->parts.push_back(TextRange{part.begin, part.begin + split->second});
  }
}

}  // namespace

std::unique_ptr<TokenizerBase> NewSentencePieceTokenizer(const TokenizerView& view, MemoryMeter* meter) {
  return std::make_unique<SentencePieceTokenizer>(view, meter);
}

}  // namespace kvc
