#include "lib/model/tokenizer.h"

#include <algorithm>
#include <cmath>

#include "lib/model/model_config.h"
#include "lib/model/tokenizer_impl.h"

namespace kvc {
namespace {

constexpr size_t kMaxPieceBytes = 1024;  // bounds the work at one place of a text
constexpr size_t kMaxMerges = size_t{1} << 23;
constexpr size_t kMaxTextBytes = INT32_MAX;
constexpr char kUnknownSurface[] = " \xE2\x81\x87 ";  // " ⁇ ": what SentencePiece prints for unknown

Status CheckId(const TokenizerSpec& spec, const char* what, int32_t id, int32_t min) {
  if (id >= min && (id < 0 || static_cast<size_t>(id) < spec.pieces.size())) return {};
  return Error(Code::kBadModel, "the tokenizer's %s is %d, it has %zu pieces", what, id, spec.pieces.size());
}

Status CheckSpec(const TokenizerSpec& spec) {
  const size_t n = spec.pieces.size();
  if (n == 0 || n > static_cast<size_t>(kMaxVocab)) {
    return Error(Code::kBadModel, "the tokenizer has %zu pieces, the range is 1 to %d", n, kMaxVocab);
  }
  if (spec.piece_kinds.size() != n) {
    return Error(Code::kBadModel, "the tokenizer has %zu pieces but %zu kinds", n, spec.piece_kinds.size());
  }
  for (size_t i = 0; i < n; ++i) {
    if (spec.piece_kinds[i] > PieceKind::kUnused) {
      return Error(Code::kBadModel, "piece %zu has the unknown kind %d", i,
                   static_cast<int>(spec.piece_kinds[i]));
    }
    if (spec.pieces[i].size() > kMaxPieceBytes) {
      return Error(Code::kBadModel, "piece %zu has %zu bytes, the limit is %zu", i, spec.pieces[i].size(),
                   kMaxPieceBytes);
    }
    const PieceKind kind = spec.piece_kinds[i];
    if (spec.pieces[i].empty() && kind != PieceKind::kUnused && kind != PieceKind::kControl &&
        kind != PieceKind::kUnknown) {
      return Error(Code::kBadModel, "piece %zu is empty", i);
    }
  }
  if (spec.merges.size() % 2 != 0 || spec.merges.size() / 2 > kMaxMerges) {
    return Error(Code::kBadModel, "the tokenizer's merges are %zu ids, not pairs of at most %zu",
                 spec.merges.size(), kMaxMerges);
  }
  for (int32_t id : spec.merges) KVC_RETURN_IF_ERROR(CheckId(spec, "merge", id, 0));
  KVC_RETURN_IF_ERROR(CheckId(spec, "bos", spec.bos, -1));
  KVC_RETURN_IF_ERROR(CheckId(spec, "eos", spec.eos, -1));
  KVC_RETURN_IF_ERROR(CheckId(spec, "unk", spec.unk, -1));
  KVC_RETURN_IF_ERROR(CheckId(spec, "pad", spec.pad, -1));
  for (int32_t id : spec.stop_tokens) KVC_RETURN_IF_ERROR(CheckId(spec, "stop token", id, 0));
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  KVC_RETURN_IF_ERROR(CheckSpec(spec));
  std::unique_ptr<TokenizerBase> tokenizer;
  switch (spec.kind) {
    case TokenizerKind::kByteLevelBpe:
      tokenizer = NewByteLevelTokenizer(std::move(spec));
      break;
    case TokenizerKind::kSentencePieceBpe:
      tokenizer = NewSentencePieceTokenizer(std::move(spec));
      break;
  }
  if (tokenizer == nullptr) return Error(Code::kBadModel, "the kind of the tokenizer is not known");
  KVC_RETURN_IF_ERROR(tokenizer->Init());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

TokenizerBase::TokenizerBase(TokenizerSpec spec) : spec_(std::move(spec)) {
  std::sort(spec_.stop_tokens.begin(), spec_.stop_tokens.end());
}

Status TokenizerBase::Encode(Span<const uint8_t> text, bool add_bos, bool parse_special,
                             std::vector<int32_t>* ids) const {
  if (text.size() > kMaxTextBytes) {
    return Error(Code::kInvalid, "the text has %zu bytes, the limit is %zu", text.size(), kMaxTextBytes);
  }
  const PieceTrie empty;
  const PieceTrie& tokens = parse_special ? special_tokens_ : cut_user_tokens_ ? user_tokens_ : empty;
  std::vector<TextSegment> segments;
  uint32_t plain = 0;
  const auto n = static_cast<uint32_t>(text.size());
  const auto add_plain = [&](uint32_t end) {
    if (plain < end) segments.push_back(TextSegment{TextRange{plain, end}, -1});
  };
  for (uint32_t at = 0; at < n && !tokens.empty();) {
    int32_t id = -1;
    const auto size = static_cast<uint32_t>(tokens.Longest(text.data() + at, n - at, &id));
    if (size == 0) {
      ++at;
      continue;
    }
    add_plain(at);
    segments.push_back(TextSegment{TextRange{at, at + size}, id});
    plain = at += size;
  }
  add_plain(n);

  const size_t before = ids->size();
  if (add_bos && spec_.bos >= 0) ids->push_back(spec_.bos);
  Status status = EncodeSegments(text, segments, ids);
  if (!status.ok()) ids->resize(before);
  return status;
}

Span<const uint8_t> TokenizerBase::Piece(int32_t id) const {
  const std::string& piece = spec_.pieces[static_cast<size_t>(id)];
  const PieceKind kind = KindOf(id);
  if (kind == PieceKind::kControl) return {};
  if (kind == PieceKind::kUnknown) {
    if (spec_.kind == TokenizerKind::kByteLevelBpe) return {};
    return {reinterpret_cast<const uint8_t*>(kUnknownSurface), sizeof kUnknownSurface - 1};
  }
  return {reinterpret_cast<const uint8_t*>(piece.data()), piece.size()};
}

bool TokenizerBase::IsStop(int32_t id) const {
  return std::binary_search(spec_.stop_tokens.begin(), spec_.stop_tokens.end(), id);
}

Status TokenizerBase::CheckIds(Span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= spec_.pieces.size()) {
      return Error(Code::kInvalid, "token %zu is %d, the vocabulary is 0 to %zu", i, ids[i],
                   spec_.pieces.size() - 1);
    }
  }
  return {};
}

Status TokenizerBase::UniquePieces(std::initializer_list<PieceKind> kinds, PieceTable* table,
                                   std::vector<int32_t>* ids) const {
  ids->clear();
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    const bool wanted = std::find(kinds.begin(), kinds.end(), spec_.piece_kinds[i]) != kinds.end();
    if (wanted && !spec_.pieces[i].empty()) ids->push_back(static_cast<int32_t>(i));
  }
  table->Reserve(ids->size());
  for (int32_t id : *ids) {
    const int32_t other = table->Add(id);
    if (other >= 0) {
      return Error(Code::kBadModel, "pieces %d and %d are both \"%.80s\"", other, id,
                   spec_.pieces[static_cast<size_t>(id)].c_str());
    }
  }
  return {};
}

Status TokenizerBase::BytePieces(PieceKind kind, std::vector<int32_t>* byte_ids) const {
  byte_ids->assign(256, -1);
  for (size_t i = 0; i < spec_.pieces.size(); ++i) {
    if (spec_.piece_kinds[i] != kind || spec_.pieces[i].size() != 1) continue;
    const auto byte = static_cast<uint8_t>(spec_.pieces[i][0]);
    if ((*byte_ids)[byte] >= 0) {
      return Error(Code::kBadModel, "pieces %d and %zu are both the byte 0x%02X", (*byte_ids)[byte], i, byte);
    }
    (*byte_ids)[byte] = static_cast<int32_t>(i);
  }
  for (size_t b = 0; b < 256; ++b) {
    if ((*byte_ids)[b] < 0)
      return Error(Code::kBadModel, "the tokenizer has no piece for the byte 0x%02zX", b);
  }
  return {};
}

Status TokenizerBase::BuildMerges(const PieceTable& table, FlatMap* merges) const {
  merges->Reserve(spec_.merges.size() / 2);
  std::string joined;
  for (size_t i = 0; i + 1 < spec_.merges.size(); i += 2) {
    const int32_t left = spec_.merges[i], right = spec_.merges[i + 1];
    for (int32_t id : {left, right}) {
      if (KindOf(id) == PieceKind::kNormal || KindOf(id) == PieceKind::kUserDefined) continue;
      return Error(Code::kBadModel, "merge %zu joins piece %d, which is not a piece of text", i / 2, id);
    }
    joined = spec_.pieces[static_cast<size_t>(left)] + spec_.pieces[static_cast<size_t>(right)];
    const int32_t result = table.Find(reinterpret_cast<const uint8_t*>(joined.data()), joined.size());
    if (result < 0) {
      return Error(Code::kBadModel, "merge %zu of pieces %d and %d makes \"%.80s\", which is no piece", i / 2,
                   left, right, joined.c_str());
    }
    if (!merges->Add(PairKey(left, right), uint64_t{i / 2} << 32 | static_cast<uint32_t>(result))) {
      return Error(Code::kBadModel, "merge %zu of pieces %d and %d is there twice", i / 2, left, right);
    }
  }
  return {};
}

}  // namespace kvc
