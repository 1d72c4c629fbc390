// Pre-tokenizer patterns as the tokenizer.json files of their families write them. For converters whose
// source stores only a name, and for the matcher, which knows that these take linear time.
//
// They were written for Oniguruma or Rust's regex crate; tokenizer_regex.h says how they are read here
// (Unicode properties, `\s`, `$`). Possessive quantifiers, `(?i:...)` and lookahead mean the same in all
// three.
#pragma once

namespace kvc {

constexpr char kPatternGpt2[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Digits, together and one by one.
constexpr char kPatternDigits[] = R"(\p{N}+)";
constexpr char kPatternDigit[] = R"(\p{N})";
constexpr char kPatternThreeDigits[] = R"(\p{N}{1,3})";

// cl100k, too.
constexpr char kPatternLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Digits one by one, else as Llama 3. Comes with NFC.
constexpr char kPatternQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Marks go with letters. Comes with NFC.
constexpr char kPatternQwen35[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                                  R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-4o: a word ends where a small letter meets a capital, and keeps its contraction.
constexpr char kPatternO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Mistral's: as GPT-4o without contractions, digits one by one.
constexpr char kPatternTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek V3 and R1: three digits, then Han and kana, then this.
constexpr char kPatternHanKana[] = "[一-龥぀-ゟ゠-ヿ]+";
constexpr char kPatternDeepSeek3[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek LLM and Coder: lines, then words, then signs, then, for the first, spaces at the end, then Han and
// Hangul, then digits.
constexpr char kPatternLineEnd[] = R"([\r\n])";
constexpr char kPatternDeepSeekCoderLetters[] = R"(\s?\p{L}+)";
constexpr char kPatternDeepSeekCoderSigns[] = R"(\s?\p{P}+)";
constexpr char kPatternDeepSeekLetters[] =
    R"(\s?[A-Za-z)"
    R"(µÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ)"
    R"(ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ)"
    R"(ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃)"
    R"(]+)";
constexpr char kPatternDeepSeekSigns[] = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr char kPatternSpacesAtEnd[] = R"(\s+$)";
constexpr char kPatternHanHangul[] = "[一-龥ࠀ-一가-퟿]+";

// Seed Coder: as Qwen 2, but signs take no line ends with them.
constexpr char kPatternSeedCoder[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Ling.
constexpr char kPatternBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

// BLOOM, as it stands there: a class within a class, whose brackets Oniguruma takes as one, and the same
// written flat.
constexpr char kPatternBloom[] = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
constexpr char kPatternBloomFlat[] = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

}  // namespace kvc
