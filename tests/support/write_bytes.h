// Model files in memory, written.
#pragma once
#include <fstream>
#include <string>

#include "tests/support/tiny_model.h"

namespace kvc::test {

// before: what stands in front of them in the file, as where a model lies inside a package.
inline void WriteBytes(const std::string& path, const AlignedBytes& bytes, const std::string& before = "") {
  std::ofstream out(path, std::ios::binary);
  out << before;
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace kvc::test
