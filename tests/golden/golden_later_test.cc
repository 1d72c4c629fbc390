// Prompts behind a cache that was compressed before (methods.md 1.9), every method on the trained model,
// against reference values (tests/vectors/oracle): what is kept, and the best logits after every part. Where
// the reference decided by less than f32 can tell, a layer may differ, and is not looked at again.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lib/compress/method_table.h"
#include "lib/engine/session.h"
#include "tests/golden/golden_files.h"
#include "tests/golden/recall_model.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr double kMargin = 2e-4, kLogits = 5e-4;

// Every method at its defaults, and options of methods: beside prompts behind a compressed cache what steps
// keep behind a short first prompt, compression at steps, and scorers under allocators of others.
const Json& Golden() {
  static const Json golden = ReadGolden("later/later_prompts.json");
  return golden;
}
const Json& Options() {
  static const Json golden = ReadGolden("later/options.json");
  return golden;
}

std::vector<std::string> NamesIn(const Json& golden) {
  std::vector<std::string> names;
  for (const auto& item : golden["cases"].items()) names.push_back(item.key());
  return names;
}

// "layer 0 head 1: 0-3 17 20-31", all of them: where nothing was recorded of a part, logits alone would say
// nothing of what went wrong.
std::string KeptText(const Session& s) {
  std::string text;
  const ModelConfig& c = s.model().config();
  for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
    std::vector<int32_t> kept;
    EXPECT_TRUE(s.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &kept).ok());
    text += "\nlayer " + std::to_string(i / c.n_kv_heads) + " head " + std::to_string(i % c.n_kv_heads) + ":";
    for (size_t first = 0, end; first < kept.size(); first = end) {
      for (end = first + 1; end < kept.size() && kept[end] == kept[end - 1] + 1;) ++end;
      text += " " + std::to_string(kept[first]);
      if (end - first > 1) text += "-" + std::to_string(kept[end - 1]);
    }
  }
  return text;
}

class LaterPrompts : public testing::TestWithParam<std::string> {
 protected:
  virtual const Json& File() const { return Golden(); }
  const Json& Case() const { return File()["cases"][GetParam()]; }

  std::unique_ptr<Session> Start() const {
    Result<Policy> policy = ParsePolicy(Case()["policy"].get<std::string>().c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    for (const Json& x : Case().value("scores", Json::array()))
      policy.value().head_scores.push_back(static_cast<float>(x.get<double>()));
    for (const Json& x : Case().value("slots", Json::array()))
      policy.value().table.push_back(x.get<int32_t>());
    auto session = Session::Create(test::RecallF32(), &policy.value(), {});
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session.value());
  }

  void Run();

  // Layers after a part whose kept sets were held to the reference, and those that it could not tell; parts
  // whose logits were.
  int n_recorded_ = 0, n_compared_ = 0, n_close_ = 0, n_logits_ = 0;

  // Adds the layers that differ where the reference could not tell.
  void CheckKept(const Session& s, size_t part, std::set<size_t>* unsure) {
    const Json& expected = Case()["kept"][part];
    for (size_t layer = 0; layer < expected.size(); ++layer) {
      const bool close = Margin(Case()["margin"][part][layer]) < kMargin;
      bool same = true;
      for (size_t g = 0; g < expected[layer].size(); ++g) {
        std::vector<int32_t> kept;
        EXPECT_TRUE(s.Kept(static_cast<int>(layer), static_cast<int>(g), &kept).ok());
        same = same && kept == expected[layer][g].get<std::vector<int32_t>>();
        if (close) continue;
        EXPECT_EQ(kept, expected[layer][g].get<std::vector<int32_t>>()) << "layer " << layer << " head " << g;
      }
      if (!same) unsure->insert(layer);
      (close ? n_close_ : n_compared_) += 1;
    }
  }
};

void LaterPrompts::Run() {
  auto s = Start();
  const std::vector<int32_t> ids = Case().value("ids", File()["ids"]);
  const Json parts = Case().value("parts", File().value("parts", Json()));
  // Of entries in codes: a code may round the other way.
  const double tolerance = Case().value("tolerance", kLogits);
  size_t at = 0;
  std::set<size_t> unsure;
  for (size_t part = 0; part < parts.size(); ++part) {
    SCOPED_TRACE(Case()["policy"].get<std::string>() + ", part " + std::to_string(part));
    const size_t n = parts[part][1];
    const std::vector<int32_t> tokens(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                      ids.begin() + static_cast<std::ptrdiff_t>(at + n));
    at += n;
    if (parts[part][0] == "prompt") {
      const Status status = s->Prefill(tokens, true);
      ASSERT_TRUE(status.ok()) << status.message();
    } else {
      test::FeedTokens(*s, tokens);
    }
    CheckKept(*s, part, &unsure);
    if (!unsure.empty()) continue;
    ++n_logits_;
    const std::vector<float> logits = test::LogitsOf(*s);
    bool near = true;
    for (const Json& pair : Case()["best"][part]) {
      const double difference = std::abs(logits[pair[0].get<size_t>()] - pair[1].get<double>());
      EXPECT_LE(difference, tolerance) << "logit of token " << pair[0];
      near = near && difference <= tolerance;
    }
    EXPECT_TRUE(near) << "kept:" << KeptText(*s);
  }
  RecordProperty("layers_that_differ", static_cast<int>(unsure.size()));
  EXPECT_LE(unsure.size(), 1u);
  // Nobody is excused from most of it: a case that the reference could not tell would say nothing.
  RecordProperty("layers_compared", n_compared_);
  for (const Json& part : Case()["kept"]) n_recorded_ += static_cast<int>(part.size());
  EXPECT_EQ(n_compared_ + n_close_, n_recorded_);
  EXPECT_GE(3 * n_compared_, n_recorded_);
}

TEST_P(LaterPrompts, KeepAndSayWhatTheReferenceDoes) {
  Run();
  if (GetParam() == "full") {
    EXPECT_EQ(n_recorded_, 0);
  } else {
    EXPECT_GE(n_recorded_, 18);
  }
  // Keys of layer 0 are as long wherever their token stands: rounding decides which of them knorm keeps. In
  // knorm-distinct every token stands once.
  if (GetParam() != "knorm") {
    EXPECT_GE(n_logits_, 2);
  }
}

class LaterOptions : public LaterPrompts {
 protected:
  const Json& File() const override { return Options(); }
};

TEST_P(LaterOptions, KeepAndSayWhatTheReferenceDoes) {
  Run();
  EXPECT_EQ(n_recorded_, 6);
  EXPECT_GE(n_logits_, 2);
}

std::string Plain(const testing::TestParamInfo<std::string>& name) {
  std::string s = name.param;
  for (char& ch : s) ch = ch == '-' ? '_' : ch;
  return s;
}
INSTANTIATE_TEST_SUITE_P(All, LaterPrompts, testing::ValuesIn(NamesIn(Golden())), Plain);
INSTANTIATE_TEST_SUITE_P(All, LaterOptions, testing::ValuesIn(NamesIn(Options())), Plain);

// A method of the table without reference values would not be seen above.
TEST(LaterPromptsTable, HasEveryMethod) {
  for (const Method* method : Methods()) {
    if (std::string(method->name) == "cokv-mixed") continue;  // cokv's slots, stored with rounding
    if (method->reads_pages) continue;                        // holds what full does
    EXPECT_TRUE(Golden()["cases"].contains(method->name)) << method->name;
  }
}

}  // namespace
}  // namespace kvc
