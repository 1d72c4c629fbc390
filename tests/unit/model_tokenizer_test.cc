// Properties of both tokenizers: what Create refuses, ids out of range, special tokens, long inputs, threads.
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "lib/base/utf8.h"
#include "tests/support/tokenizers.h"

namespace kvc {
namespace {

constexpr size_t kMegabyte = 1 << 20;

std::string Repeat(const std::string& unit, size_t bytes) {
  std::string s;
  while (s.size() < bytes) s += unit;
  return s;
}

// 256 bytes, "ab" (256), "abc" (257), <end> (258, control), <tool> (259, user-defined); merges a+b, ab+c.
TokenizerSpec SmallByteLevel() {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) spec.pieces.push_back(std::string(1, static_cast<char>(b)));
  spec.piece_kinds.assign(256, PieceKind::kNormal);
  for (const char* piece : {"ab", "abc"})
    spec.pieces.push_back(piece), spec.piece_kinds.push_back(PieceKind::kNormal);
  spec.pieces.push_back("<end>"), spec.piece_kinds.push_back(PieceKind::kControl);
  spec.pieces.push_back("<tool>"), spec.piece_kinds.push_back(PieceKind::kUserDefined);
  spec.merges = {'a', 'b', 256, 'c'};
  spec.eos = 258, spec.stop_tokens = {258};
  return spec;
}

// <unk>, <s>, then ' ', a, b, ab, " a", and 256 bytes from 7.
TokenizerSpec SmallSentencePiece() {
  TokenizerSpec spec;
  spec.kind = TokenizerKind::kSentencePieceBpe;
  spec.pieces = {"<unk>", "<s>", " ", "a", "b", "ab", " a"};
  spec.piece_kinds = {PieceKind::kUnknown, PieceKind::kControl, PieceKind::kNormal, PieceKind::kNormal,
                      PieceKind::kNormal,  PieceKind::kNormal,  PieceKind::kNormal};
  spec.scores = {0, 0, -3, -4, -5, -1, -2};
  for (int b = 0; b < 256; ++b) {
    spec.pieces.push_back(std::string(1, static_cast<char>(b)));
    spec.piece_kinds.push_back(PieceKind::kByte), spec.scores.push_back(0);
  }
  spec.unk = 0, spec.bos = 1, spec.add_space_prefix = true, spec.byte_fallback = true;
  return spec;
}

void ExpectRefused(const TokenizerSpec& spec, const std::string& words, Code code = Code::kBadModel) {
  const auto tokenizer = CreateTokenizer(spec);
  ASSERT_FALSE(tokenizer.ok()) << words;
  EXPECT_EQ(tokenizer.status().code(), code) << words;
  EXPECT_NE(tokenizer.status().message().find(words), std::string::npos) << tokenizer.status().message();
}

TEST(TokenizerCreate, RefusesInconsistentSpecs) {
  const auto with = [](auto change) {
    TokenizerSpec spec = SmallByteLevel();
    change(&spec);
    return spec;
  };
  using Spec = TokenizerSpec*;
  ExpectRefused(TokenizerSpec(), "pieces is 0, outside 1 to 2097152");
  ExpectRefused(with([](Spec s) { s->piece_kinds.pop_back(); }), "259 piece kinds");
  ExpectRefused(with([](Spec s) { s->piece_kinds[3] = static_cast<PieceKind>(9); }), "piece 3 has kind 9",
                Code::kUnsupported);
  ExpectRefused(with([](Spec s) { s->kind = static_cast<TokenizerKind>(7); }), "tokenizer kind 7",
                Code::kUnsupported);
  ExpectRefused(with([](Spec s) { s->piece_strips = {4}; }), "piece 0 has kind 64", Code::kUnsupported);
  ExpectRefused(with([](Spec s) { s->piece_strips = {kStripLeft}; }), "cannot take white space along");
  ExpectRefused(with([](Spec s) { s->space_prefix = SpacePrefix::kFirst; }), "no such space");
  ExpectRefused(with([](Spec s) { s->space_prefix = static_cast<SpacePrefix>(3); }), "rule 3",
                Code::kUnsupported);
  ExpectRefused(with([](Spec s) { s->pieces[257] = ""; }), "piece 257 is empty");
  ExpectRefused(with([](Spec s) { s->pieces[257] = std::string(5000, 'x'); }), "5000 bytes");
  ExpectRefused(with([](Spec s) { s->pieces[257] = "ab"; }), "pieces 256 and 257 are both \"ab\"");
  ExpectRefused(with([](Spec s) { s->pieces[259] = "<end>"; }), "pieces 258 and 259 are both \"<end>\"");
  ExpectRefused(with([](Spec s) { s->pieces[200] = "zz"; }), "no piece for the byte 0xC8");
  ExpectRefused(with([](Spec s) { s->merges.push_back(1); }), "only one side");
  ExpectRefused(with([](Spec s) { s->merges[0] = 260; }), "merge 0 names piece 260 of 260");
  ExpectRefused(with([](Spec s) { s->merges[0] = -1; }), "merge 0 names piece -1");
  ExpectRefused(with([](Spec s) { s->merges[0] = 'c'; }), "which is no piece");
  ExpectRefused(with([](Spec s) { s->merges[0] = 258; }), "joins piece 258");
  ExpectRefused(with([](Spec s) { s->merges = {'a', 'b', 'a', 'b'}; }), "there twice");
  ExpectRefused(with([](Spec s) { s->bos = 260; }), "bos is 260");
  ExpectRefused(with([](Spec s) { s->unk = -2; }), "unk is -2");
  ExpectRefused(with([](Spec s) { s->stop_tokens.push_back(-1); }), "stop token is -1");
  ExpectRefused(with([](Spec s) { s->scores.assign(260, 0); }), "space rules");
  ExpectRefused(with([](Spec s) { s->patterns = {"a(b"}; }), "pattern 0 \"a(b\" is not a regular expression");
  ExpectRefused(with([](Spec s) { s->patterns = {"(a)\\1"}; }), "refers back to a group", Code::kUnsupported);
  ExpectRefused(with([](Spec s) { s->patterns = {"a", ""}; }), "pattern 1 is empty");
  ExpectRefused(with([](Spec s) { s->patterns = {"\xff"}; }), "not UTF-8");
  ExpectRefused(with([](Spec s) { s->patterns = {std::string(1 << 20, 'a')}; }),
                "1048576 bytes of patterns, the limit is 4096");
  ExpectRefused(with([](Spec s) { s->patterns.assign(1000, "a"); }), "1000 patterns");
}

TEST(TokenizerCreate, RefusesInconsistentSentencePieceSpecs) {
  const auto with = [](auto change) {
    TokenizerSpec spec = SmallSentencePiece();
    change(&spec);
    return spec;
  };
  using Spec = TokenizerSpec*;
  ExpectRefused(with([](Spec s) { s->scores.pop_back(); }), "262 scores");
  ExpectRefused(with([](Spec s) { s->scores[4] = std::nanf(""); }), "score of tokenizer piece 4");
  ExpectRefused(with([](Spec s) { s->scores[4] = std::numeric_limits<float>::infinity(); }),
                "score of tokenizer piece 4");
  ExpectRefused(with([](Spec s) { s->pieces[4] = "a"; }), "pieces 3 and 4 are both \"a\"");
  ExpectRefused(with([](Spec s) { s->pieces[4] = "\xff"; }), "piece 4 is not UTF-8");
  ExpectRefused(with([](Spec s) { s->pieces[70] = "ab"; }), "byte piece of 2 bytes");
  ExpectRefused(with([](Spec s) { s->pieces[70] = s->pieces[71]; }), "both the byte");
  ExpectRefused(with([](Spec s) { s->piece_kinds[70] = PieceKind::kUnused; }), "no piece for the byte 0x3F");
  ExpectRefused(with([](Spec s) { s->byte_fallback = false, s->unk = -1; }), "neither byte fallback");
  ExpectRefused(with([](Spec s) { s->patterns = {"a"}; }), "byte-level BPE's");
  ExpectRefused(with([](Spec s) { s->merges = {3, 3}; }), "which is no piece");
}

TEST(TokenizerEncode, KnownAnswers) {
  const auto byte_level = MakeTokenizer(SmallByteLevel());
  EXPECT_EQ(Encode(*byte_level, ""), std::vector<int32_t>());
  EXPECT_EQ(Encode(*byte_level, "abcab"), (std::vector<int32_t>{257, 256}));
  EXPECT_EQ(Encode(*byte_level, "a<tool>b"), (std::vector<int32_t>{'a', 259, 'b'}));
  const auto sentencepiece = MakeTokenizer(SmallSentencePiece());
  EXPECT_EQ(Encode(*sentencepiece, ""), std::vector<int32_t>());
  EXPECT_EQ(Encode(*sentencepiece, "ab"), (std::vector<int32_t>{2, 5}));  // "ab" scores above " a"
  EXPECT_EQ(Encode(*sentencepiece, "aab\n"), (std::vector<int32_t>{6, 5, 7 + '\n'}));
  EXPECT_EQ(Decode(*sentencepiece, {6, 5, 7 + '\n'}), "aab\n");
}

TEST(TokenizerEncode, SpecialTokensAreTextUnlessAskedFor) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  EXPECT_EQ(Encode(*tokenizer, "<end>"), (std::vector<int32_t>{'<', 'e', 'n', 'd', '>'}));
  EXPECT_EQ(Encode(*tokenizer, "x<end><end>", kParseSpecial), (std::vector<int32_t>{'x', 258, 258}));
  EXPECT_EQ(Decode(*tokenizer, {'x', 258, 259}), "x<tool>");
  EXPECT_TRUE(tokenizer->IsStop(258));
  EXPECT_FALSE(tokenizer->IsStop(259));
  EXPECT_EQ(tokenizer->Piece(258).size(), 0u);
}

TEST(TokenizerEncode, LongestTokenWins) {
  TokenizerSpec spec = SmallByteLevel();
  spec.pieces.push_back("<end><end>"), spec.piece_kinds.push_back(PieceKind::kControl);
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(Encode(*tokenizer, "<end><end><end>", kParseSpecial), (std::vector<int32_t>{260, 258}));
}

TEST(TokenizerEncode, BosIsAddedWhereTheModelHasOne) {
  std::vector<int32_t> ids = {42};
  ASSERT_TRUE(MakeTokenizer(SmallSentencePiece())->Encode(Bytes("a"), kAddBos, &ids).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{42, 1, 6}));
  ids.clear();
  ASSERT_TRUE(MakeTokenizer(SmallByteLevel())->Encode(Bytes("a"), kAddBos, &ids).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{'a'}));
}

// Vocabularies trained on text lack what it did not have: in text it falls out, else U+FFFD stands for it.
TEST(TokenizerEncode, BytesThatNoTextHasMayBeMissing) {
  TokenizerSpec spec = SmallByteLevel();
  for (const size_t b : {0xC0, 0xC1, 0xF1, 0xF5, 0xFF})
    spec.pieces[b] = "", spec.piece_kinds[b] = PieceKind::kUnused;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(Encode(*tokenizer, "ab\xC0\x80"), std::vector<int32_t>({256, 0xEF, 0xBF, 0xBD, 0x80}));
  EXPECT_EQ(Encode(*tokenizer, std::string(100000, '\xFF')).size(), 300000u);
  EXPECT_EQ(Encode(*tokenizer, "a\xF1\x80\x81\x82"), std::vector<int32_t>({'a', 0x80, 0x81, 0x82}));
  EXPECT_EQ(Encode(*tokenizer, "a\xFE"), std::vector<int32_t>({'a', 0xFE}));
}

TEST(TokenizerEncode, SameBytesTwiceInDifferentRolesAreAllowed) {
  TokenizerSpec spec =
      SmallByteLevel();  // as vocabularies have them that list runs of spaces as added tokens too
  spec.pieces.push_back("ab"), spec.piece_kinds.push_back(PieceKind::kUserDefined);
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "xab"), (std::vector<int32_t>{'x', 260}));
}

TEST(TokenizerDecode, RefusesIdsOutOfRange) {
  for (const TokenizerSpec& spec : {SmallByteLevel(), SmallSentencePiece()}) {
    const auto tokenizer = MakeTokenizer(spec);
    for (int32_t id : {-1, static_cast<int32_t>(spec.pieces.size()), INT32_MAX, INT32_MIN}) {
      std::string text;
      const Status status = tokenizer->Decode(std::vector<int32_t>{0, id}, &text);
      EXPECT_EQ(status.code(), Code::kInvalid);
      EXPECT_NE(status.message().find("token 1 is"), std::string::npos) << status.message();
    }
  }
}

TEST(TokenizerPatterns, AnEndlessPatternIsAnErrorNotAHang) {
  TokenizerSpec spec = SmallByteLevel();
  spec.patterns = {"(a+a+)+$"};
  std::vector<int32_t> ids = {7};
  const Status status = MakeTokenizer(spec)->Encode(Bytes(std::string(60, 'a') + "b"), kAddBos, &ids);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("limit"), std::string::npos) << status.message();
  EXPECT_EQ(ids, std::vector<int32_t>{7});
}

// Patterns whose time grows with the square of a text, its cube or worse, on texts of a quarter megabyte:
// they would take hours to ages, and end at once as the steps for a whole text are counted.
TEST(TokenizerPatterns, TimeIsBoundedForAWholeText) {
  TokenizerSpec spec = SmallByteLevel();
  const std::string text = std::string(256 * 1024 - 3, 'a') + "cxb";
  int n_counted = 0;
  for (const char* pattern : {"a+a+a+b", "(?:a|aa)+b", "a*+b", "(?=.*+x)a", "(?<=a{255})b", "(?:a*)*+b",
                              "(?:a?){20}b", "(?=a*+b)|d", "(?i)A*+B", "[^c]*+b|d"}) {
    for (const char* before : {"b", ""}) {  // alone, and inside the parts that another pattern leaves
      spec.patterns = {pattern};
      if (*before != '\0') spec.patterns.insert(spec.patterns.begin(), before);
      std::vector<int32_t> ids;
      const Status status = MakeTokenizer(spec)->Encode(Bytes(text), 0, &ids);
      if (status.ok()) continue;  // PCRE2 knows a way around
      EXPECT_EQ(status.code(), Code::kInvalid) << pattern;
      n_counted +=
          status.message().find("more steps than a text of 262144 bytes may take") != std::string::npos;
      EXPECT_TRUE(ids.empty());
    }
  }
  EXPECT_GT(n_counted, 8);
}

// The count is of the whole text, not of each part that special tokens leave.
TEST(TokenizerPatterns, PartsShareTheSteps) {
  TokenizerSpec spec = SmallByteLevel();
  spec.patterns = {"a+a+a+b"};
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::string(30, 'a') + "cb<end>";  // 100,000 steps each
  std::vector<int32_t> ids;
  EXPECT_EQ(MakeTokenizer(spec)->Encode(Bytes(text), kParseSpecial, &ids).code(), Code::kInvalid);
  EXPECT_TRUE(MakeTokenizer(spec)->Encode(Bytes(text.substr(0, 3 * 37)), kParseSpecial, &ids).ok());
}

TEST(TokenizerPatterns, HonestOnesAreFarFromTheLimit) {
  TokenizerSpec spec = SmallByteLevel();
  // o200k, the longest in wide use.
  const std::string upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]",
                    before = "[^\\r\\n\\p{L}\\p{N}]?", after = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|";
  spec.patterns = {before + upper + "*" + lower + "+" + after + before + upper + "+" + lower + "*" + after +
                   "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
  for (const char* unit :
       {"the Cat's 12345 \n", " ", "\n", " \n", "aB", "Ab", "A", "''", "\xCC\x81", "\xE4\xB8\x80"}) {
    const std::string text = Repeat(unit, kMegabyte / 4);
    EXPECT_EQ(Decode(*MakeTokenizer(spec), Encode(*MakeTokenizer(spec), text)), text) << unit;
  }
}

// As Oniguruma has them: also before and behind a line end within the text.
TEST(TokenizerPatterns, LinesHaveEnds) {
  TokenizerSpec spec = SmallByteLevel();
  spec.pieces.push_back("\nb"), spec.piece_kinds.push_back(PieceKind::kNormal);
  spec.merges.insert(spec.merges.end(), {'\n', 'b'});
  for (const char* pattern : {"b$", "b(?=\\n|\\z)"}) {
    spec.patterns = {pattern};
    EXPECT_EQ(Encode(*MakeTokenizer(spec), "ab\nab"), std::vector<int32_t>({'a', 'b', '\n', 'a', 'b'}))
        << pattern;
  }
  spec.patterns = {"^b"};
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "ab\nb"), std::vector<int32_t>({256, '\n', 'b'}));
}

// The last patterns may see bytes: words end within characters then, and those before still see characters.
TEST(TokenizerPatterns, OfBytes) {
  TokenizerSpec spec = SmallByteLevel();
  spec.pieces.push_back("\xC3\xA9"), spec.piece_kinds.push_back(PieceKind::kNormal);
  spec.merges.insert(spec.merges.end(), {0xC3, 0xA9});
  const auto ids = [&](std::vector<std::string> patterns, int32_t of_bytes) {
    spec.patterns = std::move(patterns), spec.n_byte_patterns = of_bytes;
    return Encode(*MakeTokenizer(spec), "\xC3\xA9 ab");
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(ids({"\\xA9"}, 0), Ids({260, ' ', 256}));
  EXPECT_EQ(ids({"\\xA9"}, 1), Ids({0xC3, 0xA9, ' ', 256}));
  EXPECT_EQ(ids({"\\p{L}", "[\\x80-\\xFF]"}, 1), Ids({0xC3, 0xA9, ' ', 'a', 'b'}));
  EXPECT_EQ(ids({"."}, 1), Ids({0xC3, 0xA9, ' ', 'a', 'b'}));
  spec.patterns = {"(*UTF)a"};
  ExpectRefused(spec, "not a regular expression");
}

TEST(TokenizerPatterns, EmptyMatchesAndGapsCutButLoseNothing) {
  TokenizerSpec spec = SmallByteLevel();
  for (const char* pattern : {"x*", "(?=b)", "q", "$", "^", "a\\Kb|(?<=a)b", "\\s|", "[^\\sb]", "(?i:B)"}) {
    spec.patterns = {pattern};
    for (const char* text : {"", "abc", "xxabcxx", "a b\xC3\xA9 abc", "é"}) {
      const auto tokenizer = MakeTokenizer(spec);
      EXPECT_EQ(Decode(*tokenizer, Encode(*tokenizer, text)), text) << pattern;
    }
  }
  spec.patterns = {"(?=b)"};
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "abab"), (std::vector<int32_t>{'a', 'b', 'a', 'b'}));
}

// ignore_merges matters in this tokenizer: without it some words fall into pieces.
TEST(TokenizerEncode, IgnoreMergesTakesWholeWords) {
  TokenizerSpec spec = ReadTestSpec("llama3").value();
  const auto with = MakeTokenizer(spec);
  spec.ignore_merges = false;
  const auto without = MakeTokenizer(spec);
  int differ = 0;
  for (size_t id = 0; id < spec.pieces.size(); ++id) {
    if (spec.piece_kinds[id] != PieceKind::kNormal || !IsUtf8(spec.pieces[id])) continue;
    differ += Encode(*with, spec.pieces[id]) != Encode(*without, spec.pieces[id]);
  }
  EXPECT_GE(differ, 20);
}

bool APieceGoesOnBehindALetterAndASpace(const TokenizerView& view) {
  for (size_t id = 0; id < view.n_pieces(); ++id) {
    const Span<const uint8_t> piece = view.Piece(id);
    for (size_t i = 1; i < piece.size() && view.Kind(id) == PieceKind::kNormal; ++i) {
      if (piece[i] == ' ' && std::isalpha(piece[i - 1])) return true;
    }
  }
  return false;
}

// Text in pieces: where no token spans the border, the ids are those of the whole text.
TEST(TokenizerContinue, PiecesGiveTheIdsOfTheWhole) {
  int n_borders = 0;
  for (const char* name :
       {"recall", "gpt2", "llama3", "qwen2", "llama_hf", "tok512", "sp_fallback", "sp_plain"}) {
    const auto tokenizer = MakeTestTokenizer(name);
    if (APieceGoesOnBehindALetterAndASpace(tokenizer->spec())) continue;
    for (const std::string text : {"Once upon a time there was  a dog", "x y z",
                                   "On\xC3\xA9 caf\xC3\xA9 here", "Say  \"hi\" to Bob.\n Then go"}) {
      const std::vector<int32_t> whole = Encode(*tokenizer, text);
      for (size_t at = 1; at + 1 < text.size(); ++at) {
        const bool border = text[at] == ' ' && std::isalpha(static_cast<unsigned char>(text[at - 1])) &&
                            std::isalpha(static_cast<unsigned char>(text[at + 1]));
        if (!border) continue;
        ++n_borders;
        std::vector<int32_t> ids = Encode(*tokenizer, text.substr(0, at));
        ASSERT_TRUE(tokenizer->Encode(Bytes(text.substr(at)), kContinue, &ids).ok());
        EXPECT_EQ(ids, whole) << name << ": " << text << " at " << at;
      }
    }
  }
  EXPECT_GT(n_borders, 50);
}

TEST(TokenizerContinue, KnownAnswers) {
  TokenizerSpec spec = SmallSentencePiece();
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "a"), (std::vector<int32_t>{6}));  // " a"
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "a", kContinue), (std::vector<int32_t>{3}));
  EXPECT_EQ(Encode(*MakeTokenizer(spec), " a", kContinue), (std::vector<int32_t>{6}));
  // Behind a special token a text begins.
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "a<s>a", kContinue | kParseSpecial),
            (std::vector<int32_t>{3, 1, 6}));
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "<s>a", kContinue | kParseSpecial), (std::vector<int32_t>{1, 6}));
  // Where extra spaces go, those at the start of what goes on are one, as inside a text.
  spec.remove_extra_spaces = true;
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "  a"), (std::vector<int32_t>{6}));
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "  a  ", kContinue), (std::vector<int32_t>{6}));
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "a", kContinue), (std::vector<int32_t>{3}));
  EXPECT_EQ(Encode(*MakeTokenizer(spec), "   ", kContinue), (std::vector<int32_t>{}));
}

class AllTokenizers : public testing::TestWithParam<const char*> {};

// The tokenizers that lose nothing: no squeezed spaces, no unknown token.
class LosslessTokenizers : public testing::TestWithParam<const char*> {};

// Any bytes come back; with NFC, their normal form does.
TEST_P(LosslessTokenizers, RandomBytesComeBack) {
  const auto tokenizer = MakeTestTokenizer(GetParam());
  const TokenizerView& spec = tokenizer->spec();
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text)
      c = static_cast<char>(round % 2 == 0 ? random() : " ab\xE2\x96\xF0\x9F\x80\xC3\n"[random() % 10]);
    for (size_t at; (at = text.find("\xE2\x96\x81")) != std::string::npos;)
      text.erase(at, 1);  // is a space in SentencePiece
    if (spec.nfc) text = Decode(*tokenizer, Encode(*tokenizer, text));
    const std::vector<int32_t> ids = Encode(*tokenizer, text);
    ASSERT_EQ(Decode(*tokenizer, ids), text);
    std::string pieces;  // the pieces, one by one, are the same text
    for (int32_t id : ids) {
      const Span<const uint8_t> piece = tokenizer->Piece(id);
      pieces.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
    ASSERT_EQ(pieces, (spec.add_space_prefix && !text.empty() ? " " : "") + text);
  }
}

// Each is a second or less when the time grows with the text, and would be hours if it grew with its square.
TEST_P(AllTokenizers, AMegabyteOfAnything) {
  const auto tokenizer = MakeTestTokenizer(GetParam());
  const TokenizerView& spec = tokenizer->spec();
  for (const char* unit :
       {"a", " ", "😀", "👨‍👩‍👧‍👦", "\xCC\xA3\xCC\x81", "\xFF", "the ", "<|im_"}) {
    const std::string text = Repeat(unit, kMegabyte);
    const std::vector<int32_t> ids = Encode(*tokenizer, text, kParseSpecial);
    EXPECT_FALSE(ids.empty() && !spec.remove_extra_spaces);
    if (spec.nfc || spec.remove_extra_spaces) continue;
    EXPECT_EQ(Decode(*tokenizer, ids), text) << unit;
  }
}

TEST(TokenizerEncode, AMegabyteInOneWord) {
  TokenizerSpec spec = ReadTestSpec("gpt2").value();
  spec.patterns.clear();
  const auto tokenizer = MakeTokenizer(spec);
  for (const char* unit : {"a", " ", "😀", "\xFF", "the ", "thea "}) {
    const std::string text = Repeat(unit, kMegabyte);
    EXPECT_EQ(Decode(*tokenizer, Encode(*tokenizer, text)), text) << unit;
  }
}

// Encode is const and shared: same text, same ids, from any thread.
TEST_P(AllTokenizers, ThreadsGiveTheSameIds) {
  const auto tokenizer = MakeTestTokenizer(GetParam());
  const std::string text = ReadTestFile(TokenizerData("strings.txt")).substr(0, 20000);
  const std::vector<int32_t> expected = Encode(*tokenizer, text, kParseSpecial);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        std::vector<int32_t> ids;
        if (!tokenizer->Encode(Bytes(text), kParseSpecial, &ids).ok() || ids != expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(All, AllTokenizers,
                         testing::Values("recall", "gpt2", "llama3", "qwen2", "chain", "llama_hf", "tok512",
                                         "sp_fallback", "sp_unused", "sp_squeeze", "sp_plain"),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(All, LosslessTokenizers,
                         testing::Values("recall", "gpt2", "llama3", "qwen2", "chain", "llama_hf", "tok512",
                                         "sp_fallback", "sp_unused", "sp_plain"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvc
