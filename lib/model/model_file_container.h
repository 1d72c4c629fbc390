// The bytes around the directory of a model file (models/FORMAT.md): header and section rules, for reader and
// writer.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/limits.h"
#include "lib/base/status.h"

namespace kvc {

constexpr int64_t kHeaderBytes = 40, kSectionAlignment = 4096;
constexpr uint16_t kTensorSection = 1;  // SectionKind of the schema

// Little-endian in the file: magic "KVCM", then these in order, then XXH3-64 of the 32 bytes before it.
struct ContainerHeader {
  uint32_t version = 0;
  uint64_t directory_bytes = 0;  // the directory follows the header
  uint64_t file_bytes = 0;       // of the whole file
  uint64_t directory_hash = 0;   // XXH3-64 of the directory
};

struct SectionEntry {
  uint16_t kind = 0;
  uint64_t offset = 0, size = 0;  // bytes, from the start of the file
  uint64_t checksum = 0;          // XXH3-64 of its bytes
};

void EncodeHeader(const ContainerHeader& header, uint8_t out[kHeaderBytes]);
// Checks magic, version, sizes and hashes of header and directory. n_bytes: of the file as found. Messages
// begin with "truncated", "damaged" or "newer version".
Status DecodeHeader(const uint8_t* file, int64_t n_bytes, ContainerHeader* header);

// Sections aligned, inside the file, after the directory, apart from each other, the last one ending the
// file; every byte that belongs to none is zero. Reads no section. Messages do not repeat "damaged".
Status CheckSections(const uint8_t* file, const ContainerHeader& header,
                     const std::vector<SectionEntry>& sections);

}  // namespace kvc
