// What the lanes of a warp do together (PTX ISA, 9.7.9.6, 9.7.13 and 9.7.15): exchanges, votes, products of
// small matrices. g: lane / 4, t: lane % 4.
#include <cmath>

#include "lib/base/half.h"
#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

size_t At(const Arg& a, int lane) { return size_t{a.slot} * kLanes + static_cast<size_t>(lane); }

bool OfAllLanes(Warp& w, const Instruction& i, const Arg& mask) {
  if (w.r32[At(mask, 0)] == kAll) return true;
  w.Fail(i, "a warp that does not meet as a whole");
  return false;
}

enum Shuffle : int { kUp, kDown, kButterfly, kIndex };
// d[|p], a, b, c, mask
void Exchange(Warp& w, const Instruction& i, uint32_t lanes) {
  const size_t n = static_cast<size_t>(i.n_results);
  const Arg &a = i.args[n], &b = i.args[n + 1], &c = i.args[n + 2];
  if (!OfAllLanes(w, i, i.args[n + 3])) return;
  std::array<uint32_t, kLanes> values;
  for (int l = 0; l < kLanes; ++l) values[static_cast<size_t>(l)] = w.r32[At(a, l)];
  uint32_t from_others = 0;
  ForLanes(lanes, [&](int lane) {
    const int by = static_cast<int>(w.r32[At(b, lane)] & 31), limits = static_cast<int>(w.r32[At(c, lane)]);
    const int clamp = limits & 31, segment = limits >> 8 & 31;
    const int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int from = lane;
    bool other = false;
    switch (i.mode) {
      case kUp:
        from = lane - by, other = from >= most;
        break;
      case kDown:
        from = lane + by, other = from <= most;
        break;
      case kButterfly:
        from = lane ^ by, other = from <= most;
        break;
      default:
        from = least | (by & ~segment), other = from <= most;
    }
    if (!other) from = lane;
    if ((lanes >> from & 1) == 0) w.Fail(i, "a value of a lane that has ended");
    from_others |= other ? 1u << lane : 0u;
    w.r32[At(i.args[0], lane)] = values[static_cast<size_t>(from)];
  });
  if (n == 2) w.predicates[i.args[1].slot] = from_others;
}

enum Vote : int { kAny, kEvery, kBallot };
void Ask(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!OfAllLanes(w, i, i.args[2])) return;
  const uint32_t yes = w.Predicate(i.args[1]) & lanes;
  if (i.mode == kBallot) {
    ForLanes(lanes, [&](int l) { w.r32[At(i.args[0], l)] = yes; });
  } else {
    w.predicates[i.args[0].slot] = (i.mode == kAny ? yes != 0 : yes == lanes) ? kAll : 0;
  }
}
void Meet(Warp& w, const Instruction& i, uint32_t) { OfAllLanes(w, i, i.args[0]); }

// ---- fragments ----

bool Whole(Warp& w, const Instruction& i, uint32_t lanes) {
  if (lanes == kAll) return true;
  w.Fail(i, "an operation of a whole warp without some of its lanes");
  return false;
}

// Addresses of rows of 8 numbers of 16 bits: those of matrix k from lanes 8 k on.
template <bool kTransposed>
void LoadMatrices(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!Whole(w, i, lanes)) return;
  const int n = i.n_results;
  uint16_t all[4][8][8];
  for (int row = 0; row < 8 * n; ++row) {
    const uint8_t* from = AddressOf(w, i, i.args[static_cast<size_t>(n)], row, true, 16);
    if (from == nullptr) return;
    std::memcpy(all[row / 8][row % 8], from, 16);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int k = 0; k < n; ++k) {
      const uint16_t low = kTransposed ? all[k][2 * t][g] : all[k][g][2 * t];
      const uint16_t high = kTransposed ? all[k][2 * t + 1][g] : all[k][g][2 * t + 1];
      w.r32[At(i.args[static_cast<size_t>(k)], lane)] = low | uint32_t{high} << 16;
    }
  }
}

// The result of a sum that was cut off instead of rounded.
float Cut(double x) {
  const float f = static_cast<float>(x);
  return std::isfinite(f) && std::fabs(double{f}) > std::fabs(x) ? std::nextafter(f, 0.0f) : f;
}

// m16n8k16 of numbers of 16 bits: d, a, b, c with 4, 4, 2 and 4 registers.
template <bool kBrain>
void MultiplyHalves(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!Whole(w, i, lanes)) return;
  const auto number = [&](size_t arg, int lane, int j) {
    const auto half = static_cast<uint16_t>(w.r32[At(i.args[arg], lane)] >> (16 * j));
    return kBrain ? Bf16ToFloat(half) : F16ToFloat(half);
  };
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int k = 0; k < 8; ++k) {  // a0 .. a7
      const int row = k % 4 < 2 ? g : g + 8, column = 2 * t + k % 2 + (k < 4 ? 0 : 8);
      a[row][column] = number(4 + static_cast<size_t>(k) / 2, lane, k % 2);
    }
    for (int k = 0; k < 4; ++k)  // b0 .. b3
      b[2 * t + k % 2 + (k < 2 ? 0 : 8)][g] = number(8 + static_cast<size_t>(k) / 2, lane, k % 2);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int k = 0; k < 4; ++k) {  // c0 .. c3
      const int row = k < 2 ? lane / 4 : lane / 4 + 8, column = 2 * (lane % 4) + k % 2;
      double sum = double{FromRaw<float>(w.r32[At(i.args[10 + static_cast<size_t>(k)], lane)])};
      for (int x = 0; x < 16; ++x) sum += double{a[row][x]} * double{b[x][column]};
      w.r32[At(i.args[static_cast<size_t>(k)], lane)] = ToRaw<float>(Cut(sum));
    }
  }
}

// m16n8k32 of bytes.
template <bool kUnsigned>
void MultiplyBytes(Warp& w, const Instruction& i, uint32_t lanes) {
  if (!Whole(w, i, lanes)) return;
  const auto byte = [&](size_t arg, int lane, int j) {
    return static_cast<uint8_t>(w.r32[At(i.args[arg], lane)] >> (8 * j));
  };
  int32_t a[16][32], b[32][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int k = 0; k < 16; ++k) {  // a0 .. a15
      const uint8_t x = byte(4 + static_cast<size_t>(k) / 4, lane, k % 4);
      a[k % 8 < 4 ? g : g + 8][4 * t + k % 4 + (k < 8 ? 0 : 16)] = kUnsigned ? x : static_cast<int8_t>(x);
    }
    for (int k = 0; k < 8; ++k)  // b0 .. b7
      b[4 * t + k % 4 + (k < 4 ? 0 : 16)][g] =
          static_cast<int8_t>(byte(8 + static_cast<size_t>(k) / 4, lane, k % 4));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int k = 0; k < 4; ++k) {
      const int row = k < 2 ? lane / 4 : lane / 4 + 8, column = 2 * (lane % 4) + k % 2;
      auto sum = static_cast<uint32_t>(w.r32[At(i.args[10 + static_cast<size_t>(k)], lane)]);
      for (int x = 0; x < 32; ++x) sum += static_cast<uint32_t>(a[row][x] * b[x][column]);
      w.r32[At(i.args[static_cast<size_t>(k)], lane)] = sum;
    }
  }
}

std::string_view TypesOf(const Opcode& op) {
  const std::string_view first = op.Type(3);
  return {first.data(), static_cast<size_t>(op.Type().data() + op.Type().size() - first.data())};
}

}  // namespace

Handler FindWarpOperation(const Opcode& op, Instruction* i) {
  i->kind = Kind::kMeet;
  if (op.Is("shfl") && op.Has("sync") && op.Type() == "b32") {
    i->mode = op.Has("up") ? kUp : op.Has("down") ? kDown : op.Has("bfly") ? kButterfly : kIndex;
    return Exchange;
  }
  if (op.Is("vote") && op.Has("sync")) {
    i->mode = op.Has("ballot") ? kBallot : op.Has("any") ? kAny : kEvery;
    return op.Has("uni") ? nullptr : Ask;
  }
  if (op.Is("bar") && op.Has("warp")) return Meet;
  if (op.Is("ldmatrix") && op.Has("m8n8") && op.Type() == "b16" && op.Has("shared"))
    return op.Has("trans") ? LoadMatrices<true> : LoadMatrices<false>;
  if (op.Is("mma") && op.Has("row") && op.Has("col") && i->n_args == kMostArgs) {
    const std::string_view types = TypesOf(op);
    if (op.Has("m16n8k16") && types == "f32.f16.f16.f32") return MultiplyHalves<false>;
    if (op.Has("m16n8k16") && types == "f32.bf16.bf16.f32") return MultiplyHalves<true>;
    if (op.Has("m16n8k32") && types == "s32.u8.s8.s32") return MultiplyBytes<true>;
    if (op.Has("m16n8k32") && types == "s32.s8.s8.s32") return MultiplyBytes<false>;
  }
  i->kind = Kind::kPlain;
  return nullptr;
}

}  // namespace kvc::emu::ptx
