// What both kinds of tokenizer share. Private to lib/model/tokenizer*.cc.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/model/tokenizer.h"
#include "lib/model/tokenizer_tables.h"

namespace kvc {

// What one call of Encode keeps from one part of its text to the next.
class EncodeWork {
 public:
  virtual ~EncodeWork() = default;
};

class TokenizerBase : public Tokenizer {
 public:
  TokenizerBase(const TokenizerView& view, MemoryMeter* meter);
  Status EncodeParts(Span<const uint8_t> text, Span<const TextRange> trusted, uint32_t flags,
                     TokenList* ids) const override;
  Span<const uint8_t> Piece(int32_t id) const override;
  Span<const uint8_t> TextOf(int32_t id, bool* at_start) const override;
  Status Decode(Span<const int32_t> ids, std::string* text) const override;
  bool IsStop(int32_t id) const override;
  Span<const int32_t> begin_tokens() const override { return begin_tokens_; }
  const TokenizerView& spec() const override { return view_; }
  int64_t bytes() const override { return charge_.bytes() + special_tokens_.bytes() + user_tokens_.bytes(); }

  // Checks the part of the view that is the kind's own and builds the lookups. Once, after CheckTokenizer.
  virtual Status Init() = 0;

 protected:
  // n_bytes: of the whole text.
  virtual std::unique_ptr<EncodeWork> StartWork(size_t n_bytes) const = 0;
  // Appends the ids of a part without special tokens. begins: a text begins here, by the rules of the kind.
  virtual Status EncodePlain(Span<const uint8_t> text, bool begins, EncodeWork* work,
                             TokenList* ids) const = 0;
  // Bytes of the token that is cut out of the text at `at`, 0: none. trusted: until where special ones count.
  size_t TokenAt(Span<const uint8_t> text, size_t at, size_t trusted, int32_t* id) const;
  PieceKind KindOf(int32_t id) const { return view_.Kind(static_cast<size_t>(id)); }
  // byte_ids[b]: the piece of the single byte b, among the pieces of a kind. A byte without one, or with two:
  // kBadModel; normal ones may lack bytes of no character in use (-1).
  Status BytePieces(PieceKind kind, int32_t* byte_ids) const;
  // Where the part of a word of more than kMaxWordBytes that starts at `begin` ends.
  size_t PartEnd(const uint8_t* bytes, size_t begin) const;

  const TokenizerView view_;
  MemoryMeter* const meter_;
  MeterCharge charge_;           // of the object itself and of what libraries hold for it
  TokenMatcher user_tokens_;     // user-defined pieces: cut out of the text always, where the kind wants that
  TokenMatcher special_tokens_;  // control and unknown pieces too: cut out when kParseSpecial
  PieceJoints joints_;           // of the pieces that merge
  bool cut_user_tokens_ = true;

 private:
  Status CheckIds(Span<const int32_t> ids) const;
  std::vector<int32_t> stop_tokens_;  // ascending
  std::vector<int32_t> begin_tokens_;
};

std::unique_ptr<TokenizerBase> NewByteLevelTokenizer(const TokenizerView& view, MemoryMeter* meter);
std::unique_ptr<TokenizerBase> NewSentencePieceTokenizer(const TokenizerView& view, MemoryMeter* meter);

}  // namespace kvc
