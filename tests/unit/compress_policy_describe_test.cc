// The lists of options and methods, what describes them (JSON, canonical spec, docs/methods.md), and the
// round trip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "lib/compress/method_table.h"
#include "lib/compress/policy.h"
#include "lib/compress/policy_text.h"

namespace kvc {
namespace {

Policy Parsed(const std::string& spec) {
  Result<Policy> policy = ParsePolicy(spec.c_str());
  EXPECT_TRUE(policy.ok()) << spec << ": " << policy.status().message();
  return policy.ok() ? std::move(policy.value()) : Policy();
}

bool Same(const Policy& a, const Policy& b) {
  for (int i = 0; i < kOptionCount; ++i) {
    if (a.options[i] != b.options[i]) return false;
  }
  return a.method == b.method && a.allocator == b.allocator && a.scorer == b.scorer &&
         a.reducer == b.reducer && a.decode == b.decode && a.positions == b.positions &&
         a.budget_kind == b.budget_kind && a.budget == b.budget && a.scores_name == b.scores_name &&
         std::equal(
             a.levels.begin(), a.levels.end(), b.levels.begin(), b.levels.end(),
             [](const BitsLevel& x, const BitsLevel& y) { return x.bits == y.bits && x.share == y.share; });
}

TEST(Options, OneRowPerKey) {
  std::set<std::string> keys;
  for (int i = 0; i < kOptionCount; ++i) {
    const Option& option = GetOption(static_cast<OptionId>(i));
    EXPECT_EQ(static_cast<int>(option.id), i);
    EXPECT_TRUE(keys.insert(option.key).second) << option.key;
    EXPECT_EQ(FindOption(option.key, static_cast<int>(std::string(option.key).size())), &option);
    EXPECT_TRUE(IsAllowed(option, option.default_value)) << option.key;
    EXPECT_NE(std::string(option.help), "") << option.key;
    if (option.kind == OptionKind::kChoice) {
      EXPECT_EQ(ChoicesOf(option).size(), static_cast<size_t>(option.max) + 1) << option.key;
    }
    double read = NAN;
    EXPECT_TRUE(ParseValue(option, ValueText(option, option.default_value), &read).ok()) << option.key;
    EXPECT_EQ(read, option.default_value) << option.key;
  }
  EXPECT_EQ(FindOption("nothing", 7), nullptr);
  EXPECT_EQ(FindOption("", 0), nullptr);
}

// The methods as published (methods.md 2): allocator, scorer, reducer, decode, positions and the fixed
// options.
struct PresetRow {
  const char *name, *allocator, *scorer, *reducer, *decode, *positions;
  std::vector<std::pair<const char*, double>> options;
};

const std::vector<PresetRow> kPresetRows = {
    {"streaming", "uniform", "position", "evict", "step", "incache", {{"n_sink", 4}}},
    {"streaming-baseline", "uniform", "position", "evict", "step", "original", {{"n_sink", 4}}},
    {"h2o", "uniform", "h2o", "evict", "step", "original", {{"h2o_recent", -1}, {"h2o_norm", 0}}},
    {"tova", "uniform", "last_row", "evict", "step", "original", {{"protect_last", 1}, {"tova_scope", 0}}},
    {"scissorhands",
     "uniform",
     "persistence",
     "evict",
     "step",
     "original",
     {{"recent", 10}, {"history", 400}, {"drop", -1}}},
    {"snapkv",
     "uniform",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 32}, {"kernel", 7}, {"pool", 0}}},
    {"snapkv-w8",
     "uniform",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kernel", 7}, {"pool", 0}}},
    {"pyramidkv",
     "pyramid",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kernel", 7}, {"beta", 20}}},
    {"pyramidinfer",
     "pyramid_infer",
     "window_ramp",
     "evict",
     "grow",
     "original",
     {{"n_sink", 4}, {"decay", 0.9}, {"ramp", 1.2}}},
    {"cam", "uniform", "position", "cam", "step", "original", {{"n_sink", 4}, {"m_b", 32}}},
    {"headkv-r2",
     "headkv",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kernel", 7}, {"headkv_beta", 1.01}, {"temperature", 1}}},
    {"ada-snapkv",
     "ada",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 32}, {"kernel", 7}, {"ada_floor", 0.2}, {"ada_mode", 0}}},
    {"ada-paper",
     "ada",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 32}, {"kernel", 7}, {"ada_floor", 0.5}, {"ada_mode", 0}}},
    {"ada-pyramid",
     "ada+pyramid",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 32}, {"kernel", 7}, {"beta", 20}, {"ada_floor", 0.2}}},
    {"cokv",
     "cokv",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kernel", 7}, {"alpha", -1}, {"redistribute", 1}}},
    {"cokv-document",
     "cokv",
     "reconstruct",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kernel", 1}, {"alpha", 1}, {"redistribute", 1}}},
    {"kvzip", "global", "reconstruct", "evict", "grow", "original", {{"window", 1}, {"kernel", 1}}},
    {"knorm", "uniform", "key_norm", "evict", "grow", "original", {}},
    {"keydiff", "uniform", "key_difference", "evict", "grow", "original", {}},
    {"lagkv", "uniform", "lag", "evict", "grow", "original", {{"n_sink", 4}, {"lag", 128}}},
    {"expected-attention",
     "uniform",
     "expected",
     "evict",
     "grow",
     "original",
     {{"n_sink", 4}, {"future_positions", 512}}},
    {"duo-attention", "duo", "position", "evict", "step", "original", {{"n_sink", 4}, {"recent", -1}}},
    {"reconstruct", "uniform", "reconstruct", "evict", "grow", "original", {{"window", 8}, {"kernel", 1}}},
    {"cokv-mixed",
     "cokv",
     "window",
     "evict",
     "grow",
     "original",
     {{"window", 8}, {"kv", 5}, {"high_bits", 8}, {"low_bits", 4}}},
    {"ahakv",
     "uniform",
     "window_sg_value",
     "evict",
     "step",
     "original",
     {{"recent", 32}, {"value_kernel", 7}, {"aha_units", 0}, {"aha_gain_floor", 1}}},
    {"weightedkv",
     "uniform",
     "avg_accum",
     "weighted",
     "step",
     "original",
     {{"n_sink", 4}, {"recent", -1}, {"wkv_merge", 1}, {"wkv_prefill", 0}}},
    {"spindlekv",
     "spindle_ratio",
     "window_qhead",
     "codebook",
     "grow",
     "original",
     {{"window", 32}, {"spindle_beta", 0.05}, {"theta_k", 0.98}, {"theta_v", 0.95}}},
    {"nacl",
     "uniform",
     "proxy_random",
     "evict",
     "grow",
     "original",
     {{"n_sink", 4}, {"recent", 32}, {"random_fraction", 0.35}}},
    {"table", "table", "window", "evict", "grow", "original", {{"window", 8}}},
};

TEST(Presets, AreThoseOfTheTable) {
  std::set<std::string> described = {"full", "quest"};
  for (const PresetRow& row : kPresetRows)
    EXPECT_TRUE(described.insert(row.name).second) << row.name << " twice";
  for (const Method* method : Methods())
    EXPECT_EQ(described.erase(method->name), 1u) << method->name << " has no row in kPresetRows";
  EXPECT_EQ(described, std::set<std::string>()) << "rows of methods that are not there";
  EXPECT_STREQ(GetMethod(0)->name, "full");
  EXPECT_STREQ(GetMethod(1)->name, "quest");
  EXPECT_EQ(DescribePolicy(Parsed("quest:kv=int8")),
            "quest:gqa_agg=max,read=1024,read_skip=2,kv=int8,kv_values=same,quant_group=32,key_axis=token,"
            "residual=auto");
  for (const PresetRow& row : kPresetRows) {
    const Policy policy = Parsed(std::string(row.name) + ":budget=128");
    ASSERT_NE(policy.method, nullptr);
    EXPECT_STREQ(policy.allocator->name, row.allocator) << row.name;
    EXPECT_STREQ(policy.scorer->name, row.scorer) << row.name;
    EXPECT_STREQ(policy.reducer->name, row.reducer) << row.name;
    EXPECT_EQ(kDecodeNames[static_cast<int>(policy.decode)], row.decode) << row.name;
    EXPECT_EQ(kPositionNames[static_cast<int>(policy.positions)], row.positions) << row.name;
    const std::vector<OptionId> used = OptionsOf(policy);
    for (const auto& [key, value] : row.options) {
      const Option* option = FindOption(key, static_cast<int>(std::string(key).size()));
      ASSERT_NE(option, nullptr) << key;
      EXPECT_EQ(policy.Real(option->id), value) << row.name << " " << key;
      EXPECT_NE(std::find(used.begin(), used.end(), option->id), used.end())
          << row.name << " does not take " << key;
    }
  }
  const Policy full = Parsed("full");
  EXPECT_TRUE(full.keeps_all());
  EXPECT_EQ(full.budget_kind, BudgetKind::kNone);
}

TEST(Presets, DefaultsAreOptionsTheMethodTakes) {
  for (int i = 0; i < MethodCount(); ++i) {
    const Method& method = *GetMethod(i);
    const auto json = nlohmann::json::parse(DescribeMethodJson(i));
    for (const OptionDefault& own : method.defaults) {
      const bool listed = std::any_of(json["options"].begin(), json["options"].end(),
                                      [&](const auto& o) { return o["key"] == GetOption(own.id).key; });
      EXPECT_TRUE(listed) << method.name << " " << GetOption(own.id).key;
      EXPECT_TRUE(IsAllowed(GetOption(own.id), own.value));
    }
  }
  EXPECT_EQ(GetMethod(-1), nullptr);
  EXPECT_EQ(GetMethod(MethodCount()), nullptr);
}

TEST(Presets, JsonIsComplete) {
  std::set<std::string> names;
  for (int i = 0; i < MethodCount(); ++i) {
    const auto json = nlohmann::json::parse(DescribeMethodJson(i));
    EXPECT_TRUE(names.insert(json["name"]).second);
    EXPECT_GT(json["summary"].get<std::string>().size(), 10u);
    EXPECT_NE(json["source"].get<std::string>().find("methods.md"), std::string::npos);
    for (const auto& option : json["options"]) {
      for (const char* key : {"key", "kind", "default", "range", "help"})
        EXPECT_TRUE(option.contains(key)) << option.dump();
      if (option["kind"] == "choice") {
        const auto choices = option["choices"].get<std::vector<std::string>>();
        EXPECT_NE(std::find(choices.begin(), choices.end(), option["default"]), choices.end())
            << option.dump();
      } else if (option["default"].is_number()) {
        EXPECT_GE(option["default"].get<double>(), option["min"].get<double>());
        EXPECT_LE(option["default"].get<double>(), option["max"].get<double>());
      } else {
        EXPECT_EQ(option["default"], option["kind"] == "levels" ? "none" : "auto");
      }
    }
  }
  EXPECT_EQ(DescribeMethodJson(MethodCount()), "");
  int index = 0;
  while (std::string(GetMethod(index)->name) != "cokv") ++index;
  const auto cokv = nlohmann::json::parse(DescribeMethodJson(index));
  EXPECT_EQ(cokv["head_scores"], true);
  EXPECT_EQ(cokv["budget"], "required");
}

// What another option does not allow is another matter.
TEST(Presets, RangesAreAllowedToTheirEnds) {
  for (int i = 0; i < MethodCount(); ++i) {
    const auto json = nlohmann::json::parse(DescribeMethodJson(i));
    for (const auto& option : json["options"]) {
      for (const char* end : {"min", "max"}) {
        if (!option.contains(end)) continue;
        const std::string name = json["name"], key = option["key"],
                          spec = name + (json["budget"] == "none" ? ":" : ":budget=64,") + key + "=" +
                                 option[end].dump();
        const Result<Policy> policy = ParsePolicy(spec.c_str());
        if (policy.ok()) continue;
        for (const char* wrong : {"out of range", "is not a "})
          EXPECT_EQ(policy.status().message().find(wrong), std::string::npos)
              << spec << ": " << policy.status().message();
      }
    }
  }
}

TEST(Describe, CanonicalText) {
  EXPECT_EQ(DescribePolicy(Parsed("full")), "full:kv=f16");
  EXPECT_EQ(DescribePolicy(Parsed("cokv-mixed")),
            "cokv-mixed:kv=mixed,quant_group=32,key_axis=token,residual=auto,bits_levels=none,high_bits=8,"
            "low_bits=4,median_"
            "mode=exact_half");
  EXPECT_EQ(DescribePolicy(Parsed("cokv-mixed:bits_levels= 16:.1 + 8:0.40+4:0.5")),
            "cokv-mixed:kv=mixed,quant_group=32,key_axis=token,residual=auto,bits_levels=16:0.1+8:0.4+4:0.5");
  EXPECT_EQ(DescribePolicy(Parsed("cokv-mixed:bits_levels=16:1")), "cokv-mixed:kv=mixed,bits_levels=16:1");
  EXPECT_EQ(DescribePolicy(Parsed("streaming:budget=64")),
            "streaming:budget=64,decode=step,pos_mode=incache,n_sink=4,kv=f16,compress_per_chunk=0");
  EXPECT_EQ(DescribePolicy(Parsed("cokv:budget_bytes=1.5KiB,scores=a b,scorer=h2o")),
            "cokv:budget_bytes=1536,scorer=h2o,decode=grow,pos_mode=original,scores=a "
            "b,h2o_recent=auto,h2o_norm=sum,alpha=auto,cokv_rounding=exact,"
            "redistribute=1,kv=f16,compress_per_chunk=0");
}

void ExpectRoundTrip(const Policy& policy) {
  const std::string text = DescribePolicy(policy);
  const Result<Policy> again = ParsePolicy(text.c_str());
  ASSERT_TRUE(again.ok()) << text << ": " << again.status().message();
  EXPECT_TRUE(Same(policy, again.value())) << text;
  EXPECT_EQ(DescribePolicy(again.value()), text);
}

TEST(Describe, ParsesBackForEveryMethod) {
  for (int i = 0; i < MethodCount(); ++i) {
    const std::string name = GetMethod(i)->name;
    for (const char* budget :
         {":budget=777", ":budget_ratio=0.123456789012345", ":budget_ratio=33.3%", ":budget_bytes=64MiB"}) {
      if (GetMethod(i)->allocator != nullptr) ExpectRoundTrip(Parsed(name + budget));
    }
    if (GetMethod(i)->allocator == nullptr || GetMethod(i)->budget_optional) ExpectRoundTrip(Parsed(name));
  }
}

std::string RandomValue(const Option& option, std::mt19937_64& rng) {
  const double unit = static_cast<double>(rng() >> 11) / 9007199254740992.0;
  if (option.kind == OptionKind::kLevels) {
    constexpr const char* kLevels[] = {
        "none", "8:1", "16:0.1+8:0.4+4:0.5", "16:0.333333333333+4:0.666666666667", "8:0.5+16:0.5", "16:1"};
    return kLevels[rng() % 6];
  }
  double value = option.min + unit * (option.max - option.min);
  if (option.kind != OptionKind::kReal) value = std::floor(value);
  if (rng() % 3 == 0) value = rng() % 2 ? option.min : option.max;
  return ValueText(option, value);
}

// Random parts and random values of the options those parts have: whatever parses must come back the same.
TEST(Describe, ParsesBackForRandomPolicies) {
  std::mt19937_64 rng(77);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const Method& method = *GetMethod(static_cast<int>(rng() % static_cast<uint64_t>(MethodCount())));
    std::string spec = method.name;
    char separator = ':';
    const auto add = [&](const std::string& key, std::string_view value) {
      spec += separator + key + "=" + std::string(value), separator = ',';
    };
    if (method.allocator != nullptr) add("budget", std::to_string(1 + rng() % 3000000));
    Policy shape;
    shape.method = &method, shape.allocator = method.allocator, shape.scorer = method.scorer,
    shape.reducer = method.reducer, shape.decode = method.decode;
    if (method.allocator != nullptr && i % 2) {
      if (rng() % 2)
        shape.allocator = Allocators()[rng() % Allocators().size()], add("allocator", shape.allocator->name);
      if (rng() % 2) shape.scorer = Scorers()[rng() % Scorers().size()], add("scorer", shape.scorer->name);
      if (rng() % 3 == 0)
        shape.decode = static_cast<DecodeMode>(rng() % 3),
        add("decode", kDecodeNames[static_cast<int>(shape.decode)]);
    }
    const Option& kv = GetOption(OptionId::kKv);
    shape.options[static_cast<int>(OptionId::kKv)] = static_cast<double>(rng() % 6);
    add("kv", ValueText(kv, shape.Real(OptionId::kKv)));
    for (const OptionId id : OptionsOf(shape)) {
      if (id != OptionId::kKv && rng() % 3 == 0) add(GetOption(id).key, RandomValue(GetOption(id), rng));
    }
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    if (!policy.ok()) {
      EXPECT_EQ(policy.status().code(), Code::kInvalid) << spec;
      EXPECT_FALSE(policy.status().message().empty());
      continue;
    }
    ++accepted;
    ExpectRoundTrip(policy.value());
  }
  EXPECT_GT(accepted, 3000);
}

// Valid specs with bytes changed, removed, doubled: never a crash, always a message or a policy that
// round-trips.
TEST(Describe, DamagedText) {
  std::mt19937_64 rng(78);
  for (int i = 0; i < 20000; ++i) {
    const Method& method = *GetMethod(static_cast<int>(rng() % static_cast<uint64_t>(MethodCount())));
    std::string spec = method.allocator == nullptr
                           ? "full:kv=int8"
                           : DescribePolicy(Parsed(std::string(method.name) + ":budget=777"));
    for (uint64_t k = 1 + rng() % 3; k > 0; --k) {
      const size_t at = rng() % spec.size();
      if (rng() % 3 == 0)
        spec[at] = static_cast<char>(1 + rng() % 255);
      else if (rng() % 2)
        spec.erase(at, 1 + rng() % 5);
      else
        spec.insert(at, spec.substr(rng() % spec.size(), rng() % 9));
      if (spec.empty()) spec = ",";
    }
    const Result<Policy> policy = ParsePolicy(spec.c_str());
    if (policy.ok()) ExpectRoundTrip(policy.value());
  }
}

std::string Documentation() {
  std::ifstream file(KVC_SOURCE_DIR "/docs/methods.md");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Documentation, EveryMethodHasItsSection) {
  const std::string text = Documentation();
  for (int i = 0; i < MethodCount(); ++i) {
    const Method& method = *GetMethod(i);
    EXPECT_NE(text.find(std::string("`") + method.name + "`"), std::string::npos)
        << "docs/methods.md does not name " << method.name;
    const std::string source = method.source;
    const std::string section = source.substr(source.rfind(' ') + 1);
    EXPECT_NE(text.find("### " + section + " "), std::string::npos)
        << method.name << ": no section " << section;
  }
}

// The option table is options.list written out: key, values, default, meaning.
TEST(Documentation, OptionTableIsTheList) {
  const std::string text = Documentation();
  const size_t begin = text.find("## 5. Options"), end = text.find("\n## ", begin + 1);
  ASSERT_NE(begin, std::string::npos);
  std::string table = text.substr(begin, end - begin);
  table = table.substr(table.find("\n| `"));
  std::string want;
  for (int i = 0; i < kOptionCount; ++i) {
    const Option& option = GetOption(static_cast<OptionId>(i));
    want += std::string("\n| `") + option.key + "` | " + RangeOf(option) + " | " +
            ValueText(option, option.default_value) + " | " + option.help + " |";
  }
  EXPECT_EQ(table.substr(0, want.size()), want);
}

// Every policy in a code block of the page parses.
TEST(Documentation, ExamplesParse) {
  const std::string text = Documentation();
  std::set<std::string> shown;
  for (size_t at = text.find("--policy "); at != std::string::npos; at = text.find("--policy ", at + 1)) {
    const size_t begin = at + 9, end = text.find_first_of(" \n`", begin);
    const Policy policy = Parsed(text.substr(begin, end - begin));
    if (policy.method != nullptr) shown.insert(policy.method->name);
  }
  for (const Method* method : Methods())
    EXPECT_EQ(shown.count(method->name), 1u) << "docs/methods.md has no --policy " << method->name;
}

}  // namespace
}  // namespace kvc
