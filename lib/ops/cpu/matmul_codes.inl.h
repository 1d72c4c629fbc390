// Which kernel multiplies weights with codes. Blocks in row major have none of their own: only stacks of
// experts whose rows do not fill panels are multiplied so.
#pragma once

inline void MatMulCodes(const MatMulArgs& a) { IsBlocks(*a.w) ? ref::MatMul(a) : MatMulInt(a); }
