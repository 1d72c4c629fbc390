// A tiny model opened for sessions, and prompts for it.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "lib/engine/session.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

// bytes outlive the model.
inline std::shared_ptr<const Model> OpenTiny(const AlignedBytes& bytes, int n_threads = 2) {
  ModelParams params;
  params.n_threads = n_threads;
  auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.value();
}

// Byte tokens without order; another seed, other tokens.
inline std::vector<int32_t> TinyPrompt(int n, uint32_t seed = 7) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 2654435761u + seed * 40503u) >> 7) & 0xff;
  return ids;
}

}  // namespace kvc::test
