// models/recall with its weights as f32: what the reference values on the trained model are of.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lib/engine/model.h"
#include "models/convert/convert.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

inline std::shared_ptr<const Model> RecallF32() {
  static const TempFolder folder;  // gone after the model: Windows keeps files that are mapped
  static const std::shared_ptr<const Model> model = [] {
    const std::string path = folder / "recall_f32.kvc";
    ConvertOptions options;
    options.weights = WeightChoice::kF32;
    ConvertReport report;
    const Status status = Convert(std::string(KVC_SOURCE_DIR) + "/models/recall", path, options, &report);
    EXPECT_TRUE(status.ok()) << status.message();
    auto opened = Model::Open(path, {});
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? opened.value() : nullptr;
  }();
  return model;
}

}  // namespace kvc::test
