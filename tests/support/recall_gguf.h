// models/recall as a GGUF file whose matrices are all of one type, the same bytes on every machine: what
// llama.cpp's vectors are of (tests/vectors/make_llamacpp_vectors.py), made anew by the test that reads them.
#pragma once
#include <string>

#include "lib/base/status.h"
#include "tests/support/gguf_blocks.h"

namespace kvc::test {

// source: the folder of the model. Its vocabulary becomes one of bytes and fillers: for token ids, not texts.
Status WriteRecallGguf(const std::string& source, const BlockForm& form, const std::string& path);

}  // namespace kvc::test
