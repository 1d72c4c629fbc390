#include "models/convert/tokenizer_llama2c.h"

#include <cmath>
#include <cstring>

#include "models/convert/tokenizer_pieces.h"

namespace kvc {
namespace {

constexpr int32_t kUnk = 0, kBos = 1, kEos = 2, kFirstByte = 3, kFirstText = kFirstByte + 256;

// Little-endian, as every machine that writes these files.
uint32_t Read32(const uint8_t* p) {
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

}  // namespace

Result<TokenizerSpec> ReadLlama2cTokenizer(Span<const uint8_t> bytes, int32_t vocab_size) {
  constexpr uint32_t kMaxPiece = 1024;
  if (vocab_size < kFirstText || vocab_size > (1 << 21)) {
    return Error(Code::kBadModel, "llama2.c tokenizer: %d pieces are impossible, %d are special and bytes",
                 vocab_size, kFirstText);
  }
  if (bytes.size() < 4) return Error(Code::kBadModel, "llama2.c tokenizer: cut in its first number");
  const uint32_t longest = Read32(bytes.data());
  TokenizerSpec spec;
  spec.kind = TokenizerKind::kSentencePieceBpe;
  size_t at = 4;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (bytes.size() - at < 8)
      return Error(Code::kBadModel, "llama2.c tokenizer: cut at piece %d of %d", id, vocab_size);
    const uint32_t score_bits = Read32(bytes.data() + at), size = Read32(bytes.data() + at + 4);
    at += 8;
    if (size > longest || size > kMaxPiece) {
      return Error(Code::kBadModel, "llama2.c tokenizer: piece %d claims %u bytes, the longest has %u", id,
                   size, longest);
    }
    if (bytes.size() - at < size)
      return Error(Code::kBadModel, "llama2.c tokenizer: cut in piece %d of %d", id, vocab_size);
    float score;
    std::memcpy(&score, &score_bits, sizeof score);
    if (!std::isfinite(score))
      return Error(Code::kBadModel, "llama2.c tokenizer: the score of piece %d is not finite", id);
    std::string piece(reinterpret_cast<const char*>(bytes.data()) + at, size);
    PieceKind kind = id == kUnk        ? PieceKind::kUnknown
                     : id < kFirstByte ? PieceKind::kControl
                                       : PieceKind::kNormal;
    if (id == kBos) piece = "<s>";  // the file has them as they are printed, between line ends
    if (id == kEos) piece = "</s>";
    if (id >= kFirstByte && id < kFirstText) {
      if (ParseBytePiece(piece) != id - kFirstByte) {
        return Error(Code::kBadModel, "llama2.c tokenizer: piece %d is not the byte <0x%02X>", id,
                     static_cast<unsigned>(id - kFirstByte));
      }
      piece.assign(1, static_cast<char>(id - kFirstByte));
      kind = PieceKind::kByte;
    }
    spec.pieces.push_back(std::move(piece));
    spec.piece_kinds.push_back(kind);
    spec.scores.push_back(score);
    at += size;
  }
  if (at != bytes.size()) {
    return Error(Code::kBadModel, "llama2.c tokenizer: %zu bytes follow the last of %d pieces",
                 bytes.size() - at, vocab_size);
  }
  spec.add_space_prefix = spec.byte_fallback = spec.add_bos = true;
  spec.unk = kUnk, spec.bos = kBos, spec.eos = kEos;
  spec.stop_tokens = {kBos, kEos};  // its models begin the next story with BOS
  return spec;
}

}  // namespace kvc
