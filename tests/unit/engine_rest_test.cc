// One entry a head for what a prompt drops (methods.md 2.25).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/base/hash.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::FeedTokens;
using test::NewSession;
using test::TinyPrompt;

// One layer without rotation: keys and values are those of the tokens, wherever they stand.
std::shared_ptr<const Model> OpenUnturned() {
  static const test::AlignedBytes bytes = [] {
    test::TinyModelOptions options;
    options.n_layers = 1, options.n_heads = 4, options.n_kv_heads = 2, options.layers = {{0, -1}};
    return test::TinyModelBytes(options);
  }();
  return test::OpenTiny(bytes);
}

std::vector<int32_t> Repeated(int n, int32_t token, const std::vector<int32_t>& last) {
  std::vector<int32_t> ids(static_cast<size_t>(n), token);
  ids.insert(ids.end(), last.begin(), last.end());
  return ids;
}

// Tokens that are the same are n times their entry: nothing is lost, over prompts that are compressed, read
// as they are, and steps.
TEST(Rest, EqualTokensAreAllThere) {
  const auto model = OpenUnturned();
  const std::vector<int32_t> window = TinyPrompt(8), question = TinyPrompt(5, 3);
  for (const char* spec :
       {"snapkv:budget=12,window=8,kv=f32", "cokv:budget=12,window=8,kv=f32,scorer=reconstruct",
        "reconstruct:budget=12,window=8,kv=f32,reread=own", "ada-snapkv:budget=12,window=8,kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto full = NewSession(model, "full:kv=f32"),
               rest = NewSession(model, std::string(spec) + ",reducer=rest"), evict = NewSession(model, spec);
    for (const auto& s : {full.get(), rest.get(), evict.get()})
      ASSERT_TRUE(s->Prefill(Repeated(200, 65, window), true).ok());
    std::vector<int32_t> kept;
    ASSERT_TRUE(rest->Kept(0, 0, &kept).ok());
    ASSERT_EQ(kept[0], -208 + static_cast<int32_t>(kept.size()) - 1);  // all others are themselves
    test::ExpectNearLogits(*full, *rest, 1e-4f);
    FeedTokens(*full, question), FeedTokens(*rest, question), FeedTokens(*evict, question);
    test::ExpectNearLogits(*full, *rest, 1e-4f);
    EXPECT_GT(test::LargestDifference(*full, *evict), 1e-2);
    // A question that is read as it is.
    for (const auto& s : {full.get(), rest.get()}) ASSERT_TRUE(s->Prefill(TinyPrompt(40, 5), false).ok());
    test::ExpectNearLogits(*full, *rest, 1e-4f);
  }
}

// What was one entry and what comes to it later weigh as the tokens they stand for.
TEST(Rest, LaterPromptsAddToIt) {
  const auto model = OpenUnturned();
  const auto full = NewSession(model, "full:kv=f32"),
             rest = NewSession(model, "snapkv:budget=3,window=2,kv=f32,reducer=rest");
  for (const auto& s : {full.get(), rest.get()}) {
    ASSERT_TRUE(s->Prefill(Repeated(100, 65, {1, 2}), true).ok());
    ASSERT_TRUE(s->Prefill(Repeated(50, 65, {3, 4}), true).ok());
  }
  std::vector<int32_t> kept;
  ASSERT_TRUE(rest->Kept(0, 1, &kept).ok());
  ASSERT_EQ(kept, (std::vector<int32_t>{-152, 152, 153}));
  const auto once = NewSession(model, "snapkv:budget=3,window=2,kv=f32,reducer=rest");
  std::vector<int32_t> all = Repeated(100, 65, {1, 2});
  const std::vector<int32_t> more = Repeated(50, 65, {3, 4});
  all.insert(all.end(), more.begin(), more.end());
  ASSERT_TRUE(once->Prefill(all, true).ok());
  test::ExpectSameKept(*once, *rest);
  FeedTokens(*once, {7}), FeedTokens(*rest, {7});
  test::ExpectNearLogits(*once, *rest, 1e-5f);
}

std::vector<float> AttentionOf(Session& s, int32_t token, int h) {
  s.ObserveAttention(true);
  FeedTokens(s, {token});
  std::vector<float> p;
  EXPECT_TRUE(s.Attention(0, h, &p).ok());
  return p;
}

// Its key is the mean of theirs, so its logit is the mean of theirs and log n: held against the full cache's
// attention, with rotation and other tokens.
TEST(Rest, ItsLogitIsTheMeanOfTheirsAndLogN) {
  const auto model = test::OpenOneLayer();
  const std::vector<int32_t> ids = TinyPrompt(150);
  for (const char* storage : {"kv=f32", "kv=f16", "kv=int8,quant_group=8,residual=4"}) {
    const bool exact = std::string(storage) == "kv=f32";
    const auto full = NewSession(model, std::string("full:") + storage),
               rest = NewSession(model, std::string("snapkv:budget=40,window=8,reducer=rest,") + storage);
    for (const auto& s : {full.get(), rest.get()}) ASSERT_TRUE(s->Prefill(ids, true).ok());
    for (int h = 0; h < model->config().n_heads; ++h) {
      const auto of_full = full->Fork(), of_rest = rest->Fork();
      const std::vector<float> p = AttentionOf(*of_full.value(), 9, h),
                               q = AttentionOf(*of_rest.value(), 9, h);
      std::vector<int32_t> kept;
      ASSERT_TRUE(rest->Kept(0, h / (model->config().n_heads / model->config().n_kv_heads), &kept).ok());
      ASSERT_EQ(kept.size(), 40u);
      ASSERT_EQ(kept[0], -111);
      std::vector<bool> dropped(ids.size(), true);
      for (size_t i = 1; i < kept.size(); ++i) dropped[static_cast<size_t>(kept[i])] = false;
      double mean = 0;
      for (size_t t = 0; t < ids.size(); ++t) mean += dropped[t] ? std::log(double{p[t]}) / 111 : 0;
      const size_t newest = static_cast<size_t>(kept.back());
      EXPECT_NEAR(std::log(double{q[0]}) - std::log(double{q[39]}),
                  mean + std::log(111.0) - std::log(double{p[newest]}), exact ? 2e-5 : 2e-2)
          << storage << " head " << h;
      EXPECT_NEAR(std::accumulate(q.begin(), q.end(), 0.0), 1, 1e-5);
    }
  }
}

TEST(Rest, AHeadThatWouldDropOneTokenKeepsIt) {
  const auto model = test::OpenTwoLayers();
  const std::vector<int32_t> ids = TinyPrompt(41);
  const auto exact = NewSession(model, "snapkv:budget=41,window=8,kv=f32,reducer=rest"),
             one = NewSession(model, "snapkv:budget=40,window=8,kv=f32,reducer=rest");
  std::vector<int32_t> kept;
  for (const auto& s : {exact.get(), one.get()}) ASSERT_TRUE(s->Prefill(ids, true).ok());
  ASSERT_TRUE(exact->Kept(1, 1, &kept).ok());
  EXPECT_EQ(kept[0], 0);
  EXPECT_EQ(kept.size(), 41u);
  ASSERT_TRUE(one->Kept(1, 1, &kept).ok());
  EXPECT_EQ(kept[0], -2);
  EXPECT_EQ(kept.size(), 40u);
}

TEST(Rest, SavedSessionsGoOnAlike) {
  const auto model = test::OpenTwoLayers();
  for (const char* spec : {"snapkv:budget=24,window=8,kv=f32,reducer=rest",
                           "kvzip:budget=24,kv=int4,quant_group=8,residual=0,reducer=rest"}) {
    const auto s = test::FedSession(model, spec, 120);
    const std::vector<uint8_t> bytes = test::SavedBytes(*s);
    auto loaded = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    test::ExpectSameKept(*s, *loaded.value());
    EXPECT_EQ(test::Steps(*s, 6), test::Steps(*loaded.value(), 6));
    for (Session* each : {s.get(), loaded.value().get()})
      ASSERT_TRUE(each->Prefill(TinyPrompt(60, 2), true).ok());
    EXPECT_EQ(test::LargestDifference(*s, *loaded.value()), 0);
  }
}

int64_t TokensOf(const std::vector<int32_t>& kept) {
  int64_t n = 0;
  for (const int32_t position : kept) n += position < 0 ? -position : 1;
  return n;
}

// Some compress by rows that they run again, among them tokens that a head had dropped: a token counts once.
TEST(Rest, CompressedAgainATokenCountsOnce) {
  const auto model = test::OpenTwoLayers();
  for (const char* spec : {"snapkv:budget=24,window=8,kv=f32,reducer=rest",
                           "expected-attention:budget=24,n_sink=0,kv=f32,reducer=rest",
                           "pyramidinfer:budget=24,window=4,decode=grow,kv=f32,reducer=rest",
                           "tova:budget=24,decode=grow,kv=f32,reducer=rest",
                           "kvzip:budget=24,kv=int4,quant_group=8,residual=0,reducer=rest"}) {
    SCOPED_TRACE(spec);
    auto s = test::FedSession(model, spec, 60);
    for (uint32_t round = 0; round < 20; ++round) {
      ASSERT_TRUE(s->Prefill(TinyPrompt(1 + static_cast<int>(round % 3), round), round % 4 != 0).ok());
      ASSERT_TRUE(s->Recompress(0, nullptr).ok());
      std::vector<int32_t> kept;
      for (int head = 0; head < 4; ++head) {
        ASSERT_TRUE(s->Kept(head / 2, head % 2, &kept).ok());
        ASSERT_EQ(TokensOf(kept), s->Stats().n_tokens) << "round " << round << ", head " << head;
      }
    }
    const std::vector<uint8_t> bytes = test::SavedBytes(*s);
    const auto loaded = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  }
}

// Where all rows are run again nothing of before is left.
TEST(Rest, RunAgainFromItsBeginningATextIsAsReadOnce) {
  const auto model = test::OpenTwoLayers();
  const char* const spec = "expected-attention:budget=24,n_sink=0,kv=f32,reducer=rest";
  const auto twice = test::FedSession(model, spec, 60), once = test::FedSession(model, spec, 60);
  ASSERT_TRUE(twice->Recompress(0, nullptr).ok());
  test::ExpectSameKept(*twice, *once);
  test::ExpectNearLogits(*twice, *once, 0.0f);
}

// Nobody runs a token again that is a part of the rest and of nothing else.
TEST(Rest, WithoutItsNewestTokenAHeadIsNotCompressedAgain) {
  const auto model = test::OpenTwoLayers();
  const auto s = NewSession(model, "tova:budget=12,protect_last=0,decode=grow,kv=f32,reducer=rest");
  ASSERT_TRUE(s->Prefill(Repeated(200, 65, {1, 2, 3}), true).ok());
  bool dropped = false;
  std::vector<int32_t> kept;
  for (int more = 0; more < 60 && !dropped; ++more) {
    ASSERT_TRUE(s->Prefill(TinyPrompt(7, static_cast<uint32_t>(more)), true).ok());
    for (int head = 0; head < 4; ++head) {
      ASSERT_TRUE(s->Kept(head / 2, head % 2, &kept).ok());
      dropped = dropped || kept.back() != s->Stats().n_tokens - 1;
    }
  }
  ASSERT_TRUE(dropped);
  const std::vector<float> before = test::LogitsOf(*s);
  const Status status = s->Recompress(0, nullptr);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("read at least one token first"), std::string::npos) << status.message();
  EXPECT_EQ(test::LogitsOf(*s), before);
  ASSERT_TRUE(s->Accept(65).ok());
  ASSERT_TRUE(s->Recompress(0, nullptr).ok());
}

TEST(Rest, AFileWhoseRestIsMoreThanWasDroppedIsDamaged) {
  const auto model = test::OpenTwoLayers();
  const auto s = test::FedSession(model, "snapkv:budget=24,window=8,kv=f32,reducer=rest", 120);
  std::vector<int32_t> kept;
  ASSERT_TRUE(s->Kept(1, 1, &kept).ok());
  ASSERT_EQ(kept[0], -97);
  const std::vector<uint8_t> bytes = test::SavedBytes(*s);
  // Positions of a page lie one behind the other; the last head's are the last that begin so.
  const auto* begin = reinterpret_cast<const uint8_t*>(kept.data());
  const auto at = std::find_end(bytes.begin(), bytes.end(), begin, begin + 3 * sizeof(int32_t));
  ASSERT_NE(at, bytes.end());
  for (const int32_t position : {-97, -96, -98, -120, INT32_MIN}) {
    std::vector<uint8_t> changed = bytes;
    std::memcpy(changed.data() + (at - bytes.begin()), &position, sizeof position);
    const uint64_t digest = Hash64(changed.data(), changed.size() - sizeof(uint64_t));
    std::memcpy(changed.data() + changed.size() - sizeof digest, &digest, sizeof digest);
    const auto loaded = Session::RestoreFrom(model, {changed.data(), changed.size()});
    EXPECT_EQ(loaded.ok(), position >= -97) << position;
    EXPECT_TRUE(loaded.ok() || loaded.status().code() == Code::kBadModel);
  }
}

TEST(Rest, GoesOnlyWithWhatItIsRightFor) {
  const struct {
    const char *spec, *says;
  } cases[] = {{"h2o:budget=24,reducer=rest", "decode=grow"},
               {"snapkv:budget=24,window=8,reducer=rest,decode=reobserve", "decode=grow"},
               {"snapkv:budget=24,window=8,reducer=rest,pos_mode=incache", "pos_mode=original"},
               {"expected-attention:budget=24,reducer=rest", "n_sink=0"},
               {"nacl:budget=64,recent=8,reducer=rest", "proxy_random"},
               {"ada-snapkv:budget=24,window=8,ada_normalize=1,reducer=rest", "ada_normalize"},
               {"snapkv:budget=8,window=8,reducer=rest", "the entry for the rest"}};
  for (const auto& c : cases) {
    const Result<Policy> policy = ParsePolicy(c.spec);
    ASSERT_FALSE(policy.ok()) << c.spec;
    EXPECT_NE(policy.status().message().find(c.says), std::string::npos) << policy.status().message();
  }
  const Result<Policy> policy = ParsePolicy("snapkv:budget=24,window=8,reducer=rest");
  SessionParams params;
  params.on_full = OnFull::kEvict;
  EXPECT_FALSE(Session::Create(test::OpenTwoLayers(), &policy.value(), params).ok());
}

// Against the definition, entry by entry.
TEST(Rest, IsTheMeanOfWhatIsNotMarked) {
  test::TestDevice memory;
  constexpr int32_t kHeads = 3, kDim = 20, kEntries = 1100, kAux = 2;
  test::HostLayer layer(kHeads, kDim, kEntries, kAux);
  std::vector<uint8_t> marks(static_cast<size_t>(kHeads) * kEntries);
  layer.len = {kEntries, 70, 9};
  for (int32_t g = 0; g < kHeads; ++g) {
    for (int32_t i = 0; i < kEntries; ++i) {
      const uint32_t bits = static_cast<uint32_t>(g * kEntries + i) * 2654435761u >> 8;
      layer.Position(g, i) = g == 1 && i == 0 ? -31 : 3 * i;
      for (int32_t j = 0; j < kDim; ++j) {
        layer.Key(g, i)[j] =
            static_cast<float>((bits * 31 + static_cast<uint32_t>(j) * 977) % 1000) * 1e-2f - 5;
        layer.Value(g, i)[j] =
            static_cast<float>((bits * 17 + static_cast<uint32_t>(j) * 331) % 1000) * 1e-3f;
      }
      for (int32_t a = 0; a < kAux; ++a) layer.Aux(a, g, i) = static_cast<float>(10 * i + a + 1);
      marks[layer.Entry(g, i)] = g == 2 || (i >= (g == 0 ? 5 : 1) && bits % 3 == 0) || (g == 0 && i < 5);
    }
  }
  LayerBuffers kv;
  memory.Upload(layer, &kv);
  DeviceBuffer<uint8_t> on_device = memory.Upload(marks), scratch;
  ASSERT_TRUE(
      scratch.Allocate(memory.own(), memory.device()->SelectScratchBytes(kHeads, kEntries), "test").ok());
  MergeRule rule;
  rule.kind = MergeKind::kIntoRest;
  ASSERT_TRUE(memory.device()
                  ->Merge(memory.stream(), {rule, kv.view(), 0, on_device.at(), kEntries, scratch.raw()})
                  .ok());
  test::HostLayer got = memory.Download(kv);
  const std::vector<uint8_t> got_marks = memory.Read(on_device.at(), static_cast<int64_t>(marks.size()));
  for (int32_t g = 0; g < kHeads; ++g) {
    SCOPED_TRACE(g);
    int32_t first = 0, tokens = 0;
    while (first < layer.len[static_cast<size_t>(g)] && marks[layer.Entry(g, first)] != 0) ++first;
    std::vector<double> key(kDim), value(kDim);
    for (int32_t i = first; i < layer.len[static_cast<size_t>(g)]; ++i) {
      const int32_t n = layer.Position(g, i) < 0 ? -layer.Position(g, i) : 1;
      if (marks[layer.Entry(g, i)] != 0) continue;
      tokens += n;
      for (size_t j = 0; j < kDim; ++j)
        key[j] += n * double{layer.Key(g, i)[j]}, value[j] += n * double{layer.Value(g, i)[j]};
    }
    const bool any = tokens > 0;
    ASSERT_EQ(any, g != 2);
    for (int32_t i = 0; i < layer.len[static_cast<size_t>(g)]; ++i) {
      const int32_t from = any && i <= first ? i - 1 : i;
      if (from >= 0) {
        ASSERT_EQ(got.KeyOf(g, i), layer.KeyOf(g, from)) << i;
        ASSERT_EQ(got.ValueOf(g, i), layer.ValueOf(g, from)) << i;
        ASSERT_EQ(got.Position(g, i), layer.Position(g, from)) << i;
        for (int32_t a = 0; a < kAux; ++a) ASSERT_EQ(got.Aux(a, g, i), layer.Aux(a, g, from)) << i;
        ASSERT_EQ(got_marks[layer.Entry(g, i)], any && i <= first ? 1 : marks[layer.Entry(g, i)]) << i;
        continue;
      }
      ASSERT_EQ(got.Position(g, 0), -tokens);
      ASSERT_EQ(got_marks[layer.Entry(g, 0)], 1);
      for (size_t j = 0; j < kDim; ++j) {
        ASSERT_NEAR(got.Key(g, 0)[j], key[j] / tokens, 1e-6) << j;
        ASSERT_NEAR(got.Value(g, 0)[j], value[j] / tokens, 1e-6) << j;
      }
      for (int32_t a = 0; a < kAux; ++a) ASSERT_EQ(got.Aux(a, g, 0), 0) << a;
    }
  }
}

}  // namespace
}  // namespace kvc
