// What a GPU, or the emulated one, rounds beside the processor in f32, on models/recall, whose weights are
// bf16: the scores that methods choose by, what is kept, and logits.
//
// Each device has to keep the best of its own scores, exactly. Then of entries that one keeps and the other
// does not, scores are no further apart than the two devices' scores of them, together, are: near ties, if
// scores differ by no more than rounding explains. How much that is the processor says itself, with rows
// between layers, queries, keys, values and what attention gives rounded to f16 by the test.
#include <algorithm>
#include <numeric>

#include "lib/base/half.h"
#include "lib/ops/cpu/cpu_device.h"
#include "tests/golden/recall_model.h"
#include "tests/golden/reference_vectors.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"
#include "tests/support/watched_device.h"

namespace kvc {
namespace {

const char* const kPolicies[] = {"full", "snapkv:budget=48", "keydiff:budget=48", "h2o:budget=48",
                                 "weightedkv:budget=48"};
constexpr size_t kRemembering = 3;  // from this one on entries remember the attention of steps
constexpr size_t kPrompt = 200, kSteps = 8, kNPolicies = sizeof kPolicies / sizeof *kPolicies;
constexpr double kLogits = 1e-2;

enum class Kind { kProcessor, kRoundedProcessor, kSpoiltProcessor, kGpu };

// One layer of one session while it is chosen from.
struct Choice {
  int32_t layer, count;  // the best of its candidates stay
  Protected always;
  std::vector<std::vector<float>> scores;  // [G] of all entries
};
using Choices = std::vector<Choice>;  // [L]

// Remembers choices. Two kinds of processors are not what they were: one rounds, one scores 1 % up or down.
class Looker final : public test::WatchedDevice {
 public:
  Looker(std::unique_ptr<Device> device, Kind kind) : WatchedDevice(std::move(device)), kind_(kind) {}
  const Choices& choices() const { return choices_; }  // of all sessions

  Status Select(Stream* s, const SelectArgs& a) override {
    std::vector<float> scores;
    KVC_RETURN_IF_ERROR(ReadFloats(s, a.scores, a.layer.n_kv_heads * a.stride, &scores));
    if (kind_ == Kind::kSpoiltProcessor) {
      for (size_t i = 0; i < scores.size(); ++i) scores[i] *= i % 2 == 0 ? 1.01f : 0.99f;
      KVC_RETURN_IF_ERROR(WriteFloats(s, a.scores, scores));
    }
    Choice c{a.layer_index, a.counts[0], a.rule.protect, {}};
    for (int32_t g = 0; g < a.layer.n_kv_heads; ++g) {
      const auto line = scores.begin() + g * a.stride;
      c.scores.emplace_back(line, line + a.layer.len[g]);
    }
    choices_.push_back(std::move(c));
    return WatchedDevice::Select(s, a);
  }
  Status Project(Stream* s, const ProjectArgs& a) override {
    if (kind_ != Kind::kRoundedProcessor) return WatchedDevice::Project(s, a);
    const NetworkShape& n = *a.shape;
    const int64_t keys = int64_t{a.n} * n.n_kv_heads * n.head_dim;
    KVC_RETURN_IF_ERROR(Round(s, a.x, int64_t{a.n} * n.hidden));
    KVC_RETURN_IF_ERROR(WatchedDevice::Project(s, a));
    KVC_RETURN_IF_ERROR(Round(s, a.q, int64_t{a.n} * n.n_heads * n.head_dim));
    KVC_RETURN_IF_ERROR(Round(s, a.k, keys));
    return Round(s, a.v, keys);
  }
  Status Finish(Stream* s, const FinishArgs& a) override {
    if (kind_ == Kind::kRoundedProcessor)
      KVC_RETURN_IF_ERROR(Round(s, a.attended, int64_t{a.n} * a.shape->n_heads * a.shape->head_dim));
    return WatchedDevice::Finish(s, a);
  }

 private:
  Status ReadFloats(Stream* s, DevicePtr<const float> from, int64_t n, std::vector<float>* x) {
    x->resize(static_cast<size_t>(n));
    return Read(s, from.As<const uint8_t>(), x->data(), 4 * n);
  }
  Status WriteFloats(Stream* s, DevicePtr<const float> to, const std::vector<float>& x) {
    return Write(s, DeviceBytes::FromNumber(to.number()), x.data(), 4 * static_cast<int64_t>(x.size()));
  }
  Status Round(Stream* s, DevicePtr<const float> at, int64_t n) {
    std::vector<float> x;
    KVC_RETURN_IF_ERROR(ReadFloats(s, at, n, &x));
    for (float& v : x) v = F16ToFloat(FloatToF16(v));
    return WriteFloats(s, at, x);
  }

  const Kind kind_;
  Choices choices_;
};

// Of one choice: which candidates there are, the best first, as methods.md 1.7 orders them.
std::vector<int32_t> Ranked(const Choice& c, size_t g) {
  const std::vector<float>& scores = c.scores[g];
  std::vector<int32_t> order(scores.size() - static_cast<size_t>(c.always.n_sink + c.always.n_recent));
  std::iota(order.begin(), order.end(), c.always.n_sink);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  return order;
}

// Sessions of all policies on one device, behind the same prompt.
class Side {
 public:
  explicit Side(Kind kind) : model_(Open(kind)) {
    for (const char* policy : kPolicies) sessions_.push_back(test::NewSession(model_, policy));
  }
  void Read(Span<const int32_t> prompt) {
    std::vector<Session*> all;
    for (const auto& s : sessions_) all.push_back(s.get());
    const Status status = Session::PrefillTogether({all.data(), all.size()}, prompt);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const std::shared_ptr<const Model>& model() const { return model_; }
  Session& session(size_t policy) const { return *sessions_[policy]; }
  // Behind the prompt; policy 0 keeps all and chooses nothing.
  Choices ChoicesOf(size_t policy) const {
    Choices chosen;
    for (size_t layer = 0; layer < NLayers(); ++layer)
      chosen.push_back(device_->choices()[layer * (kNPolicies - 1) + policy - 1]);
    return chosen;
  }
  // Of the session that chose last.
  Choices NewestChoices() const {
    const Choices& all = device_->choices();
    return {all.end() - static_cast<std::ptrdiff_t>(NLayers()), all.end()};
  }
  void ExpectTheBest(size_t policy) const {
    const ModelConfig& config = model_->config();
    const Choices choices = ChoicesOf(policy);
    for (int32_t i = 0; i < config.n_layers * config.n_kv_heads; ++i) {
      const int32_t layer = i / config.n_kv_heads, g = i % config.n_kv_heads;
      const Choice& c = choices[static_cast<size_t>(layer)];
      ASSERT_EQ(c.layer, layer);
      std::vector<int32_t> kept, best = Ranked(c, static_cast<size_t>(g));
      best.resize(static_cast<size_t>(c.count));
      for (int32_t p = 0; p < c.always.n_sink; ++p) best.push_back(p);
      for (int32_t p = 1; p <= c.always.n_recent; ++p) best.push_back(static_cast<int32_t>(kPrompt) - p);
      std::sort(best.begin(), best.end());
      ASSERT_TRUE(session(policy).Kept(layer, g, &kept).ok());
      ASSERT_EQ(kept, best) << "layer " << layer << ", KV head " << g;
    }
  }

 private:
  size_t NLayers() const { return static_cast<size_t>(model_->config().n_layers); }
  std::shared_ptr<const Model> Open(Kind kind) {
    static const test::TempFolder folder;
    static const std::string path = [] {
      const std::string to = folder / "recall.kvc";
      test::ConvertRecall(WeightChoice::kKeep, to);
      return to;
    }();
    static Kind kind_made;
    static Looker* made;
    kind_made = kind;
    test::TestMaker() = [](const ThreadOptions& threads) -> Result<std::unique_ptr<Device>> {
      auto device =
          kind_made == Kind::kGpu ? OpenDevice(test::Gpu(), threads) : cpu::CpuDevice::Create(threads);
      if (!device.ok()) return device.status();
      made = new Looker(std::move(device.value()), kind_made);
      return std::unique_ptr<Device>(made);
    };
    ModelParams params;
    params.device = "cpu", params.threads = 2;
    auto model = Model::Open(path, params);
    test::TestMaker() = nullptr;
    EXPECT_TRUE(model.ok()) << model.status().message();
    device_ = made;
    return model.value();
  }
  const Looker* device_ = nullptr;  // the model's
  std::shared_ptr<const Model> model_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

// Which of a head's candidates stay, and the score of the worst of them.
struct Kept {
  std::vector<int32_t> best, others;
  double edge;
};
Kept KeptOf(const Choice& c, size_t g) {
  const std::vector<int32_t> order = Ranked(c, g);
  const auto end = order.begin() + c.count;
  return {{order.begin(), end}, {end, order.end()}, std::fabs(c.scores[g][static_cast<size_t>(*(end - 1))])};
}

// Calls visit(a layer's choice on both sides, KV head) for all heads.
template <typename Visit>
void ForHeads(const Choices& a, const Choices& b, Visit&& visit) {
  for (size_t layer = 0; layer < a.size(); ++layer) {
    for (size_t g = 0; g < a[layer].scores.size(); ++g) visit(a[layer], b[layer], g);
  }
}

// How far scores are from others, as a share of themselves, or of the worst that stays where they are less.
struct Distance {
  double rms = 0, most = 0;
};
Distance DistanceOf(const Choices& from, const Choices& to) {
  Distance d;
  double squares = 0, n = 0;
  ForHeads(from, to, [&](const Choice& a, const Choice& b, size_t g) {
    const double edge = KeptOf(a, g).edge;
    for (size_t e = 0; e < a.scores[g].size(); ++e) {
      const double x = a.scores[g][e], y = b.scores[g][e];
      if (std::isinf(x)) continue;  // it stays whatever others have
      const double share = std::fabs(x - y) / std::max(std::fabs(x), edge);
      squares += share * share, ++n, d.most = std::max(d.most, share);
    }
  });
  d.rms = std::sqrt(squares / n);
  return d;
}

// Of what `to` keeps instead of what `from` does: how many, and how much less it is worth to `from`, as a
// share of the worst that stays there.
struct Exchange {
  int n = 0;
  double gap = 0;
};
Exchange ExchangeOf(const Choices& from, const Choices& to) {
  Exchange x;
  ForHeads(from, to, [&](const Choice& a, const Choice& b, size_t g) {
    const Kept of_a = KeptOf(a, g), of_b = KeptOf(b, g);
    float best_lost = -INFINITY, worst_won = INFINITY;
    for (const int32_t e : of_b.best) {
      if (std::find(of_a.best.begin(), of_a.best.end(), e) != of_a.best.end()) continue;
      ++x.n, worst_won = std::min(worst_won, a.scores[g][static_cast<size_t>(e)]);
    }
    for (const int32_t e : of_b.others) {
      if (std::find(of_a.best.begin(), of_a.best.end(), e) != of_a.best.end())
        best_lost = std::max(best_lost, a.scores[g][static_cast<size_t>(e)]);
    }
    x.gap = std::max(x.gap, (double{best_lost} - worst_won) / of_a.edge);
  });
  return x;
}

// Rounding explains so many times what the processor rounds here: that is not inside of a layer's blocks, and
// not the attention's exponentials.
constexpr double kRms = 2.5, kMost = 4;

bool IsRounding(const Distance& found, const Distance& rounded) {
  return found.rms <= kRms * rounded.rms && found.most <= kMost * rounded.most;
}
std::string TextOf(const Distance& d) { return Format("%.2g, at most %.2g", d.rms, d.most); }

// The largest of a test, in its report (--gtest_output=json:FILE).
struct Figures {
  int others = 0;
  double gap = 0, rms = 0, most = 0, steps = 0, logits = 0, logits_of_same = 0, logits_of_own = 0;
  void Record() const {
    const auto say = [](const char* name, double x) {
      testing::Test::RecordProperty(name, Format("%.2g", x));
    };
    say("others", others), say("gap", gap), say("rms", rms), say("most", most), say("steps", steps);
    say("logits", logits), say("logits_of_same", logits_of_same), say("logits_of_own", logits_of_own);
  }
};
void Raise(double* largest, double x) { *largest = std::max(*largest, x); }

class GpuRounding : public testing::Test {
 protected:
  void SetUp() override {
    if (test::Gpu() == nullptr) GTEST_SKIP() << "no GPU here, and no emulated one";
    test::SetVariable("KVC_TEST_DEVICE", nullptr);
    test::SetVariable("KVC_ISA", "ref");  // nothing is rounded there
    test::SetVariable("KVC_CUDA_ROUND", nullptr), test::SetVariable("KVC_CUDA_FLOAT_ROWS", nullptr);
  }
  static Tokens Text() { return ReadReference("recall_quantised_llamacpp.json")["ids"]; }
  // Behind the prompt that begins at this place of the text.
  void Compare(size_t place) {
    SCOPED_TRACE(place);
    const Tokens text = Text();
    Side exact(Kind::kProcessor), rounded(Kind::kRoundedProcessor), gpu(Kind::kGpu);
    for (Side* side : {&exact, &rounded, &gpu}) side->Read({text.data() + place, kPrompt});
    const auto next = text.begin() + static_cast<std::ptrdiff_t>(place + kPrompt);
    for (size_t p = 0; p < kNPolicies; ++p) {
      SCOPED_TRACE(kPolicies[p]);
      const double apart = test::LargestDifference(exact.session(p), gpu.session(p));
      EXPECT_LE(apart, kLogits);
      Raise(&figures_.logits, apart);
      if (p > 0) CompareChoices(exact, gpu, p, RoundingOf(exact, rounded, p));
      GoOn(exact, gpu, p, {next, next + kSteps});
      if (HasFatalFailure()) return;
      if (p >= kRemembering) CompareMemories(exact, gpu, p, RoundingOf(exact, rounded, p));
    }
  }
  void TearDown() override { figures_.Record(); }

  Figures figures_;

 private:
  static Distance RoundingOf(const Side& exact, const Side& rounded, size_t policy) {
    return DistanceOf(exact.ChoicesOf(policy), rounded.ChoicesOf(policy));
  }
  void CompareChoices(const Side& exact, const Side& gpu, size_t policy, const Distance& rounded) {
    exact.ExpectTheBest(policy), gpu.ExpectTheBest(policy);
    const Choices of_exact = exact.ChoicesOf(policy), of_gpu = gpu.ChoicesOf(policy);
    const Distance found = DistanceOf(of_exact, of_gpu);
    EXPECT_TRUE(IsRounding(found, rounded)) << TextOf(found) << "; rounded: " << TextOf(rounded);
    const Exchange exchange = ExchangeOf(of_exact, of_gpu);
    EXPECT_LE(exchange.gap, 2 * kMost * rounded.most);
    figures_.others += exchange.n, Raise(&figures_.gap, exchange.gap);
    Raise(&figures_.rms, found.rms / rounded.rms), Raise(&figures_.most, found.most / rounded.most);
  }
  // The processor goes on with what the GPU kept: it keeps the same from there on. What it would have kept
  // itself gives other logits.
  void GoOn(const Side& exact, const Side& gpu, size_t policy, const Tokens& tokens) {
    Session &there = gpu.session(policy), &own = exact.session(policy);
    const std::vector<uint8_t> bytes = test::SavedBytes(there);
    auto restored = Session::RestoreFrom(exact.model(), {bytes.data(), bytes.size()});
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    here_ = std::move(restored.value());
    for (const int32_t token : tokens) {
      for (Session* s : {here_.get(), &there, &own}) test::FeedTokens(*s, {token});
      test::ExpectSameKept(*here_, there);
      const double apart = test::LargestDifference(*here_, there);
      EXPECT_LE(apart, kLogits);
      Raise(&figures_.logits_of_same, apart);
      Raise(&figures_.logits_of_own, test::LargestDifference(own, there));
    }
  }
  // What entries remember of the steps, which round less than prompts: methods choose by it once more.
  void CompareMemories(const Side& exact, const Side& gpu, size_t policy, const Distance& rounded) {
    for (Session* s : {here_.get(), &gpu.session(policy)}) ASSERT_TRUE(s->Recompress(40, nullptr).ok());
    const Distance found = DistanceOf(exact.NewestChoices(), gpu.NewestChoices());
    EXPECT_TRUE(found.rms < rounded.rms && found.most < rounded.most)
        << TextOf(found) << "; rounded: " << TextOf(rounded);
    Raise(&figures_.steps, found.rms / rounded.rms);
  }
  std::unique_ptr<Session> here_;
  test::KeptVariable device_{"KVC_TEST_DEVICE"}, isa_{"KVC_ISA"}, round_{"KVC_CUDA_ROUND"},
      rows_{"KVC_CUDA_FLOAT_ROWS"};
};

// Where prompts begin: where another entry stays in some method, and with KVC_TEST_PLACES=N in so many
// places.
std::vector<size_t> PlacesOr(std::vector<size_t> usual) {
  const int n = test::NumberVariable("KVC_TEST_PLACES", 0);
  if (n > 0) usual.clear();
  for (int i = 0; i < n; ++i) usual.push_back(static_cast<size_t>(i) * 30);
  return usual;
}

// By default: layers and activations of f16 while a prompt is read. Of every method other entries stay in one
// of these places.
TEST_F(GpuRounding, WhatStaysInsteadIsANearTie) {
  for (const size_t place : PlacesOr({30, 90, 240})) Compare(place);
}

// What stands between layers too, as behind long prompts.
TEST_F(GpuRounding, WhatStaysInsteadBehindLongPromptsIsANearTie) {
  test::SetVariable("KVC_CUDA_FLOAT_ROWS", "0");
  for (const size_t place : PlacesOr({90})) Compare(place);
}

// Layers alone: less than the processor rounds here.
TEST_F(GpuRounding, WhatStaysInsteadOfLayersOfF16IsANearTie) {
  test::SetVariable("KVC_CUDA_ROUND", "0");
  for (const size_t place : PlacesOr({30})) Compare(place);
  EXPECT_LT(figures_.rms, 1);
}

// The bound is one: scores that are 1 % off are no rounding.
TEST_F(GpuRounding, OnePercentIsNoRounding) {
  const Tokens text = Text();
  Side exact(Kind::kProcessor), rounded(Kind::kRoundedProcessor), spoilt(Kind::kSpoiltProcessor);
  for (Side* side : {&exact, &rounded, &spoilt}) side->Read({text.data(), kPrompt});
  for (size_t p = 1; p < kNPolicies; ++p) {
    SCOPED_TRACE(kPolicies[p]);
    spoilt.ExpectTheBest(p);
    const Choices of_exact = exact.ChoicesOf(p);
    EXPECT_FALSE(
        IsRounding(DistanceOf(of_exact, spoilt.ChoicesOf(p)), DistanceOf(of_exact, rounded.ChoicesOf(p))));
  }
}

}  // namespace
}  // namespace kvc
