#include "models/convert/gguf.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace kvc {
namespace {

constexpr int64_t kMaxMetadata = 1 << 16, kMaxTensors = 1 << 16, kMaxName = 1 << 16, kMaxString = 1 << 26;
constexpr uint32_t kMaxDimensions = 4;

// Size of one element in the file; 0: not of fixed size, or unknown.
int64_t ElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

class Parser {
 public:
  Parser(Span<const uint8_t> bytes, int64_t file_bytes, const std::string& where)
      : bytes_(bytes), file_bytes_(file_bytes), where_(where) {}

  Status Parse(GgufHeader* header) {
    int64_t n_tensors = 0, n_metadata = 0;
    KVC_RETURN_IF_ERROR(Start(header, &n_tensors, &n_metadata));
    for (int64_t i = 0; i < n_metadata; ++i) KVC_RETURN_IF_ERROR(Entry(header));
    KVC_RETURN_IF_ERROR(Alignment(header));
    std::set<std::string> names;
    for (int64_t i = 0; i < n_tensors; ++i) {
      KVC_RETURN_IF_ERROR(Tensor(header));
      const GgufTensor& tensor = header->tensors.back();
      if (!names.insert(tensor.name).second) return Bad("tensor %.80s stands twice", tensor.name.c_str());
      if (tensor.offset % header->alignment != 0)
        return Bad("tensor %.80s is not aligned to %lld", tensor.name.c_str(),
                   static_cast<long long>(header->alignment));
    }
    header->data_start = (at_ + header->alignment - 1) / header->alignment * header->alignment;
    return {};
  }

 private:
  template <typename... Args>
  Status Bad(const char* format, Args... args) const {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const std::string text = Format(format, args...);
#pragma GCC diagnostic pop
    return Error(Code::kBadModel, "%s: byte %lld: %s", where_.c_str(), static_cast<long long>(at_),
                 text.c_str());
  }

  // n bytes at the present place; moves on. n is checked against the file first, so it may be any claim.
  Status Take(int64_t n, const uint8_t** out) {
    if (n < 0 || n > file_bytes_ - at_)
      return Bad("truncated or damaged: %lld bytes wanted, the file has %lld", static_cast<long long>(n),
                 static_cast<long long>(file_bytes_ - at_));
    if (n > static_cast<int64_t>(bytes_.size()) - at_)
      return Error(Code::kBufferTooSmall, "%s: the header is longer", where_.c_str());
    *out = bytes_.data() + at_;
    at_ += n;
    return {};
  }
  Status U32(uint32_t* out) {
    const uint8_t* p = nullptr;
    KVC_RETURN_IF_ERROR(Take(4, &p));
    *out = static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
           static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
    return {};
  }
  Status U64(uint64_t* out) {
    uint32_t low = 0, high = 0;
    KVC_RETURN_IF_ERROR(U32(&low));
    KVC_RETURN_IF_ERROR(U32(&high));
    *out = static_cast<uint64_t>(high) << 32 | low;
    return {};
  }
  // A count of things that take at least min_bytes each in the rest of the file.
  Status CountOf(const char* what, int64_t limit, int64_t min_bytes, int64_t* out) {
    uint64_t n = 0;
    KVC_RETURN_IF_ERROR(U64(&n));
    if (n > static_cast<uint64_t>(limit) || static_cast<int64_t>(n) > (file_bytes_ - at_) / min_bytes) {
      return Bad("truncated or damaged: %llu %s", static_cast<unsigned long long>(n), what);
    }
    *out = static_cast<int64_t>(n);
    return {};
  }
  Status String(int64_t limit, std::string* out) {
    int64_t n = 0;
    KVC_RETURN_IF_ERROR(CountOf("bytes of text", limit, 1, &n));
    const uint8_t* p = nullptr;
    KVC_RETURN_IF_ERROR(Take(n, &p));
    out->assign(reinterpret_cast<const char*>(p), static_cast<size_t>(n));
    return {};
  }

  Status Start(GgufHeader* header, int64_t* n_tensors, int64_t* n_metadata) {
    const uint8_t* magic = nullptr;
    KVC_RETURN_IF_ERROR(Take(4, &magic));
    if (std::memcmp(magic, "GGUF", 4) != 0) return Bad("not a GGUF file");
    KVC_RETURN_IF_ERROR(U32(&header->version));
    if (header->version != 0 && (header->version & 0xffff) == 0) {
      return Error(Code::kUnsupported, "%s: big-endian GGUF is not supported", where_.c_str());
    }
    if (header->version != 2 && header->version != 3) {
      return Error(Code::kUnsupported, "%s: GGUF version %u is not supported; supported: 2, 3",
                   where_.c_str(), header->version);
    }
    KVC_RETURN_IF_ERROR(CountOf("tensors", kMaxTensors, 24, n_tensors));
    return CountOf("metadata entries", kMaxMetadata, 13, n_metadata);
  }

  Status Strings(int64_t n, GgufValue* value) {
    // No more than the bytes at hand have room for: with a part of the header the rest is not there yet.
    const int64_t room = (static_cast<int64_t>(bytes_.size()) - at_) / 8 + 1;
    value->strings.reserve(static_cast<size_t>(std::min(n, room)));
    for (int64_t i = 0; i < n; ++i) {
      value->strings.emplace_back();
      KVC_RETURN_IF_ERROR(String(kMaxString, &value->strings.back()));
    }
    return {};
  }

  Status Numbers(int64_t n, GgufValue* value) {
    const int64_t size = ElementBytes(value->type);
    const uint8_t* p = nullptr;
    KVC_RETURN_IF_ERROR(Take(n * size, &p));
    for (int64_t i = 0; i < n; ++i) {
      if (value->type == GgufType::kBool && p[i] > 1) return Bad("a truth value of %d", p[i]);
      if (value->type == GgufType::kU64 && p[i * size + 7] > 0x7f) return Bad("a number above 2^63 - 1");
    }
    value->numbers.assign(p, p + n * size);
    return {};
  }

  Status ValueType(GgufType* type) {
    uint32_t number = 0;
    KVC_RETURN_IF_ERROR(U32(&number));
    if (number > static_cast<uint32_t>(GgufType::kF64)) return Bad("value type %u is not known", number);
    *type = static_cast<GgufType>(number);
    return {};
  }

  Status Entry(GgufHeader* header) {
    std::string key;
    KVC_RETURN_IF_ERROR(String(kMaxName, &key));
    if (header->metadata.count(key) != 0) return Bad("the key %.80s stands twice", key.c_str());
    GgufValue value;
    KVC_RETURN_IF_ERROR(ValueType(&value.type));
    int64_t n = 1;
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      KVC_RETURN_IF_ERROR(ValueType(&value.type));
      if (value.type == GgufType::kArray)
        return Error(Code::kUnsupported, "%s: %.80s is an array of arrays", where_.c_str(), key.c_str());
      const int64_t min_bytes = value.type == GgufType::kString ? 8 : ElementBytes(value.type);
      KVC_RETURN_IF_ERROR(CountOf("array elements", INT32_MAX, min_bytes, &n));
    }
    KVC_RETURN_IF_ERROR(value.type == GgufType::kString ? Strings(n, &value) : Numbers(n, &value));
    header->metadata.emplace(std::move(key), std::move(value));
    return {};
  }

  Status Alignment(GgufHeader* header) {
    const auto it = header->metadata.find("general.alignment");
    if (it == header->metadata.end()) return {};
    const GgufValue& value = it->second;
    const int64_t n = !value.is_array && value.n_whole() == 1 ? value.Whole(0) : 0;
    if (n < 8 || n > (1 << 20) || (n & (n - 1)) != 0)
      return Bad("general.alignment must be a power of two from 8 to 2^20");
    header->alignment = n;
    return {};
  }

  Status Tensor(GgufHeader* header) {
    GgufTensor tensor;
    KVC_RETURN_IF_ERROR(String(kMaxName, &tensor.name));
    uint32_t n_dimensions = 0;
    KVC_RETURN_IF_ERROR(U32(&n_dimensions));
    if (n_dimensions < 1 || n_dimensions > kMaxDimensions)
      return Bad("tensor %.80s has %u dimensions", tensor.name.c_str(), n_dimensions);
    int64_t n_elements = 1;
    tensor.shape.resize(n_dimensions);
    for (uint32_t i = 0; i < n_dimensions; ++i) {
      uint64_t n = 0;
      KVC_RETURN_IF_ERROR(U64(&n));
      if (n == 0 || n > static_cast<uint64_t>(INT64_MAX) ||
          __builtin_mul_overflow(n_elements, static_cast<int64_t>(n), &n_elements)) {
        return Bad("tensor %.80s: impossible dimension %llu", tensor.name.c_str(),
                   static_cast<unsigned long long>(n));
      }
      tensor.shape[n_dimensions - 1 - i] = static_cast<int64_t>(n);
    }
    KVC_RETURN_IF_ERROR(U32(&tensor.type));
    uint64_t offset = 0;
    KVC_RETURN_IF_ERROR(U64(&offset));
    if (offset > static_cast<uint64_t>(file_bytes_))
      return Bad("tensor %.80s starts beyond the end of the file: truncated or damaged", tensor.name.c_str());
    tensor.offset = static_cast<int64_t>(offset);
    header->tensors.push_back(std::move(tensor));
    return {};
  }

  Span<const uint8_t> bytes_;
  const int64_t file_bytes_;
  const std::string& where_;
  int64_t at_ = 0;
};

bool IsFloating(GgufType type) { return type == GgufType::kF32 || type == GgufType::kF64; }

}  // namespace

size_t GgufValue::n_whole() const {
  return IsFloating(type) || numbers.empty() ? 0 : numbers.size() / static_cast<size_t>(ElementBytes(type));
}

size_t GgufValue::n_floating() const {
  return IsFloating(type) ? numbers.size() / static_cast<size_t>(ElementBytes(type)) : 0;
}

int64_t GgufValue::Whole(size_t i) const {
  const size_t size = static_cast<size_t>(ElementBytes(type));
  uint64_t raw = 0;
  for (size_t b = size; b-- > 0;) raw = raw << 8 | numbers[i * size + b];
  const bool is_signed =
      type == GgufType::kI8 || type == GgufType::kI16 || type == GgufType::kI32 || type == GgufType::kI64;
  const int shift = 64 - static_cast<int>(size) * 8;
  return is_signed ? static_cast<int64_t>(raw << shift) >> shift : static_cast<int64_t>(raw);
}

double GgufValue::Floating(size_t i) const {
  float single = 0;
  double value = 0;
  if (type == GgufType::kF64) {
    std::memcpy(&value, &numbers[i * sizeof(value)], sizeof(value));
    return value;
  }
  std::memcpy(&single, &numbers[i * sizeof(single)], sizeof(single));
  return single;
}

Result<GgufHeader> ParseGguf(Span<const uint8_t> bytes, int64_t file_bytes, const std::string& where) {
  GgufHeader header;
  KVC_RETURN_IF_ERROR(Parser(bytes, file_bytes, where).Parse(&header));
  return header;
}

const char* GgmlTypeName(uint32_t type) {
  static constexpr const char* kNames[] = {
      "F32",      "F16",      "Q4_0",    "Q4_1",  "Q4_2",       "Q4_3",       "Q5_0",       "Q5_1",
      "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",       "Q5_K",       "Q6_K",       "Q8_K",
      "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL",     "IQ3_S",      "IQ2_S",      "IQ4_XS",
      "I8",       "I16",      "I32",     "I64",   "F64",        "IQ1_M",      "BF16",       "Q4_0_4_4",
      "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4"};
  return type < sizeof(kNames) / sizeof(kNames[0]) ? kNames[type] : "unknown";
}

}  // namespace kvc
