// The parts of a layer around its attention. Bytes: every weight once per call, whatever the rows; flops 2 a
// weight and row. Of experts see experts.cc.
#include <algorithm>
#include <cmath>

#include "lib/base/half.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/experts.h"
#include "lib/ops/cpu/layer_math.h"
#include "lib/ops/cpu/sample.h"
#include "lib/ops/half_rows.h"

namespace kvc::cpu {

int64_t CpuDevice::NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const {
  return Rows::Bytes(kernels_, shape, n_rows);
}

Status CpuDevice::Embed(Stream*, const EmbedArgs& a) {
  const Weight table = PartOf(*a.table, 0);
  float* x = Raw(a.x);
  pool_->ParallelFor(a.n, [&](int64_t i, int) {
    float* row = x + i * a.shape->hidden;
    kernels_.weight_row(table, a.tokens[i], row);
    for (int32_t j = 0; a.scale != 1.0f && j < a.shape->hidden; ++j) row[j] *= a.scale;
  });
  return {};
}

Status CpuDevice::Project(Stream*, const ProjectArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  MatrixProduct p{};
  p.matrix = &a.w->qkv;
  p.y[0] = Raw(a.q), p.y[1] = Raw(a.k), p.y[2] = Raw(a.v);
  math.NormProduct(Raw(a.x), a.w->attention_norm, a.w->attention_norm_bias, &p);
  math.HeadNorms(p.y[0], a.shape->n_heads, *a.w, a.w->query_norm);
  math.HeadNorms(p.y[1], a.shape->n_kv_heads, *a.w, a.w->key_norm);
  return {};
}

// Processors have f32 between layers (DeviceInfo): by the definition, for those that ask.
Status CpuDevice::StoreHalves(Stream*, const HalfRowsArgs& a) {
  for (int64_t row = 0; row < a.n; ++row) {
    const float* x = Raw(a.x) + row * a.width;
    uint16_t* halves = Raw(a.halves) + row * a.width;
    float largest = 0;
    for (int32_t i = 0; i < a.width; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    const int shift =
        largest == 0 || !std::isfinite(largest) ? 0 : HalfRowShift(std::max(std::ilogb(largest), -127));
    Raw(a.factors)[row] = std::ldexp(1.0f, -shift);
    for (int32_t i = 0; i < a.width; ++i) halves[i] = FloatToF16(std::ldexp(x[i], shift));
  }
  return {};
}

Status CpuDevice::LoadHalves(Stream*, const HalfRowsArgs& a) {
  for (int64_t row = 0; row < a.n; ++row) {
    const uint16_t* halves = Raw(a.halves) + row * a.width;
    for (int32_t i = 0; i < a.width; ++i)
      Raw(a.x)[row * a.width + i] = F16ToFloat(halves[i]) * Raw(a.factors)[row];
  }
  return {};
}

Status CpuDevice::Finish(Stream*, const FinishArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  const Rows& rows = math.rows();
  float* x = Raw(a.x);
  const auto add_attended = [&] {
    math.AddProduct(a.w->output, Raw(a.attended), a.w->attention_post_norm, a.scale, x);
  };
  // Beside the attention the feed-forward part reads x first; its halves are not touched by what follows.
  if (!a.shape->parallel_blocks) add_attended();
  if (a.shape->n_experts > 0) {
    AddExperts(math, *a.w, a.scale, x);
    return {};
  }
  const int64_t ffn = a.shape->ffn;
  const auto activate = [&](const OutputTile& t) {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      math.Activate(*a.w, rows.up + i * ffn + t.row, t.rows, rows.gate + i * ffn + t.row);
    }
  };
  MatrixProduct p{};
  p.matrix = &a.w->gate_up, p.y[0] = rows.gate, p.y[1] = rows.up;
  p.aligned = true, p.finish = activate;
  math.NormProduct(x, a.w->ffn_norm, a.w->ffn_norm_bias, &p);
  if (a.shape->parallel_blocks) add_attended();
  math.AddProduct(a.w->down, rows.gate, a.w->ffn_post_norm, a.scale, x);
  return {};
}

Status CpuDevice::Logits(Stream*, const LogitsArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  float* logits = Raw(a.logits);
  const auto scale = [&](const OutputTile& t) {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      float* row = logits + i * a.shape->vocab + t.row;
      for (int32_t j = 0; a.scale != 1.0f && j < t.rows; ++j) row[j] *= a.scale;
      if (a.cap > 0) kernels_.soft_cap(a.cap, t.rows, row);
    }
  };
  MatrixProduct p{};
  p.matrix = a.head, p.y[0] = logits;
  if (a.scale != 1.0f || a.cap > 0) p.finish = scale;
  math.NormProduct(Raw(a.x), a.final_norm, a.final_norm_bias, &p);
  return {};
}

Status CpuDevice::Sample(Stream*, const SampleArgs& a) {
  float* weights = Raw(a.weights);
  for (size_t i = 0; i < a.rows.size(); ++i) {
    a.tokens[i] = SampleToken(kernels_, pool_.get(), a.rows[i], a.n, weights);
    if (a.rows[i].draws()) weights += a.n;
  }
  return {};
}

}  // namespace kvc::cpu
