// What a template computes with: Python's values, as far as templates see them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvc::jinja {

struct Node;
struct Object;
struct Scope;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kGenerator,  // what map, select and the like give: can be walked through, and no more
  kNamespace,
  kMacro,
  kFunction,  // of the environment: range, namespace, ..
  kMethod,    // of a string, a dict, a list or a loop
  kLoop,
};

struct Value {
  Kind kind = Kind::kUndefined;
  int64_t number = 0;  // kBool, kInt
  double real = 0;     // kFloat
  std::shared_ptr<Object> object;

  const std::string& text() const;
  const std::vector<Value>& items() const;
  const std::vector<std::pair<Value, Value>>& pairs() const;
  bool is(Kind k) const { return kind == k; }
  bool IsNumber() const { return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat; }
  bool IsWhole() const { return kind == Kind::kBool || kind == Kind::kInt; }
  bool IsSequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
  double AsDouble() const { return kind == Kind::kFloat ? real : static_cast<double>(number); }
};

struct Object {
  std::string text;          // kString; of kUndefined, kFunction and kMethod the name
  std::vector<Value> items;  // kList, kTuple, kGenerator, kLoop; kMethod: what it is a method of
  std::vector<std::pair<Value, Value>> pairs;  // kDict, kNamespace, in their order
  int64_t at = 0;                              // kLoop: the current item
  int64_t depth = 1;                           // of values in values; kLoop: of loops
  const Node* macro = nullptr;                 // kMacro
  std::weak_ptr<Scope> scope;                  // kMacro: where it was defined
};

// Values in values, at most; beyond it nothing is made.
constexpr int64_t kMaxValueDepth = 64;

Value Undefined(std::string name);
Value None();
Value Bool(bool b);
Value Int(int64_t n);
Value Float(double x);
Value Text(std::string text);
// Depth is that of the deepest item and one more.
Value Collection(Kind kind, std::vector<Value> items);
Value List(std::vector<Value> items);
Value Dict(std::vector<std::pair<Value, Value>> pairs);
Value Named(Kind kind, std::string name);
int64_t DepthOf(const Value& value);

bool Truth(const Value& value);
// Each comparison of two parts takes one of *budget; below 0 the answer means nothing.
bool Equal(const Value& a, const Value& b, int64_t* budget);
// The value of a key that is a text, or null.
const Value* FindKey(const Value& dict, const std::string& key);
const char* TypeName(const Value& value);  // as Python calls it, for messages

// str(value), or repr(value) where a text is to be quoted. False: longer than limit bytes.
bool AppendText(const Value& value, bool quoted, size_t limit, std::string* out);

struct JsonStyle {
  bool ascii = false, sort_keys = false, indented = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};
// json.dumps. False: longer than limit bytes, or *wrong names a type that JSON has not.
bool AppendJson(const Value& value, const JsonStyle& style, size_t limit, std::string* out,
                const char** wrong);

}  // namespace kvc::jinja
