// The tables of the instruction sets, in order from plain to fast. A file compiled without its flags (another
// processor family) leaves its table empty: name is null. Constant data: nothing of an instruction set runs
// before it is chosen.
#pragma once
#include "lib/ops/cpu/kernel_table.h"

namespace kvc {

namespace ref {  // of what has no faster kernel
void MatMul(const MatMulArgs& a);
void EncodeVectors(const VectorFormat& f, const float* x, int32_t n, void* out, uint16_t* scales);
void DecodeKeyBlock(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                    float* x);
}  // namespace ref

extern const KernelTable kAvx2Table;
extern const KernelTable kAvxVnniTable;  // weights with codes only; the rest is that of kAvx2Table
extern const KernelTable kAvx512Table;
extern const KernelTable kAvx512VnniTable;  // weights with codes only; the rest is that of kAvx512Table
extern const KernelTable
    kAvx512Bf16Table;  // bf16 weights in panels only; the rest is that of kAvx512VnniTable
extern const KernelTable kNeonTable;
extern const KernelTable kNeonDotTable;  // weights with codes only; the rest is that of kNeonTable
extern const KernelTable
    kNeonI8mmTable;  // weights with codes in panels only; the rest is that of kNeonDotTable

}  // namespace kvc
