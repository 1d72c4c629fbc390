#include "lib/model/tokenizer_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// A character decomposes into at most this many (canonical).
constexpr utf8proc_ssize_t kMaxParts = 8;
constexpr size_t kPieceBytes = 4096;  // normalised at a time, and on to the next border

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// utf8proc_map would do all of it, but sorts combining marks by insertion: quadratic in a run of them.
void SortMarks(std::vector<utf8proc_int32_t>* text) {
  for (auto at = text->begin(); at != text->end();) {
    if (CombiningClass(*at) == 0) {
      ++at;
      continue;
    }
    auto end = at;
    while (end != text->end() && CombiningClass(*end) != 0) ++end;
    std::stable_sort(at, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    at = end;
  }
}

Status Character(Span<const uint8_t> text, size_t at, int32_t* c, size_t* length) {
  *length = Utf8Length(text.data() + at, text.size() - at, c);
  return *length > 0 ? Status() : Error(Code::kInternal, "text to normalise is not UTF-8 at byte %zu", at);
}

// The end of the piece that starts at `begin`: where one grapheme ends and another begins. Nothing composes
// or is sorted across such a place, as graphemes are the same in every normal form.
Status PieceEnd(Span<const uint8_t> text, size_t begin, size_t* end) {
  int32_t before = 0;
  size_t at = begin;
  while (at < text.size()) {
    int32_t c = 0;
    size_t length = 0;
    KVC_RETURN_IF_ERROR(Character(text, at, &c, &length));
    if (at >= begin + kPieceBytes && utf8proc_grapheme_break(before, c)) break;
    before = c;
    at += length;
  }
  *end = at;
  return {};
}

// Appends the normal form of a piece to *out. `decomposed` is working memory.
Status AppendNfc(Span<const uint8_t> text, std::vector<utf8proc_int32_t>* decomposed, std::string* out) {
  decomposed->clear();
  for (size_t at = 0; at < text.size();) {
    int32_t c = 0;
    size_t length = 0;
    KVC_RETURN_IF_ERROR(Character(text, at, &c, &length));
    at += length;
    utf8proc_int32_t parts[kMaxParts];
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, kMaxParts, UTF8PROC_DECOMPOSE, nullptr);
    if (n < 0 || n > kMaxParts)
      return Error(Code::kInternal, "U+%04X cannot be normalised", static_cast<unsigned>(c));
    decomposed->insert(decomposed->end(), parts, parts + n);
  }
  SortMarks(decomposed);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n = utf8proc_normalize_utf32(
      decomposed->data(), static_cast<utf8proc_ssize_t>(decomposed->size()), options);
  if (n < 0) return Error(Code::kInternal, "text cannot be normalised: %s", utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; ++i) AppendUtf8((*decomposed)[static_cast<size_t>(i)], out);
  return {};
}

bool IsAscii(Span<const uint8_t> text) {
  return std::all_of(text.begin(), text.end(), [](uint8_t b) { return b < 0x80; });
}

// Adds to the first *size bytes of the storage, which grows.
Status Append(const void* bytes, size_t n, MemoryMeter* meter, Buffer<uint8_t>* storage, size_t* size) {
  const auto wanted = static_cast<int64_t>(*size + n);
  if (wanted > storage->size()) {
    Buffer<uint8_t> grown;
    KVC_RETURN_IF_ERROR(grown.Allocate(meter, wanted + wanted / 8, "the normal form of a text"));
    if (*size > 0) std::memcpy(grown.data(), storage->data(), *size);
    *storage = std::move(grown);
  }
  std::memcpy(storage->data() + *size, bytes, n);
  *size += n;
  return {};
}

}  // namespace

Status NormalizeNfc(Span<const uint8_t> text, MemoryMeter* meter, Buffer<uint8_t>* storage,
                    Span<const uint8_t>* out) {
  std::vector<utf8proc_int32_t> decomposed;
  std::string form;
  bool changed = false;  // from then on the new text is collected
  size_t size = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    KVC_RETURN_IF_ERROR(PieceEnd(text, begin, &end));
    const Span<const uint8_t> piece = text.subspan(begin, end - begin);
    if (IsAscii(piece)) {
      if (changed) KVC_RETURN_IF_ERROR(Append(piece.data(), piece.size(), meter, storage, &size));
      continue;
    }
    form.clear();
    KVC_RETURN_IF_ERROR(AppendNfc(piece, &decomposed, &form));
    if (!changed) {
      if (form.size() == piece.size() && std::memcmp(form.data(), piece.data(), form.size()) == 0) continue;
      changed = true;
      KVC_RETURN_IF_ERROR(storage->Reserve(meter, static_cast<int64_t>(text.size() + text.size() / 8),
                                           "the normal form of a text"));
      KVC_RETURN_IF_ERROR(Append(text.data(), begin, meter, storage, &size));
    }
    KVC_RETURN_IF_ERROR(Append(form.data(), form.size(), meter, storage, &size));
  }
  *out = changed ? Span<const uint8_t>(storage->data(), size) : text;
  return {};
}

}  // namespace kvc
