// What stands behind "|".
#include <algorithm>
#include <cmath>
#include <iterator>

#include "lib/base/decimal.h"
#include "models/convert/jinja/interpreter.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

struct Invocation {
  Interpreter* run;
  const std::string& name;
  const Value& in;
  const Arguments& arguments;
  Value* out;

  bool Bind(const std::vector<const char*>& names, std::vector<const Value*>* bound) const {
    return run->Bind(name, arguments, names, bound);
  }
  // The input as text.
  bool Text(std::string* text) const { return run->ToText(in, text) && run->Charge(1 + text->size() / 16); }
};

using Bound = std::vector<const Value*>;

bool Trim(const Invocation& i) {
  Bound bound;
  std::string text, set;
  if (!i.Bind({"chars"}, &bound) || !i.Text(&text)) return false;
  const bool has_set = bound[0] != nullptr && !bound[0]->is(Kind::kNone);
  if (has_set && (!i.run->ToText(*bound[0], &set) || !i.run->Charge(set.size()))) return false;
  return i.run->GiveText(Strip(text, has_set ? &set : nullptr, true, true), i.out);
}

bool ChangeCase(const Invocation& i) {
  Bound bound;
  std::string text;
  if (!i.Bind({}, &bound) || !i.Text(&text)) return false;
  if (!IsAscii(text)) return i.run->Fail("the case of letters beyond ASCII is not supported");
  return i.run->GiveText(i.name == "upper"        ? Upper(text)
                         : i.name == "lower"      ? Lower(text)
                         : i.name == "capitalize" ? Capitalize(text)
                                                  : Title(text),
                         i.out);
}

bool AsText(const Invocation& i) {
  Bound bound;
  std::string text;
  return i.Bind({}, &bound) && i.Text(&text) && i.run->GiveText(std::move(text), i.out);
}

bool Length(const Invocation& i) {
  Bound bound;
  if (!i.Bind({}, &bound)) return false;
  switch (i.in.kind) {
    case Kind::kUndefined:
      return i.run->Give(Int(0), i.out);
    case Kind::kString:
      return i.run->Charge(1 + i.in.text().size() / 64) &&
             i.run->Give(Int(CountCharacters(i.in.text())), i.out);
    case Kind::kList:
    case Kind::kTuple:
      return i.run->Give(Int(static_cast<int64_t>(i.in.items().size())), i.out);
    case Kind::kDict:
      return i.run->Give(Int(static_cast<int64_t>(i.in.pairs().size())), i.out);
    default:
      return i.run->Fail(std::string("a ") + TypeName(i.in) + " has no length");
  }
}

bool ReplaceIn(const Invocation& i) {
  Bound bound;
  std::string text, from, to;
  if (!i.Bind({"old", "new", "count"}, &bound)) return false;
  if (bound[0] == nullptr || bound[1] == nullptr) return i.run->Fail("replace: two texts expected");
  if (!i.Text(&text) || !i.run->ToText(*bound[0], &from) || !i.run->ToText(*bound[1], &to)) return false;
  const size_t places = text.size() / std::max<size_t>(from.size(), 1) + 1;
  if (places > kMaxTextBytes / std::max<size_t>(to.size(), 1)) return i.run->Fail("a text is too long");
  if (!i.run->Charge(SearchSteps(text.size(), from.size()) + places * to.size() / 64)) return false;
  const bool all = bound[2] == nullptr || bound[2]->is(Kind::kNone);
  return i.run->GiveText(Replace(text, from, to, all ? -1 : bound[2]->number), i.out);
}

bool Join(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  std::string separator, all;
  if (!i.Bind({"d", "attribute"}, &bound) || !i.run->Walk(i.in, &items)) return false;
  if (bound[0] != nullptr && !i.run->ToText(*bound[0], &separator)) return false;
  for (size_t k = 0; k < items.size(); ++k) {
    std::string text;
    Value item = items[k];
    if (bound[1] != nullptr && !i.run->Item(items[k], *bound[1], &item)) return false;
    if (!i.run->ToText(item, &text)) return false;
    if (all.size() + text.size() + separator.size() > kMaxTextBytes) return i.run->Fail("a text is too long");
    if (k > 0) all += separator;
    all += text;
  }
  return i.run->GiveText(std::move(all), i.out);
}

bool Default(const Invocation& i) {
  Bound bound;
  if (!i.Bind({"default_value", "boolean"}, &bound)) return false;
  const bool also_false = bound[1] != nullptr && Truth(*bound[1]);
  const bool missing = i.in.is(Kind::kUndefined) || (also_false && !Truth(i.in));
  *i.out = !missing ? i.in : bound[0] == nullptr ? Text("") : *bound[0];
  return true;
}

// first, last
bool End(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  if (!i.Bind({}, &bound) || !i.run->Walk(i.in, &items)) return false;
  *i.out = items.empty()       ? Undefined("an item of an empty list")
           : i.name == "first" ? items.front()
                               : items.back();
  return true;
}

bool AsList(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  return i.Bind({}, &bound) && i.run->Walk(i.in, &items) && i.run->Give(List(std::move(items)), i.out);
}

bool Reverse(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  if (!i.Bind({}, &bound) || !i.run->Walk(i.in, &items)) return false;
  std::reverse(items.begin(), items.end());
  if (!i.in.is(Kind::kString)) return i.run->Give(Collection(Kind::kGenerator, std::move(items)), i.out);
  std::string text;
  for (const Value& item : items) text += item.text();
  return i.run->GiveText(std::move(text), i.out);
}

bool Items(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  if (!i.Bind({}, &bound)) return false;
  if (!i.in.is(Kind::kDict) && !i.in.is(Kind::kUndefined)) return i.run->Fail("items: a dict expected");
  for (const auto& [key, value] : i.in.pairs()) items.push_back(Collection(Kind::kTuple, {key, value}));
  return i.run->Give(Collection(Kind::kGenerator, std::move(items)), i.out);
}

// Charged before there is one more text.
bool WithoutCase(const Invocation& i, Value* key) {
  if (!key->is(Kind::kString)) return true;
  if (!i.run->Charge(1 + key->text().size() / 64)) return false;
  *key = Text(Lower(key->text()));
  return true;
}

// Stable, by Python's order; texts without regard to case unless asked. What cannot be compared fails.
bool SortValues(const Invocation& i, std::vector<Value>* items, const Value* by, bool with_case, bool down) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : *items) {
    Value key = item;
    if (by != nullptr && !i.run->Item(item, *by, &key)) return false;
    if (!with_case && !WithoutCase(i, &key)) return false;
    keyed.emplace_back(std::move(key), std::move(item));
  }
  bool good = true;
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    int order = 0;
    good = good && i.run->Charge(1) && i.run->Compare(a.first, b.first, &order);
    return good && (down ? order > 0 : order < 0);
  });
  for (size_t k = 0; k < keyed.size(); ++k) (*items)[k] = std::move(keyed[k].second);
  return good;
}

bool Sort(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  if (!i.Bind({"reverse", "case_sensitive", "attribute"}, &bound) || !i.run->Walk(i.in, &items)) return false;
  const auto set = [&](size_t k) { return bound[k] != nullptr && Truth(*bound[k]); };
  return SortValues(i, &items, bound[2], set(1), set(0)) && i.run->Give(List(std::move(items)), i.out);
}

bool SortDict(const Invocation& i) {
  Bound bound;
  if (!i.Bind({"case_sensitive", "by", "reverse"}, &bound)) return false;
  if (!i.in.is(Kind::kDict)) return i.run->Fail("dictsort: a dict expected");
  std::vector<Value> items;
  for (const auto& [key, value] : i.in.pairs()) items.push_back(Collection(Kind::kTuple, {key, value}));
  const auto set = [&](size_t k) { return bound[k] != nullptr && Truth(*bound[k]); };
  const Value by = Int(bound[1] != nullptr && bound[1]->text() == "value" ? 1 : 0);
  return SortValues(i, &items, &by, set(0), set(2)) && i.run->Give(List(std::move(items)), i.out);
}

bool Unique(const Invocation& i) {
  Bound bound;
  std::vector<Value> items, kept, keys;
  if (!i.Bind({"case_sensitive", "attribute"}, &bound) || !i.run->Walk(i.in, &items)) return false;
  for (const Value& item : items) {
    Value key = item;
    if (bound[1] != nullptr && !i.run->Item(item, *bound[1], &key)) return false;
    if ((bound[0] == nullptr || !Truth(*bound[0])) && !WithoutCase(i, &key)) return false;
    bool known = false;
    if (!i.run->Contains(List(keys), key, &known)) return false;
    if (!known) keys.push_back(key), kept.push_back(item);
  }
  return i.run->Give(Collection(Kind::kGenerator, std::move(kept)), i.out);
}

// map(attribute=.., default=..) and map("filter", ..)
bool Map(const Invocation& i) {
  std::vector<Value> items, mapped;
  if (!i.run->Walk(i.in, &items)) return false;
  const Value *attribute = nullptr, *standard = nullptr;
  if (!i.run->Charge(i.arguments.items.size() + i.arguments.named.size())) return false;
  Arguments rest = i.arguments;
  for (const auto& [name, value] : i.arguments.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") standard = &value;
  }
  std::string filter;
  if (attribute == nullptr) {
    if (rest.items.empty() || !rest.items[0].is(Kind::kString)) return i.run->Fail("map: a filter expected");
    filter = rest.items[0].text();
    rest.items.erase(rest.items.begin());
  }
  for (const Value& item : items) {
    Value value;
    if (!i.run->Charge(1)) return false;
    if (attribute == nullptr) {
      if (!ApplyFilter(i.run, filter, item, rest, &value)) return false;
    } else {
      if (!i.run->Item(item, *attribute, &value)) return false;
      if (value.is(Kind::kUndefined) && standard != nullptr) value = *standard;
    }
    mapped.push_back(std::move(value));
  }
  return i.run->Give(Collection(Kind::kGenerator, std::move(mapped)), i.out);
}

// select, reject, selectattr, rejectattr
bool Select(const Invocation& i) {
  const bool by_attribute = i.name.size() > 6, keep = i.name[0] == 's';
  Arguments rest = i.arguments;
  Value attribute;
  std::string test;
  if (by_attribute) {
    if (rest.items.empty()) return i.run->Fail(i.name + ": an attribute expected");
    attribute = rest.items[0];
    rest.items.erase(rest.items.begin());
  }
  if (!rest.items.empty()) {
    if (!rest.items[0].is(Kind::kString)) return i.run->Fail(i.name + ": the name of a test expected");
    test = rest.items[0].text();
    rest.items.erase(rest.items.begin());
  }
  std::vector<Value> items, chosen;
  if (!i.run->Walk(i.in, &items)) return false;
  for (const Value& item : items) {
    Value value = item;
    if (!i.run->Charge(1) || (by_attribute && !i.run->Item(item, attribute, &value))) return false;
    bool good = Truth(value);
    if (!test.empty() && !ApplyTest(i.run, test, value, rest, &good)) return false;
    if (good == keep) chosen.push_back(item);
  }
  return i.run->Give(Collection(Kind::kGenerator, std::move(chosen)), i.out);
}

bool ToJson(const Invocation& i) {
  Bound bound;
  if (!i.Bind({"ensure_ascii", "indent", "separators", "sort_keys"}, &bound)) return false;
  const auto given = [&](size_t k) { return bound[k] != nullptr && !bound[k]->is(Kind::kNone); };
  JsonStyle style;
  style.ascii = given(0) && Truth(*bound[0]);
  style.sort_keys = given(3) && Truth(*bound[3]);
  if (given(1)) {
    style.indented = true;
    style.item_separator.resize(1);  // no space at the end of a line
    const bool number = bound[1]->IsWhole();
    if (!number && !bound[1]->is(Kind::kString)) return i.run->Fail("tojson: indent is no number");
    if (number && bound[1]->number > 64) return i.run->Fail("tojson: too much indent");
    style.indent = number ? std::string(static_cast<size_t>(std::max<int64_t>(0, bound[1]->number)), ' ')
                          : bound[1]->text();
  }
  if (given(2)) {
    if (bound[2]->items().size() != 2) return i.run->Fail("tojson: two separators expected");
    style.item_separator = bound[2]->items()[0].text(), style.key_separator = bound[2]->items()[1].text();
  }
  std::string text;
  const char* wrong = nullptr;
  if (!AppendJson(i.in, style, kMaxTextBytes, &text, &wrong))
    return i.run->Fail(wrong == nullptr ? "a text is too long"
                                        : std::string("tojson: a ") + wrong + " has no JSON");
  return i.run->GiveText(std::move(text), i.out);
}

bool Indent(const Invocation& i) {
  Bound bound;
  std::string text, all;
  if (!i.Bind({"width", "first", "blank"}, &bound) || !i.Text(&text)) return false;
  const auto set = [&](size_t k) { return bound[k] != nullptr && Truth(*bound[k]); };
  std::string space(4, ' ');
  if (bound[0] != nullptr && bound[0]->is(Kind::kString)) {
    space = bound[0]->text();
  } else if (bound[0] != nullptr) {
    if (!bound[0]->IsWhole() || bound[0]->number > 64) return i.run->Fail("indent: a small number expected");
    space.assign(static_cast<size_t>(std::max<int64_t>(0, bound[0]->number)), ' ');
  }
  const std::vector<std::string> lines = Split(text, "\n", 0);
  for (size_t k = 0; k < lines.size(); ++k) {
    if (k > 0) all += '\n';
    if (k == 0 ? set(1) : set(2) || !lines[k].empty()) all += space;
    all += lines[k];
    if (all.size() > kMaxTextBytes) return i.run->Fail("a text is too long");
  }
  return i.run->GiveText(std::move(all), i.out);
}

// int, float: of texts too; 0, or the default, for what is no number.
bool ToNumber(const Invocation& i) {
  Bound bound;
  if (!i.Bind({"default"}, &bound)) return false;
  const bool whole = i.name == "int";
  double value = 0;
  bool good = i.in.IsNumber();
  if (good) value = i.in.AsDouble();
  if (i.in.is(Kind::kString) && !i.run->Charge(1 + i.in.text().size() / 16)) return false;
  if (i.in.is(Kind::kString)) good = ReadDecimal(Strip(i.in.text(), nullptr, true, true), &value);
  if (!good) return *i.out = bound[0] != nullptr ? *bound[0] : whole ? Int(0) : Float(0), true;
  if (!whole) return i.run->Give(Float(value), i.out);
  if (i.in.IsWhole()) return i.run->Give(Int(i.in.number), i.out);
  if (!(std::fabs(value) < 9e18)) return i.run->Fail("int: a number that is too large");
  return i.run->Give(Int(static_cast<int64_t>(value)), i.out);
}

bool Absolute(const Invocation& i) {
  Bound bound;
  if (!i.Bind({}, &bound)) return false;
  if (!i.in.IsNumber() || i.in.number == INT64_MIN) return i.run->Fail("abs: a number expected");
  return i.run->Give(i.in.is(Kind::kFloat) ? Float(std::fabs(i.in.real)) : Int(std::llabs(i.in.number)),
                     i.out);
}

// sum, min, max
bool Reduce(const Invocation& i) {
  Bound bound;
  std::vector<Value> items;
  const bool sum = i.name == "sum";
  if (!i.Bind(sum ? std::vector<const char*>{"attribute", "start"}
                  : std::vector<const char*>{"case_sensitive", "attribute"},
              &bound) ||
      !i.run->Walk(i.in, &items))
    return false;
  const Value* attribute = sum ? bound[0] : bound[1];
  Value result = sum ? (bound[1] != nullptr ? *bound[1] : Int(0)) : Undefined("an item of an empty list");
  bool first = !sum;
  for (const Value& item : items) {
    Value value = item;
    if (attribute != nullptr && !i.run->Item(item, *attribute, &value)) return false;
    if (sum) {
      Value total;
      if (!i.run->Operate("+", result, value, &total)) return false;
      result = std::move(total);
      continue;
    }
    int order = 0;
    if (!first && !i.run->Compare(value, result, &order)) return false;
    if (first || (i.name == "min" ? order < 0 : order > 0)) result = item;
    first = false;
  }
  *i.out = std::move(result);
  return true;
}

constexpr struct {
  const char* name;
  bool (*filter)(const Invocation& i);
} kFilters[] = {
    {"trim", Trim},         {"upper", ChangeCase},  {"lower", ChangeCase}, {"capitalize", ChangeCase},
    {"title", ChangeCase},  {"string", AsText},     {"safe", AsText},      {"length", Length},
    {"count", Length},      {"replace", ReplaceIn}, {"join", Join},        {"default", Default},
    {"d", Default},         {"first", End},         {"last", End},         {"list", AsList},
    {"reverse", Reverse},   {"items", Items},       {"sort", Sort},        {"dictsort", SortDict},
    {"unique", Unique},     {"map", Map},           {"select", Select},    {"reject", Select},
    {"selectattr", Select}, {"rejectattr", Select}, {"tojson", ToJson},    {"indent", Indent},
    {"int", ToNumber},      {"float", ToNumber},    {"abs", Absolute},     {"sum", Reduce},
    {"min", Reduce},        {"max", Reduce},
};

}  // namespace

bool ApplyFilter(Interpreter* run, const std::string& name, const Value& in, const Arguments& arguments,
                 Value* out) {
  for (const auto& known : kFilters) {
    if (name == known.name) return run->Nested([&] { return known.filter({run, name, in, arguments, out}); });
  }
  return run->Fail("the filter \"" + name + "\" is not supported");
}

}  // namespace kvc::jinja
