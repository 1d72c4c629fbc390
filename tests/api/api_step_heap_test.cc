// A step takes nothing from the heap (issue of latency and of determinism alike): counted by operator new
// itself.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kvc/kvc.h"
#include "tests/support/c_support.h"
#include "tests/support/emulated.h"
#include "tests/support/heap_faults.h"

namespace {

// Emulated, so many that a page of 64 slots is filled.
const bool kEmulated = kvc::test::kUnderQemu || std::getenv("KVC_TEST_DEVICE") != nullptr;
const int kPrompt = 200, kWarm = 20, kSteps = kEmulated ? 70 : 200;

struct Case {
  const char* spec;
  int rows;  // rows of pages, of the cache and of codebooks, that are taken in page_slots tokens; 0: never
             // any
  int page_slots;
  float temperature;
};

class StepHeap : public testing::TestWithParam<Case> {};

TEST_P(StepHeap, IsLeftAlone) {
  int64_t n = 0;
  const uint8_t* bytes = test_model_bytes(TEST_MODEL_WIDE, &n);
  kvc_model_params model_params = {sizeof model_params, 2, 0, nullptr, 0, 0};
  kvc_model* model = nullptr;
  ASSERT_EQ(kvc_model_open_memory(bytes, n, nullptr, &model_params, &model), KVC_OK);
  kvc_session_params params = {sizeof params, 0, 0, 0, 0, GetParam().temperature, 1};
  kvc_policy* policy = nullptr;
  kvc_session* session = nullptr;
  ASSERT_EQ(kvc_policy_create(GetParam().spec, &policy), KVC_OK) << kvc_last_error();
  ASSERT_EQ(kvc_session_create(model, policy, &params, &session), KVC_OK) << kvc_last_error();
  std::vector<int32_t> prompt(kPrompt);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 2654435761u) >> 7) & 0xff;
  ASSERT_EQ(kvc_session_prefill(session, prompt.data(), kPrompt), KVC_OK) << kvc_last_error();
  int32_t token = 0;
  for (int i = 0; i < kWarm; ++i) ASSERT_EQ(kvc_session_step(session, &token), KVC_OK) << kvc_last_error();
  int busy_steps = 0;
  int64_t all = 0;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t before = kvc::test::HeapAllocations();
    const kvc_status status = kvc_session_step(session, &token);
    const int64_t taken = kvc::test::HeapAllocations() - before;
    ASSERT_EQ(status, KVC_OK) << kvc_last_error();
    busy_steps += taken > 0;
    all += taken;
  }
  if (GetParam().rows > 0) {
    // Heads of different lengths fill their pages at different steps: one row more.
    EXPECT_LE(busy_steps, GetParam().rows * (kSteps / GetParam().page_slots + 2)) << all << " allocations";
    EXPECT_GE(busy_steps, 1) << "a cache that grows takes pages";
  } else {
    EXPECT_EQ(all, 0) << "in " << busy_steps << " steps";
  }
  kvc_session_close(session);
  kvc_policy_close(policy);
  kvc_model_close(model);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, StepHeap,
    testing::Values(Case{"h2o:budget=64", 0, 16, 0}, Case{"streaming:budget=64", 0, 16, 0},
                    Case{"tova:budget=64", 0, 16, 0}, Case{"weightedkv:budget=64", 0, 16, 0},
                    Case{"cam:budget=64", 0, 16, 0}, Case{"scissorhands:budget=64,recent=8", 1, 16, 0},
                    Case{"h2o:budget=64,kv=int8,quant_group=32", 0, 16, 0},
                    Case{"streaming:budget=64,kv=int4,quant_group=32", 0, 16, 0},
                    Case{"streaming:budget=64", 0, 16, 0.8f},
                    Case{"snapkv:budget=64,window=16,decode=reobserve,slack=8", 0, 16, 0},
                    Case{"ahakv:budget=64,recent=8", 0, 16, 0}, Case{"full", 1, 64, 0},
                    Case{"full:kv=int8,quant_group=32", 1, 64, 0},
                    Case{"snapkv:budget=64,window=16", 1, 16, 0}, Case{"cokv:budget=64,window=16", 1, 16, 0},
                    Case{"ada-snapkv:budget=64,window=16", 1, 16, 0},
                    Case{"snapkv:budget=64,window=16,kv=int8,quant_group=32", 1, 16, 0},
                    Case{"spindlekv:budget=64,window=16", 2, 16, 0}));

}  // namespace
