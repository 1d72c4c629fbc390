#include "models/convert/tokenizer_pieces.h"

#include <array>
#include <cstring>
#include <utility>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// Code point -> byte. Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 and up.
constexpr int kAlphabetSize = 0x144;

std::array<int, kAlphabetSize> MakeAlphabet() {
  std::array<int, kAlphabetSize> to_byte;
  to_byte.fill(-1);
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    to_byte[static_cast<size_t>(printable ? b : next++)] = b;
  }
  return to_byte;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Result<std::string> UndoByteAlphabet(const std::string& piece) {
  static const std::array<int, kAlphabetSize> to_byte = MakeAlphabet();
  std::string bytes;
  const auto* p = reinterpret_cast<const uint8_t*>(piece.data());
  for (size_t at = 0; at < piece.size();) {
    int32_t c = 0;
    const size_t length = Utf8Length(p + at, piece.size() - at, &c);
    if (length == 0 || c >= kAlphabetSize || to_byte[static_cast<size_t>(c)] < 0) {
      return Error(Code::kBadModel, "the piece \"%.80s\" has a character outside the byte alphabet",
                   piece.c_str());
    }
    bytes.push_back(static_cast<char>(to_byte[static_cast<size_t>(c)]));
    at += length;
  }
  return bytes;
}

std::string UndoSpaceSymbol(const std::string& piece) {
  static constexpr char kSpaceSymbol[] = "\xE2\x96\x81";
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const bool space = piece.compare(at, 3, kSpaceSymbol) == 0;
    text.push_back(space ? ' ' : piece[at]);
    at += space ? 3 : 1;
  }
  return text;
}

int ParseBytePiece(const std::string& piece) {
  if (piece.size() != 6 || piece.compare(0, 3, "<0x") != 0 || piece[5] != '>') return -1;
  const int high = HexDigit(piece[3]), low = HexDigit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

bool LooksSpecial(const std::string& piece) {
  for (const auto& [begin, end] : {std::pair("<|", "|>"), {"<\xEF\xBD\x9C", "\xEF\xBD\x9C>"}, {"[|", "|]"}}) {
    const size_t n = std::strlen(begin);
    if (piece.size() > 2 * n && piece.compare(0, n, begin) == 0 &&
        piece.compare(piece.size() - n, n, end) == 0)
      return true;
  }
  return false;
}

void MakeControl(int32_t id, TokenizerSpec* spec) {
  const std::string& piece = spec->pieces[static_cast<size_t>(id)];
  spec->piece_kinds[static_cast<size_t>(id)] = PieceKind::kControl;
  std::vector<int32_t>& merges = spec->merges;
  size_t kept = 0;
  for (size_t i = 0; i + 1 < merges.size(); i += 2) {
    const int32_t left_id = merges[i], right_id = merges[i + 1];
    const std::string &left = spec->pieces[static_cast<size_t>(left_id)],
                      &right = spec->pieces[static_cast<size_t>(right_id)];
    const bool makes = left.size() + right.size() == piece.size() &&
                       piece.compare(0, left.size(), left) == 0 &&
                       piece.compare(left.size(), right.size(), right) == 0;
    if (makes || left_id == id || right_id == id) continue;
    merges[kept] = left_id, merges[kept + 1] = right_id;
    kept += 2;
  }
  merges.resize(kept);
}

}  // namespace kvc
