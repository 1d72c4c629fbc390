#include "models/convert/json.h"

#include <vector>

namespace kvc {
namespace {

// Builds the value while parsing, so that repeated names and deep nesting are seen before they cost anything.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json* root) : root_(root) {}
  const std::string& error() const { return error_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    if (stack_.back()->contains(value))
      return Fail(Format("the name '%.80s' stands twice in one object", value.c_str()));
    member_ = &(*stack_.back())[value];
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string text =
        e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const size_t bracket = text.find("] ");
    return Fail(Format("byte %zu: %.200s", position,
                       text.c_str() + (bracket == std::string::npos ? 0 : bracket + 2)));
  }

 private:
  bool Fail(std::string text) {
    if (error_.empty()) error_ = std::move(text);
    return false;
  }
  Json* Place(Json value) {
    if (stack_.empty()) return &(*root_ = std::move(value));
    if (stack_.back()->is_object()) return &(*member_ = std::move(value));
    stack_.back()->push_back(std::move(value));
    return &stack_.back()->back();
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (stack_.size() >= kMaxJsonDepth) return Fail(Format("nested deeper than %d levels", kMaxJsonDepth));
    stack_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }

  Json* root_;
  Json* member_ = nullptr;    // where the value after a key goes
  std::vector<Json*> stack_;  // open containers; only the innermost grows, so the pointers stay valid
  std::string error_;
};

Status WrongType(const JsonObject& object, const char* key, const char* wanted) {
  return Error(Code::kBadModel, "%s: %s must be %s", object.where().c_str(), key, wanted);
}

}  // namespace

Result<Json> ParseJson(Span<const uint8_t> text, const std::string& where) {
  Json value;
  Builder builder(&value);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return Error(Code::kBadModel, "%s: not valid JSON: %s", where.c_str(), builder.error().c_str());
  }
  return value;
}

const Json* JsonObject::Find(const char* key) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

Status JsonObject::Int(const char* key, int64_t min, int64_t max, int64_t* out) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_number_integer()) return WrongType(*this, key, "a whole number");
  const bool too_large =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value->get<int64_t>();
  if (too_large || number < min || number > max) {
    return Error(Code::kBadModel, "%s: %s is %s, outside %lld .. %lld", where_.c_str(), key,
                 value->dump().c_str(), static_cast<long long>(min), static_cast<long long>(max));
  }
  *out = number;
  return {};
}

Status JsonObject::Int(const char* key, int32_t min, int32_t max, int32_t* out) const {
  int64_t number = *out;
  KVC_RETURN_IF_ERROR(Int(key, int64_t{min}, int64_t{max}, &number));
  *out = static_cast<int32_t>(number);
  return {};
}

Status JsonObject::Number(const char* key, double min, double max, double* out) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_number()) return WrongType(*this, key, "a number");
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    return Error(Code::kBadModel, "%s: %s is %g, outside %g .. %g", where_.c_str(), key, number, min, max);
  }
  *out = number;
  return {};
}

Status JsonObject::Bool(const char* key, bool* out) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return WrongType(*this, key, "true or false");
  *out = value->get<bool>();
  return {};
}

Status JsonObject::String(const char* key, std::string* out) const {
  const Json* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return WrongType(*this, key, "text");
  *out = value->get<std::string>();
  return {};
}

}  // namespace kvc
