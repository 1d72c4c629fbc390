// models/recall as a GGUF file with matrices of one type: recall_gguf MODEL_DIR q8_0|q4_0|q4_k OUT.gguf
// For make_llamacpp_vectors.py; the test that reads its vectors makes the same file.
#include <cstdio>
#include <string>

#include "tests/support/recall_gguf.h"

int main(int argc, char** argv) {
  using namespace kvc;
  if (argc == 4) {
    for (const test::BlockForm* form : {&test::kQ8_0Blocks, &test::kQ4_0Blocks, &test::kQ4KBlocks}) {
      if (std::string(argv[2]) != form->name) continue;
      const Status status = test::WriteRecallGguf(argv[1], *form, argv[3]);
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
      return status.ok() ? 0 : 1;
    }
  }
  return std::fprintf(stderr, "usage: recall_gguf MODEL_DIR q8_0|q4_0|q4_k OUT.gguf\n"), 2;
}
