// Walks over a template's tree. A function that returns false has failed, and status() says why.
#pragma once
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "models/convert/jinja/node.h"
#include "models/convert/jinja/template.h"
#include "models/convert/jinja/value.h"

namespace kvc::jinja {

struct Scope {
  std::map<std::string, Value> names;
  std::shared_ptr<Scope> parent;
};

struct Arguments {
  std::vector<Value> items;
  std::vector<std::pair<std::string, Value>> named;
};

constexpr int kMaxExpressionDepth = 1000;

class Interpreter {
 public:
  explicit Interpreter(const std::tm* date) : date_(date) {}
  Status Render(const Node& root, const Variables& variables, std::string* out);

  // For filters, tests, methods and functions.
  bool Fail(const std::string& what);
  bool Refuse(const std::string& what);  // raise_exception
  bool Charge(size_t n_steps);
  bool Good(const Value& value);  // not too deep; its size is charged
  bool Give(Value value, Value* out);
  bool GiveText(std::string text, Value* out);
  bool ToText(const Value& value, std::string* out);
  bool Walk(const Value& value, std::vector<Value>* items);  // what a loop over it sees
  bool AreEqual(const Value& a, const Value& b, bool* equal);
  bool Compare(const Value& a, const Value& b, int* order);  // below 0, 0, above 0
  bool Contains(const Value& all, const Value& item, bool* found);
  bool Attribute(const Value& of, const std::string& name, Value* out);
  bool Item(const Value& of, const Value& key, Value* out);
  bool Operate(const std::string& op, const Value& a, const Value& b, Value* out);
  bool Call(const Value& what, const Arguments& arguments, Value* out);
  // Arguments in the order of `names`; those that were not given are null. `what` is for messages.
  bool Bind(const std::string& what, const Arguments& arguments, const std::vector<const char*>& names,
            std::vector<const Value*>* bound);
  // What f says, a level deeper; filters can name filters.
  template <typename F>
  bool Nested(const F& f) {
    if (expression_depth_ >= kMaxExpressionDepth) return Fail("the template is nested too deeply");
    ++expression_depth_;
    const bool good = f();
    --expression_depth_;
    return good;
  }
  const std::tm* date() const { return date_; }

 private:
  enum class Flow { kOn, kBreak, kContinue, kFailed };
  Flow Run(const Node& node);
  Flow RunInScope(const Node& node);
  Flow RunIf(const Node& node);
  Flow RunFor(const Node& node);
  bool RunFiltered(const Node& body, const Node* filters, Value* out);
  bool Capture(const Node& body, std::string* text);
  bool Print(const std::string& text);
  bool Assign(const Node& target, const Value& value);

  bool Evaluate(const Node& node, Value* out);  // counts its depth, macros within macros included
  bool EvaluateNode(const Node& node, Value* out);
  bool EvaluateAll(const Node& node, size_t first, std::vector<Value>* out);
  bool EvaluateArguments(const Node& node, Arguments* arguments);
  bool EvaluateCompare(const Node& node, Value* out);
  bool EvaluateDict(const Node& node, Value* out);
  bool EvaluateSlice(const Node& node, Value* out);
  bool EvaluateConcat(const Node& node, Value* out);
  bool Apply(const Node& filter, const Value* input, Value* out);  // a filter, or a chain with that input
  bool Sign(const Node& node, Value* out);
  bool Repeat(const Value& what, int64_t n, Value* out);
  bool Arithmetic(const std::string& op, const Value& a, const Value& b, Value* out);
  bool Lookup(const std::string& name, Value* out);
  bool CallMacro(const Value& macro, const Arguments& arguments, Value* out);

  const std::tm* const date_;
  std::shared_ptr<Scope> scope_, globals_;
  std::string* out_ = nullptr;
  int64_t steps_ = kMaxSteps;
  int depth_ = 0, expression_depth_ = 0, line_ = 0;
  Status status_;
};

// filters.cc, tests.cc, methods.cc, functions.cc
bool ApplyFilter(Interpreter* run, const std::string& name, const Value& in, const Arguments& arguments,
                 Value* out);
bool ApplyTest(Interpreter* run, const std::string& name, const Value& in, const Arguments& arguments,
               bool* out);
bool HasMethod(const Value& of, const std::string& name);
bool CallMethod(Interpreter* run, const Value& self, const std::string& name, const Arguments& arguments,
                Value* out);
bool HasFunction(const std::string& name);
bool CallFunction(Interpreter* run, const std::string& name, const Arguments& arguments, Value* out);

}  // namespace kvc::jinja
