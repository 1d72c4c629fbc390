// Typed, checked reads of GGUF metadata; remembers what was asked for, so that the rest can be refused by
// name.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "models/convert/gguf.h"

namespace kvc {

// A key that is absent leaves the output as it was; one of another type or out of range is kBadModel. A
// number may be an array that says the same of every layer; one that does not is kUnsupported.
class GgufMetadata {
 public:
  GgufMetadata(const GgufHeader& header, std::string where) : header_(header), where_(std::move(where)) {}
  const GgufValue* Find(const std::string& key);
  Status Int(const std::string& key, int64_t min, int64_t max, int32_t* out);  // max at most 2^31 - 1
  Status Number(const std::string& key, double min, double max, double* out);
  Status Bool(const std::string& key, bool* out);
  Status String(const std::string& key, std::string* out);
  Status Strings(const std::string& key, const std::vector<std::string>** out);  // null when absent
  // kUnsupported, naming it: a key with this prefix that nobody asked for.
  Status RefuseUnread(const std::string& prefix) const;
  const std::string& where() const { return where_; }

 private:
  const GgufHeader& header_;
  std::string where_;
  std::set<std::string> read_;
};

}  // namespace kvc
