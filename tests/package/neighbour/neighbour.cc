// A program that has functions with the names of PCRE2, utf8proc, FlatBuffers and of libkvc's own inside, as
// another version of these libraries would. Whoever calls one of them from libkvc is counted; then libkvc is
// run.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {
int n_strange_calls = 0;
}

#define KVC_TEST_TAKEN(name) \
  extern "C" __attribute__((visibility("default"))) void* name() { return ++n_strange_calls, nullptr; }
KVC_TEST_TAKEN(pcre2_compile_8)
KVC_TEST_TAKEN(pcre2_match_8)
KVC_TEST_TAKEN(pcre2_jit_compile_8)
KVC_TEST_TAKEN(pcre2_match_data_create_8)
KVC_TEST_TAKEN(pcre2_compile_context_create_8)
KVC_TEST_TAKEN(_pcre2_ord2utf_8)
KVC_TEST_TAKEN(utf8proc_get_property)
KVC_TEST_TAKEN(utf8proc_decompose_char)
KVC_TEST_TAKEN(utf8proc_normalize_utf32)
KVC_TEST_TAKEN(XXH3_64bits)

namespace flatbuffers {  // as in flatbuffers/verifier.h and table.h, but not the same
struct String;
class Verifier {
 public:
  bool VerifyString(const String*) const;
  bool VerifyVectorOrString(const uint8_t*, size_t, size_t*) const;
};
class Table {
 public:
  bool VerifyOffset(const Verifier&, uint16_t) const;
  bool VerifyOffsetRequired(const Verifier&, uint16_t) const;
};
bool Verifier::VerifyString(const String*) const { return ++n_strange_calls, false; }
bool Verifier::VerifyVectorOrString(const uint8_t*, size_t, size_t*) const {
  return ++n_strange_calls, false;
}
bool Table::VerifyOffset(const Verifier&, uint16_t) const { return ++n_strange_calls, false; }
bool Table::VerifyOffsetRequired(const Verifier&, uint16_t) const { return ++n_strange_calls, false; }
}  // namespace flatbuffers

extern "C" int kvc_program(int argc, char** argv);

int main(int argc, char** argv) {
  // They are this program's own, and work.
  if (pcre2_compile_8() != nullptr || flatbuffers::Verifier().VerifyString(nullptr) || n_strange_calls != 2)
    return 3;
  n_strange_calls = 0;
  const int code = kvc_program(argc, argv);
  if (n_strange_calls != 0)
    std::fprintf(stderr, "libkvc called %d functions of the program\n", n_strange_calls);
  return n_strange_calls != 0 ? 4 : code;
}
