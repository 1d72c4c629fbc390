#include "models/convert/jinja/value.h"

#include <algorithm>

#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

const Object& Nothing() {
  static const Object nothing;
  return nothing;
}

Value Make(Kind kind, std::shared_ptr<Object> object) {
  Value value;
  value.kind = kind;
  value.object = std::move(object);
  return value;
}

bool EqualItems(const Value& a, const Value& b, int64_t* budget) {
  if (a.items().size() != b.items().size()) return false;
  for (size_t i = 0; i < a.items().size(); ++i) {
    if (!Equal(a.items()[i], b.items()[i], budget)) return false;
  }
  return true;
}

bool EqualPairs(const Value& a, const Value& b, int64_t* budget) {
  if (a.pairs().size() != b.pairs().size()) return false;
  for (const auto& [key, value] : a.pairs()) {
    const auto same_key = [&, k = &key](const auto& other) { return Equal(*k, other.first, budget); };
    const auto found = std::find_if(b.pairs().begin(), b.pairs().end(), same_key);
    if (found == b.pairs().end() || !Equal(value, found->second, budget)) return false;
  }
  return true;
}

bool AppendItems(const Value& value, size_t limit, std::string* out) {
  for (size_t i = 0; i < value.items().size(); ++i) {
    if (i > 0) *out += ", ";
    if (!AppendText(value.items()[i], true, limit, out)) return false;
  }
  if (value.is(Kind::kTuple) && value.items().size() == 1) *out += ",";
  return true;
}

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, size_t limit, std::string* out)
      : style_(style), limit_(limit), out_(out) {}

  bool Print(const Value& value, int level) {
    if (out_->size() > limit_) return false;
    switch (value.kind) {
      case Kind::kNone:
        return Put("null");
      case Kind::kBool:
        return Put(value.number != 0 ? "true" : "false");
      case Kind::kInt:
        return Put(std::to_string(value.number));
      case Kind::kFloat:
        return Put(FloatText(value.real));
      case Kind::kString:
        return Put(JsonText(value.text(), style_.ascii));
      case Kind::kList:
      case Kind::kTuple:
        return PrintItems(value, level);
      case Kind::kDict:
        return PrintPairs(value, level);
      default:
        wrong_ = TypeName(value);
        return false;
    }
  }
  const char* wrong() const { return wrong_; }

 private:
  bool Put(const std::string& text) {
    *out_ += text;
    return out_->size() <= limit_;
  }
  void NewLine(int level) {
    if (!style_.indented) return;
    *out_ += '\n';
    for (int i = 0; i < level && out_->size() <= limit_; ++i) *out_ += style_.indent;
  }
  bool PrintItems(const Value& value, int level) {
    if (value.items().empty()) return Put("[]");
    *out_ += '[';
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) *out_ += style_.item_separator;
      NewLine(level + 1);
      if (!Print(value.items()[i], level + 1)) return false;
    }
    NewLine(level);
    return Put("]");
  }
  bool PrintPairs(const Value& value, int level) {
    if (value.pairs().empty()) return Put("{}");
    std::vector<const std::pair<Value, Value>*> pairs;
    for (const auto& pair : value.pairs()) pairs.push_back(&pair);
    if (style_.sort_keys) {
      std::sort(pairs.begin(), pairs.end(),
                [](const auto* a, const auto* b) { return a->first.text() < b->first.text(); });
    }
    *out_ += '{';
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) *out_ += style_.item_separator;
      NewLine(level + 1);
      std::string key;
      if (pairs[i]->first.is(Kind::kString)) {
        key = pairs[i]->first.text();
      } else {
        JsonPrinter plain(style_, limit_, &key);
        if (pairs[i]->first.IsSequence() || pairs[i]->first.is(Kind::kDict) ||
            !plain.Print(pairs[i]->first, 0)) {
          wrong_ = "key that is no text";
          return false;
        }
      }
      *out_ += JsonText(key, style_.ascii) + style_.key_separator;
      if (!Print(pairs[i]->second, level + 1)) return false;
    }
    NewLine(level);
    return Put("}");
  }

  const JsonStyle& style_;
  const size_t limit_;
  std::string* const out_;
  const char* wrong_ = nullptr;
};

}  // namespace

const std::string& Value::text() const { return object == nullptr ? Nothing().text : object->text; }
const std::vector<Value>& Value::items() const { return object == nullptr ? Nothing().items : object->items; }
const std::vector<std::pair<Value, Value>>& Value::pairs() const {
  return object == nullptr ? Nothing().pairs : object->pairs;
}

Value Undefined(std::string name) { return Named(Kind::kUndefined, std::move(name)); }

Value None() {
  Value value;
  value.kind = Kind::kNone;
  return value;
}

Value Bool(bool b) {
  Value value;
  value.kind = Kind::kBool, value.number = b ? 1 : 0;
  return value;
}

Value Int(int64_t n) {
  Value value;
  value.kind = Kind::kInt, value.number = n;
  return value;
}

Value Float(double x) {
  Value value;
  value.kind = Kind::kFloat, value.real = x;
  return value;
}

Value Text(std::string text) { return Named(Kind::kString, std::move(text)); }

Value Named(Kind kind, std::string name) {
  auto object = std::make_shared<Object>();
  object->text = std::move(name);
  return Make(kind, std::move(object));
}

int64_t DepthOf(const Value& value) {
  switch (value.kind) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kGenerator:
    case Kind::kMethod:
      return value.object->depth;
    case Kind::kNamespace:  // can be made to hold anything later
    case Kind::kLoop:
      return kMaxValueDepth;
    default:
      return 0;
  }
}

Value Collection(Kind kind, std::vector<Value> items) {
  auto object = std::make_shared<Object>();
  for (const Value& item : items) object->depth = std::max(object->depth, DepthOf(item) + 1);
  object->items = std::move(items);
  return Make(kind, std::move(object));
}

Value List(std::vector<Value> items) { return Collection(Kind::kList, std::move(items)); }

Value Dict(std::vector<std::pair<Value, Value>> pairs) {
  auto object = std::make_shared<Object>();
  for (const auto& pair : pairs) object->depth = std::max(object->depth, DepthOf(pair.second) + 1);
  object->pairs = std::move(pairs);
  return Make(Kind::kDict, std::move(object));
}

bool Truth(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.number != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.pairs().empty();
    default:
      return true;
  }
}

bool Equal(const Value& a, const Value& b, int64_t* budget) {
  if (--*budget < 0) return false;
  if (a.IsWhole() && b.IsWhole()) return a.number == b.number;
  if (a.IsNumber() && b.IsNumber()) return a.AsDouble() == b.AsDouble();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      *budget -= static_cast<int64_t>(a.text().size() / 64);
      return *budget >= 0 && a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(a, b, budget);
    case Kind::kDict:
      return EqualPairs(a, b, budget);
    default:
      return a.object == b.object;
  }
}

const Value* FindKey(const Value& dict, const std::string& key) {
  for (const auto& [name, value] : dict.pairs()) {
    if (name.is(Kind::kString) && name.text() == key) return &value;
  }
  return nullptr;
}

const char* TypeName(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kGenerator:
      return "generator";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    default:
      return "function";
  }
}

bool AppendText(const Value& value, bool quoted, size_t limit, std::string* out) {
  switch (value.kind) {
    case Kind::kUndefined:
      *out += quoted ? "Undefined" : "";
      break;
    case Kind::kNone:
      *out += "None";
      break;
    case Kind::kBool:
      *out += value.number != 0 ? "True" : "False";
      break;
    case Kind::kInt:
      *out += std::to_string(value.number);
      break;
    case Kind::kFloat:
      *out += FloatText(value.real);
      break;
    case Kind::kString:
      *out += quoted ? QuotedText(value.text()) : value.text();
      break;
    case Kind::kList:
    case Kind::kTuple:
      *out += value.is(Kind::kList) ? '[' : '(';
      if (!AppendItems(value, limit, out)) return false;
      *out += value.is(Kind::kList) ? ']' : ')';
      break;
    case Kind::kDict:
      *out += '{';
      for (size_t i = 0; i < value.pairs().size(); ++i) {
        if (i > 0) *out += ", ";
        if (!AppendText(value.pairs()[i].first, true, limit, out)) return false;
        *out += ": ";
        if (!AppendText(value.pairs()[i].second, true, limit, out)) return false;
      }
      *out += '}';
      break;
    default:
      *out += std::string("<") + TypeName(value) + ">";
  }
  return out->size() <= limit;
}

bool AppendJson(const Value& value, const JsonStyle& style, size_t limit, std::string* out,
                const char** wrong) {
  JsonPrinter printer(style, limit, out);
  const bool good = printer.Print(value, 0);
  *wrong = printer.wrong();
  return good;
}

}  // namespace kvc::jinja
