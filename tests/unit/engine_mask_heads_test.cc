// The game of head scores: masked heads keep a window, all others everything.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr int kPrompt = 80, kWindow = 8;

std::unique_ptr<Session> Fed(const char* spec) {
  return test::FedSession(test::OpenTwoLayers(), spec, kPrompt);
}

TEST(MaskHeads, MaskedHeadsKeepTheirNewest) {
  const auto session = Fed("full");
  const auto untouched = session->Fork();
  ASSERT_TRUE(untouched.ok());
  const std::vector<uint8_t> keep = {1, 0, 0, 1};
  ASSERT_TRUE(session->MaskHeads(keep, kWindow).ok());
  std::vector<int32_t> kept, newest(kWindow), all(kPrompt);
  std::iota(newest.begin(), newest.end(), kPrompt - kWindow);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(session->Kept(i / 2, i % 2, &kept).ok());
    EXPECT_EQ(kept, keep[static_cast<size_t>(i)] != 0 ? all : newest) << i;
    EXPECT_TRUE(untouched.value()->Kept(i / 2, i % 2, &kept).ok());
    EXPECT_EQ(kept, all) << "the session it was forked from";
  }
  EXPECT_FALSE(session->Rewind(1).ok()) << "what is masked does not come back";
}

// A layer with a window holds its newest whatever is masked.
TEST(MaskHeads, WindowsStayAsTheyAre) {
  test::TinyModelOptions options;
  options.layers = {{24, 0}, {0, 0}};
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenTiny(bytes);
  const auto session = test::FedSession(model, "full", kPrompt);
  constexpr int kHeld = 24 + 32;  // the window and what can be taken back
  std::vector<int32_t> kept, newest(kWindow), held(kHeld), all(kPrompt);
  std::iota(newest.begin(), newest.end(), kPrompt - kWindow);
  std::iota(held.begin(), held.end(), kPrompt - kHeld);
  std::iota(all.begin(), all.end(), 0);
  ASSERT_TRUE(session->MaskHeads(std::vector<uint8_t>{0, 1, 1, 0}, kWindow).ok());
  const auto other = test::FedSession(model, "full", kPrompt);
  ASSERT_TRUE(other->MaskHeads(std::vector<uint8_t>{1, 0, 0, 1}, kWindow).ok());
  const std::vector<int32_t>* const wanted[] = {&held, &held, &all, &newest};
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(session->Kept(i / 2, i % 2, &kept).ok());
    EXPECT_EQ(kept, *wanted[i]) << i;
    EXPECT_TRUE(other->Kept(i / 2, i % 2, &kept).ok());
    EXPECT_EQ(kept, *wanted[i < 2 ? i : 5 - i]) << i;
  }
  test::FeedTokens(*session, test::TinyPrompt(100, 3));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(session->Kept(0, i, &kept).ok());
    EXPECT_EQ(kept.back(), kPrompt + 99);
    EXPECT_GE(kept.size(), 24u);
  }
}

// A masked head may have fewer entries than a policy always keeps; the next prompt takes it as it is.
TEST(MaskHeads, PromptsGoOnAfterIt) {
  for (const char* spec : {"ada-snapkv:budget=40,window=8", "cokv:budget=40,window=8",
                           "headkv-r2:budget=40,window=8", "snapkv:budget=40,window=8"}) {
    SCOPED_TRACE(spec);
    const auto session = Fed(spec);
    const std::vector<uint8_t> keep = {1, 0, 0, 1};
    ASSERT_TRUE(session->MaskHeads(keep, 1).ok());
    ASSERT_TRUE(session->Prefill(std::vector<int32_t>{3}, true).ok());
    std::vector<int32_t> kept;
    EXPECT_TRUE(session->Kept(0, 1, &kept).ok());
    EXPECT_EQ(kept, (std::vector<int32_t>{kPrompt - 1, kPrompt}));
  }
}

TEST(MaskHeads, NothingMaskedChangesNothing) {
  const auto session = Fed("full"), same = Fed("full");
  ASSERT_TRUE(session->MaskHeads(std::vector<uint8_t>(4, 1), kWindow).ok());
  for (int i = 0; i < 5; ++i) {
    int32_t a = -1, b = -2;
    ASSERT_TRUE(session->Step(&a).ok() && same->Step(&b).ok());
    EXPECT_EQ(a, b);
  }
}

TEST(MaskHeads, WhatCannotBeMaskedIsRefusedAndLeftAlone) {
  const std::vector<uint8_t> none(4, 0);
  for (const char* spec :
       {"full:kv=int8,quant_group=8,residual=4", "h2o:budget=40", "spindlekv:budget=40,window=8",
        "snapkv:budget=40,window=8,pos_mode=incache", "pyramidinfer:budget=40,window=8",
        "tova:budget=40,decode=grow", "snapkv:budget=40,window=8,decode=reobserve,slack=4"}) {
    const auto session = Fed(spec);
    const int64_t slots = session->Stats().n_slots;
    const Status status = session->MaskHeads(none, kWindow);
    EXPECT_EQ(status.code(), Code::kUnsupported) << spec;
    EXPECT_FALSE(status.message().empty());
    EXPECT_EQ(session->Stats().n_slots, slots) << spec;
  }
  const auto session = Fed("full");
  EXPECT_EQ(session->MaskHeads({none.data(), 3}, kWindow).code(), Code::kInvalid);
  EXPECT_EQ(session->MaskHeads(none, 0).code(), Code::kInvalid);
}

}  // namespace
}  // namespace kvc
