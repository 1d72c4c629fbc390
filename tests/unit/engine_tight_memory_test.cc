// Memory that is nearly all in use: of sessions in a batch those that have room answer as if the others were
// not there, a step that finds no room leaves its session as it was, and what idle workspaces hold is found.
#include <gtest/gtest.h>

#include "tests/support/test_device.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::ExpectNearLogits;
using test::ExpectSameKept;
using test::FedSession;
using test::FeedTokens;
using test::SavedBytes;
using test::TinyPrompt;

std::shared_ptr<const Model> OpenWithLimit(const AlignedBytes& bytes) {
  ModelParams params;
  params.threads = 2, params.memory_limit = 256 << 20;
  auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.value();
}

// While it lives, so many bytes are left of the model's limit.
class Spare {
 public:
  Spare(const Model& model, int64_t bytes) {
    MemoryMeter* meter = model.meter().get();
    const Status taken = charge_.Add(meter, meter->limit() - meter->used() - bytes, "what others hold");
    EXPECT_TRUE(taken.ok()) << taken.message();
  }

 private:
  MeterCharge charge_;
};

struct Answer {
  Status status;
  std::vector<float> logits;
};

// The logits of the next token of sessions that begin with what was saved, in so many bytes beside what they
// hold. A session that had no memory has not changed: its logits come once there is some.
std::vector<Answer> AnswersWithin(const std::shared_ptr<const Model>& model, int64_t spare,
                                  const std::vector<std::vector<uint8_t>>& saved) {
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Answer> answers(saved.size());
  std::vector<StepWish> rows(saved.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    auto restored = Session::RestoreFrom(model, {saved[i].data(), saved[i].size()});
    EXPECT_TRUE(restored.ok()) << restored.status().message();
    sessions.push_back(std::move(restored.value()));
    answers[i].logits.resize(static_cast<size_t>(model->config().vocab_size));
    rows[i].session = sessions[i].get(), rows[i].logits = answers[i].logits.data();
  }
  model->executor()->FreeIdle();
  {
    const Spare left(*model, spare);
    Session::RunBatch({rows.data(), rows.size()}, 0);
  }
  for (size_t i = 0; i < saved.size(); ++i) {
    answers[i].status = rows[i].status;
    if (rows[i].status.ok()) continue;
    const Status again = sessions[i]->ReadLogits(answers[i].logits.data());
    EXPECT_TRUE(again.ok()) << again.message();
  }
  return answers;
}

// specs: of a session with a short cache and of one with a long one.
void ExpectTheFirstAnswersAsAlone(const AlignedBytes& bytes, const std::vector<std::string>& specs) {
  const auto model = OpenWithLimit(bytes);
  const std::vector<int> prompts = {40, 700};
  std::vector<std::vector<uint8_t>> saved;
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto session = FedSession(model, specs[i], prompts[i]);
    ASSERT_TRUE(session->Accept(7).ok());
    saved.push_back(SavedBytes(*session));
    expected.push_back(AnswersWithin(model, 64 << 20, {saved[i]})[0].logits);
  }
  constexpr int64_t kStep = 2048;
  int n_first_only = 0;
  for (int64_t spare = 0;; spare += kStep) {
    SCOPED_TRACE(spare);
    const Answer alone = AnswersWithin(model, spare, {saved[0]})[0];
    const std::vector<Answer> both = AnswersWithin(model, spare, saved);
    EXPECT_EQ(alone.logits, expected[0]);
    for (size_t i = 0; i < both.size(); ++i) {
      ASSERT_TRUE(both[i].status.ok() || both[i].status.code() == Code::kMemory) << both[i].status.message();
      ASSERT_EQ(both[i].logits, expected[i]) << "session " << i;
    }
    if (alone.status.ok()) {
      ASSERT_TRUE(both[0].status.ok()) << both[0].status.message();
    }
    n_first_only += both[0].status.ok() && !both[1].status.ok() ? 1 : 0;
    if (both[0].status.ok() && both[1].status.ok()) break;
    ASSERT_LT(spare, 64 << 20);
  }
  EXPECT_GT(n_first_only, 10) << "there was room for the first alone";
}

TEST(TightMemory, ALongSessionLeavesAShortOneItsRoomForScoring) {
  ExpectTheFirstAnswersAsAlone(test::TinyModelBytes({}),
                               {"snapkv:budget=32,window=8,decode=reobserve,slack=0",
                                "snapkv:budget=600,window=8,decode=reobserve,slack=0"});
}

// Tables of angles are made anew for the longer session, one of each kind of rotation.
TEST(TightMemory, ALongSessionLeavesAShortOneItsAngles) {
  test::TinyModelOptions options;
  options.layers = {{0, 0}, {0, 1}};
  options.change = [](ModelConfig* c) {
    c->more_ropes.resize(1);
    c->more_ropes[0].theta = 500000;
  };
  ExpectTheFirstAnswersAsAlone(test::TinyModelBytes(options),
                               {"streaming:budget=32", "streaming:budget=600"});
}

// At the end of the context, and then taken back: positions are counted in slots from where an entry left.
TEST(TightMemory, AStepWithoutRoomMakesNoneInTheContext) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = OpenWithLimit(bytes);
  SessionParams params;
  params.max_tokens = 60, params.on_full = OnFull::kSlide;
  for (const std::string spec : {"full:kv=f32", "snapkv:budget=24,window=8,kv=f32"}) {
    for (const bool in_batch : {false, true}) {
      SCOPED_TRACE(spec + (in_batch ? ", in a batch" : ""));
      const auto failed = FedSession(model, spec, 50, params), left = FedSession(model, spec, 50, params);
      for (Session* s : {failed.get(), left.get()}) {
        FeedTokens(*s, TinyPrompt(10, 3));
        ASSERT_TRUE(s->Accept(5).ok());
      }
      model->executor()->FreeIdle();
      {
        const Spare none(*model, 0);
        int32_t token = 9;
        Session* const one = failed.get();
        const Status status = in_batch ? Session::FeedBatch({&one, 1}, &token) : failed->Accept(token);
        EXPECT_EQ(status.code(), Code::kMemory) << status.message();
      }
      EXPECT_FALSE(failed->makes_room());
      for (Session* s : {failed.get(), left.get()}) {
        ASSERT_TRUE(s->Rewind(5).ok());
        ASSERT_TRUE(s->Prefill(TinyPrompt(2, 9), true).ok());
      }
      ExpectSameKept(*failed, *left);
      ExpectNearLogits(*failed, *left, 0.0f);
      for (Session* s : {failed.get(), left.get()}) FeedTokens(*s, TinyPrompt(9, 4));
      EXPECT_TRUE(failed->makes_room());
      ExpectSameKept(*failed, *left);
      ExpectNearLogits(*failed, *left, 0.0f);
    }
  }
}

// At a length at which every head begins a page: what is there for it goes when the rest finds no room.
TEST(TightMemory, AStepWithoutRoomLeavesNoPages) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = OpenWithLimit(bytes);
  const int64_t more = test::OnAnotherDevice() ? 256 : 2048;  // a GPU's step takes less
  for (int64_t spare = 0, failed = 0;; spare += more) {
    ASSERT_LT(spare, 64 << 20);
    const auto session = FedSession(model, "full", 128);
    ASSERT_TRUE(session->Accept(7).ok());
    const int64_t before = session->Stats().cache_bytes;
    model->executor()->FreeIdle();
    Status status;
    {
      const Spare left(*model, spare);
      status = session->FeedPending();
    }
    if (status.ok()) {
      EXPECT_GT(session->Stats().cache_bytes, before);
      EXPECT_GT(failed, 10);
      return;
    }
    ++failed;
    ASSERT_EQ(status.code(), Code::kMemory) << status.message();
    ASSERT_EQ(session->Stats().cache_bytes, before) << spare;
  }
}

// What was kept of the token before is gone with its room: it is said that there is none.
TEST(TightMemory, AttentionWithoutRoomIsNoOldOne) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = OpenWithLimit(bytes);
  const auto session = FedSession(model, "full", 250);
  session->ObserveAttention(true);
  FeedTokens(*session, TinyPrompt(6, 3));
  std::vector<float> p;
  ASSERT_TRUE(session->Attention(0, 0, &p).ok());
  EXPECT_EQ(p.size(), 256u);
  ASSERT_TRUE(session->Accept(7).ok());
  model->executor()->FreeIdle();
  {
    const Spare none(*model, 0);
    EXPECT_EQ(session->FeedPending().code(), Code::kMemory);
  }
  EXPECT_EQ(session->Attention(0, 0, &p).code(), Code::kInvalid);
  ASSERT_TRUE(session->FeedPending().ok());
  ASSERT_TRUE(session->Attention(0, 0, &p).ok());
  EXPECT_EQ(p.size(), 257u);
}

// What a prompt took before it found no room is there for the step that comes next.
TEST(TightMemory, APromptWithoutRoomTakesNoneFromAStep) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = OpenWithLimit(bytes);
  int n_steps_alone = 0;
  for (int64_t spare = 0;; spare += 8192) {
    SCOPED_TRACE(spare);
    ASSERT_LT(spare, 64 << 20);
    Status steps[2], read;
    for (const bool behind_a_prompt : {false, true}) {
      const auto session = FedSession(model, "full", 8);
      ASSERT_TRUE(session->Accept(7).ok());
      model->executor()->FreeIdle();
      const Spare left(*model, spare);
      const int64_t before = model->meter()->used();
      if (behind_a_prompt) {
        read = session->Prefill(TinyPrompt(700, 3), false);
        if (read.ok()) break;
        EXPECT_EQ(read.code(), Code::kMemory) << read.message();
        EXPECT_LE(model->meter()->used(), before);
      }
      int32_t token = 0;
      steps[behind_a_prompt ? 1 : 0] = session->Step(&token);
    }
    if (read.ok()) break;
    ASSERT_EQ(steps[1].code(), steps[0].code()) << steps[1].message();
    n_steps_alone += steps[0].ok() ? 1 : 0;
  }
  EXPECT_GT(n_steps_alone, 10) << "there was room for the step alone";
}

// Scored by the newest tokens, which are read again, and by side values.
TEST(TightMemory, ACompressionFindsWhatIdleWorkspacesHold) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  const auto model = OpenWithLimit(bytes);
  Executor* executor = model->executor();
  for (const char* spec : {"snapkv:budget=64,window=8", "h2o:budget=64"}) {
    for (const bool of_the_one_at_hand : {false, true}) {
      SCOPED_TRACE(std::string(spec) + (of_the_one_at_hand ? ", its own" : ", another's"));
      const auto s = FedSession(model, spec, 90);
      executor->FreeIdle();
      {
        auto first = executor->Acquire(), second = executor->Acquire();
        ASSERT_TRUE(first.ok() && second.ok());
        Executor::Lease at_hand = std::move(first.value()), other = std::move(second.value());
        DeviceBuffer<float>& idle = (of_the_one_at_hand ? at_hand : other)->sample_weights;
        ASSERT_TRUE(idle.Reserve(executor->memory(), 8 << 20, "what a step needed").ok());
        // The one that was given back last is the next that is lent: `other` goes first.
      }
      const Spare little(*model, 8192);
      int64_t freed = 0;
      const Status status = s->Recompress(16, &freed);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_GT(freed, 0);
    }
  }
}

// A prompt that fits part by part alone: the error says so, the session is as it was, and it is as said.
TEST(TightMemory, APromptThatFitsByPartsAloneAsksToChoose) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  constexpr int kTokens = 2600;
  SessionParams params;
  params.max_tokens = 4096;
  const auto plan = [&](const std::string& spec) {
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    const auto planned = Session::Plan(OpenWithLimit(bytes), &policy.value(), params, kTokens);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    return planned.value().total_bytes_peak;
  };
  const auto prefill = [&](const std::string& spec, int64_t limit) {
    ModelParams model_params;
    model_params.threads = 2, model_params.memory_limit = limit;
    auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), model_params);
    EXPECT_TRUE(model.ok()) << model.status().message();
    const auto session = test::NewSession(model.value(), spec, params);
    const Status status = session->Prefill(TinyPrompt(kTokens), true);
    EXPECT_EQ(session->Stats().n_tokens, status.ok() ? kTokens : 0);
    return status;
  };
  const std::string spec = "snapkv:budget=64,window=8", by_parts = spec + ",compress_per_chunk=1";
  const int64_t least = plan(by_parts);
  // Of what a GPU takes, more is there either way.
  ASSERT_LT(least, test::OnAnotherDevice() ? plan(spec) * 7 / 8 : plan(spec) * 3 / 4);
  Status status = prefill(spec, least);
  EXPECT_EQ(status.code(), Code::kMemory);
  EXPECT_NE(status.message().find("the prompt takes " + std::to_string(least) +
                                  " bytes in all: choose compress_per_chunk=1"),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(prefill(by_parts, least).ok());
  // Where it would not fit either, or is chosen, or is no option, or nothing would be dropped, no word of it.
  const int64_t none = least / 2;
  for (const auto& [other, limit] :
       {std::pair(spec, none), std::pair(by_parts, none), std::pair(std::string("full"), least),
        std::pair(std::string("snapkv:budget=2600"), least)}) {
    status = prefill(other, limit);
    EXPECT_EQ(status.code(), Code::kMemory) << other;
    EXPECT_EQ(status.message().find("compress_per_chunk"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace kvc
