#include "lib/model/tokenizer.h"

#include <algorithm>

#include "lib/base/utf8.h"
#include "lib/model/model_check.h"
#include "lib/model/tokenizer_impl.h"
#include "lib/model/tokenizer_merge.h"

namespace kvc {
namespace {

constexpr size_t kMaxEncodedText = INT32_MAX;         // bytes
constexpr char kUnknownSurface[] = " \xE2\x81\x87 ";  // " ⁇ ": what SentencePiece prints for unknown

// White_Space of Unicode, to which the separators of ASCII do not belong.
bool IsSpace(int32_t c) { return IsWhiteSpace(c) && (c < 28 || c > 31); }

// Where the white space that starts at `at` ends.
size_t SpacesAfter(Span<const uint8_t> text, size_t at) {
  int32_t c = 0;
  for (size_t n; at < text.size(); at += n) {
    n = Utf8Length(text.data() + at, text.size() - at, &c);
    if (n == 0 || !IsSpace(c)) break;
  }
  return at;
}

// Where the white space that ends at `at` starts, not before `first`.
size_t SpacesBefore(Span<const uint8_t> text, size_t first, size_t at) {
  while (at > first) {
    size_t begin = at - 1;
    while (begin > first && at - begin < 3 && (text[begin] & 0xC0) == 0x80) --begin;
    int32_t c = 0;
    if (Utf8Length(text.data() + begin, at - begin, &c) != at - begin || !IsSpace(c)) break;
    at = begin;
  }
  return at;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerView& view, MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(CheckTokenizer(view, static_cast<int64_t>(view.n_pieces())));
  std::unique_ptr<TokenizerBase> tokenizer = view.kind == TokenizerKind::kByteLevelBpe
                                                 ? NewByteLevelTokenizer(view, meter)
                                                 : NewSentencePieceTokenizer(view, meter);
  KVC_RETURN_IF_ERROR(tokenizer->Init());
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

Status Tokenizer::Encode(Span<const uint8_t> text, uint32_t flags, std::vector<int32_t>* ids) const {
  TokenList list;
  KVC_RETURN_IF_ERROR(Encode(text, flags, &list));
  const size_t before = ids->size();
  ids->resize(before + list.size());
  list.CopyTo(ids->data() + before);
  return {};
}

TokenizerBase::TokenizerBase(const TokenizerView& view, MemoryMeter* meter)
    : view_(view),
      meter_(meter),
      stop_tokens_(view.stop_tokens.begin(), view.stop_tokens.end()),
      begin_tokens_(view.begin_tokens.begin(), view.begin_tokens.end()) {
  if (begin_tokens_.empty() && view.bos >= 0) begin_tokens_.push_back(view.bos);
  std::sort(stop_tokens_.begin(), stop_tokens_.end());
}

Status Tokenizer::Encode(Span<const uint8_t> text, uint32_t flags, TokenList* ids) const {
  const TextRange all{0, static_cast<uint32_t>(text.size())};
  return EncodeParts(text, {&all, (flags & kParseSpecial) != 0 ? size_t{1} : 0}, flags, ids);
}

size_t TokenizerBase::TokenAt(Span<const uint8_t> text, size_t at, size_t trusted, int32_t* id) const {
  int32_t special = -1, user = -1;
  const size_t n_special =
                   at < trusted ? special_tokens_.Longest(text.data() + at, trusted - at, &special) : 0,
               n_user =
                   cut_user_tokens_ ? user_tokens_.Longest(text.data() + at, text.size() - at, &user) : 0;
  *id = n_special >= n_user ? special : user;
  return std::max(n_special, n_user);
}

Status TokenizerBase::EncodeParts(Span<const uint8_t> text, Span<const TextRange> trusted, uint32_t flags,
                                  TokenList* ids) const {
  if (text.size() > kMaxEncodedText) {
    return Error(Code::kInvalid, "the text has %zu bytes, the limit is %zu", text.size(), kMaxEncodedText);
  }
  if ((flags & kAddBos) != 0) {
    for (const int32_t id : begin_tokens_) ids->Push(id);
  }
  const std::unique_ptr<EncodeWork> work = StartWork(text.size());
  size_t plain = 0;
  const auto encode_plain = [&](size_t end) -> Status {
    if (plain == end) return ids->status();
    const bool first = plain == 0;
    const bool begins = first ? (flags & kContinue) == 0 : view_.space_prefix != SpacePrefix::kFirst;
    KVC_RETURN_IF_ERROR(EncodePlain(text.subspan(plain, end - plain), begins, work.get(), ids));
    return ids->status();
  };
  const bool cuts = (cut_user_tokens_ && !user_tokens_.empty()) || !trusted.empty();
  for (size_t at = 0, part = 0; at < text.size() && cuts;) {
    while (part < trusted.size() && trusted[part].end <= at) ++part;
    const bool inside = part < trusted.size() && trusted[part].begin <= at;
    int32_t id = -1;
    const size_t size = TokenAt(text, at, inside ? trusted[part].end : at, &id);
    if (size == 0) {
      ++at;
      continue;
    }
    const uint8_t strips = view_.Strips(static_cast<size_t>(id));
    KVC_RETURN_IF_ERROR(encode_plain((strips & kStripLeft) != 0 ? SpacesBefore(text, plain, at) : at));
    ids->Push(id);
    at += size;
    if ((strips & kStripRight) != 0) at = SpacesAfter(text, at);
    plain = at;
  }
  return encode_plain(text.size());
}

Span<const uint8_t> TokenizerBase::Piece(int32_t id) const {
  switch (KindOf(id)) {
    case PieceKind::kControl:
      return {};
    case PieceKind::kUnknown:
      if (view_.kind == TokenizerKind::kByteLevelBpe) return {};
      return {reinterpret_cast<const uint8_t*>(kUnknownSurface), sizeof kUnknownSurface - 1};
    default:
      return view_.Piece(static_cast<size_t>(id));
  }
}

// Bytes and what stands for unknown pieces are no pieces with a space in front.
Span<const uint8_t> TokenizerBase::TextOf(int32_t id, bool* at_start) const {
  Span<const uint8_t> piece = Piece(id);
  if (!*at_start || piece.empty()) return piece;
  *at_start = false;
  const bool drops = drops_spaces() && KindOf(id) != PieceKind::kByte && KindOf(id) != PieceKind::kUnknown;
  if (!drops || piece[0] != ' ') return piece;
  piece = piece.subspan(1, piece.size() - 1);
  *at_start = view_.remove_extra_spaces && piece.empty();
  return piece;
}

bool TokenizerBase::IsStop(int32_t id) const {
  return std::binary_search(stop_tokens_.begin(), stop_tokens_.end(), id);
}

Status TokenizerBase::CheckIds(Span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= view_.n_pieces()) {
      return Error(Code::kInvalid, "token %zu is %d; ids are 0 to %zu", i, ids[i], view_.n_pieces() - 1);
    }
  }
  return {};
}

Status TokenizerBase::Decode(Span<const int32_t> ids, std::string* text) const {
  KVC_RETURN_IF_ERROR(CheckIds(ids));
  text->clear();
  size_t n_bytes = 0;
  for (int32_t id : ids) n_bytes += Piece(id).size();
  if (n_bytes > kMaxEncodedText) {
    return Error(Code::kInvalid, "the text of the tokens has %zu bytes, the limit is %zu", n_bytes,
                 kMaxEncodedText);
  }
  text->reserve(n_bytes);
  bool at_start = true;
  for (int32_t id : ids) {
    const Span<const uint8_t> piece = TextOf(id, &at_start);
    text->append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return {};
}

Status TokenizerBase::BytePieces(PieceKind kind, int32_t* byte_ids) const {
  std::fill_n(byte_ids, 256, -1);
  for (size_t i = 0; i < view_.n_pieces(); ++i) {
    const Span<const uint8_t> piece = view_.Piece(i);
    if (view_.Kind(i) != kind || piece.size() != 1) continue;
    if (byte_ids[piece[0]] >= 0) {
      return Error(Code::kBadModel, "pieces %d and %zu are both the byte 0x%02X", byte_ids[piece[0]], i,
                   piece[0]);
    }
    byte_ids[piece[0]] = static_cast<int32_t>(i);
  }
  for (int b = 0; b < 256; ++b) {
    const bool in_no_text = b == 0xC0 || b == 0xC1 || b >= 0xF1;
    if (byte_ids[b] >= 0 || (kind == PieceKind::kNormal && in_no_text)) continue;
    return Error(Code::kBadModel, "the tokenizer has no piece for the byte 0x%02X", b);
  }
  return {};
}

size_t TokenizerBase::PartEnd(const uint8_t* bytes, size_t begin) const {
  size_t end = begin + kMaxWordBytes;
  while (end > begin + 1 && !joints_.IsBorder(bytes[end - 1], bytes[end])) --end;
  if (end > begin + 1) return end;
  end = begin + kMaxWordBytes;
  while ((bytes[end] & 0xC0) == 0x80 && end + 4 > begin + kMaxWordBytes) --end;  // into no character
  return end;
}

}  // namespace kvc
