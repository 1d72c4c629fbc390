// Prompts by cuBLASLt: products are those of our own kernel and of the processor, calls that fail leave
// nothing behind, and what it needs is planned. On the emulated device the library is
// tests/emu/fake_cublaslt.cc; on a GPU it is the machine's, if it has one, and its failures are not for tests
// to choose.
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/engine/session.h"
#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"
#if defined(KVC_EMU)
#include <dlfcn.h>

#include "cuda/blas.h"
#include "tests/emu/fake_cublaslt.h"
#endif

namespace kvc {
namespace {

constexpr char kSwitch[] = "KVC_CUDA_BLAS", kRounds[] = "KVC_CUDA_ROUND", kLayers[] = "KVC_CUDA_F16_LAYERS";
constexpr int32_t kRows = 256;
constexpr double kOtherSide = 1.0 / 512;  // of the largest: half of the last bit of bf16

#if defined(KVC_EMU)
static_assert(kRows == cuda::kFewestBlasRows);
constexpr char kBlas[] = "KVC_CUBLASLT";
constexpr double kOwn = 1e-5;  // of the largest: a half that is rounded once more on its way to y

emu::FakeBlas& Fake(const char* path = KVC_FAKE_CUBLASLT) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return *reinterpret_cast<kvc_fake_blas_function>(dlsym(library, "kvc_fake_blas"))();
}

// For the time of its life devices that are opened find this library.
class WithBlas {
 public:
  explicit WithBlas(const char* path = KVC_FAKE_CUBLASLT) {
    Fake() = {};
    Fake().enqueue = cudaLaunchHostFunc;
    test::SetVariable(kBlas, path);
  }
  ~WithBlas() { EXPECT_TRUE(Fake().broken_rule == nullptr) << Fake().broken_rule; }
  static bool IsThere() { return true; }
  static void ExpectCalls(int64_t n) { EXPECT_EQ(Fake().multiplies, n); }

 private:
  const test::KeptVariable kept_{kBlas};
};
#else
constexpr double kOwn = 4e-5;  // tensor cores cut sums off, each way in another order

class WithBlas {
 public:
  WithBlas() {
    Lines().clear();
    SetLog(
        kLogDebug, [](void*, int32_t, const char* line) { (Lines() += line) += '\n'; }, nullptr);
  }
  ~WithBlas() { SetLog(kLogError, nullptr, nullptr); }
  static bool IsThere() { return Lines().find("products of cuBLASLt") != std::string::npos; }
  static void ExpectCalls(int64_t) {
    EXPECT_EQ(Lines().find("cuBLASLt fails"), std::string::npos) << Lines();
    EXPECT_EQ(Lines().find("cuBLASLt has nothing"), std::string::npos) << Lines();
  }

 private:
  static std::string& Lines() {
    static std::string lines;
    return lines;
  }
};
#endif

// What a layer is made of, and what its operations give.
struct LayerCase {
  int32_t n = kRows;
  WeightType type = WeightType::kBf16;
  bool biases = false, output_bias = false, post_norms = false, parallel = false, gathers = false;
  float scale = 0.5f, cap = 0;
  int32_t hidden = 96;
};

NetworkShape ShapeOf(const LayerCase& c) {
  NetworkShape shape;
  shape.hidden = c.hidden, shape.ffn = 160, shape.n_heads = 6, shape.n_kv_heads = 2, shape.head_dim = 24,
  shape.vocab = 132, shape.parallel_blocks = c.parallel, shape.bf16_weights = c.type == WeightType::kBf16;
  return shape;
}

// Param: whether activations become bf16, one call a product, or are two of it, a call for each.
class BlasTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    test::SetVariable(kRounds, GetParam() ? "1" : "0");
    test::SetVariable(kLayers, "0");  // nothing else is rounded
  }
  // Of a layer and a head: q, k, v, output, gate, up, down, head.
  static int64_t OfOne() { return GetParam() ? 1 : 2; }
  static int64_t Calls() { return OfOne() * 8; }

  struct Output {
    std::vector<float> q, k, v, x, logits;
    int64_t scratch = 0;
  };
  struct Buffers {
    Device* device;
    Stream* stream;
    std::vector<DeviceBuffer<uint8_t>> blocks;
    DeviceBytes Take(int64_t bytes) {
      blocks.emplace_back();
      EXPECT_TRUE(blocks.back().Allocate({device, nullptr}, bytes, "test").ok());
      return blocks.back().raw();
    }
    DevicePtr<float> Copy(const std::vector<float>& from) {
      const int64_t bytes = static_cast<int64_t>(from.size() * sizeof(float));
      const DeviceBytes at = Take(bytes);
      EXPECT_TRUE(device->Write(stream, at, from.data(), bytes).ok());
      return at.As<float>();
    }
    std::vector<float> Read(DevicePtr<float> from, int64_t n) {
      std::vector<float> out(static_cast<size_t>(n));
      EXPECT_TRUE(device->Read(stream, from.As<const uint8_t>(), out.data(), n * 4).ok());
      return out;
    }
  };
#if defined(KVC_EMU)
  void TearDown() override { emu::GetOptions() = {}; }
#endif
  const test::KeptVariable kept_{kRounds}, kept_layers_{kLayers};

  static std::vector<float> Random(int64_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = normal(random);
    return x;
  }

  // The same weights and rows for the same case. Operations as a prompt has them, each checked.
  static Output Run(Device* d, const LayerCase& c) {
    const NetworkShape shape = ShapeOf(c);
    const int32_t h = shape.hidden, q_rows = shape.n_heads * shape.head_dim,
                  kv_rows = shape.n_kv_heads * shape.head_dim;
    std::mt19937 random(11);
    const FileWeight q(c.type, q_rows, h, 32, &random), k(c.type, kv_rows, h, 32, &random),
        v(c.type, kv_rows, h, 32, &random), o(c.type, h, q_rows, 16, &random),
        gate(c.type, shape.ffn, h, 32, &random), up(c.type, shape.ffn, h, 32, &random),
        down(c.type, h, shape.ffn, 32, &random), head(c.type, shape.vocab, h, 32, &random);
    const std::unique_ptr<Stream> stream = std::move(d->NewStream().value());
    Buffers b{d, stream.get(), {}};
    LayerMatrices w;
    const DevicePtr<const float> norm = b.Copy(Random(h, 1)), bias = b.Copy(Random(q_rows, 2));
    w.attention_norm = w.ffn_norm = norm;
    if (c.post_norms) w.attention_post_norm = w.ffn_post_norm = norm;
    const DevicePtr<const float> biases[] = {bias, {}, bias}, of_output[] = {bias};
    const Weight qkv[] = {q.w, k.w, v.w}, gate_up[] = {gate.w, up.w};
    Matrix m;
    const auto prepare = [&](Span<const Weight> weights, Span<const DevicePtr<const float>> added,
                             Matrix* out) {
      EXPECT_TRUE(d->Prepare(weights, added, MatrixUse::kProducts, out).ok());
    };
    prepare({qkv, 3}, {biases, c.biases ? 3u : 0u}, &w.qkv);
    prepare({&o.w, 1}, {of_output, c.output_bias ? 1u : 0u}, &w.output);
    prepare({gate_up, 2}, {}, &w.gate_up), prepare({&down.w, 1}, {}, &w.down), prepare({&head.w, 1}, {}, &m);
    const int64_t n = c.n;
    const DevicePtr<float> x = b.Copy(Random(n * h, 3)), qs = b.Copy(Random(n * q_rows, 4)),
                           ks = b.Copy(Random(n * kv_rows, 5)), vs = b.Copy(Random(n * kv_rows, 6)),
                           logits = b.Copy(Random(n * shape.vocab, 7));
    Output out;
    out.scratch = d->NetworkScratchBytes(shape, c.n);
    const DeviceBytes scratch = b.Take(out.scratch);
    if (c.gathers) stream->Gather();
    EXPECT_TRUE(d->Project(stream.get(), {&shape, &w, x, c.n, qs, ks, vs, scratch}).ok());
    EXPECT_TRUE(d->Finish(stream.get(), {&shape, &w, qs, c.n, c.scale, x, scratch}).ok());
    EXPECT_TRUE(d->Logits(stream.get(), {&shape, norm, &m, x, c.n, 0.25f, logits, scratch, c.cap}).ok());
    EXPECT_TRUE(stream->Issue().ok());
    out.q = b.Read(qs, n * q_rows), out.k = b.Read(ks, n * kv_rows), out.v = b.Read(vs, n * kv_rows);
    out.x = b.Read(x, n * h), out.logits = b.Read(logits, n * shape.vocab);
    for (const Matrix* used : {&w.qkv, &w.output, &w.gate_up, &w.down, &m}) {
      if (used->memory) d->Free(used->memory, used->bytes);
    }
    return out;
  }
  static std::unique_ptr<Device> Open() { return std::move(OpenDevice(kOther, 1).value()); }
  static Output RunOwn(const LayerCase& c) {
    const test::KeptVariable kept(kSwitch);
    test::SetVariable(kSwitch, "0");
    return Run(Open().get(), c);
  }

  static void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, double tolerance,
                         const char* what) {
    ASSERT_EQ(a.size(), b.size());
    double most = 0, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::fabs(static_cast<double>(a[i])));
      const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      apart = d <= apart ? apart : d;  // a NaN shows
    }
    EXPECT_LE(apart, tolerance * most) << what;
  }
  static void ExpectNear(const Output& a, const Output& b, double tolerance) {
    ExpectNear(a.q, b.q, tolerance, "queries");
    ExpectNear(a.k, b.k, tolerance, "keys");
    ExpectNear(a.v, b.v, tolerance, "values");
    ExpectNear(a.x, b.x, tolerance, "residual");
    ExpectNear(a.logits, b.logits, 2 * tolerance, "logits");
  }
  // Where activations are rounded, sums that end differently may round to either side from there on.
  static void ExpectNearOwn(const Output& a, const Output& own) {
    if (!GetParam()) return ExpectNear(a, own, kOwn);
    ExpectNear(a.q, own.q, kOwn, "queries");
    ExpectNear(a.k, own.k, kOwn, "keys");
    ExpectNear(a.v, own.v, kOwn, "values");
    ExpectNear(a.x, own.x, kOtherSide, "residual");
    ExpectNear(a.logits, own.logits, 2 * kOtherSide, "logits");
  }
  static void ExpectSame(const Output& a, const Output& b) {
    EXPECT_EQ(a.q, b.q);
    EXPECT_EQ(a.k, b.k);
    EXPECT_EQ(a.v, b.v);
    EXPECT_EQ(a.x, b.x);
    EXPECT_EQ(a.logits, b.logits);
  }
};

TEST_P(BlasTest, ProductsAreThoseOfTheOwnKernelAndOfTheProcessor) {
  LayerCase cases[8];
  cases[1].n = 300, cases[1].biases = true;
  cases[2].n = 513, cases[2].scale = 1;
  cases[3].post_norms = true, cases[3].gathers = true;
  cases[4].parallel = true, cases[4].biases = true;
  cases[5].scale = 1, cases[5].output_bias = true;
  cases[6].hidden = 200;  // the widest are not those of the feed-forward part
  cases[7].gathers = true, cases[7].biases = true;
  const auto cpu = [] {
    const test::ExactKernels exact;
    return std::move(cpu::CpuDevice::Create(2).value());
  }();
  for (const LayerCase& c : cases) {
    SCOPED_TRACE(testing::Message() << "case " << &c - cases);
    const Output own = RunOwn(c), reference = Run(cpu.get(), c);
    const WithBlas blas;
    {
      const auto device = Open();
      const Output by_blas = Run(device.get(), c);
      if (!WithBlas::IsThere()) GTEST_SKIP() << "this machine has no cuBLASLt";
      WithBlas::ExpectCalls(Calls());
      ExpectNearOwn(by_blas, own);
      ExpectNear(by_blas, reference, GetParam() ? 4 * kOtherSide : 2e-5);
      EXPECT_GT(by_blas.scratch, own.scratch + (8 << 20));
      ExpectSame(by_blas, Run(device.get(), c));
#if defined(KVC_EMU)
      const int64_t finds = Fake().finds;
      ExpectSame(by_blas, Run(device.get(), c));
      EXPECT_EQ(Fake().finds, finds) << "algorithms are asked for once";
      emu::GetOptions().order = 2, emu::GetOptions().eager = true;
      ExpectSame(by_blas, Run(device.get(), c));
      emu::GetOptions() = {};
#endif
    }
#if defined(KVC_EMU)
    EXPECT_EQ(Fake().objects, 0);
#endif
  }
}

#if defined(KVC_EMU)

// Where one call cannot do what a product asks for, or rows are no whole vectors, our own kernel does it.
TEST_P(BlasTest, ProductsThatItHasNothingFor) {
  struct {
    LayerCase c;
    int64_t calls;
  } cases[5];
  cases[0].c.cap = 3, cases[0].calls = Calls() - OfOne();
  cases[1].c.output_bias = true, cases[1].calls = Calls() - OfOne();  // with a scale
  cases[2].c.n = kRows - 1, cases[2].calls = 0;
  cases[3].c.type = WeightType::kF16, cases[3].calls = 0;
  cases[4].c.hidden = 100, cases[4].calls = OfOne() * 2;  // all but output and down have 100 columns
  for (const auto& [c, calls] : cases) {
    const Output own = RunOwn(c);
    const WithBlas blas;
    ExpectNearOwn(Run(Open().get(), c), own);
    EXPECT_EQ(Fake().multiplies, calls);
  }
}

TEST_P(BlasTest, WithoutALibrary) {
  const LayerCase c;
  const Output own = RunOwn(c);
  const auto expect_own = [&] {
    const Output out = Run(Open().get(), c);
    ExpectSame(out, own);
    EXPECT_EQ(out.scratch, own.scratch);
    EXPECT_EQ(Fake().multiplies, 0);
  };
  for (const char* path : {"/nonexistent/libcublasLt.so", KVC_SOURCE_DIR "/README.md", KVC_FAKE_WITHOUT}) {
    SCOPED_TRACE(path);
    const WithBlas blas(path);
    expect_own();
  }
  const WithBlas blas;
  Fake().starts = false;
  expect_own();
  Fake().starts = true;
  const test::KeptVariable kept(kSwitch);
  test::SetVariable(kSwitch, "0");
  expect_own();
  EXPECT_EQ(Fake().finds, 0);
}

// Calls that fail, one after the other: the product is done by our own kernel, as if there had been none, and
// the library is left alone from there on.
TEST_P(BlasTest, CallsThatFail) {
  for (const bool post_norms : {false, true}) {
    LayerCase c;
    c.biases = true, c.post_norms = post_norms;
    const Output own = RunOwn(c);
    for (int64_t i = 0; i < Calls(); ++i) {
      SCOPED_TRACE(i);
      const WithBlas blas;
      const auto device = Open();
      Fake().failing_multiply = i;
      const Output out = Run(device.get(), c);
      ExpectNearOwn(out, own);
      EXPECT_EQ(Fake().multiplies, i + 1);
      const Output again = Run(device.get(), c);
      ExpectSame(again, own);
      EXPECT_EQ(again.scratch, out.scratch) << "plans of before stay right";
      EXPECT_EQ(Fake().multiplies, i + 1);
    }
  }
}

TEST_P(BlasTest, ShapesWithoutAnAlgorithm) {
  LayerCase c;
  c.biases = true;
  const Output own = RunOwn(c);
  for (const int64_t i : {0, 1, 3, 5}) {
    const WithBlas blas;
    const auto device = Open();
    Fake().failing_find = i;
    const Output out = Run(device.get(), c);
    ExpectNearOwn(out, own);
    const int64_t multiplies = Fake().multiplies;
    EXPECT_EQ(multiplies > 0, i > 3) << "queries, keys and values are one product, of which some have a bias";
    ExpectSame(Run(device.get(), c), out);
    EXPECT_EQ(Fake().multiplies, 2 * multiplies);
  }
}

#endif  // KVC_EMU

test::AlignedBytes ModelIn(WeightType type) {
  test::TinyModelOptions options;
  options.n_heads = 6, options.hidden_size = 48, options.type = type, options.query_key_value_bias = true;
  return test::TinyModelBytes(options);
}

constexpr int kPrompt = 600;  // less than DeviceInfo::prompt_rows: all of it at once

TEST_P(BlasTest, PromptsOfASession) {
  ::unsetenv("KVC_TEST_DEVICE");  // "cpu" is the processor here
  const test::AlignedBytes bytes = ModelIn(WeightType::kBf16);
  for (const char* policy : {"full", "snapkv:budget=24,window=8,kv=f32"}) {
    SCOPED_TRACE(policy);
    const auto own = [&] {
      const test::KeptVariable kept(kSwitch);
      test::SetVariable(kSwitch, "0");
      return test::FedSession(OpenOn(kOther, bytes), policy, kPrompt);
    }();
    const auto reference = [&] {
      const test::ExactKernels exact;
      return test::FedSession(OpenOn("cpu", bytes), policy, kPrompt);
    }();
    const WithBlas blas;
    const auto model = OpenOn(kOther, bytes);
    const auto session = test::FedSession(model, policy, kPrompt);
    if (!WithBlas::IsThere()) GTEST_SKIP() << "this machine has no cuBLASLt";
    // The head has one row, and so has what is behind the last layer's keys and values.
    WithBlas::ExpectCalls(Calls() + OfOne() * (3 - 1));
    if (GetParam()) {
      test::ExpectNearLogits(*session, *own, 1e-2f);
      test::ExpectNearLogits(*session, *reference, 5e-2f);
    } else {
      test::ExpectSameKept(*session, *own);
      test::ExpectNearLogits(*session, *own, 1e-4f);
      test::ExpectSameKept(*session, *reference);
      test::ExpectNearLogits(*session, *reference, 6e-4f);  // docs/cuda.md, Numbers
    }
    const auto twice = test::FedSession(model, policy, kPrompt);
    EXPECT_EQ(test::LogitsOf(*twice), test::LogitsOf(*session));
  }
}

// What the library adds to a plan is what it adds to a session, and nothing where no matrix is bf16 or
// prompts are short.
TEST_P(BlasTest, APlanIsWhatIsTaken) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF16}) {
    const test::AlignedBytes bytes = ModelIn(type);
    for (const int n : {kRows - 1, kPrompt}) {
      int64_t planned[2], taken[2];
      for (const bool by_blas : {false, true}) {
        const WithBlas blas;
        const test::KeptVariable kept(kSwitch);
        test::SetVariable(kSwitch, by_blas ? nullptr : "0");
        const auto model = OpenOn(kOther, bytes);
        const Result<Policy> policy = ParsePolicy("full");
        SessionParams params;
        params.max_tokens = 700;
        const auto plan = Session::Plan(model, &policy.value(), params, n);
        ASSERT_TRUE(plan.ok());
        planned[by_blas] = plan.value().workspace_bytes;
        const auto session = test::FedSession(model, "full", n, params);
        taken[by_blas] = session->Stats().workspace_bytes;
      }
      EXPECT_EQ(planned[1] - planned[0], taken[1] - taken[0]);
      const bool wants = WithBlas::IsThere() && type == WeightType::kBf16 && n >= kRows;
      EXPECT_EQ(taken[1] > taken[0] + (8 << 20), wants);
      EXPECT_EQ(taken[1] > taken[0], wants);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, BlasTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "Rounded" : "InHalves"; });

}  // namespace
}  // namespace kvc
