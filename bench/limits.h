// What one core of this machine can do at most, measured now: the bound that kernels are held against.
#pragma once

namespace kvc::bench {

struct Limits {
  double read = 0;  // bytes a second, from a buffer larger than the caches
  double fma = 0;   // f32 operations a second, two a multiply-add, in registers
  double dot =
      0;  // int8 operations a second, two a product, in registers: dot products, or what comes nearest
  double pairs = 0;  // bf16 operations a second, in registers; 0: the processor has no products of bf16
};

// One thread, best of some runs each, by the processor time of the calling thread.
Limits MeasureLimits();

// The shortest time in which so many operations (of a rate of `peak`) and bytes from memory can be done.
inline double LeastSeconds(double operations, double peak, double bytes, const Limits& limits) {
  const double compute = peak > 0 ? operations / peak : 0, memory = limits.read > 0 ? bytes / limits.read : 0;
  return compute > memory ? compute : memory;
}

}  // namespace kvc::bench
