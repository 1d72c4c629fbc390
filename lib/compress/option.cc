#include "lib/compress/option.h"

#include <string_view>

namespace kvc {
namespace {

constexpr Option kOptions[] = {
#define KVC_OPTION(id, key, kind, min, max, default_value, choices, help) \
  {OptionId::k##id, key, OptionKind::k##kind, min, max, default_value, choices, help},
#include "lib/compress/options.list"
#undef KVC_OPTION
};

}  // namespace

const Option& GetOption(OptionId id) { return kOptions[static_cast<int>(id)]; }

const Option* FindOption(const char* key, int n_key) {
  const std::string_view wanted(key, n_key > 0 ? static_cast<size_t>(n_key) : 0);
  for (const Option& option : kOptions) {
    if (wanted == option.key) return &option;
  }
  return nullptr;
}

}  // namespace kvc
