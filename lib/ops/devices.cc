#include "lib/ops/devices.h"

#include "lib/ops/cpu/cpu_device.h"

namespace kvc {

#if defined(KVC_CPU_MAKER)
CpuMaker KVC_CPU_MAKER();
#endif

namespace {

Result<std::unique_ptr<Device>> CreateCpu(const std::string& spec, const ThreadOptions& threads) {
  if (spec != "cpu")
    return Error(Code::kInvalid, "device \"%.32s\": there is one cpu; write \"cpu\"", spec.c_str());
#if defined(KVC_CPU_MAKER)
  if (const CpuMaker make = KVC_CPU_MAKER()) return make(threads);
#endif
  return cpu::CpuDevice::Create(threads);
}

const DeviceKind kKinds[] = {
#if defined(KVC_CUDA)
    {"cuda", "an NVIDIA GPU; cuda:N for the one of that number", CreateCuda, true},
#endif
    {"cpu", "this processor", CreateCpu, true},
#if defined(KVC_EMU)
    {"emu", "the CUDA backend, run on this processor (tests)", CreateCuda, false},
#endif
};

}  // namespace

Span<const DeviceKind> DeviceKinds() { return {kKinds, sizeof kKinds / sizeof *kKinds}; }

WeightLayout PreferredLayout() {
  return BestKernels().prefers_panels ? WeightLayout::kPanels16 : WeightLayout::kRowMajor;
}

Result<std::unique_ptr<Device>> OpenDevice(const std::string& spec, const ThreadOptions& threads) {
  const bool automatic = spec.empty() || spec == "auto";
  const std::string name = spec.substr(0, spec.find(':'));
  Status last = Error(Code::kUnsupported, "this build has no device");
  std::string names;
  for (const DeviceKind& kind : DeviceKinds()) {
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
    if (automatic ? !kind.automatic : name != kind.name) continue;
    Result<std::unique_ptr<Device>> made = kind.create(automatic ? kind.name : spec, threads);
    if (made.ok() || !automatic) return made;
    last = made.status();
  }
  if (automatic) return last;
  if (name == "cuda")  // not in the list
    return Error(Code::kUnsupported, "device \"%.32s\": this build has no CUDA backend; use \"cpu\"",
                 spec.c_str());
  return Error(Code::kInvalid, "device \"%.32s\" is not known; use \"auto\" or one of: %s", spec.c_str(),
               names.c_str());
}

}  // namespace kvc
