// What the environment says of the emulated device.
#include <cstdlib>

#include "tests/emu/emulator.h"

namespace kvc::emu {

int64_t FromEnvironment(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoll(value);
}

int UsualCapability() { return static_cast<int>(FromEnvironment("KVC_EMU_CAPABILITY", 90)); }

Options& GetOptions() {
  static Options options;
  return options;
}

}  // namespace kvc::emu
