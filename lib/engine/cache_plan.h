// The cache of a session that is planned for: slots and pages, from records alone. The model need not be
// open.
#pragma once
#include <memory>
#include <vector>

#include "lib/compress/compressor.h"
#include "lib/engine/page_count.h"
#include "lib/engine/session.h"

namespace kvc {

class CachePlanner {
 public:
  // memory: its meter only counts.
  CachePlanner(const ModelConfig& config, const SessionParams& params, int32_t n_prompt,
               const DeviceMemory& memory)
      : config_(config), params_(params), n_prompt_(n_prompt), memory_(memory) {}

  // kInvalid, kUnsupported, kNotFound: as Session::Create.
  Status Create(const Policy& policy, HeadScores scores, const AttentionRule& rule);
  // The budgets of the prompt, and what each head holds behind it, [L, G].
  Status BeginPrompt(PromptNeeds* needs, std::vector<int32_t>* slots);
  // From these slots on, to the end of the session.
  Growth GrowthFrom(const std::vector<int32_t>& slots) const;
  PageCount PagesFrom(const std::vector<int32_t>& slots) const {
    return CountPages(layout_, GrowthFrom(slots));
  }
  // At max_tokens; where none were named and the policy has no end of its own, at the prompt's.
  int64_t FullBytes() const;

 protected:
  const ModelConfig& config_;
  SessionParams params_;
  const int32_t n_prompt_;
  const DeviceMemory memory_;
  std::unique_ptr<Compressor> compressor_;
  CacheLayout layout_;

 private:
  bool no_end_named_ = false;
  int32_t LeastSlots(const std::vector<int32_t>& slots) const;
};

// SessionPlan::cache_bytes_prompt of a prompt of n_prompt tokens, and one of the answer, for a policy that
// needs no head scores. config: as CheckConfig wants it.
Result<int64_t> CacheBytesAfterPrompt(const ModelConfig& config, const char* policy, int32_t n_prompt);

}  // namespace kvc
