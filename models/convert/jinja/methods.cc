// Methods of texts, dicts, lists and loops.
#include <algorithm>
#include <iterator>

#include "models/convert/jinja/interpreter.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

struct Invocation {
  Interpreter* run;
  const Value& self;
  const std::string& name;
  const Arguments& arguments;
  Value* out;

  bool Bind(const std::vector<const char*>& names, std::vector<const Value*>* bound) const {
    return run->Bind(name, arguments, names, bound);
  }
  bool TextOf(const Value* value, const std::string** text) const {
    if (value == nullptr || !value->is(Kind::kString)) return run->Fail(name + ": a text expected");
    *text = &value->text();
    return true;
  }
};

bool StripText(const Invocation& i) {
  std::vector<const Value*> bound;
  const std::string* set = nullptr;
  if (!i.Bind({"chars"}, &bound)) return false;
  if (bound[0] != nullptr && !bound[0]->is(Kind::kNone) && !i.TextOf(bound[0], &set)) return false;
  if (!i.run->Charge(1 + i.self.text().size() / 8 + (set != nullptr ? set->size() : 0))) return false;
  return i.run->GiveText(Strip(i.self.text(), set, i.name != "rstrip", i.name != "lstrip"), i.out);
}

// Values are larger than texts: charged before they are made.
bool GiveTexts(const Invocation& i, std::vector<std::string> texts) {
  if (!i.run->Charge(texts.size())) return false;
  std::vector<Value> values;
  for (std::string& text : texts) values.push_back(Text(std::move(text)));
  return i.run->Give(List(std::move(values)), i.out);
}

bool SplitText(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({"sep", "maxsplit"}, &bound)) return false;
  std::string separator;
  if (bound[0] != nullptr && !bound[0]->is(Kind::kNone)) {
    const std::string* text = nullptr;
    if (!i.TextOf(bound[0], &text)) return false;
    if (text->empty()) return i.run->Fail(i.name + ": an empty separator");
    separator = *text;
  }
  size_t max_parts = 0;
  if (bound[1] != nullptr) {
    if (!bound[1]->IsWhole()) return i.run->Fail(i.name + ": a whole number expected");
    if (bound[1]->number >= 0) max_parts = static_cast<size_t>(bound[1]->number) + 1;
  }
  if (separator.empty() && i.name == "rsplit") return i.run->Fail("rsplit at white space is not supported");
  const size_t size = i.self.text().size();
  if (!i.run->Charge(size / 16 + SearchSteps(size, separator.size()))) return false;
  return GiveTexts(i, i.name == "split" ? Split(i.self.text(), separator, max_parts)
                                        : SplitFromRight(i.self.text(), separator, max_parts));
}

bool SplitTextLines(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({"keepends"}, &bound) || !i.run->Charge(1 + i.self.text().size() / 8)) return false;
  return GiveTexts(i, SplitLines(i.self.text(), bound[0] != nullptr && Truth(*bound[0])));
}

// startswith and endswith; a tuple has several.
bool Begins(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({"prefix"}, &bound)) return false;
  std::vector<Value> affixes;
  if (bound[0] != nullptr) affixes = bound[0]->is(Kind::kTuple) ? bound[0]->items() : std::vector{*bound[0]};
  bool found = false;
  const std::string& text = i.self.text();
  for (const Value& affix : affixes) {
    const std::string* part = nullptr;
    if (!i.TextOf(&affix, &part)) return false;
    const size_t at = i.name == "startswith" ? 0 : text.size() - std::min(text.size(), part->size());
    found = found || text.compare(at, part->size(), *part) == 0;
  }
  if (bound[0] == nullptr) return i.run->Fail(i.name + ": a text expected");
  return i.run->Give(Bool(found), i.out);
}

bool RemoveAffix(const Invocation& i) {
  std::vector<const Value*> bound;
  const std::string* part = nullptr;
  if (!i.Bind({"affix"}, &bound) || !i.TextOf(bound[0], &part)) return false;
  std::string text = i.self.text();
  const bool prefix = i.name == "removeprefix";
  const size_t at = prefix ? 0 : text.size() - std::min(text.size(), part->size());
  if (text.compare(at, part->size(), *part) == 0) text.erase(at, part->size());
  return i.run->GiveText(std::move(text), i.out);
}

bool ReplaceText(const Invocation& i) {
  std::vector<const Value*> bound;
  const std::string *from = nullptr, *to = nullptr;
  if (!i.Bind({"old", "new", "count"}, &bound) || !i.TextOf(bound[0], &from) || !i.TextOf(bound[1], &to))
    return false;
  const int64_t limit = bound[2] == nullptr ? -1 : bound[2]->number;
  const size_t places = i.self.text().size() / std::max<size_t>(from->size(), 1) + 1;
  if (places > kMaxTextBytes / std::max<size_t>(to->size(), 1)) return i.run->Fail("a text is too long");
  if (!i.run->Charge(SearchSteps(i.self.text().size(), from->size()) + places * to->size() / 64))
    return false;
  return i.run->GiveText(Replace(i.self.text(), *from, *to, limit), i.out);
}

bool FindText(const Invocation& i) {
  std::vector<const Value*> bound;
  const std::string* part = nullptr;
  if (!i.Bind({"sub"}, &bound) || !i.TextOf(bound[0], &part)) return false;
  if (!i.run->Charge(SearchSteps(i.self.text().size(), part->size()))) return false;
  if (i.name == "count") {
    const std::vector<std::string> parts =
        part->empty() ? std::vector<std::string>() : Split(i.self.text(), *part, 0);
    const int64_t n = part->empty() ? CountCharacters(i.self.text()) : static_cast<int64_t>(parts.size()) - 1;
    return i.run->Give(Int(part->empty() ? n + 1 : n), i.out);
  }
  const size_t at = i.name == "rfind" ? i.self.text().rfind(*part) : i.self.text().find(*part);
  if (at == std::string::npos && i.name == "index") return i.run->Fail("index: not found");
  return i.run->Give(Int(at == std::string::npos ? -1 : CountCharacters(i.self.text().substr(0, at))), i.out);
}

bool ChangeCase(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({}, &bound)) return false;
  const std::string& text = i.self.text();
  if (!IsAscii(text)) return i.run->Fail("the case of letters beyond ASCII is not supported");
  return i.run->GiveText(i.name == "upper"        ? Upper(text)
                         : i.name == "lower"      ? Lower(text)
                         : i.name == "capitalize" ? Capitalize(text)
                                                  : Title(text),
                         i.out);
}

// isdigit, isspace, isalpha, isalnum, isupper, islower of ASCII characters.
bool IsAll(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({}, &bound) || !i.run->Charge(1 + i.self.text().size() / 64)) return false;
  const std::string& text = i.self.text();
  const auto is = [&](char c) {
    const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
    if (i.name == "isdigit") return digit;
    if (i.name == "isspace") return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    if (i.name == "isalpha") return lower || upper;
    if (i.name == "isalnum") return digit || lower || upper;
    return i.name == "isupper" ? !lower : !upper;
  };
  bool all = !text.empty() && std::all_of(text.begin(), text.end(), is);
  if (i.name == "isupper") all = all && Lower(text) != text;
  if (i.name == "islower") all = all && Upper(text) != text;
  return i.run->Give(Bool(all), i.out);
}

bool JoinTexts(const Invocation& i) {
  std::vector<const Value*> bound;
  std::vector<Value> parts;
  if (!i.Bind({"iterable"}, &bound)) return false;
  if (bound[0] == nullptr) return i.run->Fail("join: something to join expected");
  if (!i.run->Walk(*bound[0], &parts)) return false;
  std::string all;
  for (size_t k = 0; k < parts.size(); ++k) {
    const std::string* part = nullptr;
    if (!i.TextOf(&parts[k], &part)) return false;
    if (all.size() + part->size() + i.self.text().size() > kMaxTextBytes)
      return i.run->Fail("a text is too long");
    if (k > 0) all += i.self.text();
    all += *part;
  }
  return i.run->GiveText(std::move(all), i.out);
}

bool GetOfDict(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({"key", "default"}, &bound)) return false;
  if (bound[0] == nullptr) return i.run->Fail("get: a key expected");
  for (const auto& [key, value] : i.self.pairs()) {
    bool equal = false;
    if (!i.run->AreEqual(key, *bound[0], &equal)) return false;
    if (equal) return *i.out = value, true;
  }
  *i.out = bound[1] == nullptr ? None() : *bound[1];
  return true;
}

// items, keys, values
bool ListOfDict(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({}, &bound)) return false;
  std::vector<Value> items;
  for (const auto& [key, value] : i.self.pairs()) {
    items.push_back(i.name == "keys"     ? key
                    : i.name == "values" ? value
                                         : Collection(Kind::kTuple, {key, value}));
  }
  return i.run->Give(List(std::move(items)), i.out);
}

bool Copy(const Invocation& i) {
  std::vector<const Value*> bound;
  return i.Bind({}, &bound) && i.run->Give(i.self, i.out);
}

// index and count
bool FindItem(const Invocation& i) {
  std::vector<const Value*> bound;
  if (!i.Bind({"value"}, &bound)) return false;
  if (bound[0] == nullptr) return i.run->Fail(i.name + ": a value expected");
  int64_t n = 0;
  for (size_t k = 0; k < i.self.items().size(); ++k) {
    bool equal = false;
    if (!i.run->AreEqual(i.self.items()[k], *bound[0], &equal)) return false;
    if (equal && i.name == "index") return i.run->Give(Int(static_cast<int64_t>(k)), i.out);
    n += equal;
  }
  return i.name == "index" ? i.run->Fail("index: not found") : i.run->Give(Int(n), i.out);
}

bool Cycle(const Invocation& i) {
  if (i.arguments.items.empty()) return i.run->Fail("cycle: nothing to choose from");
  const size_t n = i.arguments.items.size();
  *i.out = i.arguments.items[static_cast<size_t>(i.self.object->at) % n];
  return true;
}

bool MayNotChange(const Invocation& i) {
  return i.run->Fail(i.name + ": templates may not change what they are given");
}

constexpr struct {
  Kind of;
  const char* name;
  bool (*method)(const Invocation& i);
} kMethods[] = {
    {Kind::kString, "strip", StripText},
    {Kind::kString, "lstrip", StripText},
    {Kind::kString, "rstrip", StripText},
    {Kind::kString, "split", SplitText},
    {Kind::kString, "rsplit", SplitText},
    {Kind::kString, "splitlines", SplitTextLines},
    {Kind::kString, "startswith", Begins},
    {Kind::kString, "endswith", Begins},
    {Kind::kString, "removeprefix", RemoveAffix},
    {Kind::kString, "removesuffix", RemoveAffix},
    {Kind::kString, "replace", ReplaceText},
    {Kind::kString, "find", FindText},
    {Kind::kString, "rfind", FindText},
    {Kind::kString, "index", FindText},
    {Kind::kString, "count", FindText},
    {Kind::kString, "upper", ChangeCase},
    {Kind::kString, "lower", ChangeCase},
    {Kind::kString, "capitalize", ChangeCase},
    {Kind::kString, "title", ChangeCase},
    {Kind::kString, "isdigit", IsAll},
    {Kind::kString, "isspace", IsAll},
    {Kind::kString, "isalpha", IsAll},
    {Kind::kString, "isalnum", IsAll},
    {Kind::kString, "isupper", IsAll},
    {Kind::kString, "islower", IsAll},
    {Kind::kString, "join", JoinTexts},
    {Kind::kDict, "get", GetOfDict},
    {Kind::kDict, "items", ListOfDict},
    {Kind::kDict, "keys", ListOfDict},
    {Kind::kDict, "values", ListOfDict},
    {Kind::kDict, "copy", Copy},
    {Kind::kDict, "update", MayNotChange},
    {Kind::kDict, "pop", MayNotChange},
    {Kind::kDict, "setdefault", MayNotChange},
    {Kind::kList, "index", FindItem},
    {Kind::kList, "count", FindItem},
    {Kind::kList, "copy", Copy},
    {Kind::kList, "append", MayNotChange},
    {Kind::kList, "extend", MayNotChange},
    {Kind::kList, "insert", MayNotChange},
    {Kind::kList, "pop", MayNotChange},
    {Kind::kTuple, "index", FindItem},
    {Kind::kTuple, "count", FindItem},
    {Kind::kLoop, "cycle", Cycle},
};

}  // namespace

bool HasMethod(const Value& of, const std::string& name) {
  return std::any_of(std::begin(kMethods), std::end(kMethods),
                     [&](const auto& known) { return known.of == of.kind && name == known.name; });
}

bool CallMethod(Interpreter* run, const Value& self, const std::string& name, const Arguments& arguments,
                Value* out) {
  for (const auto& known : kMethods) {
    if (known.of == self.kind && name == known.name) return known.method({run, self, name, arguments, out});
  }
  return run->Fail(name + " is not supported");
}

}  // namespace kvc::jinja
