#include "lib/model/tokenizer_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// A character decomposes into at most this many (canonical).
constexpr utf8proc_ssize_t kMaxParts = 8;

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

}  // namespace

Status NormalizeNfc(Span<const uint8_t> text, std::string* out) {
  out->clear();
  if (std::all_of(text.begin(), text.end(), [](uint8_t b) { return b < 0x80; })) {
    out->assign(reinterpret_cast<const char*>(text.data()), text.size());
    return {};
  }
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    int32_t c = 0;
    const size_t length = Utf8Length(text.data() + at, text.size() - at, &c);
    if (length == 0) return Error(Code::kInternal, "text to normalise is not UTF-8 at byte %zu", at);
    at += length;
    utf8proc_int32_t parts[kMaxParts];
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, kMaxParts, UTF8PROC_DECOMPOSE, nullptr);
    if (n < 0 || n > kMaxParts)
      return Error(Code::kInternal, "U+%04X cannot be normalised", static_cast<unsigned>(c));
    decomposed.insert(decomposed.end(), parts, parts + n);
  }
  SortMarks(&decomposed);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()), options);
  if (n < 0) return Error(Code::kInternal, "text cannot be normalised: %s", utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; ++i) AppendUtf8(decomposed[static_cast<size_t>(i)], out);
  return {};
}

}  // namespace kvc
