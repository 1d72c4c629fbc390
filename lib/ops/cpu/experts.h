// The feed-forward part of a layer with a mixture of experts.
#pragma once
#include "lib/ops/cpu/layer_math.h"

namespace kvc::cpu {

// Of n_experts logits: the n_chosen largest, of equal ones the one with the lower number, a NaN below all.
// Their numbers go ascending into chosen [n_chosen], their weights into weights: the softmax over all logits,
// normalised divided by its sum over those chosen. logits are probabilities afterwards.
void Route(const KernelTable& kernels, int32_t n_experts, int32_t n_chosen, bool normalise, float* logits,
           int32_t* chosen, float* weights);

// x += scale * what the experts of each row give for its norm, or scale * the norm of that.
void AddExperts(const LayerMath& math, const LayerMatrices& w, float scale, float* x);

}  // namespace kvc::cpu
