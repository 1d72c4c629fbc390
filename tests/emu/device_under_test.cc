// With KVC_TEST_DEVICE=emu (or cuda) in the environment whatever opens the device "cpu" gets that one: the
// suite as it is, on the CUDA backend.
#include <cstdlib>
#include <string>

#include "lib/ops/devices.h"

namespace kvc {

CpuMaker DeviceUnderTest();
CpuMaker DeviceUnderTest() {
  const char* wanted = std::getenv("KVC_TEST_DEVICE");
  if (wanted == nullptr || *wanted == '\0' || std::string(wanted) == "cpu") return nullptr;
  return [](const ThreadOptions& threads) { return CreateCuda(std::getenv("KVC_TEST_DEVICE"), threads); };
}

}  // namespace kvc
