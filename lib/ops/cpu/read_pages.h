// Which pages of a head a step reads (docs/methods.md 2.24).
#pragma once
#include "lib/ops/cpu/step.h"

namespace kvc::cpu {

struct PageChoice {
  const KernelTable& kernels;
  const HeadPages& pages;
  GroupKind group_by;
  const float* q;  // [group, D], turned
  int32_t group;
  float* parts;  // scratch [group, 2, D]
  StepLines lines;

  // n of the pages of main, fewer than there are: the last one, and the best of the others; ascending.
  void Choose(int32_t n, int32_t* chosen) const;

 private:
  float Bound(int32_t page) const;
};

}  // namespace kvc::cpu
