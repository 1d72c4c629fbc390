// With KVC_TEST_DEVICE=emu (or cuda) in the environment whatever opens the device "cpu" gets that one: the
// suite as it is, on the CUDA backend. A test can have its own device there (tests/support/watched_device.h).
#include <cstdlib>
#include <string>

#include "tests/support/watched_device.h"

namespace kvc {

CpuMaker& test::TestMaker() {
  static CpuMaker maker = nullptr;
  return maker;
}

CpuMaker DeviceUnderTest();
CpuMaker DeviceUnderTest() {
  if (test::TestMaker() != nullptr) return test::TestMaker();
  const char* wanted = std::getenv("KVC_TEST_DEVICE");
  if (wanted == nullptr || *wanted == '\0' || std::string(wanted) == "cpu") return nullptr;
  return [](const ThreadOptions& threads) { return CreateCuda(std::getenv("KVC_TEST_DEVICE"), threads); };
}

}  // namespace kvc
