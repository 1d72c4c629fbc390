// The options of policies: one list (options.list), read by everyone.
#pragma once
#include <cstdint>

namespace kvc {

enum class OptionKind : uint8_t { kInt, kReal, kFlag, kChoice, kBytes, kLevels };

enum class OptionId : uint8_t {
#define KVC_OPTION(id, ...) k##id,
#include "lib/compress/options.list"
#undef KVC_OPTION
  kCount
};
constexpr int kOptionCount = static_cast<int>(OptionId::kCount);

struct Option {
  OptionId id;
  const char* key;
  OptionKind kind;
  double min, max, default_value;
  const char* choices;  // "a|b|c"
  const char* help;
};

const Option& GetOption(OptionId id);
const Option* FindOption(const char* key, int n_key);  // null: no such key

}  // namespace kvc
