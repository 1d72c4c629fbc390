// The CUDA backend beside the processor: the same bytes on both.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lib/base/half.h"
#include "lib/engine/model.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/device_buffer.h"
#include "lib/ops/devices.h"
#include "tests/support/exact_kernels.h"
#include "tests/support/tiny_model.h"
#if defined(KVC_EMU)
#include "tests/emu/emulator.h"
#endif

namespace kvc {

#if defined(KVC_EMU)
constexpr char kOther[] = "emu";
#else
constexpr char kOther[] = "cuda";
#endif

inline std::shared_ptr<const Model> OpenOn(const char* device, const test::AlignedBytes& bytes) {
  ModelParams params;
  params.device = device, params.threads = 2;
  auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.value();
}

// The same bytes on both devices.
class Pair {
 public:
  Device* const devices[2];
  Stream* const streams[2];
  std::vector<DeviceBuffer<uint8_t>> blocks;

  template <typename T>
  struct On {
    DevicePtr<T> at[2];
    size_t n = 0;
  };
  template <typename T>
  On<T> Copy(const std::vector<T>& from) {
    On<T> out;
    out.n = from.size();
    for (int i = 0; i < 2; ++i) {
      blocks.emplace_back();
      EXPECT_TRUE(
          blocks.back()
              .Allocate({devices[i], nullptr}, static_cast<int64_t>(from.size() * sizeof(T)) + 64, "test")
              .ok());
      out.at[i] = blocks.back().raw().As<T>();
      EXPECT_TRUE(devices[i]
                      ->Write(streams[i], blocks.back().raw(), from.data(),
                              static_cast<int64_t>(from.size() * sizeof(T)))
                      .ok());
    }
    return out;
  }
  DeviceBytes Scratch(int i, int64_t bytes) {
    blocks.emplace_back();
    EXPECT_TRUE(blocks.back().Allocate({devices[i], nullptr}, std::max<int64_t>(bytes, 64), "test").ok());
    return blocks.back().raw();
  }
  template <typename T>
  std::vector<T> Read(const On<T>& from, int i) {
    std::vector<T> out(from.n);
    EXPECT_TRUE(devices[i]
                    ->Read(streams[i], from.at[i].template As<const uint8_t>(), out.data(),
                           static_cast<int64_t>(from.n * sizeof(T)))
                    .ok());
    return out;
  }
  // Each within `tolerance` of the other, relative to the largest.
  void ExpectNear(const On<float>& x, double tolerance, const std::string& what) {
    const std::vector<float> a = Read(x, 0), b = Read(x, 1);
    double most = 0, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::fabs(static_cast<double>(a[i])));
      const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      apart = d <= apart ? apart : d;  // a NaN shows
    }
    EXPECT_LE(apart, tolerance * std::max(most, 1e-3)) << what;
  }
};

class DeviceParity : public testing::Test {
 protected:
  void SetUp() override {
    const test::ExactKernels exact;  // the other device leaves activations in f32
    Result<std::unique_ptr<Device>> cpu = cpu::CpuDevice::Create(2), emu = OpenDevice(kOther, 1);
    ASSERT_TRUE(cpu.ok() && emu.ok());
    devices_[0] = std::move(cpu.value()), devices_[1] = std::move(emu.value());
    for (int i = 0; i < 2; ++i) streams_[i] = std::move(devices_[i]->NewStream().value());
    pair_.reset(new Pair{{devices_[0].get(), devices_[1].get()}, {streams_[0].get(), streams_[1].get()}, {}});
  }
  void TearDown() override {
    pair_.reset();
    for (int i = 0; i < 2; ++i) streams_[i].reset(), devices_[i].reset();
#if defined(KVC_EMU)
    emu::GetOptions() = {};
#endif
  }
  std::vector<float> Random(size_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(n);
    for (float& v : x) v = normal(random_);
    return x;
  }
  std::unique_ptr<Device> devices_[2];
  std::unique_ptr<Stream> streams_[2];
  std::unique_ptr<Pair> pair_;
  std::mt19937 random_{4711};
};

// A weight as a file has it.
struct FileWeight {
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales;
  Weight w;
  FileWeight(WeightType type, int32_t rows, int32_t cols, int32_t group, std::mt19937* random) {
    w.type = type, w.rows = rows, w.cols = cols;
    w.group = !HasCodes(type) ? 0 : HasBlocks(type) ? InfoOf(type).group : group;
    data.resize(static_cast<size_t>(rows * WeightRowBytes(type, cols)));
    std::normal_distribution<float> normal(0, 0.2f);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>((*random)());
    for (int64_t i = 0; i < int64_t{rows} * cols; ++i) {
      const float v = normal(*random);
      if (type == WeightType::kF32) reinterpret_cast<float*>(data.data())[i] = v;
      if (type == WeightType::kF16) reinterpret_cast<uint16_t*>(data.data())[i] = FloatToF16(v);
      if (type == WeightType::kBf16) reinterpret_cast<uint16_t*>(data.data())[i] = FloatToBf16(v);
    }
    const WeightTypeInfo& info = InfoOf(type);
    for (size_t at = 0; HasBlocks(type) && at < data.size(); at += static_cast<size_t>(info.block_bytes)) {
      const bool q4 = type == WeightType::kQ4K;
      for (size_t i = 0; i < (q4 ? 2u : 1u); ++i) {
        const uint16_t half = FloatToF16(i == 0 ? 0.0005f : 0.004f);
        std::memcpy(&data[at + (q4 ? 0 : 208) + 2 * i], &half, 2);
      }
    }
    if (info.scales_apart) {
      scales.resize(static_cast<size_t>(rows * (cols / group)));
      for (uint16_t& s : scales) s = FloatToF16(0.01f + 0.01f * static_cast<float>((*random)() % 8));
    }
    w.data = data.data(), w.scales = scales.data();
  }
};

constexpr WeightType kTypes[] = {WeightType::kF32,  WeightType::kF16, WeightType::kBf16, WeightType::kInt8,
                                 WeightType::kInt4, WeightType::kQ4K, WeightType::kQ6K};

}  // namespace kvc
