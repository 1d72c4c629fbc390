// Every method as it is, and some that store what they keep in another way, on a model of nine KV heads.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lib/compress/method_table.h"
#include "lib/engine/session.h"
#include "tests/support/tiny_session.h"

namespace kvc::test {

constexpr int kMethodLayers = 3, kMethodKvHeads = 3, kMethodPrompt = 150, kMethodBudget = 48;

inline const AlignedBytes& MethodModelBytes() {
  static const AlignedBytes bytes = [] {
    TinyModelOptions options;
    options.n_layers = kMethodLayers, options.n_heads = 6, options.n_kv_heads = kMethodKvHeads,
    options.head_dim = 16, options.hidden_size = 48;
    return TinyModelBytes(options);
  }();
  return bytes;
}

inline std::shared_ptr<const Model> MethodModel(int n_threads = 2) {
  return OpenTiny(MethodModelBytes(), n_threads);
}

struct Variant {
  std::string method, storage, label, parts = "";
};

inline const std::vector<Variant>& Variants() {
  static const std::vector<Variant> variants = [] {
    std::vector<Variant> all;
    for (int i = 0; i < MethodCount(); ++i) {
      std::string name = GetMethod(i)->name, label = name;
      for (char& ch : label) ch = ch == '-' ? '_' : ch;
      all.push_back({name, name == "cokv-mixed" ? "quant_group=8,residual=8" : "kv=f32", label});
    }
    const std::string channels = "quant_group=8,residual=4,key_axis=channel";
    for (const char* name : {"full", "snapkv", "cokv", "table"})
      all.push_back({name, "kv=int8," + channels, std::string(name) + "_int8_channels"});
    all.push_back({"ada-snapkv", "kv=int4,quant_group=16,residual=0,key_axis=channel", "ada_int4_channels"});
    all.push_back({"cokv-mixed", channels, "cokv_mixed_channels"});
    for (const char* name : {"full", "snapkv", "h2o"}) {
      all.push_back(
          {name, "kv=int8,kv_values=int4,quant_group=8,residual=4", std::string(name) + "_int8_int4"});
    }
    for (const char* name : {"full", "cokv", "weightedkv", "h2o"})
      all.push_back(
          {name, "kv=int4,kv_values=int2,quant_group=8,residual=0", std::string(name) + "_int4_int2"});
    for (const char* name : {"snapkv", "cokv", "kvzip"})
      all.push_back({name, "kv=f32", std::string(name) + "_rest", ",reducer=rest"});
    all.push_back({"ada-snapkv", "kv=f32", "ada_rest", ",reducer=rest"});
    all.push_back(
        {"kvzip", "kv=int4,quant_group=16,residual=0", "kvzip_int4_rest", ",reread=own,reducer=rest"});
    all.push_back({"spindlekv", "kv=f32,spindle_max_bytes=40000", "spindlekv_max_bytes"});
    all.push_back({"spindlekv", "kv=f32,tail=8,spindle_scope=layer", "spindlekv_layer_scope"});
    all.push_back({"cokv-mixed", channels + ",bits_levels=16:0.2+8:0.3+4:0.5", "cokv_mixed_levels"});
    return all;
  }();
  return variants;
}

// A spec that the tiny model can run: windows and recents small, a table where one is needed.
inline Policy MethodPolicy(const Variant& variant, int budget, const std::string& extra = "") {
  const std::string& name = variant.method;
  std::string spec = name + ":";
  if (FindRow(Methods(), name)->allocator != nullptr && name != "table")
    spec += "budget=" + std::to_string(budget) + ",";
  spec += variant.storage;
  spec += variant.parts;
  if (name == "table") spec += ",window=8";
  const Method* method = FindRow(Methods(), name);
  const auto accepts = [&](OptionId id) {
    if (method->scorer == nullptr) return false;
    for (OptionId o : method->scorer->options) {
      if (o == id) return true;
    }
    return false;
  };
  if (name != "table" && accepts(OptionId::kWindow)) spec += ",window=8";
  if (name == "scissorhands") spec += ",recent=8";
  if (name == "ahakv" || name == "nacl") spec += ",recent=8";
  Result<Policy> policy = ParsePolicy((spec + extra).c_str());
  EXPECT_TRUE(policy.ok()) << spec << extra << ": " << policy.status().message();
  if (name == "table") {
    for (int i = 0; i < 9; ++i) policy.value().table.push_back(budget - 8 + i * 2);
  }
  return policy.value();
}

inline bool DropsSeveral(const Policy& policy) {
  if (policy.keeps_all()) return false;
  const auto& options = policy.scorer->options;
  return std::find(options.begin(), options.end(), OptionId::kDrop) != options.end();
}

// Entries of a head that had so many, once it is reduced: Scissorhands drops half a budget at a time, as
// often as it is beyond its budget (methods.md 2.5), all others drop what is beyond it.
inline int64_t SlotsOfHead(const Policy& policy, int64_t n) {
  const int64_t budget = static_cast<int64_t>(policy.budget);
  if (!DropsSeveral(policy)) return std::min(n, budget);
  while (n > budget) n -= budget / 2;
  return n;
}

// Entries of all heads after a prompt of n tokens, each longer than any head's part: exactly what the policy
// names (methods.md 1.8).
inline int64_t SlotsOfPrompt(const Policy& policy, int64_t n) {
  constexpr int64_t kHeads = kMethodLayers * kMethodKvHeads;
  if (policy.keeps_all()) return kHeads * n;
  if (!policy.table.empty()) return std::accumulate(policy.table.begin(), policy.table.end(), int64_t{0});
  return kHeads * SlotsOfHead(policy, n);
}

// Entries of a KV head that each of its query heads sees of what is cached, [L * H], by the attention of one
// more token: nothing else is zero there.
inline std::vector<int64_t> SeenByQueryHeads(Session& s) {
  auto probe = s.Fork();
  EXPECT_TRUE(probe.ok()) << probe.status().message();
  probe.value()->ObserveAttention(true);
  FeedTokens(*probe.value(), {1});
  std::vector<int64_t> seen;
  std::vector<float> p;
  for (int layer = 0; layer < s.model().config().n_layers; ++layer) {
    for (int h = 0; h < s.model().config().n_heads; ++h) {
      EXPECT_TRUE(probe.value()->Attention(layer, h, &p).ok());
      seen.push_back(std::count_if(p.begin(), p.end(), [](float x) { return x > 0; }) - 1);
    }
  }
  return seen;
}

// With a codebook the slots are those that a query head sees: the same for all of a layer, and of all layers
// what the policy names, unless bytes for codebooks are bounded too.
inline void ExpectSeenIsTheBudget(const Policy& policy, Session& s) {
  const std::vector<int64_t> seen = SeenByQueryHeads(s);
  const int64_t layers = s.model().config().n_layers, heads = s.model().config().n_heads;
  for (int64_t i = 0; i < layers * heads; ++i)
    ASSERT_EQ(seen[static_cast<size_t>(i)], seen[static_cast<size_t>(i / heads * heads)])
        << "query head " << i;
  const int64_t sum = std::accumulate(seen.begin(), seen.end(), int64_t{0});
  const int64_t promised = layers * heads * static_cast<int64_t>(policy.budget);
  if (policy.Real(OptionId::kSpindleMaxBytes) > 0) {
    ASSERT_LE(sum, promised);
  } else {
    ASSERT_EQ(sum, promised);
  }
}

inline std::unique_ptr<Session> MakeSession(const Policy* policy,
                                            std::shared_ptr<const Model> model = MethodModel(),
                                            SessionParams params = {}) {
  auto session = Session::Create(std::move(model), policy, params);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return std::move(session.value());
}

class EveryMethod : public testing::TestWithParam<int> {
 protected:
  const Variant& Which() const { return Variants()[static_cast<size_t>(GetParam())]; }
  const std::string& Name() const { return Which().method; }
};

}  // namespace kvc::test
