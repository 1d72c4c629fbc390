// Sessions whose steps read a part of the cache (quest): what they hold is the full cache, and what they read
// survives what happens to a session.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::FedSession;
using test::FeedTokens;
using test::OpenTwoLayers;
using test::TinyPrompt;

constexpr int kPrompt = 200;
constexpr char kPart[] = "quest:read=48,read_skip=1,kv=f32";

// Of the newest token: entries with attention of every query head of a layer.
std::vector<int64_t> EntriesRead(Session& session, int layer) {
  session.ObserveAttention(true);
  FeedTokens(session, {5});
  std::vector<int64_t> read;
  std::vector<float> p;
  for (int h = 0; h < session.model().config().n_heads; ++h) {
    EXPECT_TRUE(session.Attention(layer, h, &p).ok());
    EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1.0, 1e-5);
    read.push_back(std::count_if(p.begin(), p.end(), [](float x) { return x > 0; }));
  }
  return read;
}

TEST(ReadPages, EveryHeadReadsSoManyEntries) {
  const auto session = FedSession(OpenTwoLayers(), kPart, kPrompt);
  ASSERT_EQ(session->model().config().n_layers, 2);
  for (int32_t n = kPrompt + 1; n < kPrompt + 36; ++n) {
    // Two full pages and the newest one, which fills up.
    const int64_t expected = 32 + (n - 1) % 16 + 1;
    auto probe = session->Fork();
    ASSERT_TRUE(probe.ok());
    for (const int64_t read : EntriesRead(*probe.value(), 1)) EXPECT_EQ(read, expected);
    probe = session->Fork();
    for (const int64_t read : EntriesRead(*probe.value(), 0)) EXPECT_EQ(read, n);
    FeedTokens(*session, {n % 200});
    EXPECT_EQ(session->Stats().n_slots, int64_t{2} * session->model().config().n_kv_heads * n);
  }
}

TEST(ReadPages, WhatHoldsAllReadsAll) {
  const auto full = FedSession(OpenTwoLayers(), "full:kv=f32", kPrompt);
  for (const char* spec : {"quest:read=1000,read_skip=0,kv=f32", "quest:read=16,read_skip=2,kv=f32"}) {
    SCOPED_TRACE(spec);
    const auto quest = FedSession(OpenTwoLayers(), spec, kPrompt);
    const auto fork = full->Fork();
    ASSERT_TRUE(fork.ok());
    for (Session* s : {fork.value().get(), quest.get()}) FeedTokens(*s, TinyPrompt(20, 3));
    ExpectSameKept(*fork.value(), *quest);
    ExpectNearLogits(*fork.value(), *quest, 2e-5f);
  }
  const auto part = FedSession(OpenTwoLayers(), kPart, kPrompt), fork = std::move(full->Fork().value());
  for (Session* s : {fork.get(), part.get()}) FeedTokens(*s, TinyPrompt(20, 3));
  EXPECT_GT(test::LargestDifference(*fork, *part), 1e-3) << "a part was read, and nothing shows it";
}

// Forks, saved sessions, and tokens taken back across the border of a page.
TEST(ReadPages, GoOnAsTheyWere) {
  for (const std::string spec : {kPart, "quest:read=48,read_skip=0,kv=int8,quant_group=8,residual=5"}) {
    SCOPED_TRACE(spec);
    const auto model = OpenTwoLayers();
    const auto session = FedSession(model, spec, kPrompt);
    FeedTokens(*session, TinyPrompt(21, 3));
    const std::vector<uint8_t> bytes = test::SavedBytes(*session);
    auto restored = Session::RestoreFrom(model, {bytes.data(), bytes.size()});
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    auto fork = session->Fork();
    ASSERT_TRUE(fork.ok());
    std::vector<Session*> others = {restored.value().get(), fork.value().get()};
    if (spec == kPart) {
      auto back = session->Fork();
      ASSERT_TRUE(back.ok());
      FeedTokens(*back.value(), TinyPrompt(30, 11));
      ASSERT_TRUE(back.value()->Rewind(31).ok());
      ASSERT_TRUE(back.value()->Accept(TinyPrompt(21, 3).back()).ok());
      fork = std::move(back);
      others[1] = fork.value().get();
    }
    const auto accept = [](Session& s) {
      for (const int32_t token : TinyPrompt(40, 5)) ASSERT_TRUE(s.Accept(token).ok());
    };
    accept(*session);
    for (Session* other : others) {
      accept(*other);
      ExpectSameKept(*session, *other);
      ExpectNearLogits(*session, *other, 0.0f);
    }
  }
}

// At the end of the context entries leave one by one: pages that others moved into are read by what they
// hold. Keys that slide are read all of them.
TEST(ReadPages, AtTheEndOfTheContext) {
  for (const OnFull on_full : {OnFull::kEvict, OnFull::kSlide}) {
    SessionParams params;
    params.max_tokens = kPrompt, params.on_full = on_full;
    const auto session = FedSession(OpenTwoLayers(), kPart, kPrompt, params);
    for (int i = 0; i < 60; ++i) FeedTokens(*session, {i});
    for (const int64_t read : EntriesRead(*session, 1)) {
      // A token attends before an entry leaves.
      EXPECT_EQ(read, on_full == OnFull::kEvict ? 32 + kPrompt % 16 + 1 : kPrompt + 1);
    }
  }
}

TEST(ReadPages, CostsTheBoundsOfPages) {
  const auto full = FedSession(OpenTwoLayers(), "full:kv=f32", 512),
             quest = FedSession(OpenTwoLayers(), "quest:kv=f32", 512);
  const ModelConfig& c = full->model().config();
  const int64_t pages = int64_t{c.n_layers} * c.n_kv_heads * 512 / 16;
  EXPECT_EQ(quest->Stats().cache_bytes, full->Stats().cache_bytes + pages * 2 * 4 * c.head_dim);
}

}  // namespace
}  // namespace kvc
