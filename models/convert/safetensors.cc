#include "models/convert/safetensors.h"

#include <algorithm>
#include <cstring>

#include "models/convert/json.h"

namespace kvc {
namespace {

struct Dtype {
  const char* name;
  int32_t bytes;
};
constexpr Dtype kDtypes[] = {{"F64", 8},     {"I64", 8},     {"U64", 8},  {"F32", 4}, {"I32", 4},
                             {"U32", 4},     {"F16", 2},     {"BF16", 2}, {"I16", 2}, {"U16", 2},
                             {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},   {"U8", 1},  {"BOOL", 1}};

constexpr size_t kMaxDimensions = 8;

// One non-negative whole number of an array.
bool Count(const Json& value, int64_t* out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  *out = value.get<int64_t>();
  return true;
}

Status ParseShape(const Json* shape, const std::string& at, std::vector<int64_t>* out, int64_t* n_elements) {
  if (shape == nullptr || !shape->is_array())
    return Error(Code::kBadModel, "%s: shape must be an array", at.c_str());
  if (shape->size() > kMaxDimensions)
    return Error(Code::kBadModel, "%s: %zu dimensions", at.c_str(), shape->size());
  *n_elements = 1;
  for (const Json& item : *shape) {
    int64_t n = 0;
    if (!Count(item, &n))
      return Error(Code::kBadModel, "%s: shape holds %s, not a count", at.c_str(),
                   item.dump(-1, ' ', true).substr(0, 40).c_str());
    if (__builtin_mul_overflow(*n_elements, n, n_elements))
      return Error(Code::kBadModel, "%s: the product of its shape overflows", at.c_str());
    out->push_back(n);
  }
  return {};
}

Status ParseEntry(const std::string& name, const Json& json, int64_t data_bytes, const std::string& where,
                  SafetensorsEntry* entry) {
  const std::string at = where + ": tensor " + name;
  if (!json.is_object()) return Error(Code::kBadModel, "%s: its entry must be an object", at.c_str());
  const JsonObject object(json, at);
  entry->name = name;
  KVC_RETURN_IF_ERROR(object.String("dtype", &entry->dtype));
  const Dtype* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                    [&](const Dtype& d) { return entry->dtype == d.name; });
  if (dtype == std::end(kDtypes))
    return Error(Code::kUnsupported, "%s: dtype '%.40s' is not known", at.c_str(), entry->dtype.c_str());
  int64_t n_bytes = 0;
  KVC_RETURN_IF_ERROR(ParseShape(object.Find("shape"), at, &entry->shape, &n_bytes));
  if (__builtin_mul_overflow(n_bytes, int64_t{dtype->bytes}, &n_bytes))
    return Error(Code::kBadModel, "%s: its size overflows", at.c_str());
  const Json* offsets = object.Find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->size() != 2 ||
      !Count((*offsets)[0], &entry->begin) || !Count((*offsets)[1], &entry->end)) {
    return Error(Code::kBadModel, "%s: data_offsets must be two counts", at.c_str());
  }
  if (entry->begin > entry->end || entry->end > data_bytes) {
    return Error(Code::kBadModel,
                 "%s: data_offsets [%lld, %lld] lie outside the %lld bytes of data: truncated or damaged",
                 at.c_str(), static_cast<long long>(entry->begin), static_cast<long long>(entry->end),
                 static_cast<long long>(data_bytes));
  }
  if (entry->end - entry->begin != n_bytes) {
    return Error(Code::kBadModel, "%s: %lld bytes of data, its shape and dtype need %lld", at.c_str(),
                 static_cast<long long>(entry->end - entry->begin), static_cast<long long>(n_bytes));
  }
  return {};
}

// The format demands that tensors follow one another without a hole.
Status CheckCoverage(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                     const std::string& where) {
  int64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at) {
      return Error(Code::kBadModel, "%s: tensor %s starts at %lld, %s byte %lld", where.c_str(),
                   entry.name.c_str(), static_cast<long long>(entry.begin),
                   entry.begin < at ? "overlapping what ends at" : "leaving a hole from",
                   static_cast<long long>(at));
    }
    at = entry.end;
  }
  if (at == data_bytes) return {};
  return Error(Code::kBadModel, "%s: %lld bytes after the last tensor", where.c_str(),
               static_cast<long long>(data_bytes - at));
}

}  // namespace

Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(Span<const uint8_t> json, int64_t data_bytes,
                                                             const std::string& where) {
  auto header = ParseJson(json, where);
  if (!header.ok()) return header.status();
  if (!header.value().is_object())
    return Error(Code::kBadModel, "%s: the header must be a JSON object", where.c_str());
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.value().items()) {
    if (name == "__metadata__") continue;
    entries.emplace_back();
    KVC_RETURN_IF_ERROR(ParseEntry(name, value, data_bytes, where, &entries.back()));
  }
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin
                              : a.end < b.end;  // empty tensors before the one at their place
  });
  KVC_RETURN_IF_ERROR(CheckCoverage(entries, data_bytes, where));
  return entries;
}

Status ReadSafetensors(const SourceFile& file, std::vector<FoundTensor>* found) {
  const std::string& where = file.path();
  if (file.size() < 8)
    return Error(Code::kBadModel, "%s: truncated: %lld bytes are no safetensors file", where.c_str(),
                 static_cast<long long>(file.size()));
  KVC_RETURN_IF_ERROR(RefuseLfsPointer(file));
  uint8_t raw[8];
  KVC_RETURN_IF_ERROR(file.Read(0, raw, 8));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | raw[i];
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) ||
      static_cast<int64_t>(length) > file.size() - 8) {
    return Error(Code::kBadModel,
                 "%s: truncated or no safetensors file: a header of %llu bytes in a file of %lld",
                 where.c_str(), static_cast<unsigned long long>(length), static_cast<long long>(file.size()));
  }
  std::vector<uint8_t> header(static_cast<size_t>(length));
  KVC_RETURN_IF_ERROR(file.Read(8, header.data(), static_cast<int64_t>(length)));
  const int64_t data_start = 8 + static_cast<int64_t>(length);
  auto entries = ParseSafetensorsHeader(header, file.size() - data_start, where);
  if (!entries.ok()) return entries.status();
  for (SafetensorsEntry& entry : entries.value()) {
    FoundTensor tensor;
    if (entry.dtype == "F32")
      tensor.type = SourceType::kF32;
    else if (entry.dtype == "F16")
      tensor.type = SourceType::kF16;
    else if (entry.dtype == "BF16")
      tensor.type = SourceType::kBf16;
    else if (entry.dtype == "I32")
      tensor.type = SourceType::kI32;
    else if (entry.dtype == "U8")
      tensor.type = SourceType::kU8;
    else
      return Error(Code::kUnsupported, "%s: tensor %s: dtype %s is not supported; supported: F32, F16, BF16",
                   where.c_str(), entry.name.c_str(), entry.dtype.c_str());
    tensor.name = std::move(entry.name), tensor.shape = std::move(entry.shape), tensor.file = &file;
    tensor.offset = data_start + entry.begin, tensor.n_bytes = entry.end - entry.begin;
    found->push_back(std::move(tensor));
  }
  return {};
}

}  // namespace kvc
