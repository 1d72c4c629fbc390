// The processor as a device whose memory nobody can touch but its operations: pages, weights, activations and
// scores lie where reading and writing ends the process, except while an operation runs. What is above the
// device interface and looks into device memory all the same dies there, as it would with memory of another
// processor. Whole suite on it: ./dev sanitize fenced.
#pragma once
#include <memory>

#include "lib/ops/devices.h"

namespace kvc {

// Who makes the device "cpu" (lib/ops/devices.h): the fenced device where KVC_TEST_FENCED=1 is in the
// environment, else null.
CpuMaker FencedCpu();

namespace test {

Result<std::unique_ptr<Device>> NewFencedDevice(const ThreadOptions& threads);

}  // namespace test
}  // namespace kvc
