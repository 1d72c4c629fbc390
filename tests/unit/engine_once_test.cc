// once=1: a prompt is compressed once, and what comes behind it kept whole (methods.md 2.13). And budgets of
// bytes that heads share by score are used up (2.18).
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/test_device.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FeedTokens;
using test::NewSession;
using test::TinyPrompt;

const char* const kSpecs[] = {"kvzip:budget=24,window=8,kv=f32",
                              "kvzip:budget=24,window=8,kv=f32,reread=own,reread_score=squares,reducer=rest",
                              "cokv:budget=24,window=8,kv=f32,scorer=reconstruct",
                              "reconstruct:budget=24,window=8,kv=f32,allocator=ada,reread_score=squares"};

std::vector<int32_t> KeptOf(const Session& s, int layer, int head) {
  std::vector<int32_t> kept;
  EXPECT_TRUE(s.Kept(layer, head, &kept).ok());
  return kept;
}

// The first prompt is what it is without; what comes behind it is there, whole.
TEST(Once, ThePromptIsCompressedAndNothingBehindIt) {
  const auto model = test::OpenTwoLayers();
  const ModelConfig& c = model->config();
  for (const std::string spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto again = NewSession(model, spec), once = NewSession(model, spec + ",once=1");
    for (const auto& s : {again.get(), once.get()}) ASSERT_TRUE(s->Prefill(TinyPrompt(150), true).ok());
    test::ExpectSameKept(*again, *once);
    test::ExpectNearLogits(*again, *once, 0);
    std::vector<std::vector<int32_t>> before;
    for (int head = 0; head < c.n_layers * c.n_kv_heads; ++head)
      before.push_back(KeptOf(*once, head / c.n_kv_heads, head % c.n_kv_heads));
    // As a prompt that is not to be compressed, whatever its length.
    const auto asked = NewSession(model, spec);
    ASSERT_TRUE(asked->Prefill(TinyPrompt(150), true).ok());
    for (const int more : {3, 70}) {
      ASSERT_TRUE(once->Prefill(TinyPrompt(more, 9), true).ok());
      ASSERT_TRUE(asked->Prefill(TinyPrompt(more, 9), false).ok());
      test::ExpectSameKept(*asked, *once);
      test::ExpectNearLogits(*asked, *once, 1e-4f);
    }
    EXPECT_EQ(once->Stats().n_compactions, 1);
    for (int head = 0; head < c.n_layers * c.n_kv_heads; ++head) {
      std::vector<int32_t>& want = before[static_cast<size_t>(head)];
      for (int32_t i = 150; i < 223; ++i) want.push_back(i);
      EXPECT_EQ(KeptOf(*once, head / c.n_kv_heads, head % c.n_kv_heads), want) << "head " << head;
    }
    EXPECT_EQ(test::Steps(*once, 5), test::Steps(*asked, 5));
  }
}

// A prompt that fits is not the one: the next may be.
TEST(Once, WhatFitsIsNotCompressed) {
  const auto model = test::OpenTwoLayers();
  for (const std::string spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto once = NewSession(model, spec + ",once=1");
    ASSERT_TRUE(once->Prefill(TinyPrompt(12), true).ok());
    EXPECT_EQ(once->Stats().n_compactions, 0);
    ASSERT_TRUE(once->Prefill(TinyPrompt(100, 3), true).ok());
    EXPECT_EQ(once->Stats().n_compactions, 1);
    EXPECT_EQ(once->Stats().n_slots, int64_t{24} * model->config().n_kv_heads * model->config().n_layers);
    const int64_t slots = once->Stats().n_slots;
    ASSERT_TRUE(once->Prefill(TinyPrompt(10, 4), true).ok());
    EXPECT_EQ(once->Stats().n_slots,
              slots + int64_t{10} * model->config().n_kv_heads * model->config().n_layers);
  }
}

TEST(Once, ForksAndSavedSessionsKnowIt) {
  const auto model = test::OpenTwoLayers();
  const auto once = NewSession(model, "kvzip:budget=24,window=8,once=1,kv=int4,quant_group=8,residual=6");
  ASSERT_TRUE(once->Prefill(TinyPrompt(150), true).ok());
  FeedTokens(*once, {4, 5});
  const std::vector<uint8_t> bytes = test::SavedBytes(*once);
  auto restored = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  auto fork = once->Fork();
  ASSERT_TRUE(fork.ok());
  for (Session* s : {once.get(), restored.value().get(), fork.value().get()})
    ASSERT_TRUE(s->Prefill(TinyPrompt(40, 5), true).ok());
  for (Session* s : {restored.value().get(), fork.value().get()}) {
    test::ExpectSameKept(*once, *s);
    test::ExpectNearLogits(*once, *s, 0);
    EXPECT_EQ(s->Stats().cache_bytes, once->Stats().cache_bytes);
  }
}

TEST(Once, WhatItCannotIsRefused) {
  const auto model = test::OpenTwoLayers();
  const auto once = NewSession(model, "kvzip:budget=24,window=8,once=1");
  ASSERT_TRUE(once->Prefill(TinyPrompt(150), true).ok());
  const Status status = once->Recompress(16, nullptr);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.message(),
            "once=1: entries remember no score to compress them by again; with once=0 they do");
  const auto parsed = ParsePolicy("cokv-document:budget=24,once=1,compress_per_chunk=1");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message(),
            "once=1 remembers no scores, and compress_per_chunk=1 compresses by them again");
}

// Of a compressed prompt all entries are codes; the residual is of what comes behind it, and takes its place
// when that comes.
TEST(Once, TheResidualIsOfWhatComesBehind) {
  const auto model = test::OpenTwoLayers();
  const ModelConfig& c = model->config();
  const int64_t heads = int64_t{c.n_layers} * c.n_kv_heads;
  const std::string codes = ",kv=int4,kv_values=int2,quant_group=8,residual=6,once=1";
  const auto once = NewSession(model, "kvzip:budget=24,window=8" + codes);
  ASSERT_TRUE(once->Prefill(TinyPrompt(150), true).ok());
  PageFormat page;
  page.type = KvType::kInt4, page.value_bits = 2, page.d = c.head_dim, page.group = 8, page.slots = 4;
  page.packed = true;
  page.Lay();
  int64_t pages = 0;
  for (int head = 0; head < heads; ++head)
    pages += (static_cast<int64_t>(KeptOf(*once, head / c.n_kv_heads, head % c.n_kv_heads).size()) + 3) / 4;
  EXPECT_EQ(once->Stats().cache_bytes, pages * page.bytes);
  // Six of them are f16 as they came: two sessions that differ in how codes are made see the same of them.
  const auto f16 = NewSession(model, "full:kv=f16");
  ASSERT_TRUE(f16->Prefill(TinyPrompt(150), true).ok());
  for (const auto& s : {once.get(), f16.get()}) FeedTokens(*s, {4, 5, 6});
  std::vector<float> got, want;
  for (int head = 0; head < c.n_kv_heads; ++head) {  // of layer 0 keys and values know nothing of the cache
    ASSERT_TRUE(once->Values(0, head, &got).ok());
    ASSERT_TRUE(f16->Values(0, head, &want).ok());
    const auto last = [&](const std::vector<float>& values) {
      return std::vector<float>(values.end() - 3 * c.head_dim, values.end());
    };
    EXPECT_EQ(last(got), last(want));
  }
}

// Two layers of two KV heads, the first of which attends to its newest 12 tokens only: its keys and values
// know nothing of the cache.
std::shared_ptr<const Model> OpenSliding() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.layers = {{12, 0}, {0, 0}};
    return test::TinyModelBytes(options);
  }();
  return test::OpenTiny(bytes);
}

// The newest n values of a head of layer 0.
std::vector<float> NewestValues(const Session& s, int head, int n) {
  std::vector<float> values;
  EXPECT_TRUE(s.Values(0, head, &values).ok());
  const size_t size = static_cast<size_t>(n) * static_cast<size_t>(s.model().config().head_dim);
  EXPECT_GE(values.size(), size);
  return {values.end() - static_cast<std::ptrdiff_t>(size), values.end()};
}

// Behind the document the newest entries stay as they are, also in layers with windows and however long the
// prompt behind it is. Whatever these layers hold of it is what they would without once=1.
TEST(Once, LayersWithWindowsHaveTheResidualBehindPromptsOfAnyLength) {
  const auto model = OpenSliding();
  for (const int residual : {0, 6, 40, 60}) {
    const std::string spec =
        "kvzip:budget=24,window=8,kv=int4,kv_values=int2,quant_group=8,residual=" + std::to_string(residual);
    for (const int more : {30, 43, 44, 45, 100}) {  // the window and its slack are 44
      SCOPED_TRACE(spec + ", " + std::to_string(more));
      const std::vector<int32_t> behind = TinyPrompt(more, 9);
      const auto once = NewSession(model, spec + ",once=1"), again = NewSession(model, spec),
                 f16 = NewSession(model, "full:kv=f16");
      for (Session* s : {once.get(), again.get(), f16.get()}) {
        ASSERT_TRUE(s->Prefill(TinyPrompt(150), true).ok());
        ASSERT_TRUE(s->Prefill(behind, true).ok());
      }
      const int held = std::min(more, 44), raw = std::min(residual, held);
      for (int head = 0; head < model->config().n_kv_heads; ++head) {
        EXPECT_EQ(NewestValues(*once, head, held), NewestValues(*again, head, held));
        EXPECT_EQ(NewestValues(*once, head, raw), NewestValues(*f16, head, raw));
        if (held > raw) {
          EXPECT_NE(NewestValues(*once, head, raw + 1), NewestValues(*f16, head, raw + 1));
        }
      }
    }
  }
}

// No ring is in the budget, so there is none before the document has been read, whatever came before it.
TEST(Once, ADocumentBehindOthersIsWithinItsBytes) {
  const auto model = OpenSliding();
  for (const int budget : {4000, 5001, 6000}) {
    for (const int first : {1, 5, 20}) {
      SCOPED_TRACE(std::to_string(budget) + " bytes, behind " + std::to_string(first));
      const auto once =
          NewSession(model, "kvzip:window=4,kv=int4,kv_values=int2,quant_group=8,once=1,budget_bytes=" +
                                std::to_string(budget));
      for (const int n : {first, 40, 120}) {
        ASSERT_TRUE(once->Prefill(TinyPrompt(n, 9), true).ok());
        EXPECT_LE(once->Stats().cache_bytes, budget) << n;
        if (once->Stats().n_compactions > 0) break;
      }
      EXPECT_EQ(once->Stats().n_compactions, 1);
    }
  }
}

// The bytes hold every entry that they could: whichever head still has candidates, its next does not fit.
TEST(Bytes, SharedByScoreAreUsedUp) {
  const auto model = test::OpenTwoLayers();
  const ModelConfig& c = model->config();
  const struct {
    const char* storage;
    KvType type;
    int32_t value_bits, n_aux;
  } cases[] = {{"kv=f32", KvType::kF32, 0, 1},
               {"kv=int4,quant_group=8,residual=0", KvType::kInt4, 0, 1},
               {"kv=int4,kv_values=int2,quant_group=8,once=1", KvType::kInt4, 2, 0},
               {"kv=f16,reducer=rest", KvType::kF16, 0, 1},
               {"kv=int8,quant_group=8,residual=3", KvType::kInt8, 0, 1}};
  int n_read = 0;
  for (const auto& one : cases) {
    PageFormat page;
    page.type = one.type, page.value_bits = one.value_bits, page.d = c.head_dim, page.n_aux = one.n_aux;
    page.group = page.coded() ? 8 : 0, page.slots = 4, page.packed = true;
    page.Lay();
    for (const int64_t budget : {4000, 5001, 6000, 9000, 10003}) {
      SCOPED_TRACE(std::string(one.storage) + ", " + std::to_string(budget));
      const std::string spec = "kvzip:window=4,budget_bytes=" + std::to_string(budget) + "," + one.storage;
      const auto session = NewSession(model, spec);
      const Status read = session->Prefill(TinyPrompt(180), true);
      if (!read.ok()) continue;  // no room for what is always kept
      const int64_t used = session->Stats().cache_bytes;
      EXPECT_LE(used, budget);
      EXPECT_GT(used + page.bytes, budget);
      EXPECT_LT(session->Stats().n_slots, int64_t{128} * c.n_layers * c.n_kv_heads);  // in pages of 4
      ++n_read;
    }
  }
  EXPECT_GE(n_read, 20);
}

}  // namespace
}  // namespace kvc
