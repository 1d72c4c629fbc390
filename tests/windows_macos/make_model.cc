// make_model SOURCE OUT [HEAD_SCORES]...: what kvc convert does, where that program is not built.
#include <cstdio>

#include "models/convert/convert.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  kvc::ConvertOptions options;
  options.head_score_files.assign(argv + 3, argv + argc);
  const kvc::Status status = kvc::Convert(argv[1], argv[2], options, nullptr);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
