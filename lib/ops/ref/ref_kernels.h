// The definitions: one plain f32 loop for every field of the kernel table. See lib/ops/cpu/kernel_table.h for
// the contracts.
#pragma once
#include <cmath>

#include "lib/ops/cpu/kernel_table.h"

namespace kvc::ref {

inline float Capped(float z, float cap) { return cap > 0 ? cap * std::tanh(z / cap) : z; }

void MatMul(const MatMulArgs& a);
void QuantizeRow(const float* x, int32_t cols, int32_t group, int8_t* codes, float* scales, int32_t* sums);
void WeightRow(const Weight& w, int32_t row, float* out);

void RmsNorm(const float* x, const float* weight, float eps, int32_t n, float* y);
void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int32_t n, float* y);
void ApplyRope(float* x, const float* cos, const float* sin, int32_t d, RopePairing pairing);
void SiluMul(const float* gate, const float* up, int32_t n, float* y);
void GeluMul(const float* gate, const float* up, int32_t n, float* y);
void ClampedMul(const float* gate, const float* up, float gain, float limit, int32_t n, float* y);
void Add(const float* x, int32_t n, float* y);
float Dot(const float* a, const float* b, int32_t n);
void Axpy(float a, const float* x, int32_t n, float* y);
void SoftCap(float cap, int32_t n, float* x);
void Softmax(float* x, int32_t n);
void Weights(float most, float factor, int32_t n, float* x);
void Raise(const float* x, float shift, int32_t n, float* y);
void AddSquares(const float* z, float lse, int32_t n, float* y);
float LargestNumber(const float* x, int32_t n);

void PrefillAttention(const PrefillAttentionArgs& a);
void ScoreRows(const ScoreRowsArgs& a);
void ColumnSums(const ColumnSumsArgs& a);
void ColumnMaxima(const ColumnSumsArgs& a);
void AttendTile(const AttendTileArgs& a);

void EncodeVectors(const VectorFormat& format, const float* x, int32_t n, void* codes, uint16_t* scales);
void DecodeVectors(const VectorFormat& format, const void* codes, const uint16_t* scales, int32_t n,
                   float* x);
void EncodeKeyBlock(KvType type, const float* x, int32_t n, int32_t d, uint8_t* codes, uint16_t* scales);
void DecodeKeyBlock(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                    float* x);

}  // namespace kvc::ref
