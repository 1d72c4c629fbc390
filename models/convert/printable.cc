#include "models/convert/printable.h"

#include <algorithm>

#include "lib/base/status.h"
#include "lib/base/utf8.h"

namespace kvc {

std::string Printable(const std::string& text, bool keep_lines) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  std::string out;
  for (size_t i = 0; i < text.size();) {
    int32_t c = 0;
    const size_t length = Utf8Length(bytes + i, text.size() - i, &c);
    const bool control = length == 0 || c < 0x20 || (c >= 0x7f && c < 0xa0);
    const size_t n = std::max<size_t>(length, 1);
    if (!control || (keep_lines && c == '\n' && length == 1)) {
      out.append(text, i, n);
    } else {
      for (size_t k = 0; k < n; ++k) out += Format("\\x%02x", static_cast<unsigned>(bytes[i + k]));
    }
    i += n;
  }
  return out;
}

}  // namespace kvc
