// Every method as it is, and some that store what they keep in another way, on a model of nine KV heads.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/compress/method_table.h"
#include "lib/engine/session.h"
#include "tests/support/tiny_session.h"

namespace kvc::test {

constexpr int kMethodLayers = 3, kMethodKvHeads = 3, kMethodPrompt = 150, kMethodBudget = 48;

inline std::shared_ptr<const Model> MethodModel(int n_threads = 2) {
  static const AlignedBytes bytes = [] {
    TinyModelOptions options;
    options.n_layers = kMethodLayers, options.n_heads = 6, options.n_kv_heads = kMethodKvHeads,
    options.head_dim = 16, options.hidden_size = 48;
    return TinyModelBytes(options);
  }();
  return OpenTiny(bytes, n_threads);
}

struct Variant {
  std::string method, storage, label;
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
  if (name != "full" && name != "table") spec += "budget=" + std::to_string(budget) + ",";
  spec += variant.storage;
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
