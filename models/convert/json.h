// nlohmann-json with its exceptions kept in: text becomes a value or a Status, and reads are typed and
// checked.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

using Json = nlohmann::json;

constexpr int kMaxJsonDepth = 64;

// Parses one JSON text. `where` (a path) starts every message. kBadModel: no JSON, invalid UTF-8, a name
// twice in one object, nesting deeper than kMaxJsonDepth.
Result<Json> ParseJson(Span<const uint8_t> text, const std::string& where);

// Reads members of one object. A member that is absent or null leaves the output as it was; one of another
// type or out of range is kBadModel, the message names it.
class JsonObject {
 public:
  JsonObject(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}
  const Json* Find(const char* key) const;  // null: absent or JSON null
  bool Has(const char* key) const { return Find(key) != nullptr; }
  Status Int(const char* key, int64_t min, int64_t max, int64_t* out) const;
  Status Int(const char* key, int32_t min, int32_t max, int32_t* out) const;
  Status Number(const char* key, double min, double max, double* out) const;
  Status Bool(const char* key, bool* out) const;
  Status String(const char* key, std::string* out) const;
  const std::string& where() const { return where_; }
  const Json& json() const { return object_; }

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace kvc
