#include "lib/engine/sampler.h"

#include "lib/ops/sample.h"

namespace kvc {

Status Sampler::Check(const SamplerParams& p) {
  if (!(p.temperature >= 0) || p.temperature > 100)
    return Error(Code::kInvalid, "temperature is %g; it is 0 (greedy) to 100",
                 static_cast<double>(p.temperature));
  if (!(p.top_p >= 0) || p.top_p > 1)
    return Error(Code::kInvalid, "top_p is %g; it is 0 (off) to 1", static_cast<double>(p.top_p));
  if (p.top_k < 0) return Error(Code::kInvalid, "top_k is %d; it is 0 (off) or more", p.top_k);
  return {};
}

Status Sampler::Pick(const KernelTable& kernels, Span<const float> logits, int64_t draw, int32_t* token) {
  SampleArgs args;
  args.logits = logits.data(), args.n = static_cast<int32_t>(logits.size());
  args.temperature = params_.temperature, args.top_p = params_.top_p, args.top_k = params_.top_k;
  args.seed = static_cast<uint64_t>(params_.seed), args.draw = draw;
  args.weights = weights_.data();
  *token = Sample(kernels, args);
  if (*token >= 0) return {};
  return Error(
      Code::kBadModel,
      "no logit is a finite number: the weights of the model, or the session it was restored from, hold "
      "numbers the network cannot compute with");
}

}  // namespace kvc
