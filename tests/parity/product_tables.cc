#include <algorithm>

#include "tests/parity/cases.h"

namespace kvc {

extern const KernelTable kAvxVnniEvexTable;

namespace parity {

std::vector<const KernelTable*> ProductTables() {
  std::vector<const KernelTable*> tables = Tables();
#if defined(__x86_64__)
  const auto has = [&](const char* name) {
    return std::any_of(tables.begin(), tables.end(),
                       [&](auto* t) { return std::strcmp(t->name, name) == 0; });
  };
  static KernelTable evex;
  if (has("avx512vnni")) {
    evex = *tables[1];  // AVX2's, which it extends
    evex.name = "avxvnni, EVEX";
    evex.matmul = kAvxVnniEvexTable.matmul, evex.matmul_panels = kAvxVnniEvexTable.matmul_panels;
    tables.push_back(&evex);
  }
#endif
  return tables;
}

}  // namespace parity
}  // namespace kvc
