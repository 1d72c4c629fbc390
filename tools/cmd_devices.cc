// kvc devices: where models can run here, and how fast memory is.
#include <memory>

#include "kvc/kvc.h"
#include "tools/command.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct DevicesOptions {
  bool json = false, unmeasured = false;
};

std::string Names(const Json& list) {
  std::string text;
  for (const Json& name : list) text += (text.empty() ? "" : ", ") + name.get<std::string>();
  return text;
}

int Devices(const DevicesOptions& options) {
  Json list = Json::array();
  for (int32_t i = 0; i < kvc_device_count(); ++i) {
    Json device = DeviceJson(i);
    double bytes_per_second = 0;
    if (!options.unmeasured && device["available"].get<bool>()) {
      Check(kvc_device_measure(i, &bytes_per_second), "cannot measure a device");
      device["bytes_per_second"] = bytes_per_second;
    }
    list.push_back(std::move(device));
  }
  if (options.json) {
    PrintJson(list);
    return kExitGood;
  }
  Table table({"device", "what it is", "here", "instruction sets", "memory"}, "lwwwr");
  for (const Json& device : list) {
    const bool here = device["available"].get<bool>();
    const double speed = device.value("bytes_per_second", 0.0);
    table.AddRow({device["name"].get<std::string>(), device["summary"].get<std::string>(),
                  device[here ? "description" : "reason"].get<std::string>(),
                  here ? Names(device["instruction_sets"]) : "",
                  speed > 0 ? Format("%.1f GB/s", speed / 1e9) : ""});
  }
  Print(table.Text());
  return kExitGood;
}

}  // namespace

Action AddDevices(CLI::App* app) {
  const auto options = std::make_shared<DevicesOptions>();
  app->add_flag("--json", options->json, "one JSON list");
  app->add_flag("--no-measure", options->unmeasured,
                "without how fast memory is read, which takes up to a second to measure");
  return [options](Signals*) { return Devices(*options); };
}

}  // namespace kvc::tool
