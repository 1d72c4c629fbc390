#include "lib/base/byte_size.h"

#include "lib/base/decimal.h"
#include "lib/base/trim.h"

namespace kvc {

bool ReadByteSize(std::string_view text, double* n_bytes) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  // What ends like another comes before it.
  constexpr Unit kUnits[] = {{"KiB", 1024.0},       {"MiB", 1048576.0},
                             {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
                             {"kB", 1e3},           {"KB", 1e3},
                             {"MB", 1e6},           {"GB", 1e9},
                             {"TB", 1e12},          {"B", 1},
                             {"K", 1024.0},         {"M", 1048576.0},
                             {"G", 1073741824.0},   {"T", 1099511627776.0}};
  text = Trim(text);
  double unit = 1;
  for (const Unit& u : kUnits) {
    if (text.size() <= u.name.size() || text.substr(text.size() - u.name.size()) != u.name) continue;
    unit = u.bytes;
    text = Trim(text.substr(0, text.size() - u.name.size()));
    break;
  }
  if (!ReadDecimal(text, n_bytes)) return false;
  *n_bytes *= unit;
  return true;
}

}  // namespace kvc
