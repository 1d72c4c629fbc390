// Expressions.
#include <algorithm>
#include <cmath>

#include "models/convert/jinja/interpreter.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

// Where Python's slices begin and end: indices into n items.
struct Range {
  int64_t begin, end, step;
};

bool Whole(const Value& value, bool* given, int64_t* n) {
  *given = !value.is(Kind::kNone);
  if (*given && !value.IsWhole()) return false;
  *n = value.number;
  return true;
}

Range RangeOf(int64_t n, const bool given[3], const int64_t parts[3]) {
  Range r{0, n, given[2] ? parts[2] : 1};
  const auto place = [&](int64_t at) {
    if (at < 0) at += n;
    return r.step > 0 ? std::clamp<int64_t>(at, 0, n) : std::clamp<int64_t>(at, -1, n - 1);
  };
  r.begin = given[0] ? place(parts[0]) : r.step > 0 ? 0 : n - 1;
  r.end = given[1] ? place(parts[1]) : r.step > 0 ? n : -1;
  return r;
}

std::string Types(const Value& a, const Value& b) { return std::string(TypeName(a)) + " and " + TypeName(b); }

}  // namespace

bool Interpreter::Evaluate(const Node& node, Value* out) {
  line_ = node.line;
  if (!Charge(1)) return false;
  return Nested([&] { return EvaluateNode(node, out); });
}

bool Interpreter::EvaluateNode(const Node& node, Value* out) {
  Value a, b;
  switch (node.type) {
    case Node::kConstant:
      *out = node.constant;
      return true;
    case Node::kName:
      return Lookup(node.text, out);
    case Node::kList:
    case Node::kTuple: {
      std::vector<Value> items;
      if (!EvaluateAll(node, 0, &items)) return false;
      return Give(Collection(node.type == Node::kList ? Kind::kList : Kind::kTuple, std::move(items)), out);
    }
    case Node::kDict:
      return EvaluateDict(node, out);
    case Node::kAttribute:
      return Evaluate(*node.kids[0], &a) && Attribute(a, node.text, out);
    case Node::kItem:
      return Evaluate(*node.kids[0], &a) && Evaluate(*node.kids[1], &b) && Item(a, b, out);
    case Node::kSlice:
      return EvaluateSlice(node, out);
    case Node::kCall: {
      Arguments arguments;
      return Evaluate(*node.kids[0], &a) && EvaluateArguments(node, &arguments) && Call(a, arguments, out);
    }
    case Node::kFilter:
      return Apply(node, nullptr, out);
    case Node::kTest: {
      Arguments arguments;
      bool good = false;
      if (!Evaluate(*node.kids[0], &a) || !EvaluateArguments(node, &arguments) ||
          !ApplyTest(this, node.text, a, arguments, &good))
        return false;
      *out = Bool(good);
      return true;
    }
    case Node::kNot:
      if (!Evaluate(*node.kids[0], &a)) return false;
      *out = Bool(!Truth(a));
      return true;
    case Node::kNegative:
    case Node::kPositive:
      return Sign(node, out);
    case Node::kAnd:
    case Node::kOr:
      if (!Evaluate(*node.kids[0], out)) return false;
      return Truth(*out) == (node.type == Node::kOr) || Evaluate(*node.kids[1], out);
    case Node::kCompare:
      return EvaluateCompare(node, out);
    case Node::kBinary:
      return Evaluate(*node.kids[0], &a) && Evaluate(*node.kids[1], &b) && Operate(node.text, a, b, out);
    case Node::kConcat:
      return EvaluateConcat(node, out);
    case Node::kConditional:
      if (!Evaluate(*node.kids[1], &a)) return false;
      if (Truth(a)) return Evaluate(*node.kids[0], out);
      if (node.kids[2] != nullptr) return Evaluate(*node.kids[2], out);
      *out = Undefined("an if without else");
      return true;
    default:
      return Fail("no expression");
  }
}

bool Interpreter::EvaluateAll(const Node& node, size_t first, std::vector<Value>* out) {
  for (size_t i = first; i < node.kids.size(); ++i) {
    out->emplace_back();
    if (!Evaluate(*node.kids[i], &out->back())) return false;
  }
  return true;
}

bool Interpreter::EvaluateArguments(const Node& node, Arguments* arguments) {
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value value;
    if (!Evaluate(*node.kids[i + 1], &value)) return false;
    if (node.names[i] == kSpread) {
      std::vector<Value> items;
      if (!Walk(value, &items)) return false;
      arguments->items.insert(arguments->items.end(), items.begin(), items.end());
    } else if (node.names[i].empty()) {
      arguments->items.push_back(std::move(value));
    } else {
      arguments->named.emplace_back(node.names[i], std::move(value));
    }
  }
  return true;
}

bool Interpreter::EvaluateDict(const Node& node, Value* out) {
  std::vector<std::pair<Value, Value>> pairs;
  for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
    Value key, value;
    if (!Evaluate(*node.kids[i], &key) || !Evaluate(*node.kids[i + 1], &value)) return false;
    if (!key.is(Kind::kString) && !key.IsNumber() && !key.is(Kind::kNone))
      return Fail(std::string("a ") + TypeName(key) + " cannot be a key");
    bool known = false;
    for (auto& pair : pairs) {
      bool equal = false;
      if (!AreEqual(pair.first, key, &equal)) return false;
      if (equal) pair.second = value, known = true;
    }
    if (!known) pairs.emplace_back(std::move(key), std::move(value));
  }
  return Give(Dict(std::move(pairs)), out);
}

bool Interpreter::EvaluateSlice(const Node& node, Value* out) {
  Value of;
  if (!Evaluate(*node.kids[0], &of)) return false;
  bool given[3] = {};
  int64_t parts[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (node.kids[i + 1] == nullptr) continue;
    Value part;
    if (!Evaluate(*node.kids[i + 1], &part)) return false;
    if (!Whole(part, &given[i], &parts[i])) return Fail("a slice of something that is no whole number");
  }
  if (given[2] && parts[2] == 0) return Fail("a slice with step 0");
  if (!of.is(Kind::kString) && !of.IsSequence()) {
    *out = Undefined("a slice");
    return true;
  }
  const std::vector<size_t> starts =
      of.is(Kind::kString) ? CharacterStarts(of.text()) : std::vector<size_t>();
  const size_t n = of.is(Kind::kString) ? starts.size() - 1 : of.items().size();
  if (!Charge(n / 64 + 1)) return false;
  const Range range = RangeOf(static_cast<int64_t>(n), given, parts);
  std::string text;
  std::vector<Value> items;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end;) {
    const size_t at = static_cast<size_t>(i);
    if (of.is(Kind::kString)) {
      text.append(of.text(), starts[at], starts[at + 1] - starts[at]);
    } else {
      items.push_back(of.items()[at]);
    }
    if (__builtin_add_overflow(i, range.step, &i)) break;
  }
  return of.is(Kind::kString) ? GiveText(std::move(text), out)
                              : Give(Collection(of.kind, std::move(items)), out);
}

bool Interpreter::EvaluateConcat(const Node& node, Value* out) {
  std::string all;
  for (const auto& kid : node.kids) {
    Value value;
    std::string text;
    if (!Evaluate(*kid, &value) || !ToText(value, &text)) return false;
    if (all.size() + text.size() > kMaxTextBytes) return Fail("a text is too long");
    all += text;
  }
  return GiveText(std::move(all), out);
}

bool Interpreter::EvaluateCompare(const Node& node, Value* out) {
  Value left, right;
  if (!Evaluate(*node.kids[0], &left)) return false;
  bool good = true;
  for (size_t i = 0; good && i < node.names.size(); ++i) {
    if (!Evaluate(*node.kids[i + 1], &right)) return false;
    const std::string& op = node.names[i];
    int order = 0;
    if (op == "==" || op == "!=") {
      if (!AreEqual(left, right, &good)) return false;
      good = good == (op == "==");
    } else if (op == "in" || op == "not in") {
      if (!Contains(right, left, &good)) return false;
      good = good == (op == "in");
    } else {
      if (!Compare(left, right, &order)) return false;
      good = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    left = std::move(right);
  }
  *out = Bool(good);
  return true;
}

bool Interpreter::Apply(const Node& filter, const Value* input, Value* out) {
  Value in;
  const Node* inner = filter.kids[0].get();
  if (inner == nullptr) {
    in = *input;
  } else if (input != nullptr && inner->type == Node::kFilter) {
    if (!Apply(*inner, input, &in)) return false;
  } else if (!Evaluate(*inner, &in)) {
    return false;
  }
  Arguments arguments;
  if (!EvaluateArguments(filter, &arguments)) return false;
  line_ = filter.line;
  return ApplyFilter(this, filter.text, in, arguments, out);
}

bool Interpreter::Sign(const Node& node, Value* out) {
  Value value;
  if (!Evaluate(*node.kids[0], &value)) return false;
  if (!value.IsNumber()) return Fail(std::string("no sign of a ") + TypeName(value));
  const bool negative = node.type == Node::kNegative;
  if (value.is(Kind::kFloat)) return Give(Float(negative ? -value.real : value.real), out);
  if (value.number == INT64_MIN) return Fail("a number that is too large");
  return Give(Int(negative ? -value.number : value.number), out);
}

bool Interpreter::AreEqual(const Value& a, const Value& b, bool* equal) {
  *equal = Equal(a, b, &steps_);
  return Charge(1);
}

bool Interpreter::Compare(const Value& a, const Value& b, int* order) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsWhole() && b.IsWhole()) {
      *order = a.number < b.number ? -1 : a.number > b.number;
    } else {
      *order = a.AsDouble() < b.AsDouble() ? -1 : a.AsDouble() > b.AsDouble();
    }
    return true;
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    if (!Charge(1 + std::min(a.text().size(), b.text().size()) / 64)) return false;
    *order = a.text().compare(b.text());
    return true;
  }
  if (a.IsSequence() && a.kind == b.kind) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      bool equal = false;
      if (!AreEqual(a.items()[i], b.items()[i], &equal)) return false;
      if (!equal) return Compare(a.items()[i], b.items()[i], order);
    }
    *order = a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size();
    return true;
  }
  return Fail("no order between " + Types(a, b));
}

bool Interpreter::Contains(const Value& all, const Value& item, bool* found) {
  *found = false;
  if (all.is(Kind::kString)) {
    if (!item.is(Kind::kString)) return Fail(std::string("a ") + TypeName(item) + " cannot be in a str");
    if (!Charge(SearchSteps(all.text().size(), item.text().size()))) return false;
    *found = all.text().find(item.text()) != std::string::npos;
    return true;
  }
  std::vector<Value> items;
  if (!Walk(all, &items)) return false;
  for (const Value& one : items) {
    if (!AreEqual(one, item, found)) return false;
    if (*found) break;
  }
  return true;
}

bool Interpreter::Item(const Value& of, const Value& key, Value* out) {
  if (of.is(Kind::kUndefined)) return Fail("\"" + of.text() + "\" is undefined");
  if (of.is(Kind::kDict)) {
    for (const auto& [name, value] : of.pairs()) {
      bool equal = false;
      if (!AreEqual(name, key, &equal)) return false;
      if (equal) return *out = value, true;
    }
  } else if (key.IsWhole() && (of.IsSequence() || of.is(Kind::kString))) {
    const bool text = of.is(Kind::kString);
    const std::vector<size_t> starts = text ? CharacterStarts(of.text()) : std::vector<size_t>();
    const int64_t n = static_cast<int64_t>(text ? starts.size() - 1 : of.items().size()),
                  i = key.number < 0 ? key.number + n : key.number;
    if (!Charge(starts.size() / 64 + 1)) return false;
    if (i >= 0 && i < n) {
      const size_t at = static_cast<size_t>(i);
      if (!text) return *out = of.items()[at], true;
      return GiveText(of.text().substr(starts[at], starts[at + 1] - starts[at]), out);
    }
  }
  if (key.is(Kind::kString) && (!of.is(Kind::kDict) || HasMethod(of, key.text())))
    return Attribute(of, key.text(), out);
  std::string name;
  if (!ToText(key, &name)) return false;
  *out = Undefined(name.substr(0, 80));
  return true;
}

bool Interpreter::Operate(const std::string& op, const Value& a, const Value& b, Value* out) {
  for (const Value* operand : {&a, &b}) {
    if (operand->is(Kind::kUndefined)) return Fail("\"" + operand->text() + "\" is undefined");
  }
  if (a.IsNumber() && b.IsNumber()) return Arithmetic(op, a, b, out);
  if (op == "+" && a.kind == b.kind) {
    if (a.is(Kind::kString)) {
      if (a.text().size() + b.text().size() > kMaxTextBytes) return Fail("a text is too long");
      return GiveText(a.text() + b.text(), out);
    }
    if (a.IsSequence()) {
      std::vector<Value> items = a.items();
      items.insert(items.end(), b.items().begin(), b.items().end());
      return Give(Collection(a.kind, std::move(items)), out);
    }
  }
  if (op == "*" && b.IsWhole()) return Repeat(a, b.number, out);
  if (op == "*" && a.IsWhole()) return Repeat(b, a.number, out);
  if (op == "%" && a.is(Kind::kString)) return Fail("formatting with % is not supported");
  return Fail("no " + op + " of " + Types(a, b));
}

bool Interpreter::Repeat(const Value& what, int64_t n, Value* out) {
  n = std::max<int64_t>(n, 0);
  const size_t size = what.is(Kind::kString) ? what.text().size() : what.items().size();
  if (!what.is(Kind::kString) && !what.IsSequence())
    return Fail(std::string("a ") + TypeName(what) + " cannot be repeated");
  if (size > 0 && n > static_cast<int64_t>(kMaxTextBytes / size)) return Fail("a text is too long");
  if (!Charge(static_cast<size_t>(n) * size / 64)) return false;
  std::string text;
  std::vector<Value> items;
  for (int64_t i = 0; size > 0 && i < n; ++i) {
    text += what.text();
    items.insert(items.end(), what.items().begin(), what.items().end());
  }
  return what.is(Kind::kString) ? GiveText(std::move(text), out)
                                : Give(Collection(what.kind, std::move(items)), out);
}

bool Interpreter::Arithmetic(const std::string& op, const Value& a, const Value& b, Value* out) {
  const bool divides = op == "/" || op == "//" || op == "%";
  if (divides && b.AsDouble() == 0) return Fail("division by zero");
  if (op == "**") {
    const double power = std::pow(a.AsDouble(), b.AsDouble());
    const bool whole = a.IsWhole() && b.IsWhole() && b.number >= 0;
    if (whole && std::fabs(power) > 9e15) return Fail("a number that is too large");
    return Give(whole ? Int(static_cast<int64_t>(power)) : Float(power), out);
  }
  if (op == "/" || a.is(Kind::kFloat) || b.is(Kind::kFloat)) {
    const double x = a.AsDouble(), y = b.AsDouble();
    const double floor = divides ? std::floor(x / y) : 0;
    return Give(Float(op == "+"    ? x + y
                      : op == "-"  ? x - y
                      : op == "*"  ? x * y
                      : op == "/"  ? x / y
                      : op == "//" ? floor
                                   : x - floor * y),
                out);
  }
  const int64_t x = a.number, y = b.number;
  int64_t result = 0;
  bool large = false;
  if (op == "+") large = __builtin_add_overflow(x, y, &result);
  if (op == "-") large = __builtin_sub_overflow(x, y, &result);
  if (op == "*") large = __builtin_mul_overflow(x, y, &result);
  if (op == "//" || op == "%") {
    large = x == INT64_MIN && y == -1;
    if (!large) {
      const int64_t rest = x % y, down = rest != 0 && (rest < 0) != (y < 0) ? 1 : 0;
      result = op == "//" ? x / y - down : rest + down * y;
    }
  }
  return large ? Fail("a number that is too large") : Give(Int(result), out);
}

}  // namespace kvc::jinja
