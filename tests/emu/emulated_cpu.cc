// With KVC_TEST_EMU=1 in the environment whatever opens the device "cpu" gets the emulated one: the suite as it is, on
// the CUDA backend.
#include <cstdlib>
#include <string>

#include "lib/ops/devices.h"

namespace kvc {

Result<std::unique_ptr<Device>> CreateCuda(const std::string& spec, int n_threads);

CpuMaker EmulatedCpu();
CpuMaker EmulatedCpu() {
  const char* wanted = std::getenv("KVC_TEST_EMU");
  if (wanted == nullptr || *wanted == '\0' || *wanted == '0') return nullptr;
  return [](int n_threads) { return CreateCuda("emu", n_threads); };
}

}  // namespace kvc
