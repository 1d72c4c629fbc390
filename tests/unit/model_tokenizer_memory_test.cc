// What a tokenizer holds and what a text takes for a while: small, counted by the meter, given back.
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/heap_faults.h"
#include "tests/support/process_memory.h"
#include "tests/support/tokenizers.h"

namespace kvc {
namespace {

constexpr int64_t kMiB = 1 << 20;

// The size of Qwen2's.
const FlatTokenizer& Large() {
  static const auto* const kFlat = new FlatTokenizer(GrownByteLevel(151387 - 256, 264));
  return *kFlat;
}

TEST(TokenizerMemory, TablesAreAFewBytesAPieceAndAllAreCounted) {
  const TokenizerView& view = Large().view();
  MemoryMeter meter(0);
  const int64_t before = test::HeapBytes();
  {
    const auto tokenizer = Tokenizer::Create(view, &meter);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(tokenizer.value()->bytes(), meter.used());
    EXPECT_LT(meter.peak(), 6 * kMiB);
    EXPECT_LT(meter.used(), static_cast<int64_t>(12 * (view.n_pieces() + view.merges.size() / 2)));
    EXPECT_LT(test::HeapBytes() - before, meter.used() + 16 * 1024) << "beside the meter";
  }
  EXPECT_EQ(meter.used(), 0);
  EXPECT_EQ(test::HeapBytes(), before);
}

TEST(TokenizerMemory, ALimitHolds) {
  MemoryMeter measure(0);
  ASSERT_TRUE(Tokenizer::Create(Large().view(), &measure).ok());
  for (int64_t limit = 1; limit < measure.peak(); limit += 700 * 1000) {
    MemoryMeter meter(limit);
    EXPECT_EQ(Tokenizer::Create(Large().view(), &meter).status().code(), Code::kMemory) << limit;
    EXPECT_EQ(meter.used(), 0);
  }
  MemoryMeter enough(measure.peak());
  EXPECT_TRUE(Tokenizer::Create(Large().view(), &enough).ok());
}

TEST(TokenizerMemory, TokensOfALongTextAreCounted) {
  const auto tokenizer = MakeTestTokenizer("gpt2");
  const std::string text(4 * kMiB, '\xFF');
  MemoryMeter meter(0), small(kMiB);
  TokenList all(&meter), few(&small);
  ASSERT_TRUE(tokenizer->Encode(Bytes(text), 0, &all).ok());
  EXPECT_EQ(all.size(), text.size());
  EXPECT_NEAR(static_cast<double>(meter.used()), 4.0 * static_cast<double>(text.size()), kMiB);
  const Status status = tokenizer->Encode(Bytes(text), 0, &few);
  EXPECT_EQ(status.code(), Code::kMemory);
  EXPECT_NE(status.message().find("the tokens of a text"), std::string::npos) << status.message();
  std::vector<int32_t> copy(all.size());
  all.CopyTo(copy.data());
  EXPECT_EQ(copy, Encode(*tokenizer, text));
}

// Four bytes a token and no more than a fixed amount beside them.
void ExpectBounded(const Tokenizer& tokenizer, const std::string& text, const char* what) {
  const int64_t growth = test::PeakGrowth([&] {
    TokenList ids;
    if (!tokenizer.Encode(Bytes(text), kParseSpecial, &ids).ok()) ::_exit(2);
  });
  TokenList count(nullptr, TokenList::kCount);
  ASSERT_TRUE(tokenizer.Encode(Bytes(text), kParseSpecial, &count).ok());
  EXPECT_GT(growth, 0) << what;
  EXPECT_LT(growth, static_cast<int64_t>(count.size() * sizeof(int32_t)) + kMaxEncodeBytes) << what;
  const int64_t counting = test::PeakGrowth([&] {
    TokenList none(nullptr, TokenList::kCount);
    if (!tokenizer.Encode(Bytes(text), kParseSpecial, &none).ok()) ::_exit(2);
  });
  EXPECT_LT(counting, kMaxEncodeBytes) << what << ", only counted";
}

class EncodeMemory : public testing::TestWithParam<const char*> {};

TEST_P(EncodeMemory, IsBoundedWhateverTheText) {
  if (test::kSanitized) GTEST_SKIP() << "resident memory is the sanitizer's";
  const auto tokenizer = MakeTestTokenizer(GetParam());
  for (const char* unit : {"a", " ", "the ", "\xFF", "\xE4\xB8\x80", "<|im_", "\xE2\x96\x81"}) {
    std::string text;
    while (text.size() < kMiB) text += unit;
    ExpectBounded(*tokenizer, text, unit);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EncodeMemory,
                         testing::Values("gpt2", "qwen2", "llama_hf", "sp_fallback", "sp_unused",
                                         "sp_squeeze"),
                         [](const auto& test) { return std::string(test.param); });

// One word without a place to cut.
TEST(TokenizerMemory, AWordOfMegabytes) {
  if (test::kSanitized) GTEST_SKIP() << "resident memory is the sanitizer's";
  TokenizerSpec spec = ReadTestSpec("gpt2").value();
  spec.patterns.clear();
  ExpectBounded(*MakeTokenizer(spec), std::string(3 * kMiB, 'a'), "a word");
}

// The normal form of a text that changes is held once, and counted.
TEST(TokenizerMemory, ANormalFormIsCounted) {
  std::string text;
  while (text.size() < 4 * kMiB) text += "e\xCC\x81 ";  // e and an accent: one character in normal form
  const FlatTokenizer flat(ReadTestSpec("qwen2").value());
  MemoryMeter meter(0);
  const auto tokenizer = Tokenizer::Create(flat.view(), &meter);
  ASSERT_TRUE(tokenizer.ok());
  TokenList ids(nullptr, TokenList::kCount);
  ASSERT_TRUE(tokenizer.value()->Encode(Bytes(text), 0, &ids).ok());
  EXPECT_GT(meter.peak(), tokenizer.value()->bytes() + 3 * kMiB);
  EXPECT_EQ(meter.used(), tokenizer.value()->bytes());
  MemoryMeter small(meter.used() + kMiB);
  const auto limited = Tokenizer::Create(flat.view(), &small);
  ASSERT_TRUE(limited.ok());
  EXPECT_EQ(limited.value()->Encode(Bytes(text), 0, &ids).code(), Code::kMemory);
}

// Marks without an end are sorted as a whole, and what that takes is counted too.
TEST(TokenizerMemory, ARunOfMarksIsCounted) {
  const FlatTokenizer flat(ReadTestSpec("qwen2").value());
  std::string sorted, unsorted;
  while (sorted.size() < 8 * kMiB) sorted += "\xCC\x87", unsorted += "\xCC\x87\xCC\xA3";  // above, below
  for (const std::string& text : {sorted, unsorted}) {
    MemoryMeter meter(0);
    const auto tokenizer = Tokenizer::Create(flat.view(), &meter);
    ASSERT_TRUE(tokenizer.ok());
    const int64_t before = test::HeapBytes(), size = static_cast<int64_t>(text.size());
    test::ResetHeapPeak();
    TokenList ids(nullptr, TokenList::kCount);
    ASSERT_TRUE(tokenizer.value()->Encode(Bytes(text), 0, &ids).ok());
    EXPECT_LT(test::HeapPeak() - before, kMaxEncodeBytes) << "beside the meter";
    EXPECT_GT(meter.peak(), tokenizer.value()->bytes() + 2 * size);
    EXPECT_LT(meter.peak(), tokenizer.value()->bytes() + 9 * size);
    EXPECT_EQ(meter.used(), tokenizer.value()->bytes());
    MemoryMeter small(meter.used() + size);
    const auto limited = Tokenizer::Create(flat.view(), &small);
    ASSERT_TRUE(limited.ok());
    EXPECT_EQ(limited.value()->Encode(Bytes(text), 0, &ids).code(), Code::kMemory);
  }
}

TEST(TokenizerMemory, DecodeTakesItsTextAndRefusesOneTooLong) {
  TokenizerSpec spec = ReadTestSpec("gpt2").value();
  spec.pieces.push_back(std::string(1024, 'x')), spec.piece_kinds.push_back(PieceKind::kUserDefined);
  const auto tokenizer = MakeTokenizer(spec);
  const auto id = static_cast<int32_t>(spec.pieces.size()) - 1;
  std::vector<int32_t> ids(4096, id);
  std::string text;
  const int64_t before = test::HeapBytes();
  test::ResetHeapPeak();
  ASSERT_TRUE(tokenizer->Decode(ids, &text).ok());
  EXPECT_EQ(text.size(), 4096u * 1024);
  EXPECT_LT(test::HeapPeak() - before, static_cast<int64_t>(text.size()) + 65536);
  ids.assign(size_t{1} << 21, id);
  EXPECT_EQ(tokenizer->Decode(ids, &text).code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvc
