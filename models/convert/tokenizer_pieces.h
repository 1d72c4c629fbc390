// How vocabularies write their pieces, undone: TokenizerSpec holds the bytes a piece prints.
#pragma once
#include <string>

#include "lib/base/status.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

// GPT-2 writes every byte as one printable character ("Ġ" is the space). kBadModel when `piece` has a
// character outside that alphabet. Not for added tokens: those stand in the file as they are.
Result<std::string> UndoByteAlphabet(const std::string& piece);

// SentencePiece writes a space as U+2581 "▁".
std::string UndoSpaceSymbol(const std::string& piece);

// "<0x0A>" -> 10; -1 when `piece` is not of that form.
int ParseBytePiece(const std::string& piece);

// "<|im_end|>", also with the wide bars of DeepSeek or in brackets: a mark, not words.
bool LooksSpecial(const std::string& piece);

// Makes a piece a control token, which no text becomes: merges that make it, or go on from it, go.
void MakeControl(int32_t id, TokenizerSpec* spec);

}  // namespace kvc
