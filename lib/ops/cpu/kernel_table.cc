#include "lib/ops/cpu/kernel_table.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "lib/base/log.h"
#include "lib/ops/cpu/processor.h"
#include "lib/ops/cpu/tables.h"
#include "lib/ops/ref/ref_kernels.h"

namespace kvc {
namespace {

constexpr KernelTable kReference = {
    "ref",
    false,
    ref::MatMul,
    ref::MatMul,
    ref::QuantizeRow,
    ref::RmsNorm,
    ref::LayerNorm,
    ref::ApplyRope,
    ref::SiluMul,
    ref::GeluMul,
    ref::ClampedMul,
    ref::Add,
    ref::SoftCap,
    ref::Dot,
    ref::Axpy,
    ref::Softmax,
    ref::Weights,
    ref::Raise,
    ref::AddSquares,
    ref::LargestNumber,
    ref::PrefillAttention,
    ref::ScoreRows,
    ref::ColumnSums,
    ref::ColumnMaxima,
    ref::AttendTile,
    ref::EncodeVectors,
    ref::DecodeVectors,
    ref::WeightRow,
    ref::EncodeKeyBlock,
    ref::DecodeKeyBlock,
};

// `table` with every null field taken from `below`.
KernelTable FillMissing(KernelTable table, const KernelTable& below) {
  const auto fill = [](auto& field, auto other) {
    if (field == nullptr) field = other;
  };
  fill(table.matmul, below.matmul);
  if (table.matmul_panels == nullptr) table.prefers_panels = below.prefers_panels;
  fill(table.matmul_panels, below.matmul_panels);
  fill(table.quantize_row, below.quantize_row);
  fill(table.rms_norm, below.rms_norm);
  fill(table.layer_norm, below.layer_norm);
  fill(table.rope, below.rope);
  fill(table.silu_mul, below.silu_mul);
  fill(table.gelu_mul, below.gelu_mul);
  fill(table.clamped_mul, below.clamped_mul);
  fill(table.add, below.add);
  fill(table.soft_cap, below.soft_cap);
  fill(table.dot, below.dot);
  fill(table.axpy, below.axpy);
  fill(table.softmax, below.softmax);
  fill(table.weights, below.weights);
  fill(table.raise, below.raise);
  fill(table.add_squares, below.add_squares);
  fill(table.largest_number, below.largest_number);
  fill(table.prefill_attention, below.prefill_attention);
  fill(table.score_rows, below.score_rows);
  fill(table.column_sums, below.column_sums);
  fill(table.column_maxima, below.column_maxima);
  fill(table.attend_tile, below.attend_tile);
  fill(table.encode_vectors, below.encode_vectors);
  fill(table.decode_vectors, below.decode_vectors);
  fill(table.weight_row, below.weight_row);
  fill(table.encode_key_block, below.encode_key_block);
  fill(table.decode_key_block, below.decode_key_block);
  return table;
}

constexpr int kMaxTables = 6;

// What this build has and this processor runs, each table above the one it extends, or, where it does not
// pay, below.
struct Tables {
  KernelTable table[kMaxTables];
  int n = 0;
  const ProcessorFeatures has = ThisProcessor();

  void Add(const KernelTable& t, bool runs, const KernelTable& below) {
    if (!runs || t.name == nullptr) return;
    table[n] = FillMissing(t, below);
    table[n++].streams = has.streams;
    if (t.pays != nullptr && !t.pays()) std::swap(table[n - 2], table[n - 1]);
  }
  Tables() {
    table[n++] = kReference;
#if defined(__x86_64__)
    Add(kAvx2Table, has.avx2, kReference);
    Add(kAvxVnniTable, has.avxvnni && kAvx2Table.name != nullptr, table[n - 1]);
    Add(kAvx512Table, has.avx512, kReference);
    Add(kAvx512VnniTable, has.avx512vnni && kAvx512Table.name != nullptr, table[n - 1]);
    Add(kAvx512Bf16Table, has.avx512bf16 && kAvx512VnniTable.name != nullptr, table[n - 1]);
#elif defined(__aarch64__)
    Add(kNeonTable, true, kReference);
    Add(kNeonDotTable, kNeonTable.name != nullptr && has.neon_dot, table[n - 1]);
    Add(kNeonI8mmTable, kNeonDotTable.name != nullptr && has.neon_dot && has.neon_i8mm, table[n - 1]);
#endif
  }
};

const Tables& AllTables() {
  static const Tables tables;
  return tables;
}

}  // namespace

const KernelTable& ReferenceKernels() { return AllTables().table[0]; }

const char* WantedKernels() {
  const char* wanted = std::getenv("KVC_ISA");
  return wanted != nullptr && *wanted != 0 ? wanted : nullptr;
}

const KernelTable& BestKernels() {
  const Tables& all = AllTables();
  if (const char* wanted = WantedKernels()) {
    for (int i = 0; i < all.n; ++i) {
      if (std::strcmp(all.table[i].name, wanted) == 0) return all.table[i];
    }
    char names[12 * kMaxTables] = "";  // each shorter than 11
    for (int i = 0; i < all.n; ++i) {
      if (i > 0) std::strcat(names, ", ");
      std::strcat(names, all.table[i].name);
    }
    Log(kLogWarning, "KVC_ISA=%.32s is ignored: this build and processor have %s; using %s", wanted, names,
        all.table[all.n - 1].name);
  }
  return all.table[all.n - 1];
}

int RunnableKernels(const KernelTable** tables, int cap) {
  const Tables& all = AllTables();
  int n = 0;
  for (; n < all.n && n < cap; ++n) tables[n] = &all.table[n];
  return n;
}

}  // namespace kvc
