#include "lib/model/tokenizer_spec.h"

namespace kvc {

TokenizerSpec TokenizerView::ToSpec() const {
  TokenizerSpec spec;
  static_cast<TokenizerRules&>(spec) = *this;
  spec.pieces.reserve(n_pieces());
  spec.piece_kinds.reserve(piece_kinds.size());
  for (size_t i = 0; i < n_pieces(); ++i) {
    const Span<const uint8_t> piece = Piece(i);
    spec.pieces.emplace_back(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  for (size_t i = 0; i < piece_kinds.size(); ++i) {
    spec.piece_kinds.push_back(Kind(i));
    if (Strips(i) == 0) continue;
    spec.piece_strips.resize(i + 1);
    spec.piece_strips[i] = Strips(i);
  }
  spec.scores.assign(scores.begin(), scores.end());
  spec.merges.assign(merges.begin(), merges.end());
  spec.patterns.assign(patterns.begin(), patterns.end());
  spec.stop_tokens.assign(stop_tokens.begin(), stop_tokens.end());
  spec.begin_tokens.assign(begin_tokens.begin(), begin_tokens.end());
  return spec;
}

std::vector<uint8_t> FlatPieceKinds(const TokenizerSpec& spec) {
  std::vector<uint8_t> kinds;
  for (PieceKind kind : spec.piece_kinds) {
    const size_t i = kinds.size();
    const int strips = i < spec.piece_strips.size() ? spec.piece_strips[i] : 0;
    kinds.push_back(static_cast<uint8_t>(static_cast<int>(kind) + 16 * strips));
  }
  return kinds;
}

FlatTokenizer::FlatTokenizer(const TokenizerSpec& spec) : spec_(spec) {
  ends_.reserve(spec_.pieces.size());
  for (const std::string& piece : spec_.pieces) {
    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  kinds_ = FlatPieceKinds(spec_);
  static_cast<TokenizerRules&>(view_) = spec_;
  view_.piece_bytes = bytes_, view_.piece_ends = ends_, view_.piece_kinds = kinds_;
  view_.scores = spec_.scores, view_.merges = spec_.merges, view_.stop_tokens = spec_.stop_tokens;
  view_.begin_tokens = spec_.begin_tokens;
  view_.patterns.assign(spec_.patterns.begin(), spec_.patterns.end());
}

}  // namespace kvc
