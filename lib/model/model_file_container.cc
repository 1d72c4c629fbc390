#include "lib/model/model_file_container.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/base/hash.h"
#include "lib/base/heap_sort.h"
#include "lib/model/model_file.h"

namespace kvc {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and are used in place");

constexpr char kMagic[4] = {'K', 'V', 'C', 'M'};
constexpr int64_t kHashedHeaderBytes = 32;

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

Status CheckMagic(const uint8_t* file, int64_t n_bytes) {
  const size_t n = static_cast<size_t>(std::min<int64_t>(n_bytes, sizeof(kMagic)));
  if (n == 0 || std::memcmp(file, kMagic, n) == 0) return {};
  if (n == 4 && std::memcmp(file, "GGUF", 4) == 0) {
    return Error(Code::kBadModel, "damaged or not a kvc model: this is a GGUF file, convert it first");
  }
  return Error(Code::kBadModel, "damaged or not a kvc model: the file does not begin with KVCM");
}

// Bytes that belong to nothing: before a section, or between two.
struct Gap {
  uint64_t begin = 0, end = 0;
};

Status CheckPadding(const uint8_t* file, const Gap& gap) {
  const uint8_t* end = file + gap.end;
  const uint8_t* found = std::find_if(file + gap.begin, end, [](uint8_t byte) { return byte != 0; });
  if (found == end) return {};
  return Error(Code::kBadModel, "byte %lld is padding and must be 0, it is %d",
               static_cast<long long>(found - file), *found);
}

}  // namespace

void EncodeHeader(const ContainerHeader& header, uint8_t out[kHeaderBytes]) {
  std::memcpy(out, kMagic, 4);
  std::memcpy(out + 4, &header.version, 4);
  std::memcpy(out + 8, &header.directory_bytes, 8);
  std::memcpy(out + 16, &header.file_bytes, 8);
  std::memcpy(out + 24, &header.directory_hash, 8);
  const uint64_t hash = Hash64(out, kHashedHeaderBytes);
  std::memcpy(out + kHashedHeaderBytes, &hash, 8);
}

Status DecodeHeader(const uint8_t* file, int64_t n_bytes, ContainerHeader* header) {
  const auto n = static_cast<long long>(n_bytes);
  KVC_RETURN_IF_ERROR(CheckMagic(file, n_bytes));
  if (n_bytes >= 8) {  // before all else: a newer header may look different from here on
    header->version = Load<uint32_t>(file + 4);
    if (header->version > kModelFileVersion) {
      return Error(Code::kBadModel, "newer version: the file has version %u, this library reads up to %u",
                   header->version, kModelFileVersion);
    }
  }
  if (n_bytes < kHeaderBytes) {
    return Error(Code::kBadModel, "truncated: the file has %lld bytes, a header needs %lld", n,
                 static_cast<long long>(kHeaderBytes));
  }
  header->directory_bytes = Load<uint64_t>(file + 8);
  header->file_bytes = Load<uint64_t>(file + 16);
  header->directory_hash = Load<uint64_t>(file + 24);
  if (Load<uint64_t>(file + kHashedHeaderBytes) != Hash64(file, kHashedHeaderBytes)) {
    return Error(Code::kBadModel, "damaged: the header (bytes 0 to %lld) does not match its checksum",
                 static_cast<long long>(kHeaderBytes));
  }
  if (header->version == 0) return Error(Code::kBadModel, "damaged: the header says version 0");
  if (header->file_bytes != static_cast<uint64_t>(n_bytes)) {
    const bool cut = header->file_bytes > static_cast<uint64_t>(n_bytes);
    return Error(Code::kBadModel, "%s: the file has %lld bytes, its header says %llu",
                 cut ? "truncated" : "damaged", n, static_cast<unsigned long long>(header->file_bytes));
  }
  if (header->directory_bytes >
      static_cast<uint64_t>(std::min<int64_t>(n_bytes - kHeaderBytes, kMaxDirectoryBytes))) {
    return Error(
        Code::kBadModel,
        "damaged: the header says the directory has %llu bytes, the file has %lld, the limit is %lld",
        static_cast<unsigned long long>(header->directory_bytes), n,
        static_cast<long long>(kMaxDirectoryBytes));
  }
  if (Hash64(file + kHeaderBytes, header->directory_bytes) != header->directory_hash) {
    return Error(Code::kBadModel, "damaged: the directory (bytes %lld to %lld) does not match its checksum",
                 static_cast<long long>(kHeaderBytes),
                 static_cast<long long>(kHeaderBytes + header->directory_bytes));
  }
  return {};
}

Status CheckSections(const uint8_t* file, const ContainerHeader& header,
                     const std::vector<SectionEntry>& sections) {
  std::vector<size_t> order(sections.size());
  std::iota(order.begin(), order.end(), size_t{0});
  HeapSort(order.begin(), order.end(), [&sections](size_t a, size_t b) {
    return sections[a].offset != sections[b].offset ? sections[a].offset < sections[b].offset
                                                    : sections[a].size < sections[b].size;
  });
  std::vector<Gap> gaps;
  uint64_t end = static_cast<uint64_t>(kHeaderBytes) + header.directory_bytes;
  for (size_t index : order) {
    const SectionEntry& s = sections[index];
    const auto offset = static_cast<unsigned long long>(s.offset),
               size = static_cast<unsigned long long>(s.size);
    if (s.offset > header.file_bytes || s.size > header.file_bytes - s.offset) {
      return Error(Code::kBadModel, "section %zu (%llu bytes at %llu) is outside the file of %llu bytes",
                   index, size, offset, static_cast<unsigned long long>(header.file_bytes));
    }
    if (s.offset % kSectionAlignment != 0) {
      return Error(Code::kBadModel, "section %zu at %llu is not aligned to %lld", index, offset,
                   static_cast<long long>(kSectionAlignment));
    }
    if (s.offset < end) {
      return Error(Code::kBadModel, "section %zu (%llu bytes at %llu) overlaps what ends at %llu", index,
                   size, offset, static_cast<unsigned long long>(end));
    }
    gaps.push_back({end, s.offset});
    end = s.offset + s.size;
  }
  if (end != header.file_bytes) {
    return Error(Code::kBadModel, "the last section ends at %llu, the file at %llu",
                 static_cast<unsigned long long>(end), static_cast<unsigned long long>(header.file_bytes));
  }
  for (const Gap& gap : gaps) KVC_RETURN_IF_ERROR(CheckPadding(file, gap));
  return {};
}

}  // namespace kvc
