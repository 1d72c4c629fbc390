// A trained model in Q8_0, Q4_0 and Q4_K beside llama.cpp on the very same file, and beside the same weights
// in f32: both engines round activations, so both have a distance from f32
// (tests/vectors/make_llamacpp_vectors.py).
#include <cstring>

#include "lib/base/hash.h"
#include "lib/ops/cpu/kernel_table.h"
#include "tests/golden/recall_model.h"
#include "tests/golden/reference_vectors.h"
#include "tests/support/environment.h"
#include "tests/support/recall_gguf.h"

namespace kvc {
namespace {

constexpr double kMostApart = 1e-3;  // KL divergence, nats a token
// Orders of f32 sums alone move a mean by a tenth (our own instruction sets among each other), so "no
// further" is within so many standard errors of the difference, position by position.
constexpr double kErrors = 3;
constexpr size_t kPrompt = 129;  // read at once; then as many tokens as the vectors skip

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Log probabilities of one position: of the tokens that f32 finds likeliest, and behind them of all others
// together.
struct Position {
  std::vector<uint16_t> id;
  std::vector<float> f32, llama;
};

// Takes the positions of one model off the front of what the file holds.
std::vector<Position> Take(size_t n, size_t top, std::string* bytes) {
  std::vector<Position> all(n);
  size_t at = 0;
  const auto take = [&](auto* to, size_t count) {
    to->resize(count);
    const size_t size = count * sizeof((*to)[0]);
    if (at + size <= bytes->size()) std::memcpy(to->data(), bytes->data() + at, size);
    at += size;
  };
  for (Position& p : all) take(&p.id, top), take(&p.f32, top + 1), take(&p.llama, top + 1);
  EXPECT_LE(at, bytes->size());
  bytes->erase(0, at);
  return all;
}

// What logits are more than log probabilities.
double LogSum(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

// The same cells of logits.
std::vector<double> Cells(const std::vector<float>& logits, const std::vector<uint16_t>& ids) {
  const double sum = LogSum(logits);
  double named = 0;
  std::vector<double> cells;
  for (const uint16_t id : ids) {
    cells.push_back(logits[id] - sum);
    named += std::exp(cells.back());
  }
  cells.push_back(std::log(std::max(1 - named, 1e-300)));
  return cells;
}

template <typename P, typename Q>
double Divergence(const P& p, const Q& q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double of_p = static_cast<double>(p[i]);
    sum += std::exp(of_p) * (of_p - static_cast<double>(q[i]));
  }
  return sum;
}

struct Distances {
  double llama_ours = 0, worst = 0, f32_ours = 0, f32_llama = 0;  // means; worst: of llama_ours
  double error = 0;                                               // standard error of f32_ours - f32_llama
};

ModelParams On(const char* device) {
  ModelParams params;
  params.device = device;
  return params;
}
constexpr char kProcessor[] = "cpu";  // whose kernels these are

// n of a position: the tokens in front of it.
Distances Measure(const std::string& path, const Tokens& ids, const std::vector<size_t>& at,
                  const std::vector<Position>& positions) {
  Distances d;
  auto opened = Model::Open(path, On(kProcessor));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) return d;
  const auto session = FullSession(opened.value());
  size_t read = 0;
  double square = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    Prefill(*session, ids, read, at[i]);
    read = at[i];
    const std::vector<double> ours = Cells(test::LogitsOf(*session), positions[i].id);
    const double apart = Divergence(positions[i].llama, ours);
    d.llama_ours += apart, d.worst = std::max(d.worst, apart);
    const double of_ours = Divergence(positions[i].f32, ours),
                 of_llama = Divergence(positions[i].f32, positions[i].llama);
    d.f32_ours += of_ours, d.f32_llama += of_llama, square += (of_ours - of_llama) * (of_ours - of_llama);
  }
  const double n = static_cast<double>(at.size());
  for (double* mean : {&d.llama_ours, &d.f32_ours, &d.f32_llama}) *mean /= n;
  const double mean = d.f32_ours - d.f32_llama;
  d.error = std::sqrt((square / n - mean * mean) / (n - 1));
  return d;
}

TEST(ReferenceQuantised, IsWhatLlamaCppComputesAndNoFurtherFromF32) {
  const test::KeptVariable kept("KVC_ISA");
  const Json about = ReadReference("recall_quantised_llamacpp.json");
  const Tokens ids = about["ids"];
  const size_t top = about["top"], every = about["every"];
  std::vector<size_t> at;
  for (size_t n = kPrompt; n <= ids.size(); n += every) at.push_back(n);
  std::string vectors = ReadAll(std::string(KVC_TEST_DATA) + "/reference/recall_quantised_llamacpp.bin");
  const test::TempFolder folder;
  for (const test::BlockForm* form : {&test::kQ8_0Blocks, &test::kQ4_0Blocks, &test::kQ4KBlocks}) {
    SCOPED_TRACE(form->name);
    const std::vector<Position> positions = Take(at.size(), top, &vectors);
    const Status wrote =
        test::WriteRecallGguf(std::string(KVC_SOURCE_DIR) + "/models/recall", *form, folder / "m.gguf");
    ASSERT_TRUE(wrote.ok()) << wrote.message();
    const std::string bytes = ReadAll(folder / "m.gguf");
    ASSERT_EQ(Format("%016llx", static_cast<unsigned long long>(Hash64(bytes.data(), bytes.size()))),
              about["files"][form->name].get<std::string>())
        << "not the file that llama.cpp read";
    const Status status = Convert(folder / "m.gguf", folder / "m.kvc", {}, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    const KernelTable* tables[8];
    const int n_tables = RunnableKernels(tables, 8);
    for (int t = 0; t < n_tables; ++t) {
      test::SetVariable("KVC_ISA", tables[t]->name);
      const Distances d = Measure(folder / "m.kvc", ids, at, positions);
      const std::string name = std::string(form->name) + "_" + tables[t]->name;
      RecordProperty(name, Format("%.3g, worst %.3g; f32 to ours %.3g, to llama.cpp %.3g", d.llama_ours,
                                  d.worst, d.f32_ours, d.f32_llama));
      if (form != &test::kQ4KBlocks) {
        EXPECT_LE(d.llama_ours, kMostApart) << name << ", worst " << d.worst;
      }
      EXPECT_LE(d.llama_ours, d.f32_llama + d.f32_ours) << name << ": more than rounding lies between";
      EXPECT_LE(d.f32_ours, d.f32_llama + kErrors * d.error) << name;
    }
  }
  EXPECT_TRUE(vectors.empty());
}

// Log probabilities behind every 16th token.
std::vector<std::vector<float>> LogProbabilities(const std::string& path, const Tokens& ids,
                                                 const char* device = kProcessor) {
  std::vector<std::vector<float>> all;
  auto opened = Model::Open(path, On(device));
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!opened.ok()) return all;
  const auto session = FullSession(opened.value());
  for (size_t read = 0; read + 16 <= ids.size(); read += 16) {
    Prefill(*session, ids, read, read + 16);
    all.push_back(test::LogitsOf(*session));
    const double sum = LogSum(all.back());
    for (float& logit : all.back()) logit -= static_cast<float>(sum);
  }
  return all;
}

// A mean over positions.
double MeanDivergence(const std::vector<std::vector<float>>& p, const std::vector<std::vector<float>>& q) {
  EXPECT_EQ(p.size(), q.size());
  double mean = 0;
  for (size_t i = 0; i < p.size() && i < q.size(); ++i)
    mean += Divergence(p[i], q[i]) / static_cast<double>(p.size());
  return mean;
}

// Kernels that multiply bf16 by bf16 round activations to eight bits of mantissa: how far that takes the
// model from the same weights with activations in f32.
TEST(ReferenceQuantised, ActivationsInBf16StayNearThoseInF32) {
  const KernelTable* tables[8];
  const int n_tables = RunnableKernels(tables, 8);
  const Tokens ids = ReadReference("recall_quantised_llamacpp.json")["ids"];
  const test::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(test::ConvertRecall(WeightChoice::kBf16, folder / "m.kvc"));
  const test::KeptVariable kept("KVC_ISA");
  std::vector<std::vector<float>> f32;
  for (int t = 0; t < n_tables; ++t) {
    if (tables[t]->round_row == nullptr) continue;
    if (f32.empty()) {
      test::SetVariable("KVC_ISA", "ref");
      f32 = LogProbabilities(folder / "m.kvc", ids);
    }
    test::SetVariable("KVC_ISA", tables[t]->name);
    const std::vector<std::vector<float>> ours = LogProbabilities(folder / "m.kvc", ids);
    const double mean = MeanDivergence(f32, ours);
    RecordProperty(tables[t]->name, Format("%.3g", mean));
    EXPECT_GT(mean, 0) << "nothing was rounded";
    EXPECT_LE(mean, kMostApart) << tables[t]->name;
  }
  if (f32.empty()) GTEST_SKIP() << "no kernels here round activations to bf16";
}

// The same of a GPU's prompts in f16, or of the emulated one's, which takes its time: beside activations of
// two numbers. The switch is read when a device is opened.
TEST(ReferenceQuantised, PromptsInF16OnAGpuStayNearThoseInTwoOfIt) {
  const char* device = test::Gpu();
  if (device == nullptr) GTEST_SKIP() << "no GPU here, and no emulated one";
  Tokens ids = ReadReference("recall_quantised_llamacpp.json")["ids"];
  ids.resize(160);
  const test::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(test::ConvertRecall(WeightChoice::kBf16, folder / "m.kvc"));
  const test::KeptVariable kept("KVC_CUDA_ROUND");
  test::SetVariable("KVC_CUDA_ROUND", "0");
  const auto exact = LogProbabilities(folder / "m.kvc", ids, device);
  test::SetVariable("KVC_CUDA_ROUND", nullptr);
  const double mean = MeanDivergence(exact, LogProbabilities(folder / "m.kvc", ids, device));
  RecordProperty(device, Format("%.3g", mean));
  EXPECT_GT(mean, 0) << "nothing was rounded";
  EXPECT_LE(mean, kMostApart / 100);
}

}  // namespace
}  // namespace kvc
