// Shapes of models people run; bench/shapes.py has the same ones for GGUF files (gpu_script_test compares).
#pragma once
#include <cstdint>

namespace kvc::bench {

// What a Llama-like model with tied embeddings is made of.
struct ModelShape {
  const char* name;
  int32_t layers, hidden, feed_forward, heads, kv_heads, head_size, vocabulary, context;
  double theta;
};

constexpr ModelShape kModelShapes[] = {
    {"0.5b", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e6},    // Qwen2.5-0.5B
    {"1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5},    // Llama-3.2-1B
    {"8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5},  // Llama-3.1-8B, but for its own output head
    {"tiny", 2, 256, 512, 4, 2, 64, 512, 4096, 1e4},           // for tests
};

}  // namespace kvc::bench
