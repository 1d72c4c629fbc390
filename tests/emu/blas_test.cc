// Prompts by cuBLASLt: products are those of our own kernel and of the processor, calls that fail leave
// nothing behind, and what it needs is planned. On the emulated device the library is
// tests/emu/fake_cublaslt.cc; on a GPU it is the machine's, if it has one, and its failures are not for tests
// to choose.
#include <fstream>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/engine/session.h"
#include "lib/ops/weight_blocks.h"
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
constexpr double kOtherSide = 1.0 / 1024;  // of a row's largest: the last bit of f16

// What the library says in the time of its life.
class LogLines {
 public:
  LogLines() {
    lines().clear();
    SetLog(
        kLogDebug, [](void*, int32_t, const char* line) { (lines() += line) += '\n'; }, nullptr);
  }
  ~LogLines() { SetLog(kLogError, nullptr, nullptr); }
  static std::string& lines() {
    static std::string lines;
    return lines;
  }
};

#if defined(KVC_EMU)
static_assert(kRows == cuda::Tuning().blas_rows);
constexpr int32_t kDecodedRows = cuda::Tuning().decoded_rows;
constexpr char kBlas[] = "KVC_CUBLASLT";
constexpr double kOwn = 1e-5;  // of a row's largest: sums in another order

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
  static bool IsThere() { return LogLines::lines().find("products of cuBLASLt") != std::string::npos; }
  static void ExpectCalls(int64_t) {
    EXPECT_EQ(LogLines::lines().find("cuBLASLt fails"), std::string::npos) << LogLines::lines();
    EXPECT_EQ(LogLines::lines().find("cuBLASLt has nothing"), std::string::npos) << LogLines::lines();
  }

 private:
  const LogLines log_;
};
#endif

// A weight as what its codes and scales give, in f16.
FileWeight Decoded(const FileWeight& from, std::mt19937* random) {
  FileWeight to(WeightType::kF16, from.w.rows, from.w.cols, 0, random);
  const int32_t cols = from.w.cols;
  uint16_t* halves = reinterpret_cast<uint16_t*>(to.data.data());
  for (int32_t b = 0; HasBlocks(from.w.type) && b < from.w.rows * (cols / kBlockColumns); ++b) {
    WeightBlock block;
    ReadBlock(from.w, b / (cols / kBlockColumns), b % (cols / kBlockColumns), &block);
    for (int32_t i = 0; i < kBlockColumns; ++i) {
      const float scale = block.scale[i / 32], offset = 8 * scale - block.least[i / 32];
      *halves++ = FloatToF16(static_cast<float>(block.code[i] - 8) * F16ToFloat(FloatToF16(scale)) +
                             F16ToFloat(FloatToF16(offset)));
    }
  }
  if (HasBlocks(from.w.type)) return to;
  for (int64_t i = 0; i < int64_t{from.w.rows} * cols; ++i) {
    const size_t at = static_cast<size_t>(i);
    const uint8_t byte = from.data[from.w.type == WeightType::kInt8 ? at : at / 2];
    int code = static_cast<int8_t>(byte);
    if (from.w.type == WeightType::kInt4) code = static_cast<int8_t>(byte << (i % 2 == 0 ? 4 : 0)) >> 4;
    const float scale = F16ToFloat(from.scales[at / static_cast<size_t>(from.w.group)]);
    halves[at] = FloatToF16(static_cast<float>(code) * scale);
  }
  return to;
}

// What a layer is made of, and what its operations give.
struct LayerCase {
  int32_t n = kRows;
  WeightType type = WeightType::kBf16;
  bool biases = false, output_bias = false, post_norms = false, parallel = false, gathers = false;
  bool ranges = false;   // no norms, and rows of all magnitudes
  bool decoded = false;  // weights are what codes give, rounded to f16
  float scale = 0.5f, cap = 0;
  int32_t hidden = 96, vocab = 132;
};

NetworkShape ShapeOf(const LayerCase& c) {
  NetworkShape shape;
  shape.hidden = c.hidden, shape.ffn = 160, shape.n_heads = 6, shape.n_kv_heads = 2, shape.head_dim = 24,
  shape.vocab = c.vocab, shape.parallel_blocks = c.parallel,
  shape.coded_weights = HasCodes(c.type) && !c.decoded;
  shape.half_weights = c.type != WeightType::kF32 && !shape.coded_weights;
  return shape;
}

class BlasTest : public testing::Test {
 protected:
  void SetUp() override {
    test::SetVariable(kRounds, nullptr);
    test::SetVariable(kLayers, "0");  // nothing but activations is rounded
  }
  // Of a layer and a head: q, k, v, output, gate, up, down, head.
  static constexpr int64_t kCalls = 8;

  struct Output {
    int32_t n = 0;  // rows
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
    const auto weight = [&](int32_t rows, int32_t cols, int32_t group) {
      // Blocks have 256 columns.
      const bool narrow = HasBlocks(c.type) && cols % kBlockColumns != 0;
      FileWeight coded(narrow ? WeightType::kF16 : c.type, rows, cols, group, &random);
      std::mt19937 other;
      if (c.decoded && !narrow) return Decoded(coded, &other);
      return coded;  // moved: it points to what it has
    };
    const FileWeight q = weight(q_rows, h, 32), k = weight(kv_rows, h, 32), v = weight(kv_rows, h, 32),
                     o = weight(h, q_rows, 16), gate = weight(shape.ffn, h, 32),
                     up = weight(shape.ffn, h, 32), down = weight(h, shape.ffn, 32),
                     head = weight(shape.vocab, h, 32);
    const std::unique_ptr<Stream> stream = std::move(d->NewStream().value());
    Buffers b{d, stream.get(), {}};
    LayerMatrices w;
    const DevicePtr<const float> norm = b.Copy(Random(h, 1)), bias = b.Copy(Random(std::max(q_rows, h), 2));
    if (!c.ranges) w.attention_norm = w.ffn_norm = norm;
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
    std::vector<float> residual = Random(n * h, 3);
    for (int64_t i = 0; c.ranges && i < n * h; ++i)
      residual[static_cast<size_t>(i)] *= std::ldexp(1.0f, static_cast<int>(i / h % 3) * 18 - 18);
    const DevicePtr<float> x = b.Copy(residual), qs = b.Copy(Random(n * q_rows, 4)),
                           ks = b.Copy(Random(n * kv_rows, 5)), vs = b.Copy(Random(n * kv_rows, 6)),
                           logits = b.Copy(Random(n * shape.vocab, 7));
    Output out;
    out.n = c.n;
    out.scratch = d->NetworkScratchBytes(shape, c.n);
    const DeviceBytes scratch = b.Take(out.scratch);
    if (c.gathers) stream->Gather();
    EXPECT_TRUE(d->Project(stream.get(), {&shape, &w, x, c.n, qs, ks, vs, scratch}).ok());
    EXPECT_TRUE(d->Finish(stream.get(), {&shape, &w, qs, c.n, c.scale, x, scratch}).ok());
    const DevicePtr<const float> final_norm = c.ranges ? DevicePtr<const float>() : norm;
    EXPECT_TRUE(
        d->Logits(stream.get(), {&shape, final_norm, &m, x, c.n, 0.25f, logits, scratch, c.cap}).ok());
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

  // Each of n rows within `tolerance` of the other, relative to its largest.
  static void ExpectNear(const std::vector<float>& a, const std::vector<float>& b, int32_t n,
                         double tolerance, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    const size_t width = a.size() / static_cast<size_t>(n);
    double worst = 0;
    for (size_t row = 0; row < a.size(); row += width) {
      double most = 0, apart = 0;
      for (size_t i = row; i < row + width; ++i) {
        most = std::max(most, std::fabs(static_cast<double>(a[i])));
        const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        apart = d <= apart ? apart : d;  // a NaN shows
      }
      worst = apart <= worst * most ? worst : apart / most;
    }
    EXPECT_LE(worst, tolerance) << what;
  }
  // Sums that end differently may round to either side from there on.
  static void ExpectNear(const Output& a, const Output& b, double of_products, double of_layer) {
    ExpectNear(a.q, b.q, a.n, of_products, "queries");
    ExpectNear(a.k, b.k, a.n, of_products, "keys");
    ExpectNear(a.v, b.v, a.n, of_products, "values");
    ExpectNear(a.x, b.x, a.n, of_layer, "residual");
    ExpectNear(a.logits, b.logits, a.n, 2 * of_layer, "logits");
  }
  static void ExpectNearOwn(const Output& a, const Output& own) { ExpectNear(a, own, kOwn, kOtherSide); }
  static void ExpectSame(const Output& a, const Output& b) {
    EXPECT_EQ(a.q, b.q);
    EXPECT_EQ(a.k, b.k);
    EXPECT_EQ(a.v, b.v);
    EXPECT_EQ(a.x, b.x);
    EXPECT_EQ(a.logits, b.logits);
  }
};

TEST_F(BlasTest, ProductsAreThoseOfTheOwnKernelAndOfTheProcessor) {
  LayerCase cases[10];
  cases[1].n = 300, cases[1].biases = true;
  cases[2].n = 513, cases[2].scale = 1;
  cases[3].post_norms = true, cases[3].gathers = true;
  cases[4].parallel = true, cases[4].biases = true;
  cases[5].scale = 1, cases[5].output_bias = true;
  cases[6].hidden = 200;  // the widest are not those of the feed-forward part
  cases[7].gathers = true, cases[7].biases = true;
  cases[8].output_bias = true, cases[8].ranges = true, cases[8].biases = true;
  cases[9].type = WeightType::kF16;
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
      WithBlas::ExpectCalls(kCalls);
      ExpectNearOwn(by_blas, own);
      ExpectNear(by_blas, reference, kOtherSide, 4 * kOtherSide);
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
TEST_F(BlasTest, ProductsThatItHasNothingFor) {
  struct {
    LayerCase c;
    int64_t calls;
  } cases[4];
  cases[0].c.cap = 3, cases[0].calls = kCalls - 1;
  cases[1].c.n = kRows - 1, cases[1].calls = 0;
  cases[2].c.type = WeightType::kF32, cases[2].calls = 0;
  cases[3].c.hidden = 100, cases[3].calls = 2;  // all but output and down have 100 columns
  for (const auto& [c, calls] : cases) {
    const Output own = RunOwn(c);
    const WithBlas blas;
    ExpectNearOwn(Run(Open().get(), c), own);
    EXPECT_EQ(Fake().multiplies, calls);
  }
}

// Codes become f16 in front of the library: the products are those of weights that are such numbers. Not on
// devices whose own kernel is as fast, and where it is switched off.
TEST_F(BlasTest, CodesAreDecodedForIt) {
  for (const WeightType type : {WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K}) {
    for (const bool ranges : {false, true}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", ranges " << ranges);
      LayerCase c, decoded;
      c.type = type, c.biases = c.output_bias = true, c.ranges = ranges;
      c.n = kDecodedRows;
      if (HasBlocks(type)) c.hidden = 256;
      decoded = c, decoded.decoded = true;
      const Output own = RunOwn(c);
      const WithBlas blas;
      const Output by_blas = Run(Open().get(), c);
      EXPECT_EQ(Fake().multiplies, kCalls);
      ExpectNear(by_blas, own, kOtherSide, 4 * kOtherSide);
      ExpectSame(by_blas, Run(Open().get(), decoded));
      EXPECT_EQ(Fake().multiplies, 2 * kCalls);
      const test::KeptVariable kept("KVC_CUDA_DECODE");
      test::SetVariable("KVC_CUDA_DECODE", "0");
      const Output off = Run(Open().get(), c);
      ExpectSame(off, own);
      EXPECT_EQ(off.scratch, own.scratch);
      test::SetVariable("KVC_CUDA_DECODE", nullptr);
      emu::GetOptions().capability = 87;
      ExpectSame(Run(Open().get(), c), own);
      emu::GetOptions() = {};
      --c.n;
      ExpectSame(Run(Open().get(), c), RunOwn(c));
      EXPECT_EQ(Fake().multiplies, 2 * kCalls);
      ++c.n, c.vocab = 164;  // larger than any matrix of the layer, which is what has room
      ExpectNear(Run(Open().get(), c), RunOwn(c), kOtherSide, 4 * kOtherSide);
      EXPECT_EQ(Fake().multiplies, 3 * kCalls - 1);
    }
  }
}

TEST_F(BlasTest, WithoutALibrary) {
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

// KVC_CUBLASLT may list several: the first that starts multiplies, and the log names it.
TEST_F(BlasTest, TheFirstThatStartsOfAList) {
  const LayerCase c;
  const Output own = RunOwn(c);
  const test::TempFolder folder;
  const std::string good = KVC_FAKE_CUBLASLT, other = folder / "libcublasLt.so";
  std::ofstream(other, std::ios::binary) << std::ifstream(good, std::ios::binary).rdbuf();
  Fake(other.c_str()).starts = false;
  for (const std::string& list : {"/nonexistent/libcublasLt.so:" + good, other + ":" + good,
                                  ":" KVC_FAKE_WITHOUT ":" + good + ":" + other}) {
    SCOPED_TRACE(list);
    const WithBlas blas(list.c_str());
    const LogLines log;
    ExpectNearOwn(Run(Open().get(), c), own);
    EXPECT_EQ(Fake().multiplies, kCalls);
    EXPECT_EQ(log.lines(), "prompts: products of cuBLASLt 13.0, " + good + "\n");
  }
  const std::string list = "/nonexistent/libcublasLt.so:" + other;
  const WithBlas blas(list.c_str());
  const LogLines log;
  ExpectSame(Run(Open().get(), c), own);
  EXPECT_EQ(log.lines(), "KVC_CUBLASLT=" + list +
                             " names no cuBLASLt that starts here\n"
                             "prompts: own products, no cuBLASLt starts here\n");
}

int64_t CountIn(const std::string& lines, const std::string& what) {
  int64_t n = 0;
  for (size_t at = lines.find(what); at != std::string::npos; at = lines.find(what, at + 1)) ++n;
  return n;
}

// Calls that fail, one after the other: the product is done by our own kernel, as if there had been none, and
// the library is left alone when that happened four times.
TEST_F(BlasTest, CallsThatFail) {
  for (const bool ranges : {false, true}) {
    LayerCase c;
    c.biases = c.output_bias = true, c.post_norms = !ranges, c.ranges = ranges;
    const Output own = RunOwn(c);
    for (int64_t i = 0; i < kCalls; ++i) {
      SCOPED_TRACE(i);
      const WithBlas blas;
      const LogLines log;
      const auto device = Open();
      Fake().failing_multiply = i;
      const Output out = Run(device.get(), c);
      ExpectNearOwn(out, own);
      EXPECT_GT(CountIn(log.lines(), "cuBLASLt fails (14): "), 0);
      for (int k = 0; k < 3 && CountIn(log.lines(), "here on") == 0; ++k)
        ExpectNearOwn(Run(device.get(), c), own);
      const int64_t tried = Fake().multiplies;
      const Output again = Run(device.get(), c);
      ExpectSame(again, own);
      EXPECT_EQ(again.scratch, out.scratch) << "plans of before stay right";
      EXPECT_EQ(Fake().multiplies, tried);
      EXPECT_EQ(CountIn(log.lines(), "this product is our own"), 3);
      EXPECT_EQ(CountIn(log.lines(), "own products from here on"), 1);
    }
  }
}

// Where the device is full, what it keeps of freed memory goes for the library's kernels.
TEST_F(BlasTest, WhatIsKeptGoesForItsKernels) {
  const LayerCase c;
  const WithBlas blas;
  const LogLines log;
  const auto device = Open();
  const Output before = Run(device.get(), c);
  DeviceBuffer<uint8_t> kept;  // too large for anything of a run
  ASSERT_TRUE(kept.Allocate({device.get(), nullptr}, 40 << 20, "test").ok());
  kept.Free();
  Fake().failing_multiply = Fake().multiplies + 2, Fake().failing_multiplies = 1;
  ExpectSame(Run(device.get(), c), before);
  EXPECT_EQ(Fake().multiplies, 2 * kCalls + 1);
  EXPECT_EQ(CountIn(log.lines(), "cuBLASLt fails"), 0);
}

TEST_F(BlasTest, ShapesWithoutAnAlgorithm) {
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
    EXPECT_EQ(multiplies > 0, i > 1) << "queries, keys and values are one product";
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

TEST_F(BlasTest, PromptsOfASession) {
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
    WithBlas::ExpectCalls(kCalls + 3 - 1);
    test::ExpectNearLogits(*session, *own, 2e-3f);
    test::ExpectNearLogits(*session, *reference, 1e-2f);
    const auto twice = test::FedSession(model, policy, kPrompt);
    EXPECT_EQ(test::LogitsOf(*twice), test::LogitsOf(*session));
  }
}

// What the library adds to a plan is what it adds to a session, and nothing where no matrix has 16 bits,
// prompts are short or activations are not rounded.
TEST_F(BlasTest, APlanIsWhatIsTaken) {
  struct {
    WeightType type;
    int n;
    bool rounds, wants;
  } cases[] = {{WeightType::kBf16, kPrompt, true, true},    {WeightType::kF16, kPrompt, true, true},
               {WeightType::kInt8, kPrompt, true, true},    {WeightType::kF32, kPrompt, true, false},
               {WeightType::kBf16, kRows - 1, true, false}, {WeightType::kBf16, kPrompt, false, false}};
  for (const auto& [type, n, rounds, wants] : cases) {
    SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", " << n << " rows");
    test::SetVariable(kRounds, rounds ? nullptr : "0");
    const test::AlignedBytes bytes = ModelIn(type);
    test::PlannedAndTaken of[2];
    for (const bool by_blas : {false, true}) {
      const WithBlas blas;
      const test::KeptVariable kept(kSwitch);
      test::SetVariable(kSwitch, by_blas ? nullptr : "0");
      SessionParams params;
      params.max_tokens = 700;
      of[by_blas] = test::WorkspaceOf(OpenOn(kOther, bytes), "full", n, params);
    }
    EXPECT_EQ(of[1].planned - of[0].planned, of[1].taken - of[0].taken);
    EXPECT_EQ(of[1].taken > of[0].taken + (8 << 20), wants && WithBlas::IsThere());
    EXPECT_EQ(of[1].taken > of[0].taken, wants && WithBlas::IsThere());
  }
}

}  // namespace
}  // namespace kvc
