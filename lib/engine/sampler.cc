#include "lib/engine/sampler.h"

namespace kvc {

Status CheckSampling(const SamplerParams& p) {
  if (!(p.temperature >= 0) || p.temperature > 100)
    return Error(Code::kInvalid, "temperature is %g; it is 0 (greedy) to 100",
                 static_cast<double>(p.temperature));
  if (!(p.top_p >= 0) || p.top_p > 1)
    return Error(Code::kInvalid, "top_p is %g; it is 0 (off) to 1", static_cast<double>(p.top_p));
  if (p.top_k < 0) return Error(Code::kInvalid, "top_k is %d; it is 0 (off) or more", p.top_k);
  return {};
}

Status ReserveSampling(const SamplerParams& params, const DeviceMemory& memory, int32_t n,
                       DeviceBuffer<float>* weights) {
  return params.temperature > 0 ? weights->Reserve(memory, n, "sampling") : Status();
}

Status Sample(const SamplerParams& params, Device* device, Stream* stream, DevicePtr<const float> logits,
              int32_t n, int64_t draw, const DeviceBuffer<float>& weights, int32_t* token) {
  SampleArgs args;
  args.logits = logits, args.n = n;
  args.temperature = params.temperature, args.top_p = params.top_p, args.top_k = params.top_k;
  args.seed = static_cast<uint64_t>(params.seed), args.draw = draw;
  args.weights = weights.at(), args.token = token;
  KVC_RETURN_IF_ERROR(device->Sample(stream, args));
  if (*token >= 0) return {};
  return Error(
      Code::kBadModel,
      "no logit is a finite number: the weights of the model, or the session it was restored from, hold "
      "numbers the network cannot compute with");
}

}  // namespace kvc
