// Text through fixed tokenizers, and bytes through everything that reads a tokenizer. The first byte of an
// input chooses.
#include <cstdlib>
#include <string>
#include <vector>

#include "lib/model/tokenizer.h"
#include "lib/model/tokenizer_patterns.h"
#include "models/convert/tokenizer_hf.h"
#include "models/convert/tokenizer_llama2c.h"
#include "models/convert/tokenizer_sentencepiece.h"

namespace kvc {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Add(TokenizerSpec* spec, const std::string& piece, PieceKind kind, float score) {
  spec->pieces.push_back(piece);
  spec->piece_kinds.push_back(kind);
  if (spec->kind == TokenizerKind::kSentencePieceBpe) spec->scores.push_back(score);
}

// 256 bytes or byte pieces, then some text pieces, <end>, <tool>.
TokenizerSpec FixedSpec(TokenizerKind kind) {
  TokenizerSpec spec;
  spec.kind = kind;
  const bool byte_level = kind == TokenizerKind::kByteLevelBpe;
  for (int b = 0; b < 256; ++b) {
    Add(&spec, std::string(1, static_cast<char>(b)), byte_level ? PieceKind::kNormal : PieceKind::kByte, 0);
  }
  for (const char* piece : {"ab", "abab", "  ", "    ", "\xC3\xA9"})
    Add(&spec, piece, PieceKind::kNormal, -1);
  Add(&spec, "<end>", PieceKind::kControl, 0);
  Add(&spec, "<tool>", PieceKind::kUserDefined, 0);
  if (byte_level) {
    spec.merges = {'a', 'b', 256, 256, ' ', ' ', 258, 258, 0xC3, 0xA9};
    spec.patterns = {kPatternLlama3};
  } else {
    for (const char* piece : {"a", "b", " "}) Add(&spec, piece, PieceKind::kNormal, -2);
    Add(&spec, "ba", PieceKind::kUnused, -1);
    spec.byte_fallback = true;
  }
  return spec;
}

// Whatever the text is, it is encoded; without rules that change text it comes back.
void EncodeText(const TokenizerSpec& spec, const std::string& text, bool exact) {
  const FlatTokenizer flat(spec);
  auto tokenizer = Tokenizer::Create(flat.view(), nullptr);
  if (!tokenizer.ok()) return;
  for (const uint32_t flags : {uint32_t{kAddBos}, kAddBos | kParseSpecial, uint32_t{kContinue}}) {
    const bool parse_special = (flags & kParseSpecial) != 0;
    std::vector<int32_t> ids;
    const Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    if (!tokenizer.value()->Encode(bytes, flags, &ids).ok()) {
      Require(!exact);
      continue;
    }
    std::string back;
    Require(tokenizer.value()->Decode(ids, &back).ok());
    if (exact && !parse_special) Require(back == text || text.find("\xE2\x96\x81") != std::string::npos);
  }
}

void Fuzz(const uint8_t* data, size_t size) {
  if (size == 0) return;
  const Span<const uint8_t> bytes(data + 1, size - 1);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  TokenizerSpec spec =
      FixedSpec(data[0] & 1 ? TokenizerKind::kSentencePieceBpe : TokenizerKind::kByteLevelBpe);
  const bool byte_level = spec.kind == TokenizerKind::kByteLevelBpe;
  switch (data[0] >> 1 & 7) {
    case 0:
      return EncodeText(spec, text, true);
    case 1:  // every rule that changes text
      spec.nfc = spec.ignore_merges = byte_level;
      spec.add_space_prefix = spec.remove_extra_spaces = !byte_level;
      return EncodeText(spec, text, false);
    case 2:  // a pattern from anywhere, on a text that is the pattern
      if (byte_level) spec.patterns.assign(1, text.substr(0, 200));
      if (byte_level) spec.n_byte_patterns = static_cast<int32_t>(text.size() % 2);
      return EncodeText(spec, text, false);
    case 3: {
      const auto read = ReadHfTokenizer(text);
      if (read.ok()) EncodeText(read.value(), "ab  <end> \xFF \xC3\xA9", false);
      return;
    }
    case 4: {
      const auto read = ReadSentencePiece(bytes);
      if (read.ok()) EncodeText(read.value(), "ab  <end> \xFF \xC3\xA9", false);
      return;
    }
    case 5: {
      const auto read = ReadLlama2cTokenizer(bytes, 259 + data[0] / 64);
      if (read.ok()) EncodeText(read.value(), "ab  <end> \xFF \xC3\xA9", false);
      return;
    }
    default:  // a spec whose numbers come from the input
      for (size_t i = 0; i + 1 < bytes.size() && i < 64; i += 2) {
        const size_t at = bytes[i];
        if (at < 64 && !spec.merges.empty()) spec.merges[at % spec.merges.size()] = bytes[i + 1] * 2 - 100;
        if (at >= 64 && at < 128) spec.pieces[256 + at % 7] = text.substr(i, bytes[i + 1] % 8);
        if (at >= 128 && at < 192) spec.piece_kinds[256 + at % 7] = static_cast<PieceKind>(bytes[i + 1] % 8);
        if (at >= 192) spec.bos = bytes[i + 1] * 3 - 200;
        if (at >= 240) spec.begin_tokens.push_back(bytes[i + 1] * 3 - 200);
      }
      return EncodeText(spec, text, false);
  }
}

}  // namespace
}  // namespace kvc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::Fuzz(data, size);
  return 0;
}
