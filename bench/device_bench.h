// What benchmarks of single operations are made of: a device, memory of it, and the time of a call.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/clock.h"
#include "lib/base/clock.h"
#include "lib/ops/device_buffer.h"
#include "lib/ops/devices.h"
#include "tests/parity/cases.h"

namespace kvc::bench {

struct DeviceBenchOptions {
  std::string device = "cpu";
  std::vector<std::string> parts;  // of names: operations that have one of them; empty: all
  std::vector<int32_t> rows = {1, 8, 512};
  bool small = false, json = false;
};

// An operation that could not be measured; the text says why.
struct Failure {
  std::string why;
};
inline void Check(const Status& status) {
  if (!status.ok()) throw Failure{status.message()};
}
template <typename T>
T Taken(Result<T> made) {
  Check(made.status());
  return std::move(made.value());
}

// What a call does of the operation that is measured: so many of them; and whether nothing is issued behind
// it before it has ended, as a model's passes have it, each of which waits for the last one's token.
struct Calls {
  int32_t operations = 1;
  bool passes = false;
};

class DeviceBench {
 public:
  explicit DeviceBench(const DeviceBenchOptions& options)
      : options_(options),
        device_(Taken(OpenDevice(options.device, {}))),
        stream_(Taken(device_->NewStream())) {
    rate_ = Taken(device_->MeasureBandwidth());
    if (!options_.json)
      std::printf("%s: %.1f GB/s read\n%-46s %12s %12s %12s %12s %10s %7s%s\n",
                  device_->info().description.c_str(), rate_ * 1e-9, "", "us", "p10", "p90", "GFLOP/s",
                  "GB/s", "share", computes() ? "" : "      host us");
  }

  Device* device() const { return device_.get(); }
  Stream* stream() const { return stream_.get(); }
  DeviceMemory memory() const { return {device_.get(), nullptr}; }
  bool small() const { return options_.small; }
  bool computes() const { return device_->info().n_threads > 0; }  // in this process: a processor
  bool failed() const { return failed_; }                          // some operation

  template <typename T>
  DeviceBuffer<T> Upload(const std::vector<T>& x) {
    DeviceBuffer<T> buffer = Room<T>(static_cast<int64_t>(x.size()));
    Check(device_->Write(stream(), buffer.raw(), x.data(), static_cast<int64_t>(x.size() * sizeof(T))));
    return buffer;
  }
  template <typename T>
  DeviceBuffer<T> Room(int64_t n) {
    DeviceBuffer<T> buffer;
    Check(buffer.Allocate(memory(), std::max<int64_t>(n, 16), "a benchmark"));
    return buffer;
  }
  // From -1 to 1: a block of random numbers, again and again, from where the last ones ended. Its length is a
  // prime, so that what is cut into vectors has none twice for as many vectors.
  std::vector<float> Floats(int64_t n) {
    constexpr size_t kBlock = 1048573;
    if (block_.empty()) {
      std::mt19937 random{1};
      std::uniform_real_distribution<float> uniform(-1, 1);
      block_.resize(kBlock);
      for (float& f : block_) f = uniform(random);
    }
    const size_t all = static_cast<size_t>(n);
    std::vector<float> x;
    x.reserve(all);
    while (x.size() < all) {
      const auto from = block_.begin() + static_cast<int64_t>(block_at_);
      const size_t some = std::min(all - x.size(), kBlock - block_at_);
      x.insert(x.end(), from, from + static_cast<int64_t>(some));
      block_at_ = (block_at_ + some) % kBlock;
    }
    return x;
  }

  // Until everything that was issued is done.
  void Wait() {
    if (!probe_.at()) probe_ = Room<uint8_t>(64);
    uint8_t byte = 0;
    Check(device_->Read(stream(), probe_.at(), &byte, 1));
  }
  bool Wants(const std::string& name) const {
    const std::vector<std::string>& parts = options_.parts;
    return parts.empty() || std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
             return name.find(part) != std::string::npos;
           });
  }
  // Of products; --small has no more than 16.
  std::vector<int32_t> rows() const {
    std::vector<int32_t> rows = options_.rows;
    for (int32_t& n : rows) n = options_.small ? std::min(n, 16) : n;
    return rows;
  }

  // measure(), which sets something up and calls Measure. What fails is said, and the next goes on, unless
  // the device has failed for good.
  template <typename F>
  void Attempt(const std::string& what, F&& measure) {
    try {
      measure();
    } catch (const Failure& failure) {
      std::fprintf(stderr, "device_bench: %s: %s\n", what.c_str(), failure.why.c_str());
      failed_ = true;
      Wait();
    }
  }

  // Where it is one operation, of this name, and wanted.
  template <typename F>
  void AttemptOne(const std::string& name, F&& measure) {
    if (Wants(name)) Attempt(name, measure);
  }

  // Batches of calls of f, each with one wait at its end: a row is of their median and deciles. Those that
  // were too short to be counted have warmed it up. What the host takes itself is how long a call is on its
  // way where nothing is in front of it: where that is about as long as the operation, it is not the device
  // that is measured, or the call waits for a result.
  template <typename F>
  void Measure(const std::string& name, double flops, double bytes, F&& f, const Calls& calls = {}) {
    constexpr double kLong = 0.25;  // seconds: fewer batches of such
    if (!Wants(name)) return;
    const double host = HostSeconds(f);
    const double least = options_.small ? 0 : 0.025;  // seconds, beside which a wait is nothing
    std::vector<double> seconds;                      // of an operation, by batch
    for (size_t n_batches = 1, batch = 1; seconds.size() < n_batches;) {
      const double start = Seconds();
      for (size_t i = 0; i < batch; ++i) {
        f();
        if (calls.passes) Wait();
      }
      if (!calls.passes) Wait();
      const double took = Seconds() - start;
      seconds.push_back(took / static_cast<double>(batch) / calls.operations);
      if (took < least) batch *= 2, seconds.clear();
      n_batches = options_.small ? 1 : took < kLong ? 11 : 5;
    }
    Print(name, SpreadOf(seconds), computes() ? 0 : host / calls.operations, flops, bytes);
  }

  // Once more what shares are of, behind what is judged by them: clocks may have come up since. Rows say the
  // larger one from here on. Bytes: as a copy of 1 GiB.
  void MeasureReadingAgain() {
    const std::string name = "reading, measured again";
    if (!Wants(name)) return;
    constexpr double kBytes = int64_t{2} << 30;
    const double rate = Taken(device_->MeasureBandwidth());
    rate_ = std::max(rate_, rate);
    Print(name, SpreadOf({kBytes / rate}), 0, 0, kBytes);
  }

 private:
  // Of the first calls some launch kernels one by one, and some make a graph of them.
  template <typename F>
  double HostSeconds(F&& f) {
    double best = 1e9;
    for (int n = 0; n < (options_.small || computes() ? 1 : 6); ++n) {
      const double start = Seconds();
      f();
      best = std::min(best, Seconds() - start);
      Wait();
    }
    return best;
  }

  // host: 0 where the device is the host.
  void Print(const std::string& name, const Spread& seconds, double host, double flops, double bytes) const {
    const double rate = bytes / seconds.median;
    char host_text[64] = "";
    if (host > 0)
      std::snprintf(host_text, sizeof host_text, options_.json ? ",\"host_seconds\":%.9g" : " %12.1f",
                    options_.json ? host : host * 1e6);
    if (options_.json) {
      std::printf(
          "{\"device\":\"%s\",\"operation\":\"%s\",\"seconds\":%.9g,\"seconds_p10\":%.9g,"
          "\"seconds_p90\":%.9g,\"n\":%d,\"flops\":%.9g,\"bytes\":%.9g,\"read_bytes_per_second\":%.9g%s}\n",
          device_->info().name.c_str(), name.c_str(), seconds.median, seconds.p10, seconds.p90, seconds.n,
          flops, bytes, rate_, host_text);
    } else {
      std::printf("%-46s %12.1f %12.1f %12.1f %12.1f %10.2f %5.1f %%%s\n", name.c_str(), seconds.median * 1e6,
                  seconds.p10 * 1e6, seconds.p90 * 1e6, flops / seconds.median * 1e-9, rate * 1e-9,
                  100 * rate / rate_, host_text);
    }
    std::fflush(stdout);
  }

  const DeviceBenchOptions options_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  DeviceBuffer<uint8_t> probe_;
  double rate_ = 0;
  bool failed_ = false;
  std::vector<float> block_;
  size_t block_at_ = 0;
};

// Random weights as a file has them, and what a device makes of them.
class RandomWeights {
 public:
  RandomWeights(DeviceBench* bench, WeightType type) : bench_(bench), type_(type) {}
  ~RandomWeights() {
    for (const Matrix& m : made_) bench_->device()->Free(m.memory, m.bytes);
  }
  RandomWeights(const RandomWeights&) = delete;

  // Tensors of so many rows, one behind the other.
  Matrix Make(const std::vector<int32_t>& rows, int32_t cols) {
    std::vector<Weight> parts;
    for (const int32_t n : rows) {
      content_.push_back(std::make_unique<parity::MatMulData>(
          parity::MatMulCase{type_, n, cols, parity::GroupFor(type_), 1}));
      parts.push_back(content_.back()->weight());
      bytes_ += PlaceOf(parts.back()).n_bytes;
    }
    Matrix m;
    Check(bench_->device()->Prepare(parts, {}, MatrixUse::kProducts, &m));
    if (m.bytes > 0) made_.push_back(m);
    return m;
  }
  double bytes() const { return static_cast<double>(bytes_); }  // of all of them, as files have them

 private:
  DeviceBench* const bench_;
  const WeightType type_;
  std::vector<Matrix> made_;
  // Valid as long as the matrices: some are used as they lie.
  std::vector<std::unique_ptr<parity::MatMulData>> content_;
  int64_t bytes_ = 0;
};

}  // namespace kvc::bench
