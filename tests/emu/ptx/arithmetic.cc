// What a lane computes on its own (PTX ISA, 9.7.1 to 9.7.8).
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/emu/ptx/program.h"

namespace kvc::emu::ptx {
namespace {

template <typename T>
constexpr bool kFloat = std::is_floating_point_v<T>;
template <typename T, bool kIs = std::is_integral_v<T>>
struct UnsignedOf {
  using Type = T;
};
template <typename T>
struct UnsignedOf<T, true> {
  using Type = std::make_unsigned_t<T>;
};
// Whole numbers wrap.
template <typename T>
using Wrapping = typename UnsignedOf<T>::Type;

template <typename Op, typename D, typename... A, size_t... I>
void MapWith(Warp& w, const Instruction& i, uint32_t lanes, std::index_sequence<I...>) {
  Raw<D>* const out = SlotOf<D>(w, i.args[0]);
  const std::tuple<Raw<A>*...> in{SlotOf<A>(w, i.args[I + 1])...};
  ForLanes(lanes,
           [&](int l) { out[l] = ToRaw<D>(Op::template Do<A...>(FromRaw<A>(std::get<I>(in)[l])...)); });
}
template <typename Op, typename D, typename... A>
void Map(Warp& w, const Instruction& i, uint32_t lanes) {
  MapWith<Op, D, A...>(w, i, lanes, std::index_sequence_for<A...>());
}

#define KVC_PTX_UNARY(Name, expression)  \
  struct Name {                          \
    template <typename T>                \
    static T Do(T a) {                   \
      return static_cast<T>(expression); \
    }                                    \
  };
#define KVC_PTX_BINARY(Name, expression) \
  struct Name {                          \
    template <typename T, typename = T>  \
    static T Do(T a, T b) {              \
      return static_cast<T>(expression); \
    }                                    \
  };
KVC_PTX_BINARY(Add, static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b))
KVC_PTX_BINARY(Sub, static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b))
KVC_PTX_BINARY(And, a& b)
KVC_PTX_BINARY(Or, a | b)
KVC_PTX_BINARY(Xor, a ^ b)
KVC_PTX_UNARY(Not, ~a)
KVC_PTX_UNARY(Negate, kFloat<T> ? -a : static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(a)))
KVC_PTX_UNARY(Absolute,
              a < 0 || (a == 0 && kFloat<T>) ? static_cast<T>(std::fabs(static_cast<double>(a))) : a)
KVC_PTX_UNARY(Reciprocal, T{1} / a)
KVC_PTX_UNARY(SquareRoot, std::sqrt(a))
#undef KVC_PTX_UNARY
#undef KVC_PTX_BINARY

struct AbsoluteFloat {
  template <typename T>
  static T Do(T a) {
    return std::fabs(a);
  }
};
// The sign of a, the rest of b.
struct CopySign {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Multiply {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    if constexpr (kFloat<T>) {
      return a * b;
    } else {
      return static_cast<T>(uint64_t{1} * static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    }
  }
};
template <typename T>
using Wide = std::conditional_t<sizeof(T) == 8, __int128, int64_t>;
struct MultiplyHigh {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    return static_cast<T>((static_cast<__int128>(a) * static_cast<__int128>(b)) >> (8 * sizeof(T)));
  }
};
template <typename D>
struct MultiplyWide {
  template <typename T, typename = T>
  static D Do(T a, T b) {
    return static_cast<D>(static_cast<D>(a) * static_cast<D>(b));
  }
};
struct MultiplyAdd {
  template <typename T, typename = T, typename = T>
  static T Do(T a, T b, T c) {
    return Add::Do<T>(Multiply::Do<T>(a, b), c);
  }
};
template <typename D>
struct MultiplyAddWide {
  template <typename T, typename, typename>
  static D Do(T a, T b, D c) {
    return Add::Do<D>(MultiplyWide<D>::template Do<T>(a, b), c);
  }
};
struct Fused {
  template <typename T, typename = T, typename = T>
  static T Do(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
// Rounded down.
struct FusedDown {
  template <typename T, typename = T, typename = T>
  static T Do(T a, T b, T c) {
    const int before = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    volatile T x = a;
    const T result = std::fma(x, b, c);
    std::fesetround(before);
    return result;
  }
};
struct Divide {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    if constexpr (kFloat<T>) {
      return a / b;
    } else {
      if (b == 0) return static_cast<T>(~T{0});
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub::Do<T>(0, a);
      return static_cast<T>(a / b);
    }
  }
};
struct Remainder {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return b == 0 ? a : 0;
    return static_cast<T>(a % b);
  }
};
// Of numbers, the one that is one.
struct Least {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    if constexpr (kFloat<T>) {
      return a == 0 && b == 0 ? (std::signbit(a) ? a : b) : std::fmin(a, b);
    } else {
      return a < b ? a : b;
    }
  }
};
struct Most {
  template <typename T, typename = T>
  static T Do(T a, T b) {
    if constexpr (kFloat<T>) {
      return a == 0 && b == 0 ? (std::signbit(a) ? b : a) : std::fmax(a, b);
    } else {
      return a > b ? a : b;
    }
  }
};
struct ShiftLeft {
  template <typename T, typename = uint32_t>
  static T Do(T a, uint32_t n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << n);
  }
};
struct ShiftRight {
  template <typename T, typename = uint32_t>
  static T Do(T a, uint32_t n) {
    if (n >= 8 * sizeof(T)) return static_cast<T>(a < 0 ? -1 : 0);
    return static_cast<T>(a >> n);
  }
};
struct CountOnes {
  template <typename T>
  static uint32_t Do(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
  }
};
struct CountLeadingZeros {
  template <typename T>
  static uint32_t Do(T a) {
    if (a == 0) return 8 * sizeof(T);
    return static_cast<uint32_t>(__builtin_clzll(a)) - (64 - 8 * sizeof(T));
  }
};
// b's bits from c on, d of them, become a's lowest.
struct Insert {
  template <typename T, typename, typename, typename>
  static T Do(T a, T b, uint32_t at, uint32_t n) {
    at &= 0xff, n &= 0xff;
    T result = b;
    for (uint32_t k = 0; k < n && at + k < 8 * sizeof(T); ++k) {
      const T bit = T{1} << (at + k);
      result = (a >> k & 1) != 0 ? result | bit : result & ~bit;
    }
    return result;
  }
};
struct DotBytes {
  template <typename, typename, typename>
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c) {
    for (int k = 0; k < 32; k += 8)
      c += static_cast<uint32_t>(static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k));
    return c;
  }
};
struct LogicOfThree {
  template <typename, typename, typename, typename>
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      if ((table >> k & 1) != 0)
        result |= ((k & 4) != 0 ? a : ~a) & ((k & 2) != 0 ? b : ~b) & ((k & 1) != 0 ? c : ~c);
    }
    return result;
  }
};
struct Permute {
  template <typename, typename, typename>
  static uint32_t Do(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = uint64_t{b} << 32 | a;
    uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t s = selector >> (4 * k) & 0xf;
      uint32_t byte = static_cast<uint32_t>(both >> ((s & 7) * 8)) & 0xff;
      if ((s & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * k);
    }
    return result;
  }
};
// The instruction may be off by some units in its last place; numbers without leading zeros only.
struct PowerOfTwoFlushed {
  template <typename>
  static float Do(float a) {
    const float y = std::exp2(a);
    return y < std::numeric_limits<float>::min() ? 0.0f : y;
  }
};
struct ReciprocalFlushed {
  template <typename>
  static float Do(float a) {
    if (std::fabs(a) < std::numeric_limits<float>::min()) a = std::copysign(0.0f, a);
    const float y = 1.0f / a;
    return std::fabs(y) < std::numeric_limits<float>::min() ? std::copysign(0.0f, y) : y;
  }
};

// Of the upper half of a number, and so is what comes: where divisions in f64 begin.
struct RoughReciprocal {
  template <typename>
  static double Do(double a) {
    const auto upper = [](double x) { return FromRaw<double>(ToRaw<double>(x) & 0xffffffff00000000u); };
    if (std::fabs(a) < std::numeric_limits<double>::min()) a = std::copysign(0.0, a);
    const double y = upper(1.0 / upper(a));
    return std::fabs(y) < std::numeric_limits<double>::min() ? std::copysign(0.0, y) : y;
  }
};

// An operation of types that it knows, by the type's name.
template <typename Op>
Handler OfAny(std::string_view type) {
  return ByType(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfWhole(std::string_view type) {
  return ByWhole(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfFloats(std::string_view type) {
  return ByFloat(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfOneWhole(std::string_view type) {
  return ByWhole(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfOneFloat(std::string_view type) {
  return ByFloat(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfThreeFloats(std::string_view type) {
  return ByFloat(
      type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t), decltype(t), decltype(t)>; });
}
template <typename Op>
Handler OfShift(std::string_view type) {
  return ByWhole(type, [](auto t) -> Handler { return Map<Op, decltype(t), decltype(t), uint32_t>; });
}
Handler WideProduct(std::string_view type, bool add) {
  if (type == "s32")
    return add ? Map<MultiplyAddWide<int64_t>, int64_t, int32_t, int32_t, int64_t>
               : Map<MultiplyWide<int64_t>, int64_t, int32_t, int32_t>;
  if (type == "u32")
    return add ? Map<MultiplyAddWide<uint64_t>, uint64_t, uint32_t, uint32_t, uint64_t>
               : Map<MultiplyWide<uint64_t>, uint64_t, uint32_t, uint32_t>;
  if (add) return nullptr;
  if (type == "s16") return Map<MultiplyWide<int32_t>, int32_t, int16_t, int16_t>;
  if (type == "u16") return Map<MultiplyWide<uint32_t>, uint32_t, uint16_t, uint16_t>;
  return nullptr;
}

// Sums of 32 bits that carry into the next one. kind: 0 add, 1 subtract, 2 the lower and 3 the upper half of
// a product, which is added to.
template <int kKind, bool kTakes, bool kGives>
void Carrying(Warp& w, const Instruction& i, uint32_t lanes) {
  const int n = kKind >= 2 ? 3 : 2;
  uint32_t* const out = SlotOf<uint32_t>(w, i.args[0]);
  const uint32_t *a = SlotOf<uint32_t>(w, i.args[1]), *b = SlotOf<uint32_t>(w, i.args[2]);
  const uint32_t* c = n == 3 ? SlotOf<uint32_t>(w, i.args[3]) : nullptr;
  ForLanes(lanes, [&](int l) {
    const uint64_t carry = kTakes ? w.carry[static_cast<size_t>(l)] : 0;
    uint64_t x = a[l], y = b[l];
    if (kKind >= 2) {
      const uint64_t product = x * y;
      x = kKind == 3 ? product >> 32 : product & 0xffffffffu, y = c[l];
    }
    const uint64_t sum = kKind == 1 ? x - y - carry : x + y + carry;
    if (kGives) w.carry[static_cast<size_t>(l)] = static_cast<uint32_t>(sum >> 32 & 1);
    out[l] = static_cast<uint32_t>(sum);
  });
}
template <int kKind>
Handler CarryingBy(bool takes, bool gives) {
  if (takes) return gives ? Carrying<kKind, true, true> : Carrying<kKind, true, false>;
  return gives ? Carrying<kKind, false, true> : nullptr;
}
Handler FindCarrying(const Opcode& op) {
  if (op.Type() != "u32" && op.Type() != "s32") return nullptr;
  const bool gives = op.Has("cc");
  if (op.Is("add") || op.Is("addc")) return CarryingBy<0>(op.Is("addc"), gives);
  if (op.Is("sub") || op.Is("subc")) return CarryingBy<1>(op.Is("subc"), gives);
  if (op.Type() != "u32" || (!op.Is("mad") && !op.Is("madc"))) return nullptr;
  return op.Has("hi") ? CarryingBy<3>(op.Is("madc"), gives) : CarryingBy<2>(op.Is("madc"), gives);
}

template <typename Op>
void OfPredicates(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t a = w.Predicate(i.args[1]), b = i.n_args > 2 ? w.Predicate(i.args[2]) : 0;
  uint32_t& out = w.predicates[i.args[0].slot];
  out = (out & ~lanes) | (Op::template Do<uint32_t>(a, b) & lanes);
}
struct NotFirst {
  template <typename>
  static uint32_t Do(uint32_t a, uint32_t) {
    return ~a;
  }
};
Handler FindBits(const Opcode& op) {
  const std::string_view type = op.Type();
  const bool predicate = type == "pred";
  if (op.Is("and")) return predicate ? OfPredicates<And> : OfWhole<And>(type);
  if (op.Is("or")) return predicate ? OfPredicates<Or> : OfWhole<Or>(type);
  if (op.Is("xor")) return predicate ? OfPredicates<Xor> : OfWhole<Xor>(type);
  if (op.Is("not")) return predicate ? OfPredicates<NotFirst> : OfOneWhole<Not>(type);
  if (op.Is("shl")) return OfShift<ShiftLeft>(type);
  if (op.Is("shr")) return OfShift<ShiftRight>(type);
  if (op.Is("prmt") && op.parts.size() == 2) return Map<Permute, uint32_t, uint32_t, uint32_t, uint32_t>;
  if (op.Is("lop3") && op.parts.size() == 2)
    return Map<LogicOfThree, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  if (op.Is("dp4a") && op.parts.size() == 3 && op.parts[1] == "s32" && type == "s32")
    return Map<DotBytes, uint32_t, uint32_t, uint32_t, uint32_t>;
  if (op.Is("clz"))
    return type == "b32" ? Map<CountLeadingZeros, uint32_t, uint32_t>
                         : Map<CountLeadingZeros, uint32_t, uint64_t>;
  if (op.Is("popc"))
    return type == "b32" ? Map<CountOnes, uint32_t, uint32_t> : Map<CountOnes, uint32_t, uint64_t>;
  if (op.Is("bfi"))
    return type == "b32" ? Map<Insert, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>
                         : Map<Insert, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t>;
  return nullptr;
}
Handler FindFloat(const Opcode& op) {
  const std::string_view type = op.Type();
  // What flushes numbers with leading zeros is known for three instructions alone.
  if (op.Has("ftz")) {
    if (type == "f32" && op.Has("approx")) {
      if (op.Is("ex2")) return Map<PowerOfTwoFlushed, float, float>;
      if (op.Is("rcp")) return Map<ReciprocalFlushed, float, float>;
    }
    return type == "f64" && op.Is("rcp") && op.Has("approx") ? Map<RoughReciprocal, double, double> : nullptr;
  }
  if (op.Is("fma"))
    return op.Has("rm")   ? OfThreeFloats<FusedDown>(type)
           : op.Has("rn") ? OfThreeFloats<Fused>(type)
                          : nullptr;
  if (op.Is("div")) return op.Has("rn") ? OfFloats<Divide>(type) : nullptr;
  if (op.Is("rcp")) return op.Has("rn") ? OfOneFloat<Reciprocal>(type) : nullptr;
  if (op.Is("sqrt")) return op.Has("rn") ? OfOneFloat<SquareRoot>(type) : nullptr;
  if (op.Is("abs")) return OfOneFloat<AbsoluteFloat>(type);
  if (op.Is("neg")) return OfOneFloat<Negate>(type);
  if (op.Is("copysign")) return OfFloats<CopySign>(type);
  return nullptr;
}

}  // namespace

Handler FindArithmetic(const Opcode& op) {
  const std::string_view type = op.Type();
  const bool is_float = type[0] == 'f';
  for (std::string_view part : op.parts) {
    if (part == "rz" || part == "rp" || part == "sat" || (part == "rm" && !op.Is("fma"))) return nullptr;
  }
  if (op.Has("cc") || op.Is("addc") || op.Is("subc") || op.Is("madc")) return FindCarrying(op);
  if (const Handler bits = FindBits(op)) return bits;
  if (is_float) {
    if (const Handler handler = FindFloat(op)) return handler;
    if (op.Has("ftz")) return nullptr;
  }
  if (op.Is("add")) return OfAny<Add>(type);
  if (op.Is("sub")) return OfAny<Sub>(type);
  if (op.Is("min")) return OfAny<Least>(type);
  if (op.Is("max")) return OfAny<Most>(type);
  if (op.Is("mul")) {
    if (op.Has("wide")) return WideProduct(type, false);
    if (op.Has("hi")) return OfWhole<MultiplyHigh>(type);
    return is_float || op.Has("lo") ? OfAny<Multiply>(type) : nullptr;
  }
  if (is_float) return nullptr;
  if (op.Is("mad")) {
    if (op.Has("wide")) return WideProduct(type, true);
    if (!op.Has("lo")) return nullptr;
    if (type == "s32" || type == "u32") return Map<MultiplyAdd, uint32_t, uint32_t, uint32_t, uint32_t>;
    if (type == "s64" || type == "u64") return Map<MultiplyAdd, uint64_t, uint64_t, uint64_t, uint64_t>;
    return type[1] == '1' ? Map<MultiplyAdd, uint16_t, uint16_t, uint16_t, uint16_t> : nullptr;
  }
  if (op.Is("div")) return OfWhole<Divide>(type);
  if (op.Is("rem")) return OfWhole<Remainder>(type);
  if (op.Is("neg")) return OfOneWhole<Negate>(type);
  if (op.Is("abs")) return type == "s32" ? Map<Absolute, int32_t, int32_t> : nullptr;
  return nullptr;
}

}  // namespace kvc::emu::ptx
