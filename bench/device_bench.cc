// Single operations of a device, the same ones on every kind of it: what a layer of the 1B shape does to a
// prompt and at a step, what methods do to it, and the largest product. Usage: device_bench [--device
// cpu|cuda] [--small] [--json] [--rows N,N,...] [--tuning] [part of a name]... us is the median of 11 batches
// of 25 ms or more (of 5 where one takes a quarter of a second), p10 and p90 what a tenth of them is not
// above or not below. GFLOP/s counts 2 operations a product; GB/s what has to be read and written at least;
// the share is of what the device reads in the same run (Device::MeasureBandwidth) and means something where
// an operation waits for memory; host us is what a call takes of the host, where that is not the device. What
// targets are judged by comes first. An operation that fails says so on stderr, the others go on, and the
// program fails at its end. --small: every operation once, over little. --tuning: what the device is tuned
// to, and nothing is measured. The log goes to stderr.
#include "bench/device_bench.h"

#include <sstream>

#include "bench/device_compress.h"
#include "bench/device_layer.h"
#include "bench/device_steps.h"
#include "lib/base/log.h"

namespace {

using namespace kvc;         // NOLINT: a program, not a header
using namespace kvc::bench;  // NOLINT

// The matrices of a layer, as often as there are layers; and what those of one take in a file.
struct Network {
  std::vector<LayerMatrices> layers;
  double project_bytes = 0, finish_bytes = 0;

  Network(DeviceBench* bench, const NetworkShape& s, RandomWeights* qkv, RandomWeights* rest) {
    const int32_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
    for (int32_t n = 1, i = 0; i < n; ++i) {
      LayerMatrices w;
      w.qkv = qkv->Make({q, kv, kv}, s.hidden);
      w.output = rest->Make({s.hidden}, q);
      w.gate_up = rest->Make({s.ffn, s.ffn}, s.hidden);
      w.down = rest->Make({s.hidden}, s.ffn);
      layers.push_back(w);
      if (i > 0) continue;
      project_bytes = qkv->bytes(), finish_bytes = rest->bytes();
      n = Copies(*bench, finish_bytes);
    }
  }
};

// What models say of their weights (lib/model/weights.cc): which products a device takes may depend on it.
NetworkShape WithWeights(NetworkShape s, WeightType type) {
  s.half_weights = type == WeightType::kF16 || type == WeightType::kBf16;
  s.coded_weights = HasCodes(type), s.fine_codes = type == WeightType::kQ4K || type == WeightType::kQ6K;
  return s;
}

// What the device reaches in products at all: one large one of 16 bits, as many rows as the matrix has. With
// the norm in front of it and results of f32: that is how layers have it.
void LargestProductOf(DeviceBench* bench, const std::string& name, int32_t n) {
  constexpr int32_t distinct = 64;
  NetworkShape s = WithWeights({}, WeightType::kBf16);
  s.hidden = s.vocab = n, s.ffn = s.head_dim = 64, s.n_heads = s.n_kv_heads = 1;
  RandomWeights weights(bench, WeightType::kBf16);
  const Matrix matrix = weights.Make({n}, n);
  std::vector<float> rows = bench->Floats(int64_t{distinct} * n);
  const size_t n_made = rows.size();
  rows.resize(static_cast<size_t>(n) * static_cast<size_t>(n));
  for (size_t i = n_made; i < rows.size(); ++i) rows[i] = rows[i - n_made];
  const DeviceBuffer<float> norm = bench->Upload(bench->Floats(n)), x = bench->Upload(rows),
                            out = bench->Room<float>(int64_t{n} * n);
  const DeviceBuffer<uint8_t> scratch = bench->Room<uint8_t>(bench->device()->NetworkScratchBytes(s, n));
  bench->Measure(name, 2.0 * n * n * n, weights.bytes(), [&] {
    Check(bench->device()->Logits(bench->stream(),
                                  {&s, norm.at(), &matrix, x.at(), n, 1, out.at(), scratch.raw()}));
  });
}
void LargestProduct(DeviceBench* bench) {
  const int32_t n = bench->small()      ? 256
                    : bench->computes() ? 2048
                                        : 8192;  // a processor would take a minute
  const std::string size = std::to_string(n), name = "product " + size + " x " + size + " bf16, rows " + size;
  bench->AttemptOne(name, [&] { LargestProductOf(bench, name, n); });
}

// Bytes: every weight once a call. Flops: 2 a weight and row.
void ProductsOf(DeviceBench* bench, WeightType type) {
  const NetworkShape s = WithWeights(ShapeOf(*bench), type);
  const int32_t q = s.n_heads * s.head_dim, kv = s.n_kv_heads * s.head_dim;
  const std::string name = InfoOf(type).name;
  RandomWeights qkv(bench, type), rest(bench, type), head(bench, type);
  Network network(bench, s, &qkv, &rest);
  const DeviceBuffer<float> norm = bench->Upload(bench->Floats(s.hidden));
  for (LayerMatrices& w : network.layers) w.attention_norm = w.ffn_norm = norm.at();
  const Matrix head_matrix = head.Make({s.vocab}, s.hidden);
  size_t calls = 0;
  const auto next = [&]() -> const LayerMatrices* {
    return &network.layers[calls++ % network.layers.size()];
  };
  for (const int32_t n : bench->rows()) {
    const DeviceBuffer<float> x = bench->Upload(bench->Floats(int64_t{n} * s.hidden)),
                              attended = bench->Upload(bench->Floats(int64_t{n} * q)),
                              keys = bench->Room<float>(int64_t{n} * kv),
                              values = bench->Room<float>(int64_t{n} * kv),
                              out = bench->Upload(bench->Floats(int64_t{n} * s.hidden)),
                              logits = bench->Room<float>(s.vocab);
    const DeviceBuffer<uint8_t> scratch = bench->Room<uint8_t>(bench->device()->NetworkScratchBytes(s, n));
    const std::string rows = name + ", rows " + std::to_string(n);
    const double products = 2.0 * n * s.hidden;
    // A layer's finish pushes what its project reads out of the caches, as in a pass.
    bench->Measure(
        "layer " + rows, products * (2 * q + 2 * kv + 3.0 * s.ffn),
        network.project_bytes + network.finish_bytes, [&] {
          const LayerMatrices* w = next();
          Check(bench->device()->Project(
              bench->stream(), {&s, w, x.at(), n, attended.at(), keys.at(), values.at(), scratch.raw()}));
          Check(bench->device()->Finish(bench->stream(),
                                        {&s, w, attended.at(), n, 0, out.at(), scratch.raw()}));
        });
    bench->Measure("finish " + rows, products * (q + 3.0 * s.ffn), network.finish_bytes, [&] {
      Check(bench->device()->Finish(bench->stream(),
                                    {&s, next(), attended.at(), n, 0, out.at(), scratch.raw()}));
    });
    if (n > 1) continue;  // a prompt needs those of its last token
    bench->Measure("logits " + rows, products * s.vocab, head.bytes(), [&] {
      Check(bench->device()->Logits(bench->stream(),
                                    {&s, norm.at(), &head_matrix, x.at(), n, 1, logits.at(), scratch.raw()}));
    });
  }
}

void Products(DeviceBench* bench) {
  for (const WeightType type :
       {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K, WeightType::kQ6K}) {
    bool wanted = false;
    for (const char* operation : {"layer ", "finish ", "logits "}) {
      for (const int32_t rows : bench->rows())
        wanted |= bench->Wants(std::string(operation) + InfoOf(type).name + ", rows " + std::to_string(rows));
    }
    if (wanted)
      bench->Attempt(std::string("products ") + InfoOf(type).name, [&] { ProductsOf(bench, type); });
  }
}

// The newest `rows` of a prompt of `tokens`, and what they are attended to by: queries of random numbers.
struct Prompt {
  const NetworkShape& s;
  const int32_t tokens, rows;
  const Layer layer;
  const std::vector<int32_t> base;
  const DeviceBuffer<float> q, out, lse;
  // Pairs of query and key that it sees, of all query heads.
  const double pairs;

  Prompt(DeviceBench* bench, const NetworkShape& shape, int32_t n_tokens, int32_t n_rows)
      : s(shape),
        tokens(n_tokens),
        rows(n_rows),
        layer(bench, shape, n_tokens),
        base(static_cast<size_t>(shape.n_kv_heads), 0),
        q(bench->Upload(bench->Floats(int64_t{n_rows} * shape.n_heads * shape.head_dim))),
        out(bench->Room<float>(int64_t{n_rows} * shape.n_heads * shape.head_dim)),
        lse(bench->Room<float>(int64_t{n_rows} * shape.n_heads)),
        pairs((n_tokens - n_rows + 0.5 * (n_rows + 1)) * n_rows * shape.n_heads) {}
  PromptRows newest() const { return {base.data(), tokens - rows, rows}; }
  std::string name() const { return std::to_string(rows) + " rows of " + std::to_string(tokens); }
};

// Flops: 4 D a pair.
void AttendOf(DeviceBench* bench, const Prompt& p) {
  bench->Measure("attend prompt " + p.name(), 4 * p.pairs * p.s.head_dim, p.layer.bytes(p.tokens), [&] {
    Check(bench->device()->AttendPrompt(bench->stream(), {p.layer.view(), p.newest(), p.s.n_heads, 0, kScale,
                                                          p.q.at(), p.out.at(), p.lse.at(), p.rows}));
  });
}

// Only probabilities are made: 2 D a pair.
void FoldOf(DeviceBench* bench, const Prompt& p) {
  const DeviceBuffer<float> sums =
      bench->Upload(std::vector<float>(static_cast<size_t>(p.tokens * p.s.n_kv_heads)));
  bench->Measure("fold columns " + p.name(), 2 * p.pairs * p.s.head_dim, p.layer.bytes(p.tokens) / 2, [&] {
    Check(bench->device()->FoldColumns(
        bench->stream(), {p.layer.view(), p.newest(), p.s.n_heads, p.tokens, kScale, p.q.at(), p.lse.at(),
                          p.rows, sums.at(), ColumnFold::kSums}));
  });
}

void Prompts(DeviceBench* bench) {
  const auto wants = [&](const char* operation, int32_t rows, int32_t tokens) {
    return bench->Wants(operation + std::to_string(rows) + " rows of " + std::to_string(tokens));
  };
  for (const int32_t n : {512, 4096}) {
    const NetworkShape s = ShapeOf(*bench);
    const int32_t tokens = bench->small() ? n / 32 : n, rows = std::min(tokens, 512);
    if (!wants("attend prompt ", rows, tokens) && !wants("fold columns ", rows, tokens)) continue;
    const std::string what = std::to_string(rows) + " rows of " + std::to_string(tokens);
    bench->Attempt("attend prompt and fold columns " + what, [&] {
      const Prompt prompt(bench, s, tokens, rows);
      AttendOf(bench, prompt);
      FoldOf(bench, prompt);
    });
  }
  const NetworkShape s = HeadsOf8B();  // what other programs are measured with
  const int32_t all = bench->small() ? 64 : 16384;
  if (!wants("attend prompt ", all, all)) return;
  bench->Attempt("attend prompt " + std::to_string(all),
                 [&] { AttendOf(bench, Prompt(bench, s, all, all)); });
}

// The best `keep` of scores of every head, the first four entries and the newest 32 among them.
void SelectOf(DeviceBench* bench, const std::string& name, const NetworkShape& s, int32_t n, int32_t keep) {
  const Layer layer(bench, s, n);
  const DeviceBuffer<float> given = bench->Upload(bench->Floats(int64_t{n} * s.n_kv_heads));
  const DeviceBuffer<uint8_t> marks = bench->Room<uint8_t>(int64_t{n} * s.n_kv_heads),
                              scratch =
                                  bench->Room<uint8_t>(bench->device()->SelectScratchBytes(s.n_kv_heads, n));
  const std::vector<int32_t> counts(static_cast<size_t>(s.n_kv_heads), keep);
  SelectRule rule;
  rule.protect = {4, 32};
  bench->Measure(name, 0, 5.0 * n * s.n_kv_heads, [&] {
    Check(bench->device()->Select(
        bench->stream(), {rule, layer.view(), 0, counts.data(), given.at(), marks.at(), n, scratch.raw()}));
  });
}

void Selection(DeviceBench* bench) {
  NetworkShape s = ShapeOf(*bench);
  const auto select = [&](int32_t n, int32_t keep) {
    const std::string name = "select " + std::to_string(keep) + " of " + std::to_string(n) + " entries";
    bench->AttemptOne(name, [&] { SelectOf(bench, name, s, n, keep); });
  };
  select(bench->small() ? 128 : 4096, bench->small() ? 48 : 256);
  s.head_dim = 16;  // what is selected by has no keys
  select(bench->small() ? 512 : 131072, bench->small() ? 64 : 1024);
}

void Sampling(DeviceBench* bench) {
  const int32_t n = ShapeOf(*bench).vocab, most = std::min(8, bench->device()->info().sample_rows);
  const DeviceBuffer<float> logits = bench->Upload(bench->Floats(int64_t{most} * n)),
                            weights = bench->Room<float>(int64_t{most} * n);
  std::vector<SampleRow> rows(static_cast<size_t>(most));
  std::vector<int32_t> tokens(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = logits.at() + static_cast<int64_t>(i) * n;
    rows[i].seed = 1;
  }
  const auto sample = [&](size_t n_rows) {
    Check(bench->device()->Sample(bench->stream(), {{rows.data(), n_rows}, n, weights.at(), tokens.data()}));
  };
  bench->Measure("sample greedy", 0, 4.0 * n, [&] { sample(1); });
  if (most > 1) {
    bench->Measure("sample greedy, " + std::to_string(most) + " rows", 0, 4.0 * most * n,
                   [&] { sample(rows.size()); });
  }
  for (SampleRow& row : rows) row.temperature = 0.8f, row.top_p = 0.9f;
  bench->Measure("sample temperature 0.8, top-p 0.9", 0, 4.0 * n, [&] {
    ++rows[0].draw;
    sample(1);
  });
}

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "device_bench: %s\n", why.c_str());
  std::exit(1);
}

// "1,8,512".
std::vector<int32_t> RowsIn(const std::string& text) {
  std::vector<int32_t> rows;
  std::istringstream in(text);
  for (std::string number; std::getline(in, number, ',');) {
    const int32_t n = std::atoi(number.c_str());
    if (n < 1 || n > 65536) Fail("--rows: whole numbers from 1 to 65536, with commas between");
    rows.push_back(n);
  }
  return rows;
}

// Which products are cuBLASLt's is told there.
void PrintLog(void*, int32_t, const char* line) { std::fprintf(stderr, "%s\n", line); }

struct CommandLine {
  DeviceBenchOptions options;
  bool tuning = false;
};

CommandLine CommandLineOf(int argc, char** argv) {
  CommandLine line;
  DeviceBenchOptions& options = line.options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--small") {
      options.small = true;
    } else if (word == "--json") {
      options.json = true;
    } else if (word == "--device" && i + 1 < argc) {
      options.device = argv[++i];
    } else if (word == "--rows" && i + 1 < argc) {
      options.rows = RowsIn(argv[++i]);
    } else if (word == "--tuning") {
      line.tuning = true;
    } else if (word.compare(0, 1, "-") == 0) {
      Fail(
          "usage: device_bench [--device NAME] [--small] [--json] [--rows N,N,...] [--tuning] [part of a "
          "name]...");
    } else {
      options.parts.push_back(word);
    }
  }
  return line;
}

// False: some operation failed.
bool MeasureAll(const DeviceBenchOptions& options) {
  DeviceBench bench(options);
  StepAttention(&bench);
  Selection(&bench);
  Compression(&bench);
  Prompts(&bench);
  LargestProduct(&bench);
  bench.Attempt("reading", [&] { bench.MeasureReadingAgain(); });
  CacheOperations(&bench);
  Products(&bench);
  Scoring(&bench);
  bench.Attempt("pages", [&] { PagesTakenAndGivenBack(&bench); });
  bench.Attempt("sample", [&] { Sampling(&bench); });
  return !bench.failed();
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = CommandLineOf(argc, argv);
  try {
    if (line.tuning) {
      std::fputs(Taken(OpenDevice(line.options.device, {}))->info().tuning.c_str(), stdout);
      return 0;
    }
    SetLog(kLogInfo, PrintLog, nullptr);
    return MeasureAll(line.options) ? 0 : 1;
  } catch (const Failure& failure) {
    Fail(failure.why);
  }
}
