#include "models/convert/json.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <type_traits>
#include <vector>

namespace kvc {
namespace {

// Steps over bytes and tells how far it came, which the parser's events do not.
class TellingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;  // the standard has no traits of other bytes, and newer libraries have none either
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  TellingIterator(const uint8_t* at, const uint8_t** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *reinterpret_cast<const char*>(at_); }
  TellingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TellingIterator operator++(int) {
    const TellingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TellingIterator& o) const { return at_ == o.at_; }
  bool operator!=(const TellingIterator& o) const { return at_ != o.at_; }

 private:
  const uint8_t* at_;
  const uint8_t** reached_;
};

// What nlohmann-json says after its own numbers and places: "[json.exception.parse_error.101] parse error at
// line 1, column 2: syntax error while parsing ..." becomes "syntax error while parsing ...".
std::string Reason(const std::string& text) {
  size_t begin = text.find("] ");
  begin = begin == std::string::npos ? 0 : begin + 2;
  if (text.compare(begin, 14, "parse error at") == 0) {
    const size_t colon = text.find(": ", begin);
    if (colon != std::string::npos) begin = colon + 2;
  }
  return text.substr(begin, 200);
}

// Builds the value while parsing, so that repeated names, deep nesting and too many values are seen before
// they cost anything.
template <typename AnyJson>
class Builder final : public nlohmann::json_sax<AnyJson> {
 public:
  using Sax = nlohmann::json_sax<AnyJson>;
  explicit Builder(AnyJson* root) : root_(root) {}
  const std::string& error() const { return error_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return Add(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return Add(value); }
  bool number_float(typename Sax::number_float_t value, const typename Sax::string_t&) override {
    return Add(value);
  }
  bool string(typename Sax::string_t& value) override { return Add(std::move(value)); }
  bool binary(typename Sax::binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(AnyJson::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(AnyJson::array()); }
  bool end_array() override { return Close(); }
  bool key(typename Sax::string_t& value) override {
    AnyJson* place = AddMember(value);
    if (place == nullptr) return Fail(Format("the name '%.80s' stands twice in one object", value.c_str()));
    member_ = place;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    position_ = position;
    return Fail(Reason(e.what()));
  }
  // Of the byte where it ended, from 1; 0: the parser did not tell.
  size_t position() const { return position_; }

 private:
  static constexpr bool kOrdered = std::is_same_v<AnyJson, OrderedJson>;

  struct Container {
    AnyJson* value;
    std::set<std::string> names;  // of an ordered object, which cannot find them quickly itself
  };

  bool Fail(std::string text) {
    if (error_.empty()) error_ = std::move(text);
    return false;
  }
  // The place of a new member of the innermost object; null: the name is taken.
  AnyJson* AddMember(const std::string& name) {
    Container& in = stack_.back();
    auto& members = in.value->template get_ref<typename AnyJson::object_t&>();
    if constexpr (kOrdered) {
      if (!in.names.insert(name).second) return nullptr;
      static_cast<typename AnyJson::object_t::Container&>(members).emplace_back(name, nullptr);
      return &members.back().second;
    } else {
      const auto [place, is_new] = members.emplace(name, nullptr);
      return is_new ? &place->second : nullptr;
    }
  }
  AnyJson* Place(AnyJson value) {
    if (stack_.empty()) return &(*root_ = std::move(value));
    AnyJson* in = stack_.back().value;
    if (in->is_object()) return &(*member_ = std::move(value));
    in->push_back(std::move(value));
    return &in->back();
  }
  bool Add(AnyJson value) {
    if (++n_values_ > kMaxJsonValues)
      return Fail(Format("more than %lld values", static_cast<long long>(kMaxJsonValues)));
    Place(std::move(value));
    return true;
  }
  bool Open(AnyJson value) {
    if (stack_.size() >= kMaxJsonDepth) return Fail(Format("nested deeper than %d levels", kMaxJsonDepth));
    if (++n_values_ > kMaxJsonValues)
      return Fail(Format("more than %lld values", static_cast<long long>(kMaxJsonValues)));
    stack_.push_back({Place(std::move(value)), {}});
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }

  AnyJson* root_;
  AnyJson* member_ = nullptr;     // where the value after a name goes
  std::vector<Container> stack_;  // open containers; only the innermost grows, so the pointers stay valid
  int64_t n_values_ = 0;
  size_t position_ = 0;
  std::string error_;
};

Status WrongType(const std::string& where, const char* key, const char* wanted) {
  return Error(Code::kBadModel, "%s: %s must be %s", where.c_str(), key, wanted);
}

}  // namespace

template <typename AnyJson>
Result<AnyJson> ParseJson(Span<const uint8_t> text, const std::string& where) {
  AnyJson value;
  Builder<AnyJson> builder(&value);
  const uint8_t* reached = text.begin();
  const uint8_t* zero = std::find(text.begin(), text.end(), uint8_t{0});
  if (zero != text.end()) {  // which the parser takes for the end
    return Error(Code::kBadModel, "%s: not valid JSON: byte %lld is zero", where.c_str(),
                 static_cast<long long>(zero - text.begin() + 1));
  }
  if (AnyJson::sax_parse(TellingIterator(text.begin(), &reached), TellingIterator(text.end(), &reached),
                         &builder)) {
    return value;
  }
  const auto line = 1 + std::count(text.begin(), reached, '\n');
  const uint8_t* start = reached;  // of the line
  while (start != text.begin() && start[-1] != '\n') --start;
  const size_t byte =
      builder.position() > 0 ? builder.position() : static_cast<size_t>(reached - text.begin());
  return Error(Code::kBadModel, "%s: not valid JSON: line %lld, column %lld, byte %zu: %s", where.c_str(),
               static_cast<long long>(line), static_cast<long long>(reached - start), byte,
               builder.error().c_str());
}

template <typename AnyJson>
const AnyJson* JsonReader<AnyJson>::Find(const char* key) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

template <typename AnyJson>
Status JsonReader<AnyJson>::Int(const char* key, int64_t min, int64_t max, int64_t* out) const {
  const AnyJson* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_number_integer()) return WrongType(where_, key, "a whole number");
  const bool too_large =
      value->is_number_unsigned() && value->template get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value->template get<int64_t>();
  if (too_large || number < min || number > max) {
    return Error(Code::kBadModel, "%s: %s is %s, outside %lld .. %lld", where_.c_str(), key,
                 value->dump().c_str(), static_cast<long long>(min), static_cast<long long>(max));
  }
  *out = number;
  return {};
}

template <typename AnyJson>
Status JsonReader<AnyJson>::Int(const char* key, int32_t min, int32_t max, int32_t* out) const {
  int64_t number = *out;
  KVC_RETURN_IF_ERROR(Int(key, int64_t{min}, int64_t{max}, &number));
  *out = static_cast<int32_t>(number);
  return {};
}

template <typename AnyJson>
Status JsonReader<AnyJson>::Number(const char* key, double min, double max, double* out) const {
  const AnyJson* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_number()) return WrongType(where_, key, "a number");
  const double number = value->template get<double>();
  if (!(number >= min && number <= max)) {
    return Error(Code::kBadModel, "%s: %s is %g, outside %g .. %g", where_.c_str(), key, number, min, max);
  }
  *out = number;
  return {};
}

template <typename AnyJson>
Status JsonReader<AnyJson>::Bool(const char* key, bool* out) const {
  const AnyJson* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return WrongType(where_, key, "true or false");
  *out = value->template get<bool>();
  return {};
}

template <typename AnyJson>
Status JsonReader<AnyJson>::String(const char* key, std::string* out) const {
  const AnyJson* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return WrongType(where_, key, "text");
  *out = value->template get<std::string>();
  return {};
}

template Result<Json> ParseJson<Json>(Span<const uint8_t>, const std::string&);
template Result<OrderedJson> ParseJson<OrderedJson>(Span<const uint8_t>, const std::string&);
template class JsonReader<Json>;
template class JsonReader<OrderedJson>;

}  // namespace kvc
