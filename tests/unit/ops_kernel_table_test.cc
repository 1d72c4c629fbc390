#include "lib/ops/cpu/kernel_table.h"

#include <gtest/gtest.h>

#include "tests/parity/cases.h"
#include "tests/support/environment.h"

namespace kvc {
namespace {

TEST(KernelTable, EveryTableIsCompleteAndTheReferenceComesFirst) {
  const auto tables = parity::Tables();
  ASSERT_FALSE(tables.empty());
  EXPECT_STREQ("ref", tables[0]->name);
  EXPECT_EQ(&ReferenceKernels(), tables[0]);
  for (const KernelTable* t : tables) {
    EXPECT_TRUE(t->matmul && t->matmul_panels && t->quantize_row && t->rms_norm && t->layer_norm &&
                t->clamped_mul && t->rope && t->silu_mul && t->add && t->dot && t->axpy && t->softmax)
        << t->name;
    EXPECT_TRUE(t->prefill_attention && t->score_rows && t->column_sums && t->column_maxima &&
                t->attend_tile && t->encode_vectors && t->decode_vectors && t->weight_row)
        << t->name;
  }
  const KernelTable* one[1];
  EXPECT_EQ(1, RunnableKernels(one, 1));
}

TEST(KernelTable, TheEnvironmentChoosesAndNonsenseIsPassedOver) {
  const test::KeptVariable kept("KVC_ISA");
  for (const KernelTable* t : parity::Tables()) {
    test::SetVariable("KVC_ISA", t->name);
    EXPECT_EQ(t, &BestKernels());
  }
  test::SetVariable("KVC_ISA", "abacus");
  EXPECT_EQ(parity::Tables().back(), &BestKernels());
  test::SetVariable("KVC_ISA", nullptr);
  EXPECT_EQ(parity::Tables().back(), &BestKernels());
}

}  // namespace
}  // namespace kvc
