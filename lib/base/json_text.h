// Writes JSON text: escaping, and numbers that read back exactly, whatever the process's locale.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvc {

// Appends n bytes as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, one per byte.
void AppendJsonString(std::string* out, const char* text, size_t n);
// The shortest decimal that reads back as the same double or float; NaN and infinities, which JSON lacks, are
// null.
void AppendJsonNumber(std::string* out, double value);
void AppendJsonNumber(std::string* out, float value);
void AppendJsonNumber(std::string* out, int64_t value);

// Puts the commas, so that callers only name what they write. Begin and End must pair; keys only inside
// objects.
class JsonWriter {
 public:
  explicit JsonWriter(std::string* out) : out_(out) {}
  JsonWriter& Key(const char* key);
  void BeginObject() { Open('{'); }
  void EndObject() { Close('}'); }
  void BeginArray() { Open('['); }
  void EndArray() { Close(']'); }
  void Value(const std::string& text) { Separate(), AppendJsonString(out_, text.data(), text.size()); }
  void Value(const char* text) { Value(std::string(text)); }
  void Value(double number) { Separate(), AppendJsonNumber(out_, number); }
  void Value(float number) { Separate(), AppendJsonNumber(out_, number); }
  void Value(int64_t number) { Separate(), AppendJsonNumber(out_, number); }
  void Value(int32_t number) { Value(static_cast<int64_t>(number)); }
  void Value(bool flag) { Separate(), out_->append(flag ? "true" : "false"); }
  template <typename T>
  void Field(const char* key, const T& value) {
    Key(key).Value(value);
  }

 private:
  void Open(char bracket) { Separate(), out_->push_back(bracket), first_ = true; }
  void Close(char bracket) { out_->push_back(bracket), first_ = false; }
  void Separate() {
    if (!first_) out_->push_back(',');
    first_ = false;
  }
  std::string* const out_;
  bool first_ = true;  // nothing stands yet between the last bracket or key and here
};

}  // namespace kvc
