// The devices this build knows, by name. One list: kvc_model_open, kvc devices and the tests read it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/base/host_threads.h"
#include "lib/ops/device.h"

namespace kvc {

struct DeviceKind {
  const char* name;     // "cpu"
  const char* summary;  // for people
  // spec: what the caller wrote, the name with an optional ":number". kUnsupported: this machine has no such
  // device.
  Result<std::unique_ptr<Device>> (*create)(const std::string& spec, const ThreadOptions& threads);
  bool automatic;  // "auto" tries it, in the order of the list
};

Span<const DeviceKind> DeviceKinds();

// A build of tests names a function KVC_CPU_MAKER, which says who makes the device "cpu"; null: nobody else.
using CpuMaker = Result<std::unique_ptr<Device>> (*)(const ThreadOptions& threads);

// "auto" or empty, a name, a name with a number. kInvalid: no such name; kUnsupported: not on this machine.
Result<std::unique_ptr<Device>> OpenDevice(const std::string& spec, const ThreadOptions& threads);

// What makes the device "cuda", in builds that have the backend (cuda/memory.cc).
Result<std::unique_ptr<Device>> CreateCuda(const std::string& spec, const ThreadOptions& threads);

// The layout of weights that this machine's processor multiplies without packing them first.
WeightLayout PreferredLayout();

}  // namespace kvc
