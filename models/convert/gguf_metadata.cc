#include "models/convert/gguf_metadata.h"

namespace kvc {
namespace {

Status WrongType(const std::string& where, const std::string& key, const char* wanted) {
  return Error(Code::kBadModel, "%s: %s must be %s", where.c_str(), key.c_str(), wanted);
}

Status Differs(const std::string& where, const std::string& key) {
  return Error(Code::kUnsupported, "%s: %s differs from layer to layer, which is not supported",
               where.c_str(), key.c_str());
}

}  // namespace

const GgufValue* GgufMetadata::Find(const std::string& key) {
  read_.insert(key);
  const auto it = header_.metadata.find(key);
  return it == header_.metadata.end() ? nullptr : &it->second;
}

Status GgufMetadata::Int(const std::string& key, int64_t min, int64_t max, int32_t* out) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return {};
  const size_t n = value->n_whole();
  if (n == 0 || value->type == GgufType::kBool) return WrongType(where_, key, "a whole number");
  const int64_t number = value->Whole(0);
  for (size_t i = 1; i < n; ++i) {
    if (value->Whole(i) != number) return Differs(where_, key);
  }
  if (number < min || number > max) {
    return Error(Code::kBadModel, "%s: %s is %lld, outside %lld .. %lld", where_.c_str(), key.c_str(),
                 static_cast<long long>(number), static_cast<long long>(min), static_cast<long long>(max));
  }
  *out = static_cast<int32_t>(number);
  return {};
}

Status GgufMetadata::Number(const std::string& key, double min, double max, double* out) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return {};
  const size_t n = value->n_floating();
  if (n == 0) return WrongType(where_, key, "a floating-point number");
  const double number = value->Floating(0);
  for (size_t i = 1; i < n; ++i) {
    if (!(value->Floating(i) == number)) return Differs(where_, key);
  }
  if (!(number >= min && number <= max)) {
    return Error(Code::kBadModel, "%s: %s is %g, outside %g .. %g", where_.c_str(), key.c_str(), number, min,
                 max);
  }
  *out = number;
  return {};
}

Status GgufMetadata::Bool(const std::string& key, bool* out) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return {};
  if (value->is_array || value->type != GgufType::kBool) return WrongType(where_, key, "a truth value");
  *out = value->Whole(0) != 0;
  return {};
}

Status GgufMetadata::String(const std::string& key, std::string* out) {
  const GgufValue* value = Find(key);
  if (value == nullptr) return {};
  if (value->is_array || value->type != GgufType::kString) return WrongType(where_, key, "text");
  *out = value->strings[0];
  return {};
}

Status GgufMetadata::Strings(const std::string& key, const std::vector<std::string>** out) {
  *out = nullptr;
  const GgufValue* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_array || value->type != GgufType::kString)
    return WrongType(where_, key, "an array of texts");
  *out = &value->strings;
  return {};
}

Status GgufMetadata::RefuseUnread(const std::string& prefix) const {
  for (const auto& [key, value] : header_.metadata) {
    if (key.compare(0, prefix.size(), prefix) == 0 && read_.count(key) == 0) {
      return Error(Code::kUnsupported, "%s: the setting %.80s is not supported", where_.c_str(), key.c_str());
    }
  }
  return {};
}

}  // namespace kvc
