// Which kernel multiplies weights with codes. Blocks in row major have none of their own: only stacks of
// experts whose rows do not fill panels are multiplied so.
#pragma once

inline bool IsBlocks(const Weight& w) { return w.type == WeightType::kQ4K || w.type == WeightType::kQ6K; }

inline void MatMulCodes(const MatMulArgs& a) { IsBlocks(*a.w) ? ref::MatMul(a) : MatMulInt(a); }

inline void MatMulCodePanels(const MatMulArgs& a) {
  IsBlocks(*a.w) ? BlockPanelMatMul(a) : CodePanelMatMul(a);
}
