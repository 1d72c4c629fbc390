// Pre-tokenizer patterns by name, as their tokenizer.json files write them. For converters whose source
// stores only a name.
//
// They were written for Oniguruma or Rust's regex crate; tokenizer_regex.h says how they are read here
// (Unicode properties,
// `\s`). Possessive quantifiers, `(?i:...)` and lookahead mean the same in all three.
#pragma once

namespace kvc {

constexpr char kPatternGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr char kPatternLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Digits one by one, else as Llama 3. Comes with NFC.
constexpr char kPatternQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace kvc
