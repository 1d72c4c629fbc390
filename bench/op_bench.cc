// Speed of the kernels on the larger cases of tests/parity, one thread, every table this processor runs.
// Usage: op_bench [part of a name]. GFLOP/s counts 2 operations a product; GB/s what the model of a kernel
// says it reads; percent is of what this core can do, measured first (limits.h).
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/clock.h"
#include "bench/limits.h"
#include "lib/ops/cpu/matmul.h"
#include "tests/parity/cases.h"

namespace {

using namespace kvc;          // NOLINT: a program, not a header
using namespace kvc::bench;   // NOLINT
using namespace kvc::parity;  // NOLINT

const char* g_filter = "";

Limits g_limits;

// Percent of the speed that the limits of this core allow: operations at the peak of their kind, or bytes
// from memory at its rate, whichever takes longer. bytes: 0 for what lies in the caches.
double Percent(double operations, double peak, double bytes, double seconds) {
  return 100 * LeastSeconds(operations, peak, bytes, g_limits) / seconds;
}

template <typename F>
double Measure(const std::string& name, double flops, double bytes, F&& f) {
  if (name.find(g_filter) == std::string::npos) return 0;
  const double s = BestSeconds(0.2, f);
  std::printf("%-72s %10.2f us %9.2f GFLOP/s %8.2f GB/s", name.c_str(), s * 1e6, flops / s * 1e-9,
              bytes / s * 1e-9);
  return s;
}

// With the share of the limit; up to 16 MiB are taken to lie in the caches.
template <typename F>
void MeasureShare(const std::string& name, double flops, double peak, double bytes, F&& f) {
  const double s = Measure(name, flops, bytes, f);
  if (s > 0) std::printf(" %5.1f %%\n", Percent(flops, peak, bytes > (16 << 20) ? bytes : 0, s));
}

template <typename F>
void MeasurePlain(const std::string& name, double flops, double bytes, F&& f) {
  if (Measure(name, flops, bytes, f) > 0) std::printf("\n");
}

void MatMuls() {
  for (const MatMulCase& c : LargeMatMulCases()) {
    MatMulData data(c);
    const double products = 1.0 * c.rows * c.cols * c.n;
    const double bytes = static_cast<double>(PlaceOf(data.weight()).n_bytes);
    for (const KernelTable* table : Tables()) {
      MeasureShare(std::string("matmul ") + table->name + " " + data.Name(), 2 * products,
                   c.group > 0 ? g_limits.dot : g_limits.fma, bytes, [&] { table->matmul(data.args); });
    }
  }
}

// Products of the layers of two models, by their sizes, in both layouts in turn. Copies of a matrix follow
// each other until they are larger than the caches, as the layers of a model do.
struct LayerShape {
  const char* name;
  WeightType type;
  int32_t rows, cols;
};

constexpr LayerShape kLayerShapes[] = {
    {"0.5B qkv", WeightType::kInt8, 1152, 896},     {"0.5B output", WeightType::kInt8, 896, 896},
    {"0.5B gate up", WeightType::kInt8, 9728, 896}, {"0.5B down", WeightType::kInt8, 896, 4864},
    {"0.5B head", WeightType::kInt8, 151936, 896},  {"1B qkv", WeightType::kInt4, 3072, 2048},
    {"1B output", WeightType::kInt4, 2048, 2048},   {"1B gate up", WeightType::kInt4, 16384, 2048},
    {"1B down", WeightType::kInt4, 2048, 8192},     {"1B head", WeightType::kInt4, 128256, 2048},
    {"0.5B gate up", WeightType::kBf16, 9728, 896}, {"0.5B gate up", WeightType::kF16, 9728, 896},
    {"0.5B gate up", WeightType::kF32, 9728, 896},  {"1B gate up", WeightType::kQ4K, 16384, 2048},
    {"1B down", WeightType::kQ4K, 2048, 8192},      {"1B gate up", WeightType::kQ6K, 16384, 2048},
    {"1B down", WeightType::kQ6K, 2048, 8192},      {"1B head", WeightType::kQ6K, 128256, 2048},
};

void ProductsOf(const LayerShape& shape, int32_t n) {
  constexpr int64_t kBeyondCaches = 96 << 20;
  const bool codes = HasCodes(shape.type);
  const bool only_panels = HasBlocks(shape.type);  // no table has kernels for their rows
  const int32_t group = GroupFor(shape.type);
  MatMulData data({shape.type, shape.rows, shape.cols, group, n});
  const PackedWeight packed(data.weight());
  const Weight plain = data.weight();
  const int64_t bytes = PlaceOf(plain).n_bytes;  // of blocks in panels 1 to 3 % more are read
  const int64_t copies = n > 8 ? 1 : (kBeyondCaches + bytes - 1) / bytes;
  std::vector<std::vector<uint8_t>> more;
  std::vector<Weight> all[2] = {{plain}, {packed.weight}};
  for (int64_t i = 1; i < copies; ++i) {
    for (std::vector<Weight>& of : all) {
      Weight w = of[0];
      const WeightPlace place = PlaceOf(w);
      more.emplace_back(static_cast<size_t>(place.n_bytes) + 64);
      uint8_t* at = more.back().data() + (64 - reinterpret_cast<uintptr_t>(more.back().data()) % 64) % 64;
      std::memcpy(at, w.data, static_cast<size_t>(place.data_bytes));
      if (place.scales_bytes > 0)
        std::memcpy(at + place.scales_offset, w.scales, static_cast<size_t>(place.scales_bytes));
      w.data = at, w.scales = reinterpret_cast<const uint16_t*>(at + place.scales_offset);
      of.push_back(w);
    }
  }
  for (const KernelTable* table : Tables()) {
    const std::string name = std::string("layer ") + shape.name + " " + TypeName(shape.type) + " n " +
                             std::to_string(n) + " " + table->name;
    if (std::string(table->name) == "ref" || name.find(g_filter) == std::string::npos) continue;
    double best[2] = {1e9, 1e9};
    for (int run = 0; run < 8; ++run) {
      for (int layout = only_panels ? 1 : 0; layout < 2; ++layout) {
        const double start = Now();
        for (const Weight& w : all[layout]) {
          for (int32_t row = 0; row < w.rows; row += 64) {  // as the driver cuts it
            for (int32_t t = 0; t < n; t += 128) {
              MatMulArgs a = FromToken(data.args, t, std::min(n - t, 128));
              a.streams = table->streams;
              a.w = &w, a.row_begin = row, a.row_end = std::min(row + 64, w.rows);
              layout == 0 ? table->matmul(a) : table->matmul_panels(a);
            }
          }
        }
        best[layout] = std::min(best[layout], Now() - start);
      }
    }
    const double ops = 2.0 * shape.rows * shape.cols * n * static_cast<double>(copies) * 1e-9;
    const double gb = static_cast<double>(bytes * copies) * 1e-9;
    const double rows_peak = codes ? g_limits.dot : g_limits.fma;
    const double peak = TakesPairs(*table, shape.type) ? g_limits.pairs : rows_peak;
    const double from_memory = copies > 1 ? gb * 1e9 : 0;
    std::printf("%-44s", name.c_str());
    if (!only_panels)
      std::printf(" rows %8.1f GOP/s %6.2f GB/s %5.1f %%  ", ops / best[0], gb / best[0],
                  Percent(ops * 1e9, rows_peak, from_memory, best[0]));
    std::printf(" panels %8.1f GOP/s %6.2f GB/s %5.1f %%", ops / best[1], gb / best[1],
                Percent(ops * 1e9, peak, from_memory, best[1]));
    only_panels ? std::printf("\n") : std::printf("   x %.2f\n", best[0] / best[1]);
    std::fflush(stdout);
  }
}

void Layers() {
  for (const LayerShape& shape : kLayerShapes) {
    for (int32_t n : {1, 2, 8, 256}) {
      if (n > 1 && shape.rows > 100000) continue;  // a prompt needs the logits of its last token only
      ProductsOf(shape, n);
    }
  }
}

void Attention() {
  for (const RowsCase& c : LargeRowsCases()) {
    const RowsData data(c);
    const double pairs = 1.0 * c.n_q * c.first_visible + 0.5 * c.n_q * (c.n_q + 1);
    const double bytes = 8.0 * data.n_keys * c.d;
    const std::string shape = " rows " + std::to_string(c.n_q) + " keys " + std::to_string(data.n_keys) +
                              " d " + std::to_string(c.d);
    std::vector<float> out(data.q.size()), lse(static_cast<size_t>(c.n_q)),
        sums(static_cast<size_t>(data.n_keys));
    std::vector<float> p(static_cast<size_t>(32 * data.n_keys));
    const std::vector<int32_t> visible(32, data.n_keys);
    for (const KernelTable* t : Tables()) {
      MeasureShare(std::string("prefill_attention ") + t->name + shape, 4 * pairs * c.d, g_limits.fma, bytes,
                   [&] { t->prefill_attention(data.Prefill(out.data(), lse.data())); });
      MeasureShare(std::string("column_sums ") + t->name + shape, 2 * pairs * c.d, g_limits.fma, bytes / 2,
                   [&] {
                     t->column_sums({data.q.data(), data.k.data(), lse.data(), sums.data(), data.stride,
                                     c.n_q, c.first_visible, 0, data.n_keys, c.d, data.scale, 1});
                   });
      MeasureShare(std::string("score_rows ") + t->name + shape + ", 32 rows", 64.0 * data.n_keys * c.d,
                   g_limits.fma, bytes / 2, [&] {
                     t->score_rows({data.q.data(), data.k.data(), visible.data(), nullptr, p.data(),
                                    data.stride, data.n_keys, 32, data.n_keys, c.d, data.scale});
                   });
    }
  }
}

void Tiles() {
  for (const AttendCase& c : AttendCases()) {
    if (c.n != 64 || (c.g != 1 && c.g != 4 && c.g != 8)) continue;
    AttendData data(c);
    const double bytes = static_cast<double>(c.n * (CodeBytes(c.type, c.d) + CodeBytes(c.values(), c.d)));
    for (const KernelTable* t : Tables()) {
      MeasureShare(std::string("attend_tile ") + t->name + " type " +
                       std::to_string(static_cast<int>(c.type)) + " 100 tiles n 64 g " + std::to_string(c.g) +
                       " d " + std::to_string(c.d),
                   400.0 * c.n * c.g * c.d, g_limits.fma, 100 * bytes, [&] {
                     for (int i = 0; i < 100; ++i) {
                       AttendTileArgs a = data.Args(false, 0, c.n);
                       a.logits = nullptr;
                       t->attend_tile(a);
                     }
                   });
    }
  }
}

void Vectors() {
  Random random(1);
  const int32_t n = 4096;
  std::vector<float> x = random.Floats(n), y = random.Floats(n), w = random.Floats(n);
  std::vector<int8_t> codes(static_cast<size_t>(n));
  std::vector<int32_t> sums(static_cast<size_t>(n));
  std::vector<uint8_t> stored(static_cast<size_t>(4 * n));
  for (const KernelTable* t : Tables()) {
    const std::string name = std::string(t->name) + " 4096";
    MeasurePlain("rms_norm " + name, 4.0 * n, 12.0 * n,
                 [&] { t->rms_norm(x.data(), w.data(), 1e-5f, n, y.data()); });
    MeasurePlain("silu_mul " + name, 20.0 * n, 12.0 * n,
                 [&] { t->silu_mul(x.data(), w.data(), n, y.data()); });
    MeasurePlain("softmax " + name, 20.0 * n, 8.0 * n, [&] { t->softmax(y.data(), n); });
    MeasurePlain("dot " + name, 2.0 * n, 8.0 * n, [&] { y[0] = t->dot(x.data(), w.data(), n); });
    MeasurePlain("quantize_row " + name, 4.0 * n, 5.0 * n,
                 [&] { t->quantize_row(x.data(), n, 32, codes.data(), y.data(), sums.data()); });
    std::vector<uint16_t> f16(static_cast<size_t>(n));
    for (KvType type : {KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      const VectorFormat f{type, 64, type == KvType::kInt8 || type == KvType::kInt4 ? 64 : 0};
      const std::string kind = " type " + std::to_string(static_cast<int>(type));
      const double bytes = 4.0 * n + n / 64 * static_cast<double>(CodeBytes(type, 64));
      MeasurePlain("encode_vectors " + name + kind, 0, bytes,
                   [&] { t->encode_vectors(f, x.data(), n / 64, stored.data(), f16.data()); });
      MeasurePlain("decode_vectors " + name + kind, 0, bytes,
                   [&] { t->decode_vectors(f, stored.data(), f16.data(), n / 64, y.data()); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) g_filter = argv[1];
  g_limits = MeasureLimits();
  std::printf("one core here: %.1f GB/s read from memory, %.1f GFLOP/s f32, %.1f GOP/s int8",
              g_limits.read * 1e-9, g_limits.fma * 1e-9, g_limits.dot * 1e-9);
  if (g_limits.pairs > 0) std::printf(", %.1f GFLOP/s bf16", g_limits.pairs * 1e-9);
  std::printf("\n");
  MatMuls();
  Layers();
  Attention();
  Tiles();
  Vectors();
  return 0;
}
