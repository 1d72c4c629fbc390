// nlohmann-json with its exceptions kept in: text becomes a value or a Status, and reads are typed and
// checked. The one place where JSON of others is parsed, for the converter and for the kvc program.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of names; finding one takes a pass over them

constexpr int kMaxJsonDepth = 64;
// Of one document: twice as many as the largest tokenizer.json in use has. A value takes at most about 120
// bytes of memory besides its text.
constexpr int64_t kMaxJsonValues = int64_t{1} << 23;

// Parses one JSON text. `where` (a path) starts every message. kBadModel: no JSON, invalid UTF-8, a number
// that no double holds, a name twice in one object, nesting deeper than kMaxJsonDepth, more than
// kMaxJsonValues; the message has line and column. Takes n log n steps for n bytes, and no stack.
template <typename AnyJson = Json>  // Json or OrderedJson
Result<AnyJson> ParseJson(Span<const uint8_t> text, const std::string& where);

// Reads members of one object. A member that is absent or null leaves the output as it was; one of another
// type or out of range is kBadModel, the message names it.
template <typename AnyJson>
class JsonReader {
 public:
  JsonReader(const AnyJson& object, std::string where) : object_(object), where_(std::move(where)) {}
  const AnyJson* Find(const char* key) const;  // null: absent, JSON null, or no object
  bool Has(const char* key) const { return Find(key) != nullptr; }
  Status Int(const char* key, int64_t min, int64_t max, int64_t* out) const;
  Status Int(const char* key, int32_t min, int32_t max, int32_t* out) const;
  Status Number(const char* key, double min, double max, double* out) const;
  Status Bool(const char* key, bool* out) const;
  Status String(const char* key, std::string* out) const;
  const std::string& where() const { return where_; }
  const AnyJson& json() const { return object_; }

 private:
  const AnyJson& object_;
  std::string where_;
};
using JsonObject = JsonReader<Json>;

}  // namespace kvc
