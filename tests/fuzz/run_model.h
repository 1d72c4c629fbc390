// A model file that may be anything, used as a program would use it: opened, told about, text to tokens and
// back, a session with a small policy that reads a prompt, answers, is compressed, forked, saved and
// restored. Whatever the file says, every call ends well or with a message, and the meter comes back to where
// it was.
#pragma once
#include <iterator>
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "tests/fuzz/require.h"
#include "tests/support/plan_numbers.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

constexpr const char* kRunPolicies[] = {"full",
                                        "snapkv:budget=8,window=4",
                                        "h2o:budget=8",
                                        "cokv:budget=8,window=4",
                                        "streaming:budget=8",
                                        "ada-snapkv:budget=8,window=4",
                                        "full:kv=int8",
                                        "snapkv:budget=8,window=4,kv=int4",
                                        "pyramidkv:budget=8,window=4",
                                        "tova:budget=8,kv=bf16",
                                        "headkv-r2:budget=8,window=4",
                                        "weightedkv:budget=8",
                                        "cokv-document:budget=8",
                                        "snapkv:budget=8,window=4,pos_mode=incache"};

class ModelRun {
 public:
  // choice: which policy, which of the ways to go on.
  static void Run(const AlignedBytes& bytes, uint8_t choice) {
    ModelParams params;
    params.threads = 1, params.memory_limit = int64_t{64} << 20;
    params.trusted = choice >= 128;  // then weights may hold anything, NaN too
    auto opened = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    params.plan_only = true;
    auto planned = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
    if (!planned.ok()) Refused(planned.status(), "model in memory: ");
    if (!opened.ok()) return Refused(opened.status(), "model in memory: ");
    KVC_REQUIRE(planned.ok());
    const std::shared_ptr<const Model> model = opened.value();
    const int64_t held = model->meter()->used();
    KVC_REQUIRE(held == model->file().weight_bytes() + model->overhead_bytes());
    KVC_REQUIRE(!model->file().DescribeJson().empty());
    Text(*model);
    Plans(model, planned.value(), choice);
    Talk(model, choice);
    KVC_REQUIRE(model->meter()->used() == held);
  }

 private:
  // False, and the message looked at, when a call said no.
  static bool Good(const Status& status) {
    if (!status.ok()) Refused(status, "");
    return status.ok();
  }
  static void Refused(const Status& status, const std::string& name) {
    KVC_REQUIRE(!status.message().empty());
    KVC_REQUIRE(status.code() != Code::kInternal);
    KVC_REQUIRE(status.message().compare(0, name.size(), name) == 0);
  }

  static void Text(const Model& model) {
    const std::string text =
        "Once  upon a time, 12 \xC3\xA9\xCC\x81\xF0\x9F\x98\x80\xFF<eos> a\xE2\x96\x81z\n\n ";
    const Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    for (const uint32_t flags : {uint32_t{kAddBos}, uint32_t{kContinue}, uint32_t{kParseSpecial}}) {
      std::vector<int32_t> ids;
      if (!Good(model.tokenizer().Encode(bytes, flags, &ids))) continue;
      for (const int32_t id : ids) KVC_REQUIRE(id >= 0 && id < model.config().vocab_size);
      std::string back;
      KVC_REQUIRE(model.tokenizer().Decode(ids, &back).ok());
    }
    for (int32_t id = 0; id < model.config().vocab_size; id += 1 + model.config().vocab_size / 300) {
      model.tokenizer().IsStop(id);
      KVC_REQUIRE(model.tokenizer().Piece(id).size() <= 1024);
    }
  }

  static Result<Policy> PolicyOf(uint8_t choice) {
    auto policy = ParsePolicy(kRunPolicies[choice % std::size(kRunPolicies)]);
    KVC_REQUIRE(policy.ok());
    return policy;
  }

  // Without the weights they are the same, but for what patterns of the tokenizer take as machine code.
  static void Plans(const std::shared_ptr<const Model>& whole, const std::shared_ptr<const Model>& alone,
                    uint8_t choice) {
    const auto policy = PolicyOf(choice);
    SessionParams params;
    params.max_tokens = 40;
    const auto a = Session::Plan(whole, &policy.value(), params, 24),
               b = Session::Plan(alone, &policy.value(), params, 24);
    KVC_REQUIRE(a.status().message() == b.status().message());
    if (!a.ok()) return;
    SessionPlan other = b.value();
    other.total_bytes_peak = a.value().total_bytes_peak;
    KVC_REQUIRE(NumbersOf(a.value()) == NumbersOf(other));
    KVC_REQUIRE(!Session::Create(alone, &policy.value(), params).ok());
  }

  static void Talk(const std::shared_ptr<const Model>& model, uint8_t choice) {
    const auto policy = PolicyOf(choice);
    SessionParams params;
    params.on_full = choice & 0x80 ? OnFull::kEvict : OnFull::kError;
    constexpr int32_t kPrompt = 24;
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < kPrompt; ++i) prompt.push_back(i * 37 % model->config().vocab_size);
    const auto plan = Session::Plan(model, &policy.value(), params, kPrompt);
    if (!plan.ok()) Refused(plan.status(), "");
    auto created = Session::Create(model, &policy.value(), params);
    if (!created.ok()) return Refused(created.status(), "");
    Session& session = *created.value();
    if (!Good(session.Prefill(prompt, true))) return;
    Steps(&session, 3);
    auto fork = session.Fork();
    if (fork.ok()) Steps(fork.value().get(), 2);
    if (Good(session.Recompress(6, nullptr))) Steps(&session, 2);
    prompt.resize(5);
    if (Good(session.Prefill(prompt, true))) Steps(&session, 2);
    static const TempFolder folder;
    if (choice % 3 != 0 || !Good(session.Save(folder / "session"))) return;
    auto restored = Session::Restore(model, folder / "session");
    KVC_REQUIRE(restored.ok() || restored.status().code() == Code::kMemory);
    if (restored.ok()) Steps(restored.value().get(), 2);
  }

  static void Steps(Session* session, int n) {
    for (int i = 0; i < n; ++i) {
      int32_t token = -1;
      if (!Good(session->Step(&token)) || token < 0) return;
      KVC_REQUIRE(token < session->model().config().vocab_size);
      uint8_t text[64];
      while (session->text().Pull(text, sizeof text) > 0) {
      }
    }
    std::vector<float> logits(static_cast<size_t>(session->model().config().vocab_size));
    Good(session->ReadLogits(logits.data()));
  }
};

}  // namespace kvc::test
