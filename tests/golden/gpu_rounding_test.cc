// What is rounded on a GPU, or on the emulated one, beside the processor in f32: what sessions on
// models/recall, whose weights are bf16, keep behind prose, and their logits.
#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "tests/golden/recall_model.h"
#include "tests/golden/reference_vectors.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

class GpuRounding : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (test::Gpu() == nullptr) GTEST_SKIP() << "no GPU here, and no emulated one";
    test::SetVariable("KVC_TEST_DEVICE", nullptr);  // "cpu" is the processor here
    test::SetVariable("KVC_ISA", "ref");            // nothing is rounded there
  }
  static std::shared_ptr<const Model> Open(const char* device) {
    static const test::TempFolder folder;
    static const std::string path = [] {
      const std::string to = folder / "recall.kvc";
      test::ConvertRecall(WeightChoice::kKeep, to);
      return to;
    }();
    ModelParams params;
    params.device = device, params.threads = 2;
    auto model = Model::Open(path, params);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.value();
  }
  // Behind a prompt, and behind some steps: the share of entries that stay here and not there, at most.
  static void Compare(double share) {
    std::unique_ptr<Session> sessions[2] = {test::NewSession(Open("cpu"), GetParam()),
                                            test::NewSession(Open(test::Gpu()), GetParam())};
    const Tokens ids = ReadReference("recall_quantised_llamacpp.json")["ids"];
    for (auto& s : sessions) ASSERT_TRUE(s->Prefill({ids.data(), 200}, true).ok());
    ExpectNear(*sessions[0], *sessions[1], share);
    for (auto& s : sessions) test::FeedTokens(*s, {ids.begin() + 200, ids.begin() + 208});
    ExpectNear(*sessions[0], *sessions[1], share);
  }

 private:
  static void ExpectNear(Session& a, Session& b, double share) {
    const ModelConfig& c = a.model().config();
    size_t apart = 0, all = 0;
    for (int i = 0; i < c.n_layers * c.n_kv_heads; ++i) {
      std::vector<int32_t> of_a, of_b, both;
      ASSERT_TRUE(a.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &of_a).ok());
      ASSERT_TRUE(b.Kept(i / c.n_kv_heads, i % c.n_kv_heads, &of_b).ok());
      ASSERT_EQ(of_a.size(), of_b.size());
      std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(both));
      all += of_a.size(), apart += of_a.size() - both.size();
    }
    EXPECT_LE(static_cast<double>(apart), share * static_cast<double>(all));
    EXPECT_LE(test::LargestDifference(a, b), apart == 0 ? 1e-2 : 0.15);
  }
  test::KeptVariable device_{"KVC_TEST_DEVICE"}, isa_{"KVC_ISA"}, round_{"KVC_CUDA_ROUND"},
      rows_{"KVC_CUDA_FLOAT_ROWS"};
};

// By default, layers and activations of f16 while a prompt is read: of two entries that are worth nearly the
// same the other one may stay.
TEST_P(GpuRounding, NearlyTheSameIsKept) {
  test::SetVariable("KVC_CUDA_ROUND", nullptr);
  Compare(0.002);
}

// What stands between layers too, as behind long prompts.
TEST_P(GpuRounding, NearlyTheSameIsKeptBehindLongPrompts) {
  test::SetVariable("KVC_CUDA_ROUND", nullptr), test::SetVariable("KVC_CUDA_FLOAT_ROWS", "0");
  Compare(0.002);
}

// Layers alone.
TEST_P(GpuRounding, ActivationsOfTwoNumbersKeepTheSame) {
  test::SetVariable("KVC_CUDA_ROUND", "0");
  Compare(0);
}

INSTANTIATE_TEST_SUITE_P(Policies, GpuRounding,
                         testing::Values("full", "snapkv:budget=48", "h2o:budget=48", "weightedkv:budget=48",
                                         "keydiff:budget=48"),
                         [](const testing::TestParamInfo<const char*>& p) {
                           const std::string name = p.param;
                           return name.substr(0, name.find(':'));
                         });

}  // namespace
}  // namespace kvc
