#include "tests/support/gguf_blocks.h"

#include <algorithm>
#include <cmath>

#include "lib/base/half.h"

namespace kvc::test {
namespace {

void PutHalf(uint16_t bits, uint8_t* to) {
  to[0] = static_cast<uint8_t>(bits & 255), to[1] = static_cast<uint8_t>(bits >> 8);
}

// The nearest of `most` + 1 multiples of step, from 0.
uint8_t Level(float x, float step, int most) {
  return static_cast<uint8_t>(step > 0 ? std::clamp(std::lrint(x / step), 0L, static_cast<long>(most)) : 0);
}

void ToQ8_0(const float* x, uint8_t* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
  const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
  PutHalf(FloatToF16(scale), out);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(std::lround(x[i] * inverse));
}

void ToQ4_0(const float* x, uint8_t* out) {
  float most = 0;  // with its sign
  for (int i = 0; i < 32; ++i) most = std::fabs(x[i]) > std::fabs(most) ? x[i] : most;
  const float scale = most / -8, inverse = scale != 0 ? 1 / scale : 0;
  PutHalf(FloatToF16(scale), out);
  const auto code = [&](int i) { return std::min(15, static_cast<int>(x[i] * inverse + 8.5f)); };
  for (int i = 0; i < 16; ++i) out[2 + i] = static_cast<uint8_t>(code(i) | code(16 + i) << 4);
}

void ToQ4K(const float* x, uint8_t* out) {
  float scale[8], low[8], most_scale = 0, most_low = 0;
  for (int g = 0; g < 8; ++g) {
    const auto [least, most] = std::minmax_element(x + 32 * g, x + 32 * g + 32);
    low[g] = std::max(0.0f, -*least), scale[g] = std::max(0.0f, (*most + low[g]) / 15);
    most_scale = std::max(most_scale, scale[g]), most_low = std::max(most_low, low[g]);
  }
  const uint16_t d = FloatToF16(most_scale / 63), least = FloatToF16(most_low / 63);
  PutHalf(d, out), PutHalf(least, out + 2);
  std::fill(out + 4, out + kQ4KBlocks.bytes, uint8_t{0});
  for (int g = 0; g < 8; ++g) {
    const uint8_t s = Level(scale[g], F16ToFloat(d), 63), m = Level(low[g], F16ToFloat(least), 63);
    uint8_t* b = out + 4;
    if (g < 4) {
      b[g] |= s, b[g + 4] |= m;
    } else {
      b[g + 4] = static_cast<uint8_t>((s & 15) | (m & 15) << 4);
      b[g - 4] = static_cast<uint8_t>(b[g - 4] | s >> 4 << 6),
            b[g] = static_cast<uint8_t>(b[g] | m >> 4 << 6);
    }
    for (int i = 0; i < 32; ++i) {
      const float value = x[32 * g + i] + F16ToFloat(least) * m;
      const int code = Level(std::max(0.0f, value), F16ToFloat(d) * s, 15);
      uint8_t& byte = out[16 + g / 2 * 32 + i];
      byte = static_cast<uint8_t>(byte | code << (g % 2 * 4));
    }
  }
}

void ToQ6K(const float* x, uint8_t* out) {
  float scale[16], most = 0;
  for (int g = 0; g < 16; ++g) {
    scale[g] = 0;
    for (int i = 0; i < 16; ++i) scale[g] = std::max(scale[g], std::fabs(x[16 * g + i]) / 31);
    most = std::max(most, scale[g]);
  }
  const uint16_t d = FloatToF16(most / 127);
  std::fill(out, out + kQ6KBlocks.bytes, uint8_t{0});
  PutHalf(d, out + 208);
  for (int g = 0; g < 16; ++g) out[192 + g] = Level(scale[g], F16ToFloat(d), 127);
  for (int i = 0; i < 256; ++i) {
    const float step = F16ToFloat(d) * out[192 + i / 16];
    const int code = step > 0 ? static_cast<int>(std::clamp(std::lrint(x[i] / step), -32L, 31L)) + 32 : 32;
    const int half = i / 128, j = i % 128;
    uint8_t &low = out[64 * half + j % 64], &high = out[128 + 32 * half + j % 32];
    low = static_cast<uint8_t>(low | (code & 15) << (j / 64 * 4));
    high = static_cast<uint8_t>(high | code >> 4 << (j / 32 * 2));
  }
}

}  // namespace

const BlockForm kQ8_0Blocks = {"q8_0", 8, 32, 34, ToQ8_0}, kQ4_0Blocks = {"q4_0", 2, 32, 18, ToQ4_0},
                kQ4KBlocks = {"q4_k", 12, 256, 144, ToQ4K}, kQ6KBlocks = {"q6_k", 14, 256, 210, ToQ6K};

}  // namespace kvc::test
