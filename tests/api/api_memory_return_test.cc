// What a model with a large vocabulary and its texts took is the system's again after the last close.
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/process_memory.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tokenizers.h"

namespace {

constexpr int64_t kMiB = 1 << 20;

void WriteModel(const std::string& path) {
  const kvc::TokenizerSpec tokenizer = kvc::GrownByteLevel(151387 - 256, 264);
  kvc::test::TinyModelOptions options;
  options.vocab_size = static_cast<int32_t>(tokenizer.pieces.size());
  kvc::test::RawModelFile raw = kvc::test::RawModelFile::Tiny(options);
  raw.content.tokenizer = tokenizer;
  const kvc::test::AlignedBytes bytes = raw.Build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// tokens: room for those of each text. The test's own memory must not grow, or it would change what the heap
// keeps.
void Use(const std::string& path, const std::vector<std::string>& texts, std::vector<int32_t>* tokens) {
  kvc_model* model = nullptr;
  ASSERT_EQ(kvc_model_open(path.c_str(), nullptr, nullptr, &model), KVC_OK) << kvc_last_error();
  for (const std::string& text : texts) {
    int32_t n = 0;
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    ASSERT_EQ(kvc_tokenize(model, bytes, static_cast<int32_t>(text.size()), 0, nullptr, 0, &n), KVC_OK);
    ASSERT_LE(static_cast<size_t>(n), tokens->size());
    ASSERT_EQ(kvc_tokenize(model, bytes, static_cast<int32_t>(text.size()), 0, tokens->data(), n, &n),
              KVC_OK);
  }
  kvc_model_close(model);
}

TEST(MemoryReturn, AfterTheLastClose) {
  if (kvc::test::kSanitized) GTEST_SKIP() << "resident memory is the sanitizer's";
  const kvc::test::TempFolder folder;
  WriteModel(folder / "model.kvc");
  std::vector<std::string> texts(4);
  while (texts[0].size() < 4 * kMiB) texts[0] += "the cat sat ";
  texts[1].assign(4 * kMiB, 'a');
  texts[2].assign(2 * kMiB, '\xFF');
  while (texts[3].size() < 2 * kMiB) texts[3] += "e\xCC\x81 ";
  std::vector<int32_t> tokens(4 * kMiB + 100);
  const int64_t before = kvc::test::AnonymousBytes();
  ASSERT_GT(before, 0);
  for (int round = 0; round < 3; ++round) {
    Use(folder / "model.kvc", texts, &tokens);
    EXPECT_LT(kvc::test::AnonymousBytes() - before, kMiB) << "after round " << round;
  }
}

}  // namespace
