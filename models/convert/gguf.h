// The header of a GGUF file (versions 2 and 3, little-endian): metadata and where the tensors lie.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// Numbers of the file format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value of the metadata; a scalar is an array of one. Numbers stay as the file has them, in as many
// bytes.
struct GgufValue {
  GgufType type{};  // of the elements
  bool is_array = false;
  std::vector<uint8_t> numbers;  // whole, floating and truth values, little-endian
  std::vector<std::string> strings;
  // Elements, when they are whole numbers or truth values, or floating ones; else 0.
  size_t n_whole() const;
  size_t n_floating() const;
  // Element i, below its count. (u64 above 2^63 - 1 is refused when it is read.)
  int64_t Whole(size_t i) const;
  double Floating(size_t i) const;
};

struct GgufTensor {
  std::string name;
  uint32_t type = 0;           // GGML's number
  std::vector<int64_t> shape;  // slowest first (the file has it the other way round)
  int64_t offset = 0;          // from data_start
};

struct GgufHeader {
  uint32_t version = 0;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;
  int64_t data_start = 0;  // from the start of the file
  int64_t alignment = 32;
};

// Parses the header from the first bytes of a file of file_bytes. kBufferTooSmall: the header goes on beyond
// `bytes`, come back with more. kBadModel: truncated or damaged; kUnsupported: another version, byte order or
// value type. Every count is checked against what the file can hold before memory is taken: the header takes
// at most five times its size in memory, and 20 MB for names.
Result<GgufHeader> ParseGguf(Span<const uint8_t> bytes, int64_t file_bytes, const std::string& where);

const char* GgmlTypeName(uint32_t type);  // "Q4_K"; "unknown" for a number that has no name

}  // namespace kvc
