// A device that fails. This program makes its own device "cpu" (KVC_CPU_MAKER): the processor, whose memory
// cannot be written to when a test says so.
#include <gtest/gtest.h>

#include "lib/ops/cpu/cpu_device.h"
#include "tests/support/tiny_session.h"
#include "tests/support/watched_device.h"

namespace kvc {

static Code write_fails = Code::kOk;

class FailingDevice final : public test::WatchedDevice {
 public:
  using WatchedDevice::WatchedDevice;
  Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) override {
    if (write_fails != Code::kOk) return Error(write_fails, "the link to the device is down");
    return WatchedDevice::Write(s, to, from, bytes);
  }
};

CpuMaker FailingCpu();
CpuMaker FailingCpu() {
  return [](const ThreadOptions& threads) -> Result<std::unique_ptr<Device>> {
    auto cpu = cpu::CpuDevice::Create(threads);
    if (!cpu.ok()) return cpu;
    return std::unique_ptr<Device>(new FailingDevice(std::move(cpu.value())));
  };
}

namespace {

// A file that is fine is not said to be damaged: who reads that throws it away.
TEST(DeviceFault, IsNoDamageOfTheFileThatIsRestored) {
  const auto model = test::OpenTwoLayers();
  const auto session = test::FedSession(model, "full", 20);
  const test::TempFolder folder;
  const std::string path = folder / "s";
  ASSERT_TRUE(session->Save(path).ok());
  for (const Code code : {Code::kDevice, Code::kInternal, Code::kMemory}) {
    write_fails = code;
    const auto restored = Session::Restore(model, path);
    write_fails = Code::kOk;
    ASSERT_FALSE(restored.ok());
    EXPECT_EQ(restored.status().code(), code);
    EXPECT_EQ(restored.status().message().find("damaged"), std::string::npos) << restored.status().message();
  }
  EXPECT_TRUE(Session::Restore(model, path).ok());
}

}  // namespace
}  // namespace kvc
