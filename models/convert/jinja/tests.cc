// What stands behind "is".
#include <algorithm>
#include <iterator>

#include "models/convert/jinja/interpreter.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

bool IsIterable(const Value& v) {
  return v.IsSequence() || v.is(Kind::kDict) || v.is(Kind::kString) || v.is(Kind::kGenerator) ||
         v.is(Kind::kUndefined) || v.is(Kind::kLoop);
}

bool IsCallable(const Value& v) { return v.is(Kind::kFunction) || v.is(Kind::kMethod) || v.is(Kind::kMacro); }

constexpr struct {
  const char* name;
  bool (*test)(const Value& v);
} kKinds[] = {
    {"defined", [](const Value& v) { return !v.is(Kind::kUndefined); }},
    {"undefined", [](const Value& v) { return v.is(Kind::kUndefined); }},
    {"none", [](const Value& v) { return v.is(Kind::kNone); }},
    {"boolean", [](const Value& v) { return v.is(Kind::kBool); }},
    {"true", [](const Value& v) { return v.is(Kind::kBool) && v.number != 0; }},
    {"false", [](const Value& v) { return v.is(Kind::kBool) && v.number == 0; }},
    {"integer", [](const Value& v) { return v.is(Kind::kInt); }},
    {"float", [](const Value& v) { return v.is(Kind::kFloat); }},
    {"number", [](const Value& v) { return v.IsNumber(); }},
    {"string", [](const Value& v) { return v.is(Kind::kString); }},
    {"mapping", [](const Value& v) { return v.is(Kind::kDict); }},
    {"iterable", IsIterable},
    {"sequence", [](const Value& v) { return v.IsSequence() || v.is(Kind::kDict) || v.is(Kind::kString); }},
    {"callable", IsCallable},
};

struct Relation {
  const char* name;
  const char* op;
};
constexpr Relation kRelations[] = {
    {"eq", "=="}, {"==", "=="}, {"equalto", "=="}, {"ne", "!="}, {"!=", "!="},         {"lt", "<"},
    {"<", "<"},   {"le", "<="}, {"<=", "<="},      {"gt", ">"},  {"greaterthan", ">"}, {">", ">"},
    {"ge", ">="}, {">=", ">="}, {"lessthan", "<"}, {"in", "in"}, {"sameas", "is"},
};

bool Relate(Interpreter* run, const char* op, const Value& a, const Value& b, bool* out) {
  const std::string o = op;
  if (o == "in") return run->Contains(b, a, out);
  if (o == "==" || o == "!=") {
    if (!run->AreEqual(a, b, out)) return false;
    *out = *out == (o == "==");
    return true;
  }
  if (o == "is") {
    const bool plain = a.kind == b.kind && a.number == b.number && a.object == b.object;
    *out = plain && !a.is(Kind::kFloat);
    return true;
  }
  int order = 0;
  if (!run->Compare(a, b, &order)) return false;
  *out = o == "<" ? order < 0 : o == "<=" ? order <= 0 : o == ">" ? order > 0 : order >= 0;
  return true;
}

bool TestWhole(Interpreter* run, const std::string& name, const Value& in, const Value* by, bool* out) {
  if (!in.IsWhole() || (by != nullptr && (!by->IsWhole() || by->number == 0)))
    return run->Fail(name + ": a whole number expected");
  const int64_t divisor = by == nullptr ? 2 : by->number;
  const bool divides = divisor == -1 || in.number % divisor == 0;
  *out = divides == (name != "odd");
  return true;
}

}  // namespace

bool ApplyTest(Interpreter* run, const std::string& name, const Value& in, const Arguments& arguments,
               bool* out) {
  const size_t n = arguments.items.size();
  if (!arguments.named.empty()) return run->Fail("is " + name + ": arguments with names");
  for (const auto& known : kKinds) {
    if (name != known.name) continue;
    if (n != 0) return run->Fail("is " + name + ": too many arguments");
    *out = known.test(in);
    return true;
  }
  for (const Relation& known : kRelations) {
    if (name != known.name) continue;
    if (n != 1) return run->Fail("is " + name + ": one argument expected");
    return Relate(run, known.op, in, arguments.items[0], out);
  }
  if (name == "odd" || name == "even") {
    if (n != 0) return run->Fail("is " + name + ": too many arguments");
    return TestWhole(run, name, in, nullptr, out);
  }
  if (name == "divisibleby") {
    if (n != 1) return run->Fail("is divisibleby: one argument expected");
    return TestWhole(run, name, in, &arguments.items[0], out);
  }
  if (name == "upper" || name == "lower") {
    std::string text;
    if (n != 0 || !run->ToText(in, &text)) return run->Fail("is " + name + ": no argument expected");
    *out = name == "upper" ? Upper(text) == text && Lower(text) != text
                           : Lower(text) == text && Upper(text) != text;
    return true;
  }
  return run->Fail("the test \"" + name + "\" is not supported");
}

}  // namespace kvc::jinja
