// What a device is tuned to: numbers that follow from what it says of itself, or those of a file that
// ./dev gpu tune has measured on one like it and KVC_CUDA_TUNING names (docs/cuda.md, "Tuning").
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/status.h"

namespace kvc::cuda {

struct Tuning {
#define KVC_TUNED(name, least, most, step, usual) int32_t name = usual;
#include "cuda/tuning.list"
#undef KVC_TUNED
};

// capability: 90 is 9.0.
Tuning TuningFor(int capability, int32_t multiprocessors);

// What measured numbers hold for.
struct TunedDevice {
  std::string device;   // "NVIDIA H200"
  std::string driver;   // of CUDA, "13.0"
  std::string library;  // "0.1.0"
};
// version: of CUDA, as 13000.
TunedDevice TunedDeviceOf(const char* name, int version);

// Lines "name = value" of a file: all of TunedDevice and any of the numbers; '#' begins a comment. Numbers
// that were measured for something else are left alone, and the log says so. kInvalid: a line that is none, a
// name that is not known or comes twice, a number out of its range; nothing has changed then.
Status ReadTuning(std::string_view text, const std::string& path, const TunedDevice& device, Tuning* tuning);
// The file that KVC_CUDA_TUNING names, if it names one.
Status LoadTuning(const TunedDevice& device, Tuning* tuning);
// As a file has it.
std::string TuningText(const TunedDevice& device, const Tuning& tuning);

}  // namespace kvc::cuda
