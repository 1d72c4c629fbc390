// Steps of sessions as the emulated device sees them: policies by what their steps ask of the host, and the
// records of heads that kernels find and leave.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "cuda/step_params.h"
#include "tests/emu/emulator.h"

namespace kvc::cuda {

struct StepCase {
  std::string policy;
  bool updates = false;  // something is done to entries behind the attention of every layer
  int32_t waits = 0;     // of a step, at most
  bool of_64 = false;    // for heads of 64 alone, which attend_step_codes reads
};

inline std::vector<StepCase> StepCases(int32_t head_dim) {
  std::vector<StepCase> cases = {{"full"}, {"h2o:budget=24", true}, {"weightedkv:budget=24", true}};
  if (head_dim == 64) {
    cases.push_back({"full:kv=int8,quant_group=64,residual=0", true, 0, true});
    cases.push_back({"full:kv=int4,quant_group=64,residual=0", true, 0, true});
    cases.push_back({"full:kv=int8,quant_group=64", true, 0, true});
    return cases;
  }
  for (const std::string bits : {"int8", "int4"}) {
    const std::string codes = "full:quant_group=16,kv=" + bits;
    cases.push_back({codes, true});
    cases.push_back({codes + ",residual=0", true});
    cases.push_back({codes + ",key_axis=channel"});  // but for one step in a page
  }
  cases.push_back({"snapkv:budget=24,window=8,kv=int8,quant_group=16", true});
  // Who is dropped is behind what waits for its codes.
  cases.push_back({"h2o:budget=48,kv=int8,quant_group=16,residual=16", true});
  cases.push_back({"streaming:budget=48,kv=int4,quant_group=16,residual=16", true});
  // It may be among it, or is added to codebooks.
  cases.push_back({"h2o:budget=24,kv=int8,quant_group=16", true, 1});
  cases.push_back({"spindlekv:budget=24,window=8,tail=8,spindle_code=always", false, 1});
  return cases;
}

// The records of the heads of a session, whose first row of every step is its own, as kernels found them and
// left them: what the host sends for a step is what the device had when the one before was done, and one
// entry.
class RecordsOfHeads {
 public:
  RecordsOfHeads() {
    emu::GetOptions().on_ran = [this](const std::string& kernel, void* const* params) {
      const bool found = kernel.find("attend_step") != std::string::npos;
      if (found || kernel == "update_heads") Look(*static_cast<const StepParams*>(params[0]), found);
    };
  }
  ~RecordsOfHeads() { emu::GetOptions().on_ran = nullptr; }
  RecordsOfHeads(const RecordsOfHeads&) = delete;
  RecordsOfHeads& operator=(const RecordsOfHeads&) = delete;

  int n_compared = 0, n_left = 0;  // heads at steps; those whose ring became shorter

 private:
  void Look(const StepParams& p, bool found) {
    const CacheLayer& layer = p.rows[0].cache;
    for (int32_t g = 0; g < p.n_kv_heads; ++g) {
      const Head& head = layer.heads[g];
      const auto was = left_.find(layer.first_head + g);
      if (found && was != left_.end()) {
        HeadLengths expected = was->second;
        ++(head.ring >= 0 ? expected.ring_len : expected.len);
        EXPECT_EQ(Of(head), Of(expected)) << "KV head " << was->first;
        ++n_compared;
      }
      if (!found && head.ring_len < left_[layer.first_head + g].ring_len) ++n_left;
      left_[layer.first_head + g] = head;
    }
  }
  // Directions are in the records of the head that has the books.
  static std::vector<int32_t> Of(const HeadLengths& h) {
    return {h.len, h.ring_start, h.ring_len, h.rotated, h.book_len[0], h.book_len[1]};
  }
  std::map<int32_t, HeadLengths> left_;
};

}  // namespace kvc::cuda
