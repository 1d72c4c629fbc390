// Which entries of a head stay, and what becomes of the values of those that go. On lines in ascending
// position.
#pragma once
#include <cstdint>

#include "lib/ops/score_ops.h"

namespace kvc::cpu {

struct SelectLine {
  const SelectRule& rule;
  const float* scores;       // [n]
  const int32_t* positions;  // [n]
  int32_t n, count;          // entries; candidates to keep beside the protected part
  uint32_t head;             // layer * G + KV head, for draws
  uint64_t* keys;            // scratch [2 n]
  float* line;               // scratch [n]
  uint8_t* mark;             // [n]
};
// Marks exactly KeptCount(rule, n, count) entries.
void SelectEntries(const SelectLine& in);

// CaM's decision for one dropped entry with accumulated attention a against its n followers: the factor on
// its value that is added to each of them; 0: nothing. methods.md 2.9.
float SpreadFactor(const MergeRule& rule, float a, const float* target_sums, int32_t n, uint32_t head,
                   int32_t position);
// v_next = (a_gone * v_gone + a_next * v_next) / (a_gone + a_next); unchanged when both are 0.
// methods.md 2.15.
void MixInto(float a_gone, const float* v_gone, float a_next, int32_t d, float* v_next);

}  // namespace kvc::cpu
