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

// What tokenizer.json calls Punctuation, runs of it: ASCII's, and what was punctuation in Unicode 8, with
// which the packages still go.
constexpr char kPatternPunctuation[] =
    R"([!-/:-@\[-`{-~\xA1\xA7\xAB\xB6\xB7\xBB\xBF\x{37E}\x{387}\x{55A}-\x{55F}\x{589}\x{58A}\x{5BE}\x{5C0}\x{5C3})"
    R"(\x{5C6}\x{5F3}\x{5F4}\x{609}\x{60A}\x{60C}\x{60D}\x{61B}\x{61E}\x{61F}\x{66A}-\x{66D}\x{6D4})"
    R"(\x{700}-\x{70D}\x{7F7}-\x{7F9}\x{830}-\x{83E}\x{85E}\x{964}\x{965}\x{970}\x{AF0}\x{DF4}\x{E4F})"
    R"(\x{E5A}\x{E5B}\x{F04}-\x{F12}\x{F14}\x{F3A}-\x{F3D}\x{F85}\x{FD0}-\x{FD4}\x{FD9}\x{FDA}\x{104A}-\x{104F})"
    R"(\x{10FB}\x{1360}-\x{1368}\x{1400}\x{166D}\x{166E}\x{169B}\x{169C}\x{16EB}-\x{16ED}\x{1735}\x{1736})"
    R"(\x{17D4}-\x{17D6}\x{17D8}-\x{17DA}\x{1800}-\x{180A}\x{1944}\x{1945}\x{1A1E}\x{1A1F}\x{1AA0}-\x{1AA6})"
    R"(\x{1AA8}-\x{1AAD}\x{1B5A}-\x{1B60}\x{1BFC}-\x{1BFF}\x{1C3B}-\x{1C3F}\x{1C7E}\x{1C7F}\x{1CC0}-\x{1CC7})"
    R"(\x{1CD3}\x{2010}-\x{2027}\x{2030}-\x{2043}\x{2045}-\x{2051}\x{2053}-\x{205E}\x{207D}\x{207E})"
    R"(\x{208D}\x{208E}\x{2308}-\x{230B}\x{2329}\x{232A}\x{2768}-\x{2775}\x{27C5}\x{27C6}\x{27E6}-\x{27EF})"
    R"(\x{2983}-\x{2998}\x{29D8}-\x{29DB}\x{29FC}\x{29FD}\x{2CF9}-\x{2CFC}\x{2CFE}\x{2CFF}\x{2D70})"
    R"(\x{2E00}-\x{2E2E}\x{2E30}-\x{2E42}\x{3001}-\x{3003}\x{3008}-\x{3011}\x{3014}-\x{301F}\x{3030}\x{303D})"
    R"(\x{30A0}\x{30FB}\x{A4FE}\x{A4FF}\x{A60D}-\x{A60F}\x{A673}\x{A67E}\x{A6F2}-\x{A6F7}\x{A874}-\x{A877})"
    R"(\x{A8CE}\x{A8CF}\x{A8F8}-\x{A8FA}\x{A8FC}\x{A92E}\x{A92F}\x{A95F}\x{A9C1}-\x{A9CD}\x{A9DE}\x{A9DF})"
    R"(\x{AA5C}-\x{AA5F}\x{AADE}\x{AADF}\x{AAF0}\x{AAF1}\x{ABEB}\x{FD3E}\x{FD3F}\x{FE10}-\x{FE19})"
    R"(\x{FE30}-\x{FE52}\x{FE54}-\x{FE61}\x{FE63}\x{FE68}\x{FE6A}\x{FE6B}\x{FF01}-\x{FF03}\x{FF05}-\x{FF0A})"
    R"(\x{FF0C}-\x{FF0F}\x{FF1A}\x{FF1B}\x{FF1F}\x{FF20}\x{FF3B}-\x{FF3D}\x{FF3F}\x{FF5B}\x{FF5D})"
    R"(\x{FF5F}-\x{FF65}\x{10100}-\x{10102}\x{1039F}\x{103D0}\x{1056F}\x{10857}\x{1091F}\x{1093F})"
    R"(\x{10A50}-\x{10A58}\x{10A7F}\x{10AF0}-\x{10AF6}\x{10B39}-\x{10B3F}\x{10B99}-\x{10B9C}\x{11047}-\x{1104D})"
    R"(\x{110BB}\x{110BC}\x{110BE}-\x{110C1}\x{11140}-\x{11143}\x{11174}\x{11175}\x{111C5}-\x{111C9}\x{111CD})"
    R"(\x{111DB}\x{111DD}-\x{111DF}\x{11238}-\x{1123D}\x{112A9}\x{114C6}\x{115C1}-\x{115D7}\x{11641}-\x{11643})"
    R"(\x{1173C}-\x{1173E}\x{12470}-\x{12474}\x{16A6E}\x{16A6F}\x{16AF5}\x{16B37}-\x{16B3B}\x{16B44}\x{1BC9F})"
    R"(\x{1DA87}-\x{1DA8B}]+)";

// Of bytes, not characters (TokenizerSpec::n_byte_patterns). Digits behind ByteLevel see the alphabet of
// bytes, in which six bytes beside the digits look like numbers (superscripts and fractions of Latin-1),
// parts of other characters or not. Falcon's threes come behind them.
constexpr char kPatternByteNumbers[] = R"([0-9\xB2\xB3\xB9\xBC-\xBE]+)";
constexpr char kPatternByteNumber[] = R"([0-9\xB2\xB3\xB9\xBC-\xBE])";
constexpr char kPatternThreeAsciiDigits[] = "[0-9][0-9][0-9]";

}  // namespace kvc
