// What executes PTX (ptx/program.h) on small texts whose results the PTX ISA says; and, where KVC_EMU_PTX
// names what nvcc made of the kernels, that all of them are there and every instruction of theirs is known.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels.h"
#include "lib/base/half.h"
#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

// A kernel with one parameter, a place in memory, in %rd0.
std::string Kernel(const std::string& body, const std::string& outside = "", const std::string& bounds = "") {
  return outside + ".entry k(\n\t.param .u64 k_param_0\n)\n" + bounds +
         "{\n\t.reg .pred \t%p<9>;\n\t.reg .b16 \t%rs<9>;\n\t.reg .b32 \t%r<40>;\n\t.reg .f32 \t%f<40>;\n"
         "\t.reg .b64 \t%rd<9>;\n\t.reg .f64 \t%fd<9>;\n\tld.param.u64 \t%rd0, [k_param_0];\n" +
         body + "\tret;\n}\n";
}

class Ptx : public testing::Test {
 protected:
  bool Run(const std::string& text, void* memory, unsigned threads = 1, size_t shared = 0,
           bool early = false) {
    const size_t name = text.find(".entry ") + 7;
    const std::unique_ptr<Program> program = Decode(text, name, text.size());
    std::vector<unsigned char> param(sizeof memory);
    std::memcpy(param.data(), &memory, sizeof memory);
    return RunGrid({"k", dim3(1), dim3(threads), shared, early}, program.get(), {param});
  }
  // Of 32 lanes that find their own number in %r1 and leave theirs in %r0.
  std::vector<uint32_t> OfLanes(const std::string& body) {
    std::vector<uint32_t> out(32);
    EXPECT_TRUE(Run(Kernel("\tmov.u32 \t%r1, %tid.x;\n" + body +
                           "\tmul.wide.u32 \t%rd1, %r1, 4;\n\tadd.s64 \t%rd1, %rd0, %rd1;\n"
                           "\tst.global.u32 \t[%rd1], %r0;\n"),
                    out.data(), 32));
    return out;
  }
};

uint32_t Bits(float x) { return FloatToBits(x); }
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// Operands in %r1 .. %r3, the result in %r0.
struct OneInstruction {
  const char* text;
  std::vector<uint32_t> in;
  uint32_t out;
};
std::vector<OneInstruction> WholeNumbers() {
  return {
      {"add.s32 %r0, %r1, %r2;", {0x7fffffff, 1}, 0x80000000},
      {"mul.lo.s32 %r0, %r1, %r2;", {0xffffffff, 7}, 0xfffffff9},
      {"mul.hi.s32 %r0, %r1, %r2;", {0xffffffff, 7}, 0xffffffff},
      {"mul.hi.u32 %r0, %r1, %r2;", {0xffffffff, 7}, 6},
      {"mad.lo.s32 %r0, %r1, %r2, %r3;", {3, 5, 0xfffffff0}, 0xffffffff},
      {"div.s32 %r0, %r1, %r2;", {0xfffffff9, 2}, 0xfffffffd},
      {"rem.s32 %r0, %r1, %r2;", {0xfffffff9, 2}, 0xffffffff},
      {"div.u32 %r0, %r1, %r2;", {0xfffffff9, 2}, 0x7ffffffc},
      {"min.s32 %r0, %r1, %r2;", {0xffffffff, 1}, 0xffffffff},
      {"min.u32 %r0, %r1, %r2;", {0xffffffff, 1}, 1},
      {"neg.s32 %r0, %r1;", {0x80000000}, 0x80000000},
      {"abs.s32 %r0, %r1;", {0xfffffffb}, 5},
      {"shl.b32 %r0, %r1, 32;", {1}, 0},
      {"shr.s32 %r0, %r1, 40;", {0x80000000}, 0xffffffff},
      {"shr.u32 %r0, %r1, 31;", {0x80000000}, 1},
      {"not.b32 %r0, %r1;", {0xf0f0f0f0}, 0x0f0f0f0f},
      {"clz.b32 %r0, %r1;", {0x00010000}, 15},
      {"clz.b32 %r0, %r1;", {0}, 32},
      {"popc.b32 %r0, %r1;", {0x80000101}, 3},
      {"popc.b32 %r0, %r1;", {0xffffffff}, 32},
      {"bfi.b32 %r0, %r1, %r2, 8, 4;", {0xfa, 0x11111111}, 0x11111a11},
      {"dp4a.s32.s32 %r0, %r1, %r2, %r3;",
       {0x80ff027f, 0x7f03fe01, 100},
       static_cast<uint32_t>(100 + 127 - 4 - 3 - 128 * 127)},
      {"lop3.b32 %r0, %r1, %r2, %r3, 0x6a;",
       {0xff00ff00, 0xf0f0f0f0, 0xaaaaaaaa},
       (0xff00ff00 & 0xf0f0f0f0) ^ 0xaaaaaaaa},
      {"lop3.b32 %r0, %r1, %r2, %r3, 234;",
       {0xff00ff00, 0xf0f0f0f0, 0xaaaaaaaa},
       (0xff00ff00 & 0xf0f0f0f0) | 0xaaaaaaaa},
      {"prmt.b32 %r0, %r1, %r2, 0x5410;", {0x33221100, 0x77665544}, 0x55441100},
      {"prmt.b32 %r0, %r1, %r2, 0x7632;", {0x33221100, 0x77665544}, 0x77663322},
      {"prmt.b32 %r0, %r1, %r2, 0x0c08;", {0x332211f0, 0x77665544}, 0xf000f0ff},
  };
}
// Floats in the registers of words, conversions, comparisons, what is wider.
std::vector<OneInstruction> Others() {
  const uint32_t one = Bits(1), two = Bits(2), nan = Bits(kNan);
  return {
      {"fma.rn.f32 %r0, %r1, %r2, %r3;", {Bits(16777217.0f), one, Bits(1)}, Bits(16777216.0f)},
      {"fma.rm.f32 %r0, %r1, %r2, %r3;", {one, one, Bits(-0x1p-30f)}, Bits(std::nextafter(1.0f, 0.0f))},
      {"fma.rm.f32 %r0, %r1, %r2, %r3;", {one, one, Bits(0x1p-30f)}, one},
      {"div.rn.f32 %r0, %r1, %r2;", {one, Bits(3)}, Bits(1.0f / 3)},
      {"min.f32 %r0, %r1, %r2;", {nan, two}, two},
      {"max.f32 %r0, %r1, %r2;", {two, nan}, two},
      {"copysign.f32 %r0, %r1, %r2;", {Bits(-3), two}, Bits(-2)},
      {"neg.f32 %r0, %r1;", {Bits(0)}, Bits(-0.0f)},
      {"ex2.approx.ftz.f32 %r0, %r1;", {Bits(-127)}, 0},
      {"ex2.approx.ftz.f32 %r0, %r1;", {Bits(10)}, Bits(1024)},
      {"rcp.approx.ftz.f32 %r0, %r1;", {0x00000001}, Bits(kInf)},
      // Conversions.
      {"cvt.rzi.s32.f32 %r0, %r1;", {Bits(-2.9f)}, 0xfffffffe},
      {"cvt.rzi.s32.f32 %r0, %r1;", {Bits(3e9f)}, 0x7fffffff},
      {"cvt.rzi.s32.f32 %r0, %r1;", {nan}, 0},
      {"cvt.rni.f32.f32 %r0, %r1;", {Bits(2.5f)}, two},
      {"cvt.sat.f32.f32 %r0, %r1;", {Bits(-1)}, 0},
      {"cvt.sat.f32.f32 %r0, %r1;", {nan}, 0},
      {"cvt.rn.f32.s32 %r0, %r1;", {0xffffffff}, Bits(-1)},
      {"cvt.rn.f32.u32 %r0, %r1;", {0xffffffff}, Bits(4294967296.0f)},
      {"cvt.s32.s8 %r0, %r1;", {0x180}, 0xffffff80},
      {"cvt.u32.u16 %r0, %r1;", {0x1ffff}, 0xffff},
      {"cvt.rn.f16x2.f32 %r0, %r1, %r2;", {one, Bits(-2)}, 0x3c00c000},  // the first is the upper half
      {"cvt.rn.bf16x2.f32 %r0, %r1, %r2;", {one, Bits(-2)}, 0x3f80c000},
      {"cvt.rn.f16x2.f32 %r0, %r1, %r2;", {Bits(1e6f), Bits(-1e6f)}, 0x7c00fc00},
      {"cvt.rn.satfinite.f16x2.f32 %r0, %r1, %r2;", {Bits(1e6f), Bits(-INFINITY)}, 0x7bfffbff},
      {"cvt.rn.satfinite.f16x2.f32 %r0, %r1, %r2;", {one, Bits(65520)}, 0x3c007bff},
      {"{ cvt.rn.satfinite.f16.f32 %rs1, %r1; cvt.f32.f16 %r0, %rs1; }", {Bits(1e6f)}, Bits(65504)},
      // 1280 * 1 - 1152, 1264 / 16 - 72.
      {"fma.rn.f16x2 %r0, %r1, %r2, %r3;", {0x64f06500, 0x2c003c00, 0xd480e480}, 0x47005800},
      {"{ cvt.rn.f16.f32 %rs1, %r1; cvt.f32.f16 %r0, %rs1; }", {Bits(1.0f + 0x1p-11f)}, one},
      {"mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r0, {%rs2, %rs1};", {0x11112222}, 0x22221111},
      // Comparisons, where one is no number too.
      {"setp.lt.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {nan, one}, 0},
      {"setp.ltu.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {nan, one}, 1},
      {"setp.ne.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {nan, nan}, 0},
      {"setp.neu.f32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {nan, nan}, 1},
      {"setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {0xffffffff, 0}, 1},
      {"setp.lt.u32 %p1, %r1, %r2; selp.b32 %r0, 1, 0, %p1;", {0xffffffff, 0}, 0},
      {"setp.eq.s16 %p1, %rs1, 0; mov.u32 %r0, 5; @!%p1 mov.u32 %r0, 6; @%p1 mov.u32 %r0, 7;", {}, 7},
      {"setp.eq.s32 %p1, %r1, 1; not.pred %p2, %p1; and.pred %p3, %p1, !%p2; selp.b32 %r0, 1, 0, %p3;",
       {1},
       1},
      // 64 bits: sign and width.
      {"mul.wide.s32 %rd1, %r1, %r2; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r0, %rd1;",
       {0xffffffff, 3},
       0xffffffff},
      {"mul.wide.u32 %rd1, %r1, %r2; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r0, %rd1;", {0xffffffff, 3}, 2},
      {"cvt.s64.s32 %rd1, %r1; cvt.s64.s8 %rd2, %rd1; cvt.u32.u64 %r0, %rd2;", {0x12345680}, 0xffffff80},
      {"mov.b64 %rd1, {%r1, %r2}; shl.b64 %rd1, %rd1, 4; mov.b64 {%r4, %r0}, %rd1;", {0xf0000000, 1}, 0x1f},
      {"add.cc.u32 %r4, %r1, %r1; addc.u32 %r0, %r2, %r2;", {0x80000000, 4}, 9},
      {"sub.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0;", {1, 2, 9}, 8},
      {"mad.lo.cc.u32 %r4, %r1, %r1, %r2; madc.hi.u32 %r0, %r1, %r1, 0;",
       {0xffffffff, 0xffffffff},
       0xffffffff},
  };
}

TEST_F(Ptx, Instructions) {
  std::vector<OneInstruction> all = WholeNumbers();
  for (const OneInstruction& other : Others()) all.push_back(other);
  for (const OneInstruction& c : all) {
    std::vector<uint32_t> memory = {0, 0, 0, 0};
    for (size_t i = 0; i < c.in.size(); ++i) memory[i + 1] = c.in[i];
    const std::string text =
        Kernel("ld.global.u32 %r1, [%rd0+4]; ld.global.v2.u32 {%r2, %r3}, [%rd0+8]; mov.u16 %rs1, 0;" +
               std::string(c.text) + "st.global.u32 [%rd0], %r0;");
    ASSERT_TRUE(Run(text, memory.data())) << c.text;
    EXPECT_EQ(memory[0], c.out) << c.text;
  }
}

// Lanes go round as often as their number says, and meet behind it.
TEST_F(Ptx, LanesPartAndMeet) {
  const std::vector<uint32_t> sums = OfLanes(R"(
  mov.u32 %r2, 0;
  mov.u32 %r3, 0;
$again:
  add.s32 %r3, %r3, %r2;
  add.s32 %r2, %r2, 1;
  setp.le.u32 %p1, %r2, %r1;
  @%p1 bra $again;
  shfl.sync.bfly.b32 %r0|%p2, %r3, 1, 31, -1;
)");
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(sums[l], (l ^ 1) * ((l ^ 1) + 1) / 2) << l;
}

TEST_F(Ptx, Exchanges) {
  EXPECT_EQ(OfLanes("\tshfl.sync.up.b32 %r0|%p1, %r1, 3, 0, -1;\n")[2], 2u);
  EXPECT_EQ(OfLanes("\tshfl.sync.up.b32 %r0|%p1, %r1, 3, 0, -1;\n")[3], 0u);
  EXPECT_EQ(OfLanes("\tshfl.sync.down.b32 %r0, %r1, 3, 31, -1;\n")[29], 29u);
  EXPECT_EQ(OfLanes("\tshfl.sync.idx.b32 %r0, %r1, 1, 0x1c1f, -1;\n")[22], 21u);  // of four lanes, the second
  EXPECT_EQ(OfLanes("\tsetp.gt.u32 %p1, %r1, 29;\n\tvote.sync.ballot.b32 %r0, %p1, -1;\n")[0], 0xc0000000u);
  EXPECT_EQ(OfLanes("\tsetp.gt.u32 %p1, %r1, 30;\n\tvote.sync.any.pred %p2, %p1, -1;\n"
                    "\tselp.b32 %r0, 1, 0, %p2;\n")[5],
            1u);
}

// Rows of 16 bits in shared memory, fragments by ldmatrix, their product by mma: a product of matrices.
TEST_F(Ptx, ProductsOfMatrices) {
  struct {
    uint16_t a[16][16], b[16][8];
    float c[32][4];
  } m;
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) m.a[i][k] = FloatToF16(static_cast<float>(i * 3 - k * 2));
    for (int j = 0; j < 8; ++j) m.b[i][j] = FloatToF16(static_cast<float>(j * 5 - i) / 4);
  }
  // A row has 32 bytes in a, 16 in b: lane l gives rows l % 8 of four matrices of a, two of b (transposed).
  const std::string text = Kernel(R"(
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd1, %r1, 16;
  add.s64 %rd2, %rd0, %rd1;
  shl.b32 %r2, %r1, 4;
  mov.u32 %r3, kvc_shared;
  add.s32 %r4, %r3, %r2;
  cp.async.cg.shared.global.L2::128B [%r4], [%rd2], 16;
  add.s64 %rd3, %rd2, 512;
  setp.lt.u32 %p1, %r1, 16;
  @%p1 cp.async.cg.shared.global.L2::128B [%r4+512], [%rd3], 16;
  cp.async.commit_group;
  cp.async.wait_group 0;
  bar.sync 0;
  and.b32 %r5, %r1, 15;
  shl.b32 %r6, %r5, 5;
  shr.u32 %r7, %r1, 4;
  shl.b32 %r8, %r7, 4;
  add.s32 %r9, %r6, %r8;
  add.s32 %r10, %r3, %r9;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r11,%r12,%r13,%r14}, [%r10];
  shl.b32 %r15, %r5, 4;
  add.s32 %r16, %r3, %r15;
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r21,%r22,%r23,%r24}, [%r16+512];
  mov.f32 %f1, 0f3F800000;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2,%f3,%f4,%f5},
    {%r11,%r12,%r13,%r14}, {%r21,%r22}, {%f1,%f1,%f1,%f1};
  st.global.v4.f32 [%rd2+768], {%f2, %f3, %f4, %f5};
)",
                                  ".extern .shared .align 16 .b8 kvc_shared[];\n");
  ASSERT_TRUE(Run(text, &m, 32, 768));
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = 1;
      for (int k = 0; k < 16; ++k) sum += F16ToFloat(m.a[row][k]) * F16ToFloat(m.b[k][column]);
      EXPECT_EQ(m.c[lane][i], sum) << lane << ", " << i;
    }
  }
}

TEST_F(Ptx, ProductsOfBytes) {
  struct {
    uint8_t a[32][16];
    int8_t b[32][8];  // of lanes
    int32_t c[32][4];
  } m;
  int32_t left[16][32], right[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    // A word of a is four columns of a row, of b four rows of a column.
    for (int i = 0; i < 16; ++i) {
      const int row = lane / 4 + i / 4 % 2 * 8, column = lane % 4 * 4 + i % 4 + i / 8 * 16;
      left[row][column] = m.a[lane][i] = static_cast<uint8_t>(row * 16 + column);
    }
    for (int i = 0; i < 8; ++i) {
      const int row = lane % 4 * 4 + i % 4 + i / 4 * 16;
      right[row][lane / 4] = m.b[lane][i] = static_cast<int8_t>(row * 7 - lane / 4 * 40);
    }
  }
  ASSERT_TRUE(Run(Kernel(R"(
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd1, %r1, 16;
  add.s64 %rd2, %rd0, %rd1;
  ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd2];
  mul.wide.u32 %rd3, %r1, 8;
  add.s64 %rd4, %rd0, %rd3;
  ld.global.v2.u32 {%r6, %r7}, [%rd4+512];
  mov.u32 %r8, -3;
  mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r10,%r11,%r12,%r13},
    {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%r8,%r8,%r8,%r8};
  st.global.v4.u32 [%rd2+768], {%r10, %r11, %r12, %r13};
)"),
                  &m, 32));
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      int32_t sum = -3;
      for (int k = 0; k < 32; ++k) sum += left[lane / 4 + i / 2 * 8][k] * right[k][lane % 4 * 2 + i % 2];
      EXPECT_EQ(m.c[lane][i], sum) << lane << ", " << i;
    }
  }
}

// Two warps hand each other a word; nobody reads before all have written.
constexpr const char* kHandOver = R"(
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, words;
  shl.b32 %r3, %r1, 2;
  add.s32 %r4, %r2, %r3;
  st.shared.u32 [%r4], %r1;
  bar.sync 0;
  xor.b32 %r5, %r3, 128;
  add.s32 %r6, %r2, %r5;
  ld.shared.u32 %r7, [%r6];
  mul.wide.u32 %rd1, %r1, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r7;
)";
TEST_F(Ptx, BarriersAndSharedMemory) {
  std::vector<uint32_t> out(64);
  ASSERT_TRUE(Run(Kernel("\t.shared .align 4 .b8 words[256];\n" + std::string(kHandOver)), out.data(), 64));
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i ^ 32);
}

// A function with its parameters, names that a scope has of its own, memory of a lane.
TEST_F(Ptx, CallsScopesAndLocalMemory) {
  const std::string function = R"(
.func  (.param .b32 func_retval0) twice(
  .param .b32 twice_param_0
)
{
  .local .align 8 .b8  __local_depot1[8];
  .reg .b32  %r<3>;
  .reg .b64  %rd<2>;
  .reg .pred  %p<2>;
  mov.u64  %rd1, __local_depot1;
  ld.param.b32  %r1, [twice_param_0];
  st.local.u32  [%rd1+4], %r1;
  setp.gt.u32  %p1, %r1, 10;
  @%p1 bra  $L__BB1_1;
  ld.local.u32  %r2, [%rd1+4];
  add.s32  %r1, %r1, %r2;
$L__BB1_1:
  st.param.b32  [func_retval0+0], %r1;
  ret;
}
)";
  std::vector<uint32_t> out(32);
  ASSERT_TRUE(Run(Kernel(R"(
  mov.u32 %r1, %tid.x;
  {
  .reg .b32 temp_param_reg;
  .reg .b32 %r7;
  mov.u32 %r7, %r1;
  .param .b32 param0;
  st.param.b32 [param0+0], %r7;
  .param .b32 retval0;
  call.uni (retval0),
  twice,
  (
  param0
  );
  ld.param.b32 %r2, [retval0+0];
  }
  mul.wide.u32 %rd1, %r1, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r2;
)",
                         function),
                  out.data(), 32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i > 10 ? i : 2 * i);
}

// What a device would not do, or do otherwise each time, is a launch that fails.
TEST_F(Ptx, Faults) {
  uint32_t memory[64] = {};
  const std::string lane = "\tmov.u32 %r1, %tid.x;\n\tsetp.lt.u32 %p1, %r1, 7;\n";
  const std::string words = "\t.shared .align 4 .b8 words[240];\n";
  testing::internal::CaptureStderr();
  EXPECT_FALSE(Run(Kernel(words + kHandOver), memory, 64)) << "beyond shared memory";
  EXPECT_FALSE(Run(Kernel("\tld.global.u32 %r1, [%rd0+2];\n"), memory)) << "not aligned";
  EXPECT_FALSE(Run(Kernel("\tmov.u64 %rd1, 0;\n\tld.global.u32 %r1, [%rd1];\n"), memory)) << "null";
  EXPECT_FALSE(
      Run(Kernel(lane + "\t@%p1 bra $a;\n\tbar.sync 0;\n\tbra $b;\n$a:\n\tbar.sync 0;\n$b:\n"), memory, 32))
      << "two barriers";
  EXPECT_FALSE(Run(Kernel(lane + "\t@%p1 bra $a;\n\tbar.sync 0;\n$a:\n\tbar.warp.sync -1;\n"), memory, 32))
      << "waiting for each other";
  EXPECT_FALSE(Run(Kernel("\tmov.u32 %r2, words;\n\tcp.async.ca.shared.global [%r2], [%rd0], 4;\n",
                          ".extern .shared .align 16 .b8 words[];\n"),
                   memory, 1, 4))
      << "a copy that nobody has waited for";
  EXPECT_FALSE(Run(Kernel("", "", ".maxntid 32, 1, 1\n"), memory, 64))
      << "more threads than it was compiled for";
  EXPECT_FALSE(Run(Kernel(lane + "\t@%p1 griddepcontrol.wait;\n"), memory, 32, 0, true)) << "not all wait";
  const std::string said = testing::internal::GetCapturedStderr();
  for (const char* part :
       {"beyond the block's shared memory", "not aligned", "null pointer", "different barriers",
        "wait for each other", "copies on their way", "compiled for", "have not waited"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in " << said;
  EXPECT_TRUE(Run(Kernel(lane + "\tgriddepcontrol.wait;\n", "", ".maxntid 32, 1, 1\n"), memory, 32, 0, true));
}

// A copy has not come until it has been waited for.
TEST_F(Ptx, CopiesComeLate) {
  uint32_t memory[4] = {5, 6, 0, 0};
  ASSERT_TRUE(Run(Kernel(R"(
  mov.u32 %r1, words;
  cp.async.ca.shared.global [%r1], [%rd0], 4;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r1+4], [%rd0+4], 4;
  cp.async.commit_group;
  cp.async.wait_group 1;
  ld.shared.v2.u32 {%r2, %r3}, [%r1];
  cp.async.wait_group 0;
  st.global.v2.u32 [%rd0+8], {%r2, %r3};
)",
                         ".extern .shared .align 16 .b8 words[];\n"),
                  memory, 1, 8));
  EXPECT_EQ(memory[2], 5u);
  EXPECT_EQ(memory[3], ~0u);
}

// What is fetched into a cache changes nothing, is whole vectors, and is told.
TEST_F(Ptx, PrefetchesTellWhatTheyAskFor) {
  alignas(16) uint32_t memory[16] = {5};
  std::vector<std::pair<int64_t, int64_t>> asked;
  GetOptions().on_prefetch = [&](const void* at, int64_t bytes) {
    asked.emplace_back(static_cast<const uint8_t*>(at) - reinterpret_cast<uint8_t*>(memory), bytes);
  };
  const std::string ahead = "\tcp.async.bulk.prefetch.L2.global [%rd0";
  ASSERT_TRUE(Run(Kernel("\tmov.u32 %r1, 48;\n" + ahead + "+16], %r1;\n"), memory, 1));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(Run(Kernel("\tmov.u32 %r1, 24;\n" + ahead + "], %r1;\n"), memory, 1)) << "no whole vectors";
  EXPECT_FALSE(Run(Kernel("\tmov.u32 %r1, 16;\n" + ahead + "+8], %r1;\n"), memory, 1)) << "not aligned";
  testing::internal::GetCapturedStderr();
  GetOptions().on_prefetch = nullptr;
  EXPECT_EQ(asked, (std::vector<std::pair<int64_t, int64_t>>{{16, 48}}));
  EXPECT_EQ(memory[0], 5u);
}

TEST(PtxDeath, SaysWhatItDoesNotKnow) {
  const std::string text = Kernel("\tsin.approx.f32 %f1, %f2;\n");
  EXPECT_EXIT(Decode(text, text.find(".entry ") + 7, text.size()), testing::ExitedWithCode(1),
              "not known: sin.approx.f32");
}

TEST(PtxOfKernels, EveryInstructionIsKnown) {
  Library* library = TheLibrary();
  if (library == nullptr) GTEST_SKIP() << "KVC_EMU_PTX names no folder: ./dev test --ptx";
  cuda::KernelLoader loader;
  loader.AddAll();
  ASSERT_EQ(loader.error(), cudaSuccess) << loader.last();
  size_t n = 0, instructions = 0;
  for (const void* function : DescribedKernels()) {
    const Program* program = library->Find(NameOf(function));
    ++n, instructions += program->code.size();
  }
  EXPECT_GE(n, 89u);  // AddAll has so many lines
  EXPECT_GT(instructions, 100 * n);
}

}  // namespace
}  // namespace kvc::emu::ptx
