#include "lib/model/tokenizer_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// A character decomposes into at most this many (canonical).
constexpr utf8proc_ssize_t kMaxParts = 8;
constexpr size_t kPieceBytes = 4096;  // normalised at a time, and on to the next border
constexpr int64_t kShortRun = 16;     // of marks, sorted in place
constexpr const char* kWhat = "the normal form of a text";

// Room for `wanted` items, of which the first `size` are there.
template <typename T>
Status Grow(int64_t wanted, int64_t size, MemoryMeter* meter, Buffer<T>* items) {
  if (wanted <= items->size()) return {};
  Buffer<T> grown;
  KVC_RETURN_IF_ERROR(grown.Allocate(meter, wanted + wanted / 8, kWhat));
  if (size > 0) std::memcpy(grown.data(), items->data(), static_cast<size_t>(size) * sizeof(T));
  *items = std::move(grown);
  return {};
}

// The characters of a piece, decomposed, and room to sort them in.
struct Decomposed {
  MemoryMeter* meter;
  Buffer<utf8proc_int32_t> characters, sorted;
  int64_t size = 0;
};

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class & 0xFF; }

bool Lower(utf8proc_int32_t a, utf8proc_int32_t b) { return CombiningClass(a) < CombiningClass(b); }

// Stable, by class.
Status SortRun(utf8proc_int32_t* run, int64_t n, MemoryMeter* meter, Buffer<utf8proc_int32_t>* sorted) {
  if (std::is_sorted(run, run + n, Lower)) return {};
  if (n <= kShortRun) {
    for (int64_t i = 1; i < n; ++i)
      std::rotate(std::upper_bound(run, run + i, run[i], Lower), run + i, run + i + 1);
    return {};
  }
  KVC_RETURN_IF_ERROR(sorted->Reserve(meter, n, kWhat));
  int64_t places[257] = {};
  for (int64_t i = 0; i < n; ++i) ++places[CombiningClass(run[i]) + 1];
  for (int c = 1; c < 257; ++c) places[c] += places[c - 1];
  for (int64_t i = 0; i < n; ++i) (*sorted)[places[CombiningClass(run[i])]++] = run[i];
  std::copy_n(sorted->data(), n, run);
  return {};
}

// utf8proc_map would do all of it, but sorts combining marks by insertion: quadratic in a run of them.
Status SortMarks(Decomposed* text) {
  utf8proc_int32_t* const all = text->characters.data();
  for (int64_t at = 0; at < text->size;) {
    if (CombiningClass(all[at]) == 0) {
      ++at;
      continue;
    }
    int64_t end = at;
    while (end < text->size && CombiningClass(all[end]) != 0) ++end;
    KVC_RETURN_IF_ERROR(SortRun(all + at, end - at, text->meter, &text->sorted));
    at = end;
  }
  return {};
}

Status Character(Span<const uint8_t> text, size_t at, int32_t* c, size_t* length) {
  *length = Utf8Length(text.data() + at, text.size() - at, c);
  return *length > 0 ? Status() : Error(Code::kInternal, "text to normalise is not UTF-8 at byte %zu", at);
}

// The end of the piece that starts at `begin`: where one grapheme ends and another begins. Nothing composes
// or is sorted across such a place, as graphemes are the same in every normal form.
Status PieceEnd(Span<const uint8_t> text, size_t begin, size_t* end, int64_t* n_characters) {
  int32_t before = 0;
  size_t at = begin;
  *n_characters = 0;
  while (at < text.size()) {
    int32_t c = 0;
    size_t length = 0;
    KVC_RETURN_IF_ERROR(Character(text, at, &c, &length));
    if (at >= begin + kPieceBytes && utf8proc_grapheme_break(before, c)) break;
    before = c;
    at += length, ++*n_characters;
  }
  *end = at;
  return {};
}

// The normal form of a piece of so many characters.
Status Normalize(Span<const uint8_t> text, int64_t n_characters, Decomposed* form) {
  form->size = 0;
  KVC_RETURN_IF_ERROR(form->characters.Reserve(form->meter, n_characters + kMaxParts, kWhat));
  for (size_t at = 0; at < text.size();) {
    int32_t c = 0;
    size_t length = 0;
    KVC_RETURN_IF_ERROR(Character(text, at, &c, &length));
    at += length;
    KVC_RETURN_IF_ERROR(Grow(form->size + kMaxParts, form->size, form->meter, &form->characters));
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, form->characters.data() + form->size, kMaxParts,
                                                       UTF8PROC_DECOMPOSE, nullptr);
    if (n < 0 || n > kMaxParts)
      return Error(Code::kInternal, "U+%04X cannot be normalised", static_cast<unsigned>(c));
    form->size += n;
  }
  KVC_RETURN_IF_ERROR(SortMarks(form));
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n = utf8proc_normalize_utf32(form->characters.data(), form->size, options);
  if (n < 0) return Error(Code::kInternal, "text cannot be normalised: %s", utf8proc_errmsg(n));
  form->size = n;
  return {};
}

bool IsSame(Span<const uint8_t> text, const Decomposed& form) {
  int64_t i = 0;
  for (size_t at = 0; at < text.size(); ++i) {
    int32_t c = 0;
    at += std::max<size_t>(Utf8Length(text.data() + at, text.size() - at, &c), 1);
    if (i == form.size || form.characters[i] != c) return false;
  }
  return i == form.size;
}

bool IsAscii(Span<const uint8_t> text) {
  return std::all_of(text.begin(), text.end(), [](uint8_t b) { return b < 0x80; });
}

// Adds to the first *size bytes of the storage, which grows.
Status Append(const void* bytes, size_t n, MemoryMeter* meter, Buffer<uint8_t>* storage, size_t* size) {
  KVC_RETURN_IF_ERROR(Grow(static_cast<int64_t>(*size + n), static_cast<int64_t>(*size), meter, storage));
  std::memcpy(storage->data() + *size, bytes, n);
  *size += n;
  return {};
}

Status Append(const Decomposed& form, MemoryMeter* meter, Buffer<uint8_t>* storage, size_t* size) {
  std::string part;
  for (int64_t i = 0; i < form.size; ++i) {
    AppendUtf8(form.characters[i], &part);
    if (part.size() < kPieceBytes && i + 1 < form.size) continue;
    KVC_RETURN_IF_ERROR(Append(part.data(), part.size(), meter, storage, size));
    part.clear();
  }
  return {};
}

}  // namespace

Status NormalizeNfc(Span<const uint8_t> text, MemoryMeter* meter, Buffer<uint8_t>* storage,
                    Span<const uint8_t>* out) {
  Decomposed form{meter, {}, {}};
  bool changed = false;  // from then on the new text is collected
  size_t size = 0;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    int64_t n_characters = 0;
    KVC_RETURN_IF_ERROR(PieceEnd(text, begin, &end, &n_characters));
    const Span<const uint8_t> piece = text.subspan(begin, end - begin);
    if (IsAscii(piece)) {
      if (changed) KVC_RETURN_IF_ERROR(Append(piece.data(), piece.size(), meter, storage, &size));
      continue;
    }
    KVC_RETURN_IF_ERROR(Normalize(piece, n_characters, &form));
    if (!changed) {
      if (IsSame(piece, form)) continue;
      changed = true;
      KVC_RETURN_IF_ERROR(
          storage->Reserve(meter, static_cast<int64_t>(text.size() + text.size() / 8), kWhat));
      KVC_RETURN_IF_ERROR(Append(text.data(), begin, meter, storage, &size));
    }
    KVC_RETURN_IF_ERROR(Append(form, meter, storage, &size));
  }
  *out = changed ? Span<const uint8_t>(storage->data(), size) : text;
  return {};
}

}  // namespace kvc
