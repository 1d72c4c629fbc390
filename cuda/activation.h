// The activation between the products of a feed-forward part.
#pragma once
#include "cuda/gpu.h"
#include "lib/ops/network_ops.h"

namespace kvc::cuda {

struct ActivationRule {
  Activation kind;
  float gain, limit;  // of kClampedSwiglu
};

KVC_DEVICE float Activated(const ActivationRule& rule, float gate, float up) {
  switch (rule.kind) {
    case Activation::kSilu:
      return __fdiv_rn(gate, 1.0f + expf(-gate)) * up;
    case Activation::kGeluTanh:
      return 0.5f * gate * (1.0f + tanhf(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
    case Activation::kClampedSwiglu: {
      const float g = gate > rule.limit ? rule.limit : gate, low = up > rule.limit ? rule.limit : up,
                  u = low < -rule.limit ? -rule.limit : low;
      return (u + 1.0f) * __fdiv_rn(g, 1.0f + expf(-rule.gain * g));
    }
  }
  return 0;
}

}  // namespace kvc::cuda
