// What both kinds of tokenizer share. Private to lib/model/tokenizer*.cc.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/model/tokenizer.h"
#include "lib/model/tokenizer_regex.h"
#include "lib/model/tokenizer_tables.h"

namespace kvc {

// A part of the text: plain (id -1), or a token written in it.
struct TextSegment {
  TextRange range;
  int32_t id = -1;
};

class TokenizerBase : public Tokenizer {
 public:
  explicit TokenizerBase(TokenizerSpec spec);
  Status Encode(Span<const uint8_t> text, bool add_bos, bool parse_special,
                std::vector<int32_t>* ids) const override;
  Span<const uint8_t> Piece(int32_t id) const override;
  bool IsStop(int32_t id) const override;
  const TokenizerSpec& spec() const override { return spec_; }

  // Checks the part of the spec that is the kind's own and builds the lookups. Once, after the common checks.
  virtual Status Init() = 0;

 protected:
  // Appends the ids of the segments. May leave some behind when it fails.
  virtual Status EncodeSegments(Span<const uint8_t> text, const std::vector<TextSegment>& segments,
                                std::vector<int32_t>* ids) const = 0;
  PieceKind KindOf(int32_t id) const { return spec_.piece_kinds[static_cast<size_t>(id)]; }
  Status CheckIds(Span<const int32_t> ids) const;
  // Ids of the pieces of some kinds, empty ones left out. Two of them with equal bytes: kBadModel.
  Status UniquePieces(std::initializer_list<PieceKind> kinds, PieceTable* table,
                      std::vector<int32_t>* ids) const;
  // byte_ids[b]: the piece of the single byte b, among the pieces of a kind. A byte without one, or with two:
  // kBadModel.
  Status BytePieces(PieceKind kind, std::vector<int32_t>* byte_ids) const;
  // The pair of a merge as a key of a FlatMap.
  static uint64_t PairKey(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // spec.merges as a map: PairKey -> rank << 32 | result, the result looked up in `table`. kBadModel names
  // the merge.
  Status BuildMerges(const PieceTable& table, FlatMap* merges) const;

  TokenizerSpec spec_;
  PieceTrie user_tokens_;     // user-defined pieces: cut out of the text always, where the kind wants that
  PieceTrie special_tokens_;  // control and unknown pieces too: cut out when parse_special
  bool cut_user_tokens_ = true;
};

std::unique_ptr<TokenizerBase> NewByteLevelTokenizer(TokenizerSpec spec);
std::unique_ptr<TokenizerBase> NewSentencePieceTokenizer(TokenizerSpec spec);

}  // namespace kvc
