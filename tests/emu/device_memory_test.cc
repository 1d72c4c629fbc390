// The device refuses something in the middle of a prompt, of a step or of a graph's launch: calls of every
// kind that it may refuse, from the first to the last, while a second session of the model is alive. The
// error is the documented one, nothing is left of what failed, called again it gives the same bits, and the
// other session never notices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "lib/ops/devices.h"
#include "tests/emu/emulator.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using emu::Call;

constexpr int64_t kMostRuns = 24;  // of the calls of one kind: where there are more, some are left out

// What two sessions gave in the course of a run.
struct Seen {
  std::vector<int32_t> tokens;
  std::vector<float> logits, others;
  bool operator==(const Seen& other) const {
    return tokens == other.tokens && logits == other.logits && others == other.others;
  }
};

class RefusedCalls : public testing::TestWithParam<const char*> {
 protected:
  // keeps: what was freed is there when a call is refused, so that few are.
  void Open(bool keeps) {
    test::SetVariable("KVC_CUDA_KEEP", keeps ? "1" : "0");
    model_ = test::OpenEmulated(bytes_, 1);
  }
  void TearDown() override { emu::GetOptions() = {}; }

  void Refuse(Call call, int64_t after) {
    emu::GetOptions().refused = call, emu::GetOptions().refused_after = after;
  }
  static bool Pending() { return emu::GetOptions().refused != Call::kCount; }

  // Repeats what is refused for want of memory: once, for one call is refused.
  template <typename F>
  void Repeat(const char* what, F&& call) {
    const bool pending = Pending();
    Status status = call();
    if (!status.ok() && pending && !Pending()) {
      ++refused_;
      EXPECT_EQ(status.code(), Code::kMemory) << what << ": " << status.message();
      status = call();
    }
    ASSERT_TRUE(status.ok()) << what << ": " << status.message();
  }

  // A prompt, steps, a second prompt, a fork and more steps; the other session steps in between.
  void Run(Seen* seen) {
    std::unique_ptr<Session> one = test::NewSession(model_, GetParam()), fork;
    const auto steps = [&](Session& s, int n) {
      for (int i = 0; i < n && !HasFatalFailure(); ++i) {
        int32_t token = -2;
        Repeat("step", [&] { return s.Step(&token); });
        seen->tokens.push_back(token);
      }
    };
    const auto logits = [&](Session& s, std::vector<float>* to) {
      std::vector<float> x(static_cast<size_t>(model_->config().vocab_size));
      Repeat("logits", [&] { return s.ReadLogits(x.data()); });
      to->insert(to->end(), x.begin(), x.end());
    };
    const auto other = [&] {
      int32_t token = -2;
      const Status status = other_->Step(&token);
      EXPECT_TRUE(status.ok() || (status.code() == Code::kMemory && !Pending())) << status.message();
      if (!status.ok()) {
        EXPECT_TRUE(other_->Step(&token).ok());
      }
      seen->others.push_back(static_cast<float>(token));
    };
    Repeat("prompt", [&] { return one->Prefill(test::TinyPrompt(50), true); });
    other();
    steps(*one, 3);
    logits(*one, &seen->logits);
    Repeat("another prompt", [&] { return one->Prefill(test::TinyPrompt(33, 3), true); });
    other();
    Repeat("fork", [&] {
      auto forked = one->Fork();
      if (forked.ok()) fork = std::move(forked.value());
      return forked.status();
    });
    steps(*fork, 2);
    steps(*one, 2);
    other();
    logits(*one, &seen->logits), logits(*fork, &seen->logits);
  }

  // A run beside a session of its own; the calls of the device in it.
  Seen RunOnce(Call refused = Call::kCount, int64_t after = 0, int64_t* n_calls = nullptr) {
    other_ = test::NewSession(model_, "h2o:budget=24");
    EXPECT_TRUE(other_->Prefill(test::TinyPrompt(50, 9), true).ok());
    refused_ = 0;
    emu::GetCalls() = {};
    if (refused != Call::kCount) Refuse(refused, after);
    Seen seen;
    Run(&seen);
    if (n_calls != nullptr) std::copy_n(emu::GetCalls().of, static_cast<int>(Call::kCount), n_calls);
    emu::GetOptions() = {};
    const std::vector<float> logits = test::LogitsOf(*other_);
    seen.others.insert(seen.others.end(), logits.begin(), logits.end());
    other_.reset();
    return seen;
  }

  const test::KeptVariable keep_{"KVC_CUDA_KEEP"};
  const test::AlignedBytes bytes_ = test::TinyModelBytes({});
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Session> other_;
  int refused_ = 0;  // calls of sessions that said so
};

TEST_P(RefusedCalls, EveryRefusedCallCanBeRepeated) {
  Open(false);
  int64_t n[static_cast<int>(Call::kCount)] = {};
  const Seen expected = RunOnce(Call::kCount, 0, n);
  ASSERT_EQ(RunOnce(), expected) << "two runs";
  const int64_t used = model_->meter()->used();
  for (const Call call : {Call::kAllocate, Call::kCommit}) {
    const int64_t calls = n[static_cast<int>(call)];
    ASSERT_GT(calls, 0);
    int said = 0;
    for (int64_t k = 0; k < calls && !HasFailure(); k += calls / kMostRuns + 1) {
      SCOPED_TRACE(testing::Message()
                   << "call " << k << " of " << calls << ", kind " << static_cast<int>(call));
      ASSERT_EQ(RunOnce(call, k), expected);
      said += refused_;
      ASSERT_EQ(model_->meter()->used(), used) << "nothing stays";
    }
    EXPECT_GT(said, 0);
  }
}

// What is kept of freed memory goes first, and is enough: nobody hears of it.
TEST_P(RefusedCalls, WhatIsKeptGoesFirst) {
  Open(true);
  int64_t n[static_cast<int>(Call::kCount)] = {};
  const Seen expected = RunOnce(Call::kCount, 0, n);
  for (const Call call : {Call::kAllocate, Call::kCommit}) {
    const int64_t calls = n[static_cast<int>(call)];
    for (int64_t k = 0; k < calls && !HasFailure(); k += calls / kMostRuns + 1) {
      SCOPED_TRACE(testing::Message() << "call " << k << ", kind " << static_cast<int>(call));
      ASSERT_EQ(RunOnce(call, k), expected);
      EXPECT_EQ(refused_, 0);
    }
  }
}

// A graph that cannot be launched goes launch by launch: nobody hears of it.
TEST_P(RefusedCalls, GraphsThatAreRefusedGoOneByOne) {
  Open(true);
  int64_t n[static_cast<int>(Call::kCount)] = {};
  const Seen expected = RunOnce(Call::kCount, 0, n);
  const int64_t graphs = n[static_cast<int>(Call::kLaunchGraph)];
  ASSERT_GT(graphs, 0);
  for (int64_t k = 0; k < graphs && !HasFailure(); k += graphs / kMostRuns + 1) {
    SCOPED_TRACE(k);
    ASSERT_EQ(RunOnce(Call::kLaunchGraph, k), expected);
    EXPECT_EQ(refused_, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RefusedCalls,
                         testing::Values("full", "snapkv:budget=24,window=8,kv=int8,quant_group=16",
                                         "weightedkv:budget=24"),
                         [](const auto& policy) {
                           const std::string name = policy.param;
                           return name.substr(0, name.find(':'));
                         });

// A kernel that is not launched in the middle of a step, or what is not copied: the session can only be reset
// or closed, the others go on.
struct Torn {
  const char* policy;
  Call call;
};
class DeviceFailureInAStep : public testing::TestWithParam<Torn> {};

TEST_P(DeviceFailureInAStep, TearsItsSessionAlone) {
  const std::string policy = GetParam().policy;
  test::SetVariable("KVC_CUDA_GRAPHS", "0");  // every kernel is a call
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = test::OpenEmulated(bytes);
  const auto fed = [&] {
    auto session = test::NewSession(model, policy);
    EXPECT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    return session;
  };
  const std::vector<int32_t> expected = test::Steps(*fed(), 6);
  int torn = 0;
  const bool launches = GetParam().call == Call::kLaunch;
  for (int64_t k = 0; k < (launches ? 40 : 8); k += launches ? 3 : 1) {
    SCOPED_TRACE(k);
    auto one = fed(), other = fed();
    std::vector<int32_t> others = test::Steps(*other, 2);
    int32_t token = 0;
    ASSERT_TRUE(one->Step(&token).ok());
    emu::GetOptions().refused = GetParam().call, emu::GetOptions().refused_after = k;
    Status status = one->Step(&token);
    const bool hit = emu::GetOptions().refused == Call::kCount;
    emu::GetOptions() = {};
    ASSERT_EQ(status.ok(), !hit);
    if (hit) {
      EXPECT_EQ(status.code(), Code::kDevice) << status.message();
      const char* says_why =
          launches ? "too many resources requested for launch" : "error of the emulated device";
      EXPECT_NE(status.message().find(says_why), std::string::npos);
      status = one->Step(&token);
      if (!status.ok()) {
        ++torn;
        EXPECT_EQ(status.code(), Code::kDevice);
        const std::string says = "the device failed in the middle of a step: reset or close the session";
        EXPECT_EQ(status.message(), says);
        EXPECT_EQ(one->Prefill(test::TinyPrompt(5), true).message(), says);
        EXPECT_EQ(one->Fork().status().message(), says);
        EXPECT_EQ(one->Rewind(1).message(), says);
        EXPECT_EQ(one->Accept(1).message(), says);
      }
    }
    const std::vector<int32_t> more = test::Steps(*other, 4);
    others.insert(others.end(), more.begin(), more.end());
    EXPECT_EQ(others, expected) << "the other session goes on";
    one->Reset();
    ASSERT_TRUE(one->Prefill(test::TinyPrompt(60), true).ok());
    EXPECT_EQ(test::Steps(*one, 6), expected) << "and after a reset this one";
  }
  EXPECT_GT(torn, launches ? 3 : 1);
  test::SetVariable("KVC_CUDA_GRAPHS", nullptr);
}

// Of the second policy the lengths come back when the step has ended.
INSTANTIATE_TEST_SUITE_P(Policies, DeviceFailureInAStep,
                         testing::Values(Torn{"h2o:budget=24", Call::kLaunch},
                                         Torn{"h2o:budget=24,kv=int8,quant_group=16", Call::kLaunch},
                                         Torn{"h2o:budget=24,kv=int8,quant_group=16", Call::kCopy}));

// A prompt works on records of its own: what fails in it leaves the session as it was.
TEST(DeviceFailure, APromptThatFailsLeavesTheSessionAsItWas) {
  const test::AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = test::OpenEmulated(bytes);
  const std::string policy = "snapkv:budget=24,window=8";
  const auto run = [&](int64_t refused_after) {
    auto session = test::NewSession(model, policy);
    EXPECT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
    std::vector<int32_t> tokens = test::Steps(*session, 3);
    emu::GetCalls() = {};
    if (refused_after >= 0)
      emu::GetOptions().refused = Call::kLaunch, emu::GetOptions().refused_after = refused_after;
    const Status status = session->Prefill(test::TinyPrompt(50, 3), true);
    emu::GetOptions() = {};
    EXPECT_EQ(status.ok(), refused_after < 0);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kDevice);
      EXPECT_TRUE(session->Prefill(test::TinyPrompt(50, 3), true).ok());
    }
    const std::vector<int32_t> more = test::Steps(*session, 3);
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens;
  };
  const std::vector<int32_t> expected = run(-1);
  const int64_t n = emu::GetCalls().of[static_cast<int>(Call::kLaunch)];
  ASSERT_GT(n, 0);
  run(-1);
  for (int64_t k = 0; k < 20; k += 3) EXPECT_EQ(run(k), expected) << k;
}

// A step of so many sessions that what the stream has to bring does not fit into its first memory.
TEST(DeviceFailure, ManySessionsWithoutMemoryForTheirRecords) {
  constexpr int kSessions = 220;
  test::TinyModelOptions options;
  options.n_layers = 1, options.n_heads = options.n_kv_heads = 8;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const std::vector<int32_t> tokens = test::TinyPrompt(kSessions, 5);
  int64_t calls[static_cast<int>(Call::kCount)] = {};
  // The logits of some of the sessions; *refused: whether the call said so, and was repeated.
  const auto run = [&](Call call, int64_t after, int64_t n, bool* refused) {
    const auto model = test::OpenEmulated(bytes, 1);
    std::vector<std::unique_ptr<Session>> sessions;
    sessions.push_back(test::NewSession(model, "full"));
    EXPECT_TRUE(sessions[0]->Prefill(test::TinyPrompt(200), true).ok());
    std::vector<Session*> all = {sessions[0].get()};
    while (sessions.size() < kSessions) {
      auto fork = sessions[0]->Fork();
      EXPECT_TRUE(fork.ok()) << fork.status().message();
      sessions.push_back(std::move(fork.value()));
      all.push_back(sessions.back().get());
    }
    emu::GetCalls() = {};
    emu::GetOptions().refused = call, emu::GetOptions().refused_after = after;
    emu::GetOptions().refused_calls = n;
    Status status = Session::FeedBatch({all.data(), all.size()}, tokens.data());
    emu::GetOptions() = {};
    std::copy_n(emu::GetCalls().of, static_cast<int>(Call::kCount), calls);
    *refused = !status.ok();
    if (*refused) {
      EXPECT_EQ(status.code(), Code::kMemory) << status.message();
      status = Session::FeedBatch({all.data(), all.size()}, tokens.data());
    }
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> logits;
    for (const size_t i : {size_t{0}, size_t{1}, size_t{kSessions - 1}}) {
      const std::vector<float> x = test::LogitsOf(*sessions[i]);
      logits.insert(logits.end(), x.begin(), x.end());
    }
    return logits;
  };
  bool refused = false;
  const std::vector<float> expected = run(Call::kCount, 0, 1, &refused);
  ASSERT_FALSE(refused);
  ASSERT_GT(calls[static_cast<int>(Call::kPin)], 0) << "the stream takes more memory";
  EXPECT_EQ(run(Call::kPin, 0, 1, &refused), expected);
  EXPECT_FALSE(refused) << "half of it is enough";
  EXPECT_EQ(run(Call::kPin, 0, 1000, &refused), expected);
  EXPECT_TRUE(refused);
  run(Call::kCount, 0, 1, &refused);
  const int64_t n = calls[static_cast<int>(Call::kAllocate)];
  for (int64_t k = 0; k < n && !HasFailure(); k += n / 8 + 1) {
    SCOPED_TRACE(k);
    EXPECT_EQ(run(Call::kAllocate, k, 1000, &refused), expected);
    EXPECT_TRUE(refused);
  }
}

// Where a kernel has failed there may be memory, and waiting for more would not help.
TEST(DeviceFailure, MemoryAfterAKernelThatFailed) {
  const Result<std::unique_ptr<Device>> opened = OpenDevice("emu", 1);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Device& device = *opened.value();
  const int64_t granule = device.info().granule;
  DeviceBytes block, pages;
  ASSERT_EQ(device.Reserve(granule, &pages), granule);
  emu::Break();
  Status status = device.Allocate(100, "a test", &block);
  EXPECT_EQ(status.code(), Code::kDevice);
  EXPECT_EQ(status.message(), "a test: unspecified launch failure");
  status = device.Commit(pages, granule);
  EXPECT_EQ(status.code(), Code::kDevice);
  EXPECT_EQ(status.message(), "the KV cache: unspecified launch failure");
  EXPECT_EQ(device.NewStream().status().code(), Code::kDevice);
  emu::Recover();
  emu::GetOptions().refused = Call::kAllocate;
  EXPECT_EQ(device.Allocate(100, "a test", &block).code(), Code::kMemory);
  emu::GetOptions().refused = Call::kCommit;
  EXPECT_EQ(device.Commit(pages, granule).code(), Code::kMemory);
  emu::GetOptions() = {};
  EXPECT_TRUE(device.Allocate(100, "a test", &block).ok());
  EXPECT_TRUE(device.Commit(pages, granule).ok());
  device.Free(block, 100);
  EXPECT_TRUE(device.Decommit(pages, granule));
  device.Unreserve(pages, granule);
}

// Every arena gets some of few addresses, and the first does not take most of them.
TEST(DeviceMemory, FewAddressesAreShared) {
  const auto reserved = [](int64_t addresses) {
    emu::GetOptions() = {};
    emu::GetOptions().addresses = addresses;
    const Result<std::unique_ptr<Device>> opened = OpenDevice("emu", 1);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    Device& device = *opened.value();
    std::vector<DeviceBytes> at(4);
    std::vector<int64_t> gib;
    for (DeviceBytes& one : at) gib.push_back(device.Reserve(int64_t{1} << 38, &one) >> 30);
    for (size_t i = 0; i < at.size(); ++i) device.Unreserve(at[i], gib[i] << 30);
    return gib;
  };
  const int64_t gib = int64_t{1} << 30;  // the device has eight of memory
  EXPECT_EQ(reserved(64 * gib), (std::vector<int64_t>{8, 8, 8, 8}));
  EXPECT_EQ(reserved(7 * gib), (std::vector<int64_t>{2, 2, 1, 1}));
  EXPECT_EQ(reserved(24 * gib), (std::vector<int64_t>{8, 8, 8, 0}));
  emu::GetOptions() = {};
}

// ---- drafts ----

constexpr int32_t kEndOfText = 257;

// Checks drafts of which the first tokens are right, on forks of one session.
class DeviceDraft : public testing::Test {
 protected:
  static constexpr int kAnswer = 14, kDrafted = 8, kRight = 5;

  void Open(const test::TinyModelOptions& options, int n_prompt) {
    bytes_ = test::TinyModelBytes(options);
    model_ = test::OpenEmulated(bytes_, 1);
    base_ = test::NewSession(model_, "full");
    ASSERT_TRUE(base_->Prefill(test::TinyPrompt(n_prompt), true).ok());
    const float never[] = {-INFINITY};
    ASSERT_TRUE(base_->SetBias({&kEndOfText, 1}, never).ok());
    expected_ = test::Steps(*Fork(), kAnswer);
    draft_.assign(expected_.begin(), expected_.begin() + kDrafted);
    for (size_t i = kRight; i < draft_.size(); ++i) draft_[i] = (draft_[i] + 1) % 250;
  }
  void TearDown() override {
    emu::GetOptions() = {};
    test::SetVariable("KVC_CUDA_GRAPHS", nullptr);
  }

  std::unique_ptr<Session> Fork() {
    auto fork = base_->Fork();
    EXPECT_TRUE(fork.ok()) << fork.status().message();
    return std::move(fork.value());
  }
  // What a call refused after so many others leaves. *hit: there was one.
  Status Check(Session& session, Call refused, int64_t after, std::vector<int32_t>* tokens, bool* hit) {
    int32_t chosen[kDrafted + 1], n = 0;
    emu::GetOptions().refused = refused, emu::GetOptions().refused_after = after;
    const Status status = session.StepDraft({draft_.data(), draft_.size()}, chosen, kDrafted + 1, &n);
    *hit = emu::GetOptions().refused == Call::kCount;
    emu::GetOptions() = {};
    EXPECT_EQ(n == 0, !status.ok());
    tokens->insert(tokens->end(), chosen, chosen + n);
    return status;
  }
  void ExpectGoesOn(Session& session, std::vector<int32_t> tokens) {
    const std::vector<int32_t> more = test::Steps(session, kAnswer - static_cast<int>(tokens.size()));
    tokens.insert(tokens.end(), more.begin(), more.end());
    EXPECT_EQ(tokens, expected_);
  }

  test::AlignedBytes bytes_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Session> base_;
  std::vector<int32_t> expected_, draft_;
};

// Heads so many and so long that looking for the rows by their positions would work in more memory than a
// stream begins with.
TEST_F(DeviceDraft, RowsAreTakenBackWithoutMemory) {
  test::TinyModelOptions options;
  options.n_layers = options.n_heads = options.n_kv_heads = 8;
  Open(options, 330);
  if (HasFatalFailure()) return;
  for (const Call call : {Call::kPin, Call::kAllocate, Call::kCommit}) {
    bool hit = true;
    for (int64_t k = 0; hit && k < 40 && !HasFailure(); ++k) {
      SCOPED_TRACE(testing::Message() << "call " << k << ", kind " << static_cast<int>(call));
      const auto session = Fork();
      std::vector<int32_t> tokens;
      Status status = Check(*session, call, k, &tokens, &hit);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), Code::kMemory) << status.message();
        bool none = false;
        status = Check(*session, Call::kCount, 0, &tokens, &none);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      EXPECT_GT(tokens.size(), 1u);
      ExpectGoesOn(*session, tokens);
    }
    EXPECT_FALSE(hit) << "more calls than expected";
  }
}

// Rows that cannot be taken back are no answer's: the session can only be reset or closed.
TEST_F(DeviceDraft, ACopyThatFails) {
  test::SetVariable("KVC_CUDA_GRAPHS", "0");
  Open({}, 60);
  if (HasFatalFailure()) return;
  int torn = 0;
  bool hit = true;
  for (int64_t k = 0; hit && k < 200 && !HasFailure(); ++k) {
    SCOPED_TRACE(k);
    const auto session = Fork();
    std::vector<int32_t> tokens;
    const Status status = Check(*session, Call::kCopy, k, &tokens, &hit);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kDevice) << status.message();
      int32_t token = -2;
      const Status next = session->Step(&token);
      if (!next.ok()) {
        ++torn;
        EXPECT_EQ(next.message(), "the device failed in the middle of a step: reset or close the session");
        continue;
      }
      tokens.push_back(token);
    }
    ExpectGoesOn(*session, tokens);
  }
  EXPECT_FALSE(hit) << "more copies than expected";
  EXPECT_GT(torn, 1);
}

// Cancelled while a step is on its way, between its pieces (a step of so many layers has two) and between
// what is read back in it: the step ends, the next one says so, and repeated it gives what it would have
// given.
TEST(DeviceFailure, ACancelDuringAReplay) {
  test::TinyModelOptions options;
  options.n_layers = 8;
  const test::AlignedBytes bytes = test::TinyModelBytes(options);
  const auto model = test::OpenEmulated(bytes);
  for (const char* policy : {"full", "h2o:budget=24", "streaming:budget=24,kv=int8,quant_group=16"}) {
    SCOPED_TRACE(policy);
    const auto fed = [&] {
      auto session = test::NewSession(model, policy);
      EXPECT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
      EXPECT_EQ(test::Steps(*session, 3).size(), 3u);  // from here on pieces are graphs
      return session;
    };
    const auto whole = fed();
    emu::GetCalls() = {};
    const std::vector<int32_t> expected = test::Steps(*whole, 4);
    const std::vector<float> logits = test::LogitsOf(*whole);
    ASSERT_GE(emu::GetCalls().graphs, 8) << "two pieces a step";
    int cancelled = 0;
    for (int at = 0; at < 12 && !HasFailure(); ++at) {
      SCOPED_TRACE(at);
      const auto session = fed();
      int calls = 0;
      emu::GetOptions().on_call = [&](Call call) {
        if (call != Call::kCopy && calls++ == at) session->call().RequestCancel();
      };
      std::vector<int32_t> tokens;
      while (tokens.size() < expected.size()) {
        int32_t token = -2;
        const Status status = session->Step(&token);
        if (status.ok()) {
          tokens.push_back(token);
          continue;
        }
        ASSERT_EQ(status.code(), Code::kCancelled) << status.message();
        session->call().ClearCancel();  // as the API does
        ++cancelled;
      }
      emu::GetOptions() = {};
      EXPECT_EQ(tokens, expected);
      session->call().ClearCancel();  // one that came behind the last look
      EXPECT_EQ(test::LogitsOf(*session), logits);
    }
    EXPECT_GT(cancelled, 6);
  }
}

}  // namespace
}  // namespace kvc
