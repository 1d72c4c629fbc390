// Philox4x32-10, the one source of random numbers: counter-based, so any worker can make any draw
// (methods.md 3.8). For device code too.
#pragma once
#include <array>
#include <cstdint>

namespace kvc {

// The last counter word of a draw says what it is for, so that draws of one seed stay apart.
constexpr uint32_t kSampleDraw = 0x54;  // a token
constexpr uint32_t kSelectDraw = 0x4E;  // an entry that is kept (methods.md 2.17)
constexpr uint32_t kSpreadDraw = 0xCA;  // whether a value is spread (methods.md 2.9)

// Four output words for one counter. Key = (low, high) word of the 64-bit seed.
constexpr std::array<uint32_t, 4> Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0,
                   n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = static_cast<uint32_t>(b), c2 = n2, c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// A 32-bit word as a number in [0, 1): (x >> 8) * 2^-24.
constexpr double Uniform(uint32_t word) { return static_cast<double>(word >> 8) * 5.9604644775390625e-8; }

}  // namespace kvc
