// The converter's parsers on arbitrary bytes: the first byte chooses the parser, the rest is its input.
#include "models/convert/gguf.h"
#include "models/convert/gguf_metadata.h"
#include "models/convert/gguf_tokenizer.h"
#include "models/convert/head_scores_json.h"
#include "models/convert/hf_config.h"
#include "models/convert/safetensors.h"
#include "models/convert/sources.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvc;
  if (size == 0) return 0;
  const Span<const uint8_t> input(data + 1, size - 1);
  switch (data[0] % 5) {
    case 0: {
      // What the header claims must lie inside the data it was checked against.
      const int64_t data_bytes = static_cast<int64_t>(size) * 3;
      const auto entries = ParseSafetensorsHeader(input, data_bytes, "fuzz");
      if (!entries.ok()) break;
      for (const SafetensorsEntry& entry : entries.value()) {
        if (entry.begin < 0 || entry.begin > entry.end || entry.end > data_bytes) __builtin_trap();
      }
      break;
    }
    case 1: {
      const auto header = ParseGguf(input, static_cast<int64_t>(input.size()), "fuzz");
      if (!header.ok()) break;
      GgufMetadata metadata(header.value(), "fuzz");
      const auto tokenizer = ReadGgufTokenizer(&metadata);
      if (tokenizer.ok() && tokenizer.value().pieces.size() != tokenizer.value().piece_kinds.size())
        __builtin_trap();
      break;
    }
    case 2:
      (void)ParseLlama2cHeader(input, static_cast<int64_t>(input.size()), "fuzz");
      break;
    case 3:
      (void)ParseHfConfig(input, "fuzz");
      break;
    case 4: {
      ModelConfig config;
      config.n_layers = 2, config.n_heads = 4, config.n_kv_heads = 2;
      const auto tables = ParseHeadScores(input, "fuzz", config);
      if (!tables.ok()) break;
      for (const HeadScoreTable& table : tables.value()) {
        if (table.scores.size() != static_cast<size_t>(table.n_layers) * static_cast<size_t>(table.n_columns))
          __builtin_trap();
      }
      break;
    }
  }
  return 0;
}
