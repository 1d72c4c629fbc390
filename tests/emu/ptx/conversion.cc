// Comparisons, choices, conversions and moves (PTX ISA, 9.7.6 and 9.7.9).
#include <cmath>
#include <limits>

#include "lib/base/half.h"
#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

// Names of comparisons of floats with a u behind them hold where one is no number.
enum class Order : uint8_t { kEqual, kNot, kLess, kMost, kGreater, kLeast };
template <Order kOrder, typename T>
bool Holds(T a, T b) {
  switch (kOrder) {
    case Order::kEqual:
      return a == b;
    case Order::kNot:
      return a < b || a > b;
    case Order::kLess:
      return a < b;
    case Order::kMost:
      return a <= b;
    case Order::kGreater:
      return a > b;
    default:
      return a >= b;
  }
}
template <Order kOrder, bool kUnordered, typename T>
void Compare(Warp& w, const Instruction& i, uint32_t lanes) {
  const Raw<T>*a = SlotOf<T>(w, i.args[1]), *b = SlotOf<T>(w, i.args[2]);
  uint32_t bits = 0;
  ForLanes(lanes, [&](int l) {
    const T x = FromRaw<T>(a[l]), y = FromRaw<T>(b[l]);
    const bool unordered = x != x || y != y;
    bits |= (unordered ? kUnordered : Holds<kOrder>(x, y)) ? 1u << l : 0u;
  });
  uint32_t& out = w.predicates[i.args[0].slot];
  out = (out & ~lanes) | bits;
}
template <Order kOrder, bool kUnordered>
Handler CompareType(std::string_view type) {
  return ByType(type, [](auto t) -> Handler { return Compare<kOrder, kUnordered, decltype(t)>; });
}
template <bool kUnordered>
Handler CompareBy(std::string_view order, std::string_view type) {
  if (order == "eq") return CompareType<Order::kEqual, kUnordered>(type);
  if (order == "ne") return CompareType<Order::kNot, kUnordered>(type);
  if (order == "lt" || order == "lo") return CompareType<Order::kLess, kUnordered>(type);
  if (order == "le" || order == "ls") return CompareType<Order::kMost, kUnordered>(type);
  if (order == "gt" || order == "hi") return CompareType<Order::kGreater, kUnordered>(type);
  if (order == "ge" || order == "hs") return CompareType<Order::kLeast, kUnordered>(type);
  return nullptr;
}

template <typename T>
void Choose(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t first = w.Predicate(i.args[3]);
  Raw<T>* const out = SlotOf<T>(w, i.args[0]);
  const Raw<T>*a = SlotOf<T>(w, i.args[1]), *b = SlotOf<T>(w, i.args[2]);
  ForLanes(lanes, [&](int l) { out[l] = (first >> l & 1) != 0 ? a[l] : b[l]; });
}

// ---- conversions ----

enum Rounding : int { kPlain, kNearest, kToZero, kDown, kUp, kSaturate };

template <typename A>
A RoundTo(A a, int rounding) {
  switch (rounding) {
    case kNearest:
      return std::nearbyint(a);
    case kToZero:
      return std::trunc(a);
    case kDown:
      return std::floor(a);
    case kUp:
      return std::ceil(a);
    default:
      return a;
  }
}
template <typename D, typename A>
D ConvertOne(A a, int rounding) {
  if constexpr (std::is_floating_point_v<A>) {
    if (rounding == kSaturate) return a != a || a < 0 ? D{0} : a > 1 ? D{1} : static_cast<D>(a);
    const A rounded = RoundTo(a, rounding);
    if constexpr (std::is_floating_point_v<D>) {
      return static_cast<D>(rounded);
    } else {
      // What it has no number for becomes the nearest that it has.
      if (rounded != rounded) return 0;
      const long double x = rounded;
      if (x <= static_cast<long double>(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
      if (x >= static_cast<long double>(std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
      return static_cast<D>(rounded);
    }
  } else {
    return static_cast<D>(a);
  }
}
// What is converted may be the lower bits of a wider register.
template <typename D, typename A>
void Convert(Warp& w, const Instruction& i, uint32_t lanes) {
  Raw<D>* const out = SlotOf<D>(w, i.args[0]);
  if (sizeof(A) < 8 && i.args[1].file == File::k64) {
    const uint64_t* const in = SlotOf<uint64_t>(w, i.args[1]);
    ForLanes(lanes, [&](int l) {
      out[l] = ToRaw<D>(ConvertOne<D, A>(FromRaw<A>(static_cast<Raw<A>>(in[l])), i.mode));
    });
  } else {
    const Raw<A>* const in = SlotOf<A>(w, i.args[1]);
    ForLanes(lanes, [&](int l) { out[l] = ToRaw<D>(ConvertOne<D, A>(FromRaw<A>(in[l]), i.mode)); });
  }
}
template <typename F>
Handler ByConverted(std::string_view type, F f) {
  if (type == "s8") return f(int8_t{});
  if (type == "u8") return f(uint8_t{});
  return type[0] == 'b' ? nullptr : ByType(type, f);
}
Handler ConvertTo(std::string_view to, std::string_view from) {
  return ByConverted(to, [from](auto d) {
    return ByConverted(from, [](auto a) -> Handler { return Convert<decltype(d), decltype(a)>; });
  });
}

template <bool kBrain>
void FromHalf(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* const out = SlotOf<float>(w, i.args[0]);
  const uint32_t* const in = SlotOf<uint16_t>(w, i.args[1]);
  ForLanes(lanes, [&](int l) {
    const auto half = static_cast<uint16_t>(in[l]);
    out[l] = ToRaw<float>(kBrain ? Bf16ToFloat(half) : F16ToFloat(half));
  });
}
// One, or two of which the first becomes the upper half. kFinite: the largest of f16 for what is beyond it.
template <bool kBrain, bool kFinite = false>
void ToHalf(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* const out = SlotOf<uint32_t>(w, i.args[0]);
  const auto half = [&](const Arg& a, int l) {
    float x = FromRaw<float>(SlotOf<float>(w, a)[l]);
    if (kFinite && std::fabs(x) > 65504) x = std::copysign(65504.0f, x);
    return uint32_t{kBrain ? FloatToBf16(x) : FloatToF16(x)};
  };
  const bool pair = i.n_args == 3;
  ForLanes(lanes, [&](int l) {
    out[l] = pair ? half(i.args[1], l) << 16 | half(i.args[2], l) : half(i.args[1], l);
  });
}

// a * b + c of pairs of f16: products of theirs, and sums with a third, are exact in f64 but for what rounds
// to nothing beside the rest.
void FusedHalves(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* const out = SlotOf<uint32_t>(w, i.args[0]);
  const uint32_t* in[3];
  for (size_t k = 0; k < 3; ++k) in[k] = SlotOf<uint32_t>(w, i.args[k + 1]);
  ForLanes(lanes, [&](int l) {
    uint32_t pair = 0;
    for (int shift = 0; shift < 32; shift += 16) {
      const auto half = [&](size_t k) {
        return double{F16ToFloat(static_cast<uint16_t>(in[k][l] >> shift))};
      };
      const double sum = half(0) * half(1) + half(2);
      pair |= uint32_t{FloatToF16(static_cast<float>(sum))} << shift;
    }
    out[l] = pair;
  });
}

// ---- moves ----

template <typename T>
void Move(Warp& w, const Instruction& i, uint32_t lanes) {
  Raw<T>* const out = SlotOf<T>(w, i.args[0]);
  const Raw<T>* const in = SlotOf<T>(w, i.args[1]);
  ForLanes(lanes, [&](int l) { out[l] = in[l]; });
}
void MovePredicate(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t in = w.Predicate(i.args[1]);
  uint32_t& out = w.predicates[i.args[0].slot];
  out = (out & ~lanes) | (in & lanes);
}
// The first of several lies lowest.
template <typename Whole, typename Part>
void Pack(Warp& w, const Instruction& i, uint32_t lanes) {
  Raw<Whole>* const out = SlotOf<Whole>(w, i.args[0]);
  const Raw<Part>*low = SlotOf<Part>(w, i.args[1]), *high = SlotOf<Part>(w, i.args[2]);
  ForLanes(lanes, [&](int l) {
    out[l] = static_cast<Whole>(static_cast<Part>(high[l])) << (8 * sizeof(Part)) | static_cast<Part>(low[l]);
  });
}
template <typename Whole, typename Part>
void Unpack(Warp& w, const Instruction& i, uint32_t lanes) {
  const Raw<Whole>* const in = SlotOf<Whole>(w, i.args[2]);
  Raw<Part>*low = SlotOf<Part>(w, i.args[0]), *high = SlotOf<Part>(w, i.args[1]);
  ForLanes(lanes, [&](int l) {
    const Raw<Whole> whole = in[l];
    low[l] = static_cast<Part>(whole), high[l] = static_cast<Part>(whole >> (8 * sizeof(Part)));
  });
}

}  // namespace

Handler FindComparison(const Opcode& op) {
  const std::string_view type = op.Type();
  if (op.Is("selp")) {
    const std::string_view bits = type.substr(1);
    return bits == "64" ? Choose<uint64_t> : bits == "32" || bits == "16" ? Choose<uint32_t> : nullptr;
  }
  if (!op.Is("setp") || op.parts.size() != 3) return nullptr;
  std::string_view order = op.parts[1];
  if (order.size() == 3 && order[2] == 'u' && type[0] == 'f')
    return CompareBy<true>(order.substr(0, 2), type);
  return CompareBy<false>(order, type);
}

Handler FindConversion(const Opcode& op, Instruction* i) {
  if (op.Is("fma") && op.Has("rn") && op.Type() == "f16x2" && op.parts.size() == 3) return FusedHalves;
  if (!op.Is("cvt") || op.Has("ftz") || op.Has("relu")) return nullptr;
  const std::string_view to = op.Type(1), from = op.Type();
  if (from == "f16" || from == "bf16")
    return to != "f32" ? nullptr : from == "f16" ? FromHalf<false> : FromHalf<true>;
  const std::string_view rounding = op.parts.size() > 3 ? op.parts[1] : "";
  const bool finite = op.parts.size() == 5 && op.parts[2] == "satfinite";
  if (finite && rounding == "rn" && from == "f32" && to == (i->n_args == 3 ? "f16x2" : "f16"))
    return ToHalf<false, true>;
  if (op.parts.size() > 4) return nullptr;
  if (from == "f32" && rounding == "rn") {
    const bool pair = i->n_args == 3;
    if (to == (pair ? "f16x2" : "f16")) return ToHalf<false>;
    if (to == (pair ? "bf16x2" : "bf16")) return ToHalf<true>;
  }
  if (i->n_args != 2) return nullptr;
  i->mode = rounding == "rni"   ? kNearest
            : rounding == "rzi" ? kToZero
            : rounding == "rmi" ? kDown
            : rounding == "rpi" ? kUp
            : rounding == "sat" ? kSaturate
                                : kPlain;
  if (i->mode == kPlain && rounding != "" && rounding != "rn") return nullptr;
  return ConvertTo(to, from);
}

Handler FindMove(const Opcode& op, const Instruction& i) {
  if (!op.Is("mov")) return nullptr;
  if (op.Type() == "pred") return MovePredicate;
  const bool wide = op.Type().substr(1) == "64";
  if (i.n_args == 2) return wide ? Move<uint64_t> : Move<uint32_t>;
  if (i.n_args != 3) return nullptr;
  if (i.n_results == 1) return wide ? Pack<uint64_t, uint32_t> : Pack<uint32_t, uint16_t>;
  return wide ? Unpack<uint64_t, uint32_t> : Unpack<uint32_t, uint16_t>;
}

}  // namespace kvc::emu::ptx
