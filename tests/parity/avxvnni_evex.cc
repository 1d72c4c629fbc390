// The kernels for AVX-VNNI with the same products in AVX-512's encoding: so they are tested on every
// processor that has either.
#define kAvxVnniTable kAvxVnniEvexTable
#include "lib/ops/cpu/isa_avxvnni.cc"
