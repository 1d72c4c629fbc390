// A device that fails. This program makes its own device "cpu" (KVC_CPU_MAKER): the processor, of which one
// kind of operation fails when a test says so.
#include <gtest/gtest.h>

#include "lib/ops/cpu/cpu_device.h"
#include "tests/support/tiny_session.h"
#include "tests/support/watched_device.h"

namespace kvc {

namespace {

enum class Op { kNone, kWrite, kStep, kStoreLayer, kRewind, kSample, kCopyBehindSample };

struct Fault {
  Op op = Op::kNone;
  Code code = Code::kOk;
  int calls = 0;  // that go well before
  bool sampled = false;
};
Fault fault;

// While it lives.
class Failing {
 public:
  Failing(Op op, Code code, int calls) { fault = {op, code, calls}; }
  ~Failing() { fault = {}; }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
};

Status Fails(Op op) {
  if (op != fault.op || fault.calls-- > 0) return {};
  return Error(fault.code, "the link to the device is down");
}

class FailingDevice final : public test::WatchedDevice {
 public:
  using WatchedDevice::WatchedDevice;
  Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) override {
    KVC_RETURN_IF_ERROR(Fails(Op::kWrite));
    return WatchedDevice::Write(s, to, from, bytes);
  }
  Status Step(Stream* s, const StepArgs& args) override {
    KVC_RETURN_IF_ERROR(Fails(Op::kStep));
    return WatchedDevice::Step(s, args);
  }
  Status StoreLayer(Stream* s, const StoreArgs& args) override {
    KVC_RETURN_IF_ERROR(Fails(Op::kStoreLayer));
    return WatchedDevice::StoreLayer(s, args);
  }
  Status Rewind(Stream* s, const RewindArgs& args) override {
    KVC_RETURN_IF_ERROR(Fails(Op::kRewind));
    return WatchedDevice::Rewind(s, args);
  }
  Status Sample(Stream* s, const SampleArgs& args) override {
    fault.sampled = true;
    KVC_RETURN_IF_ERROR(Fails(Op::kSample));
    return WatchedDevice::Sample(s, args);
  }
  Status Copy(Stream* s, Span<const PageCopy> copies) override {
    if (fault.sampled) KVC_RETURN_IF_ERROR(Fails(Op::kCopyBehindSample));
    return WatchedDevice::Copy(s, copies);
  }
};

}  // namespace

CpuMaker FailingCpu();
CpuMaker FailingCpu() {
  return [](const ThreadOptions& threads) -> Result<std::unique_ptr<Device>> {
    auto cpu = cpu::CpuDevice::Create(threads);
    if (!cpu.ok()) return cpu;
    return std::unique_ptr<Device>(new FailingDevice(std::move(cpu.value())));
  };
}

namespace {

// A file that is fine is not said to be damaged: who reads that throws it away.
TEST(DeviceFault, IsNoDamageOfTheFileThatIsRestored) {
  const auto model = test::OpenTwoLayers();
  const auto session = test::FedSession(model, "full", 20);
  const test::TempFolder folder;
  const std::string path = folder / "s";
  ASSERT_TRUE(session->Save(path).ok());
  for (const Code code : {Code::kDevice, Code::kInternal, Code::kMemory}) {
    const auto restored = [&] {
      const Failing writes(Op::kWrite, code, 0);
      return Session::Restore(model, path);
    }();
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), code);
    EXPECT_EQ(restored.status().message().find("damaged"), std::string::npos) << restored.status().message();
  }
  EXPECT_TRUE(Session::Restore(model, path).ok());
}

// Layers hold different tokens: nothing is computed from them any more.
void ExpectTorn(Session& s) {
  int32_t token = -1, n = 0;
  std::vector<float> logits(static_cast<size_t>(s.model().config().vocab_size));
  EXPECT_EQ(s.Step(&token).code(), Code::kDevice);
  EXPECT_EQ(s.StepDraft(std::vector<int32_t>{1}, &token, 1, &n).code(), Code::kDevice);
  EXPECT_EQ(s.ReadLogits(logits.data()).code(), Code::kDevice);
  EXPECT_EQ(s.Prefill(test::TinyPrompt(3), true).code(), Code::kDevice);
  EXPECT_EQ(s.Accept(1).code(), Code::kDevice);
  EXPECT_EQ(s.Rewind(1).code(), Code::kDevice);
  EXPECT_EQ(s.Recompress(0, nullptr).code(), Code::kDevice);
  EXPECT_EQ(s.Fork().status().code(), Code::kDevice);
  MemorySink sink(nullptr, 0);
  EXPECT_EQ(s.SaveTo(&sink).code(), Code::kDevice);
}

// Of a batch too; a failure that a device calls want of memory is not one that calling again cures.
TEST(DeviceFault, AStepThatFailsInItsMiddleEndsItsSessions) {
  const auto model = test::OpenTwoLayers();
  for (const Code code : {Code::kDevice, Code::kMemory}) {
    const auto fails = test::FedSession(model, "full", 20), also = test::FedSession(model, "full", 30),
               rests = test::FedSession(model, "full", 40);
    for (Session* s : {fails.get(), also.get()}) ASSERT_TRUE(s->Accept(5).ok());
    std::vector<StepWish> rows(3);
    rows[0].session = fails.get(), rows[1].session = rests.get(), rows[2].session = also.get();
    {
      const Failing steps(Op::kStep, code, 1);
      Session::RunBatch({rows.data(), rows.size()}, 0);
    }
    for (const StepWish& row : rows) EXPECT_EQ(row.status.code(), Code::kDevice) << row.status.message();
    ExpectTorn(*fails);
    ExpectTorn(*also);
    EXPECT_EQ(fails->figures().n_tokens, 20);
    const auto as_new = test::FedSession(model, "full", 40);
    test::ExpectNearLogits(*rests, *as_new, 0.0f);
    also->Reset();
    ASSERT_TRUE(also->Prefill(test::TinyPrompt(40), true).ok());
    test::ExpectNearLogits(*also, *as_new, 0.0f);
    EXPECT_EQ(test::Steps(*also, 5), test::Steps(*as_new, 5));
  }
}

// What a session would do next in several ways, and is not changed by.
struct Prospect {
  std::vector<float> logits;
  std::vector<int32_t> tokens, kept;
  bool at_start = false;  // of a text, when the newest token is taken back
  bool operator==(const Prospect& o) const {
    return logits == o.logits && tokens == o.tokens && kept == o.kept && at_start == o.at_start;
  }
};

Prospect ProspectOf(Session& s) {
  Prospect p;
  p.logits = test::LogitsOf(s);
  p.tokens = test::Steps(*s.Fork().value(), 6);
  const auto compressed = std::move(s.Fork().value()), rewound = std::move(s.Fork().value());
  EXPECT_TRUE(compressed->Recompress(14, nullptr).ok());
  EXPECT_TRUE(compressed->Kept(1, 1, &p.kept).ok());
  p.at_start = rewound->Rewind(1).ok() && rewound->text().at_start();
  return p;
}

struct Parts {
  const char* policy;
  Op op;
};

// A prompt of several parts works on a fork: wherever it fails, the session is as it was, and may read it
// again.
void ExpectTakenBackWhole(const Parts& parts, bool pending) {
  SCOPED_TRACE(std::string(parts.policy) + (pending ? ", behind a token that waits" : ""));
  const auto model = test::OpenTwoLayers();
  SessionParams params;
  params.max_tokens = 60, params.on_full = OnFull::kSlide;
  params.sampler.repeat_penalty = 2, params.sampler.repeat_window = 40;
  const auto fed = [&] {
    auto session = test::FedSession(model, parts.policy, 20, params);
    EXPECT_TRUE(session->Accept(5).ok() && session->Accept(6).ok());
    EXPECT_TRUE(pending || session->FeedPending().ok());
    return session;
  };
  const auto other = fed(), session = fed();
  const Prospect before = ProspectOf(*other);
  ASSERT_TRUE(other->Prefill(test::TinyPrompt(90, 3), true).ok());
  int failed = 0;
  for (Status read = Error(Code::kDevice, "not yet"); !read.ok(); ++failed) {
    ASSERT_LT(failed, 300);
    {
      const Failing operations(parts.op, Code::kDevice, failed);
      read = session->Prefill(test::TinyPrompt(90, 3), true);
    }
    if (read.ok()) break;
    ASSERT_EQ(read.code(), Code::kDevice) << read.message();
    EXPECT_EQ(session->Stats().n_tokens, 22);
    ASSERT_TRUE(ProspectOf(*session) == before) << failed;
  }
  EXPECT_GT(failed, 3);
  EXPECT_TRUE(ProspectOf(*session) == ProspectOf(*other));
}

TEST(DeviceFault, APromptByPartsThatFailsIsTakenBack) {
  for (const bool pending : {false, true}) {
    ExpectTakenBackWhole({"weightedkv:budget=24,wkv_prefill=sequential", Op::kStep}, pending);
    ExpectTakenBackWhole({"snapkv:budget=24,window=8", Op::kStoreLayer}, pending);
  }
}

// Sessions that read a prompt alone, in one pass and in another: what the first of them hold goes where a
// later one fails.
TEST(DeviceFault, APromptForSeveralSessionsIsReadByAllOrNone) {
  const auto model = test::OpenTwoLayers();
  const char* const policies[] = {"snapkv:budget=24,window=8", "snapkv:budget=24,window=8,scorer=reconstruct",
                                  "snapkv:budget=24,window=8,scorer=reconstruct,reread=own", "full",
                                  "weightedkv:budget=24,wkv_prefill=sequential"};
  std::vector<std::unique_ptr<Session>> sessions, alone;
  std::vector<Session*> together;
  for (const char* policy : policies) {
    sessions.push_back(test::NewSession(model, policy)), together.push_back(sessions.back().get());
    alone.push_back(test::FedSession(model, policy, 60));
  }
  int failed = 0;
  for (Status read = Error(Code::kDevice, "not yet"); !read.ok();) {
    ASSERT_LT(failed, 100);
    {
      const Failing stores(Op::kStoreLayer, Code::kDevice, failed);
      read = Session::PrefillTogether({together.data(), together.size()}, test::TinyPrompt(60));
    }
    if (read.ok()) break;
    ++failed;
    for (const Session* s : together) {
      EXPECT_EQ(s->Stats().n_tokens, 0) << failed;
      EXPECT_EQ(s->Stats().cache_bytes, 0) << failed;
    }
  }
  EXPECT_GE(failed, 10) << "each of five sessions stores two layers";
  for (size_t i = 0; i < alone.size(); ++i) {
    test::ExpectSameKept(*together[i], *alone[i]);
    test::ExpectNearLogits(*together[i], *alone[i], 0.0f);
  }
}

// Where entries left one by one slots are out of order, and the device takes those of a rewind out.
TEST(DeviceFault, ARewindThatFailsInItsMiddleEndsTheSession) {
  const auto model = test::OpenTwoLayers();
  const auto session = test::FedSession(model, "snapkv:budget=24,window=8,decode=reobserve,slack=6", 40);
  const int32_t before = session->figures().n_compactions;
  for (int32_t t = 0; session->figures().n_compactions == before; ++t) {
    ASSERT_LT(t, 20);
    test::FeedTokens(*session, {t});
  }
  test::FeedTokens(*session, {3, 4, 5});
  {
    const Failing rewinds(Op::kRewind, Code::kDevice, 1);
    EXPECT_EQ(session->Rewind(2).code(), Code::kDevice);
  }
  ExpectTorn(*session);
}

// The tokens of steps that went well are given, and the next step goes on behind them.
TEST(DeviceFault, AChoiceThatFailsBehindRightTokensLosesNone) {
  const auto model = test::OpenTwoLayers();
  const std::vector<int32_t> answer = test::Steps(*test::FedSession(model, "full", 20), 12);
  const std::vector<int32_t> draft(answer.begin(), answer.begin() + 6);
  for (int right = 0; right < 6; ++right) {
    const auto session = test::FedSession(model, "full", 20);
    std::vector<int32_t> got(12, -1);
    int32_t n = -1;
    {
      const Failing samples(Op::kSample, Code::kDevice, right);
      const Status status = session->StepDraft(draft, got.data(), 7, &n);
      EXPECT_EQ(status.ok(), right > 0) << status.message();
    }
    ASSERT_EQ(n, model->device().info().sample_rows > 1 ? 0 : right);
    got.resize(static_cast<size_t>(n));
    const std::vector<int32_t> rest = test::Steps(*session, 12 - n);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, answer) << right;
  }
}

// Rows that nobody wanted stay where they cannot be taken back: then no token is given.
TEST(DeviceFault, ADraftThatCannotBeTakenBackEndsTheSession) {
  const auto model = test::OpenTwoLayers();
  const auto session = test::FedSession(model, "full", 20);
  std::vector<int32_t> draft = test::Steps(*session->Fork().value(), 3), got(8, -1);
  draft[2] = (draft[2] + 1) % 250;
  int32_t n = -1;
  {
    const Failing copies(Op::kCopyBehindSample, Code::kMemory, 0);
    EXPECT_EQ(session->StepDraft(draft, got.data(), 8, &n).code(), Code::kDevice);
  }
  EXPECT_EQ(n, 0);
  ExpectTorn(*session);
}

}  // namespace
}  // namespace kvc
