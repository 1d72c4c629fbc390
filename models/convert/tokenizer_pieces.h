// How vocabularies write their pieces, undone: TokenizerSpec holds the bytes a piece prints.
#pragma once
#include <string>

#include "lib/base/status.h"

namespace kvc {

// GPT-2 writes every byte as one printable character ("Ġ" is the space). kBadModel when `piece` has a
// character outside that alphabet. Not for added tokens: those stand in the file as they are.
Result<std::string> UndoByteAlphabet(const std::string& piece);

// SentencePiece writes a space as U+2581 "▁".
std::string UndoSpaceSymbol(const std::string& piece);

// "<0x0A>" -> 10; -1 when `piece` is not of that form.
int ParseBytePiece(const std::string& piece);

}  // namespace kvc
