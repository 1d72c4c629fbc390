// A tiny model opened for sessions, and prompts for it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/archive.h"
#include "lib/engine/session.h"
#include "tests/support/plan_numbers.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

// bytes outlive the model.
inline std::shared_ptr<const Model> OpenTiny(const AlignedBytes& bytes, const ModelParams& params) {
  auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.value();
}

inline std::shared_ptr<const Model> OpenTiny(const AlignedBytes& bytes, int n_threads = 2) {
  ModelParams params;
  params.threads = n_threads;
  return OpenTiny(bytes, params);
}

// On the emulated device, with libkvc's number of threads if none is said.
inline std::shared_ptr<const Model> OpenEmulated(const AlignedBytes& bytes, int n_threads = 0,
                                                 int64_t memory_limit = 0) {
  ModelParams params;
  params.device = "emu", params.threads = n_threads, params.memory_limit = memory_limit;
  return OpenTiny(bytes, params);
}

// Byte tokens without order; another seed, other tokens.
inline std::vector<int32_t> TinyPrompt(int n, uint32_t seed = 7) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 2654435761u + seed * 40503u) >> 7) & 0xff;
  return ids;
}

// The model of all defaults: two layers of two KV heads.
inline std::shared_ptr<const Model> OpenTwoLayers() {
  static const AlignedBytes bytes = TinyModelBytes({});
  return OpenTiny(bytes);
}

// A model whose keys and values are those of the tokens alone, whatever was attended before.
inline std::shared_ptr<const Model> OpenOneLayer() {
  static const AlignedBytes bytes = [] {
    TinyModelOptions options;
    options.n_layers = 1;
    return TinyModelBytes(options);
  }();
  return OpenTiny(bytes);
}

inline std::unique_ptr<Session> NewSession(const std::shared_ptr<const Model>& model, const std::string& spec,
                                           const SessionParams& params = {}) {
  const Result<Policy> policy = ParsePolicy(spec.c_str());
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  auto session = Session::Create(model, &policy.value(), params);
  EXPECT_TRUE(session.ok()) << spec << ": " << session.status().message();
  return std::move(session.value());
}

inline std::unique_ptr<Session> FedSession(const std::shared_ptr<const Model>& model, const std::string& spec,
                                           int n_prompt, const SessionParams& params = {}) {
  std::unique_ptr<Session> session = NewSession(model, spec, params);
  EXPECT_TRUE(session->Prefill(TinyPrompt(n_prompt), true).ok());
  return session;
}

// Bytes of workspace, as planned for a prompt of n tokens and as a session has them behind it.
struct PlannedAndTaken {
  int64_t planned, taken;
};
inline PlannedAndTaken WorkspaceOf(const std::shared_ptr<const Model>& model, const std::string& spec, int n,
                                   const SessionParams& params) {
  const Result<Policy> policy = ParsePolicy(spec.c_str());
  const auto plan = Session::Plan(model, &policy.value(), params, n);
  EXPECT_TRUE(plan.ok());
  return {plan.value().workspace_bytes, FedSession(model, spec, n, params)->Stats().workspace_bytes};
}

// Tokens of the session's own choice.
inline std::vector<int32_t> Steps(Session& s, int n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n), -1);
  for (int32_t& token : tokens) {
    const Status status = s.Step(&token);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return tokens;
}

// Tokens of the caller's, one step each.
inline void FeedTokens(Session& session, const std::vector<int32_t>& tokens) {
  Session* const one = &session;
  for (const int32_t token : tokens) {
    const Status status = Session::FeedBatch({&one, 1}, &token);
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

// A prompt of n tokens and steps up to the end of the context, in so many bytes of memory.
inline Status RunWithin(int64_t bytes, const AlignedBytes& model, const Policy& policy,
                        const SessionParams& params, int n) {
  ModelParams model_params;
  model_params.threads = 2, model_params.memory_limit = bytes;
  auto tight = Model::OpenMemory(model.data(), static_cast<int64_t>(model.size()), model_params);
  if (!tight.ok()) return tight.status();
  auto made = Session::Create(tight.value(), &policy, params);
  if (!made.ok()) return made.status();
  Session& s = *made.value();
  KVC_RETURN_IF_ERROR(s.Prefill(TinyPrompt(n), true));
  for (int i = n; i < params.max_tokens; ++i) {
    int32_t token = -1;
    KVC_RETURN_IF_ERROR(s.Step(&token));
    if (token < 0) KVC_RETURN_IF_ERROR(s.Accept(1));
  }
  return s.FeedPending();
}

// What would be chosen from next; the session stays as it is.
inline std::vector<float> LogitsOf(Session& s) {
  std::vector<float> logits(static_cast<size_t>(s.model().config().vocab_size));
  auto fork = s.Fork();
  const Status status = fork.ok() ? fork.value()->ReadLogits(logits.data()) : fork.status();
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

// In memory: the same bytes as in a file.
inline std::vector<uint8_t> SavedBytes(Session& s) {
  MemorySink size(nullptr, 0);
  EXPECT_TRUE(s.SaveTo(&size).ok());
  std::vector<uint8_t> bytes(static_cast<size_t>(size.size()));
  MemorySink sink(bytes.data(), size.size());
  EXPECT_TRUE(s.SaveTo(&sink).ok());
  return bytes;
}

inline bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

inline void ExpectNearLogits(Session& a, Session& b, float tolerance) {
  const std::vector<float> of_a = LogitsOf(a), of_b = LogitsOf(b);
  for (size_t i = 0; i < of_a.size(); ++i) ASSERT_NEAR(of_a[i], of_b[i], tolerance) << i;
}

inline double LargestDifference(Session& a, Session& b) {
  const std::vector<float> of_a = LogitsOf(a), of_b = LogitsOf(b);
  double largest = 0;
  for (size_t i = 0; i < of_a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(of_a[i]) - of_b[i]));
  return largest;
}

inline void ExpectSameKept(const Session& a, const Session& b) {
  const ModelConfig& c = a.model().config();
  std::vector<int32_t> of_a, of_b;
  for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
    EXPECT_TRUE(a.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &of_a).ok());
    EXPECT_TRUE(b.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &of_b).ok());
    ASSERT_EQ(of_a, of_b) << "KV head " << i;
  }
}

}  // namespace kvc::test
