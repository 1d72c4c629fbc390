// main of a fuzz target in the test suite: feeds it the files of the folders named on the command line, and
// each file cut at a few places. A folder that does not exist is empty.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes);

namespace {

std::vector<uint8_t> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::vector<uint8_t>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

int main(int argc, char** argv) {
  int n_files = 0;
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      const std::vector<uint8_t> data = ReadFile(entry.path());
      for (const size_t parts : {1, 2, 3, 7}) LLVMFuzzerTestOneInput(data.data(), data.size() / parts);
      ++n_files;
    }
  }
  std::printf("%d files\n", n_files);
  return 0;
}
