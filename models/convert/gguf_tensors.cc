#include "models/convert/gguf_tensors.h"

#include <algorithm>

#include "models/convert/gguf_blocks.h"

namespace kvc {
namespace {

constexpr int64_t kFirstRead = 1 << 20, kMaxHeader = 1 << 29;

bool TypeOf(uint32_t number, SourceType* type) {
  constexpr struct {
    uint32_t number;
    SourceType type;
  } kPlain[] = {{0, SourceType::kF32}, {1, SourceType::kF16}, {30, SourceType::kBf16}};
  for (const auto& plain : kPlain) {
    if (plain.number == number) return *type = plain.type, true;
  }
  for (const BlockFormat& format : BlockFormats()) {
    if (format.number == number) return *type = format.type, true;
  }
  return false;
}

// "F32, F16, BF16, Q4_0, ..."
std::string SupportedTypes() {
  std::string names = "F32, F16, BF16";
  for (const BlockFormat& format : BlockFormats()) names += std::string(", ") + GgmlTypeName(format.number);
  return names;
}

}  // namespace

Result<GgufHeader> ReadGgufHeader(const SourceFile& file) {
  for (int64_t n = kFirstRead;; n *= 4) {
    n = std::min(n, file.size());
    if (n > kMaxHeader)
      return Error(Code::kUnsupported, "%s: a header of more than %lld bytes", file.path().c_str(),
                   static_cast<long long>(kMaxHeader));
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    KVC_RETURN_IF_ERROR(file.Read(0, bytes.data(), n));
    auto header = ParseGguf(bytes, file.size(), file.path());
    if (header.ok() || header.status().code() != Code::kBufferTooSmall) return header;
  }
}

Status LocateGgufTensors(const GgufHeader& header, const SourceFile& file, std::vector<FoundTensor>* found) {
  const std::string& where = file.path();
  for (const GgufTensor& tensor : header.tensors) {
    FoundTensor out;
    out.name = tensor.name, out.shape = tensor.shape, out.file = &file;
    if (!TypeOf(tensor.type, &out.type)) {
      return Error(Code::kUnsupported, "%s: tensor %.80s: type %s (%u) is not supported; supported: %s",
                   where.c_str(), tensor.name.c_str(), GgmlTypeName(tensor.type), tensor.type,
                   SupportedTypes().c_str());
    }
    if (tensor.shape.back() % SourceBlock(out.type) != 0) {
      return Error(Code::kBadModel, "%s: tensor %.80s: rows of %lld elements do not divide into blocks of %d",
                   where.c_str(), tensor.name.c_str(), static_cast<long long>(tensor.shape.back()),
                   SourceBlock(out.type));
    }
    int64_t n_elements = 1;
    for (const int64_t n : tensor.shape) n_elements *= n;  // the parser has checked the product
    const int64_t room = file.size() - header.data_start - tensor.offset;
    constexpr int64_t kMostElements = 4;  // a byte, of any type
    if (n_elements / kMostElements > file.size() || SourceBytes(out.type, n_elements) > room) {
      return Error(Code::kBadModel, "%s: tensor %.80s ends beyond the end of the file: truncated or damaged",
                   where.c_str(), tensor.name.c_str());
    }
    out.offset = header.data_start + tensor.offset, out.n_bytes = SourceBytes(out.type, n_elements);
    found->push_back(std::move(out));
  }
  std::vector<const FoundTensor*> order;
  for (const FoundTensor& tensor : *found) {
    if (tensor.file == &file) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const FoundTensor* a, const FoundTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset) {
      return Error(Code::kBadModel, "%s: the tensors %.80s and %.80s overlap", where.c_str(),
                   order[i - 1]->name.c_str(), order[i]->name.c_str());
    }
  }
  return {};
}

}  // namespace kvc
