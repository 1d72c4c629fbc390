// models/recall, the trained model: as a file with weights of some type, and opened with f32 ones, of which
// the reference values are.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lib/engine/model.h"
#include "lib/ops/devices.h"
#include "models/convert/convert.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

// Its weights are bf16 (WeightChoice::kKeep).
inline void ConvertRecall(WeightChoice weights, const std::string& to) {
  ConvertOptions options;
  options.weights = weights;
  const Status status = Convert(std::string(KVC_SOURCE_DIR) + "/models/recall", to, options, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
}

inline std::shared_ptr<const Model> RecallF32() {
  static const TempFolder folder;  // gone after the model: Windows keeps files that are mapped
  static const std::shared_ptr<const Model> model = [] {
    const std::string path = folder / "recall_f32.kvc";
    ConvertRecall(WeightChoice::kF32, path);
    auto opened = Model::Open(path, {});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? opened.value() : nullptr;
  }();
  return model;
}

// The device of tests of what GPUs round: an emulated one, or a real one. Null: there is none.
inline const char* Gpu() {
  for (const char* name : {"emu", "cuda"}) {
    if (OpenDevice(name, 1).ok()) return name;
  }
  return nullptr;
}

}  // namespace kvc::test
