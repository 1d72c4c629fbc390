// Statements, scopes and calls.
#include "models/convert/jinja/interpreter.h"

#include <algorithm>

#include "lib/base/utf8.h"
#include "models/convert/jinja/parser.h"

namespace kvc::jinja {
namespace {

constexpr int kMaxRunDepth = 60;  // bodies within bodies, macros in macros

Value LoopAttribute(const Object& loop, const std::string& name) {
  const int64_t n = static_cast<int64_t>(loop.items.size()), i = loop.at;
  const auto item = [&](int64_t at, const char* what) {
    return at >= 0 && at < n ? loop.items[static_cast<size_t>(at)] : Undefined(what);
  };
  if (name == "index") return Int(i + 1);
  if (name == "index0") return Int(i);
  if (name == "revindex") return Int(n - i);
  if (name == "revindex0") return Int(n - i - 1);
  if (name == "first") return Bool(i == 0);
  if (name == "last") return Bool(i == n - 1);
  if (name == "length") return Int(n);
  if (name == "previtem") return item(i - 1, "there is no previous item");
  if (name == "nextitem") return item(i + 1, "there is no next item");
  if (name == "depth") return Int(1);
  if (name == "depth0") return Int(0);
  return Undefined("loop." + name);
}

}  // namespace

Status Interpreter::Render(const Node& root, const Variables& variables, std::string* out) {
  globals_ = std::make_shared<Scope>();
  for (const auto& [name, value] : variables) globals_->names[name] = value;
  scope_ = std::make_shared<Scope>();
  scope_->parent = globals_;
  out->clear();
  out_ = out;
  Run(root);
  return status_;
}

bool Interpreter::Fail(const std::string& what) {
  if (status_.ok()) status_ = Error(Code::kUnsupported, "line %d: %s", line_, what.substr(0, 300).c_str());
  return false;
}

bool Interpreter::Refuse(const std::string& what) {
  if (status_.ok()) status_ = Status(Code::kInvalid, what.substr(0, 300));
  return false;
}

bool Interpreter::Charge(size_t n_steps) {
  steps_ -= static_cast<int64_t>(std::min<size_t>(n_steps, size_t{kMaxSteps} + 1));
  return steps_ >= 0 || Fail("the template takes too many steps");
}

bool Interpreter::Good(const Value& value) {
  if (DepthOf(value) > kMaxValueDepth) return Fail("values are nested too deeply");
  if (value.is(Kind::kString)) {
    if (value.text().size() > kMaxTextBytes) return Fail("a text is too long");
    return Charge(value.text().size() / 64);
  }
  return Charge(value.items().size() + value.pairs().size());
}

bool Interpreter::Give(Value value, Value* out) {
  if (!Good(value)) return false;
  *out = std::move(value);
  return true;
}

bool Interpreter::GiveText(std::string text, Value* out) { return Give(Text(std::move(text)), out); }

bool Interpreter::ToText(const Value& value, std::string* out) {
  out->clear();
  if (!AppendText(value, false, kMaxTextBytes, out)) return Fail("a text is too long");
  return Charge(1 + out->size() / 64);
}

bool Interpreter::Print(const std::string& text) {
  if (out_->size() + text.size() > kMaxTextBytes) return Fail("the template writes too much");
  *out_ += text;
  return Charge(1 + text.size() / 64);
}

bool Interpreter::Walk(const Value& value, std::vector<Value>* items) {
  items->clear();
  switch (value.kind) {
    case Kind::kUndefined:
      return true;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kGenerator:
      *items = value.items();
      return Charge(items->size());
    case Kind::kDict:
      for (const auto& pair : value.pairs()) items->push_back(pair.first);
      return Charge(items->size());
    case Kind::kString: {
      const std::string& text = value.text();
      if (!Charge(text.size())) return false;
      for (size_t i = 0, n; i < text.size(); i += n) {
        n = std::max<size_t>(1,
                             Utf8Length(reinterpret_cast<const uint8_t*>(text.data()) + i, text.size() - i));
        items->push_back(Text(text.substr(i, n)));
      }
      return true;
    }
    default:
      return Fail(std::string("a ") + TypeName(value) + " cannot be walked through");
  }
}

Interpreter::Flow Interpreter::Run(const Node& node) {
  line_ = node.line;
  if (!Charge(1)) return Flow::kFailed;
  const auto flow = [](bool good) { return good ? Flow::kOn : Flow::kFailed; };
  Value value;
  switch (node.type) {
    case Node::kBlock:
      for (const NodePtr& kid : node.kids) {
        const Flow next = Run(*kid);
        if (next != Flow::kOn) return next;
      }
      return Flow::kOn;
    case Node::kText:
      return flow(Print(node.text));
    case Node::kOutput: {
      std::string text;
      return flow(Evaluate(*node.kids[0], &value) && ToText(value, &text) && Print(text));
    }
    case Node::kIf:
      return RunIf(node);
    case Node::kFor:
      return RunFor(node);
    case Node::kSet:
      return flow(Evaluate(*node.kids[1], &value) && Assign(*node.kids[0], value));
    case Node::kSetBlock:
      return flow(RunFiltered(*node.kids[2], node.kids[1].get(), &value) && Assign(*node.kids[0], value));
    case Node::kFilterBlock: {
      std::string text;
      return flow(RunFiltered(*node.kids[1], node.kids[0].get(), &value) && ToText(value, &text) &&
                  Print(text));
    }
    case Node::kMacro:
      value = Named(Kind::kMacro, node.text);
      value.object->macro = &node, value.object->scope = scope_;
      scope_->names[node.text] = std::move(value);
      return Flow::kOn;
    case Node::kWith: {
      auto inner = std::make_shared<Scope>();
      inner->parent = scope_;
      std::vector<Value> values(node.kids.size() / 2);
      for (size_t i = 0; i < values.size(); ++i) {
        if (!Evaluate(*node.kids[2 + 2 * i], &values[i])) return Flow::kFailed;
      }
      const std::shared_ptr<Scope> outer = std::exchange(scope_, inner);
      bool good = true;
      for (size_t i = 0; good && i < values.size(); ++i) good = Assign(*node.kids[1 + 2 * i], values[i]);
      const Flow next = good ? RunInScope(*node.kids[0]) : Flow::kFailed;
      scope_ = outer;
      return next;
    }
    case Node::kGeneration: {
      const std::shared_ptr<Scope> outer = scope_;
      scope_ = std::make_shared<Scope>();
      scope_->parent = outer;
      const Flow next = RunInScope(*node.kids[0]);
      scope_ = outer;
      return next;
    }
    case Node::kBreak:
      return Flow::kBreak;
    case Node::kContinue:
      return Flow::kContinue;
    default:
      return flow(Fail("no statement"));
  }
}

Interpreter::Flow Interpreter::RunInScope(const Node& node) {
  if (++depth_ > kMaxRunDepth) return Fail("the template is nested too deeply"), Flow::kFailed;
  const Flow flow = Run(node);
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::RunIf(const Node& node) {
  size_t i = 0;
  for (; i + 1 < node.kids.size(); i += 2) {
    Value condition;
    if (!Evaluate(*node.kids[i], &condition)) return Flow::kFailed;
    if (Truth(condition)) return RunInScope(*node.kids[i + 1]);
  }
  return node.kids[i] == nullptr ? Flow::kOn : RunInScope(*node.kids[i]);
}

Interpreter::Flow Interpreter::RunFor(const Node& node) {
  Value all;
  std::vector<Value> items;
  if (!Evaluate(*node.kids[1], &all) || !Walk(all, &items)) return Flow::kFailed;
  const std::shared_ptr<Scope> outer = scope_;
  struct Restore {
    Interpreter* run;
    const std::shared_ptr<Scope>& outer;
    ~Restore() { run->scope_ = outer; }
  } restore{this, outer};
  const auto begin = [&] {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
  };
  if (node.kids[2] != nullptr) {
    std::vector<Value> chosen;
    for (const Value& item : items) {
      begin();
      Value condition;
      if (!Assign(*node.kids[0], item) || !Evaluate(*node.kids[2], &condition)) return Flow::kFailed;
      if (Truth(condition)) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  if (items.empty()) {
    begin();
    return node.kids[4] == nullptr ? Flow::kOn : RunInScope(*node.kids[4]);
  }
  Value loop = Collection(Kind::kList, std::move(items));
  loop.kind = Kind::kLoop;
  const std::shared_ptr<Object> state = loop.object;
  for (size_t i = 0; i < state->items.size(); ++i) {
    begin();
    state->at = static_cast<int64_t>(i);
    scope_->names["loop"] = loop;
    if (!Charge(1) || !Assign(*node.kids[0], state->items[i])) return Flow::kFailed;
    const Flow flow = RunInScope(*node.kids[3]);
    if (flow == Flow::kFailed) return flow;
    if (flow == Flow::kBreak) break;
  }
  return Flow::kOn;
}

bool Interpreter::Capture(const Node& body, std::string* text) {
  std::string* const outer = std::exchange(out_, text);
  const Flow flow = RunInScope(body);
  out_ = outer;
  return flow != Flow::kFailed;
}

bool Interpreter::RunFiltered(const Node& body, const Node* filters, Value* out) {
  std::string text;
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
  const bool good = Capture(body, &text);
  scope_ = outer;
  Value value;
  if (!good || !GiveText(std::move(text), &value)) return false;
  if (filters == nullptr) return Give(std::move(value), out);
  return Apply(*filters, &value, out);
}

bool Interpreter::Assign(const Node& target, const Value& value) {
  if (target.type == Node::kName) {
    scope_->names[target.text] = value;
    return true;
  }
  if (target.type == Node::kAttribute) {
    Value space;
    if (!Lookup(target.kids[0]->text, &space)) return false;
    if (!space.is(Kind::kNamespace))
      return Fail("cannot assign to an attribute of " + target.kids[0]->text + ": it is no namespace");
    if (DepthOf(value) >= kMaxValueDepth) return Fail("values are nested too deeply");
    for (auto& [name, old] : space.object->pairs) {
      if (name.text() == target.text) return old = value, true;
    }
    space.object->pairs.emplace_back(Text(target.text), value);
    return Charge(space.object->pairs.size());
  }
  std::vector<Value> parts;
  if (!Walk(value, &parts)) return false;
  if (parts.size() != target.kids.size()) return Fail("not as many values as names");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!Assign(*target.kids[i], parts[i])) return false;
  }
  return true;
}

bool Interpreter::Lookup(const std::string& name, Value* out) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return *out = found->second, true;
  }
  const bool there = HasFunction(name) && (name != "strftime_now" || date_ != nullptr);
  *out = there ? Named(Kind::kFunction, name) : Undefined(name);
  return true;
}

bool Interpreter::Attribute(const Value& of, const std::string& name, Value* out) {
  if (of.is(Kind::kUndefined)) return Fail("\"" + of.text() + "\" is undefined");
  if (of.is(Kind::kLoop)) {
    if (!HasMethod(of, name)) return Give(LoopAttribute(*of.object, name), out);
  }
  if (HasMethod(of, name)) {
    Value method = Named(Kind::kMethod, name);
    method.object->items.push_back(of);
    method.object->depth = DepthOf(of) + 1;
    *out = std::move(method);
    return true;
  }
  const Value* found = of.is(Kind::kDict) || of.is(Kind::kNamespace) ? FindKey(of, name) : nullptr;
  *out = found == nullptr ? Undefined(name) : *found;
  return Charge(1 + of.pairs().size() / 8);
}

bool Interpreter::Bind(const std::string& what, const Arguments& arguments,
                       const std::vector<const char*>& names, std::vector<const Value*>* bound) {
  bound->assign(names.size(), nullptr);
  if (arguments.items.size() > names.size()) return Fail(what + ": too many arguments");
  for (size_t i = 0; i < arguments.items.size(); ++i) (*bound)[i] = &arguments.items[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found =
        std::find_if(names.begin(), names.end(), [n = &name](const char* known) { return *n == known; });
    if (found == names.end()) return Fail(what + ": no argument " + name);
    const Value*& place = (*bound)[static_cast<size_t>(found - names.begin())];
    if (place != nullptr) return Fail(what + ": " + name + " given twice");
    place = &value;
  }
  return true;
}

bool Interpreter::Call(const Value& what, const Arguments& arguments, Value* out) {
  switch (what.kind) {
    case Kind::kFunction:
      return CallFunction(this, what.text(), arguments, out);
    case Kind::kMethod:
      return CallMethod(this, what.items()[0], what.text(), arguments, out);
    case Kind::kMacro:
      return CallMacro(what, arguments, out);
    case Kind::kUndefined:
      return Fail("\"" + what.text() + "\" is undefined, or not supported");
    default:
      return Fail(std::string("a ") + TypeName(what) + " cannot be called");
  }
}

bool Interpreter::CallMacro(const Value& macro, const Arguments& arguments, Value* out) {
  const Node& node = *macro.object->macro;
  std::vector<const char*> names;
  for (const std::string& name : node.names) names.push_back(name.c_str());
  std::vector<const Value*> bound;
  if (!Bind(node.text, arguments, names, &bound)) return false;
  auto inner = std::make_shared<Scope>();
  inner->parent = macro.object->scope.lock();
  if (inner->parent == nullptr) inner->parent = globals_;
  const std::shared_ptr<Scope> outer = std::exchange(scope_, inner);
  const int line = line_;
  bool good = true;
  for (size_t i = 0; good && i < names.size(); ++i) {
    Value value = Undefined(node.names[i]);
    const Node* standard = node.kids[i + 1].get();
    if (bound[i] != nullptr) {
      value = *bound[i];
    } else if (standard != nullptr) {
      good = Evaluate(*standard, &value);
    }
    inner->names[node.names[i]] = std::move(value);
  }
  std::string text;
  good = good && Capture(*node.kids[0], &text);
  scope_ = outer, line_ = line;
  return good && GiveText(std::move(text), out);
}

Result<Template> Template::Parse(const std::string& text) {
  if (text.size() > kMaxTemplateBytes)
    return Error(Code::kUnsupported, "a template of %zu bytes; the limit is %zu", text.size(),
                 kMaxTemplateBytes);
  if (!IsUtf8(text)) return Error(Code::kUnsupported, "the template is not UTF-8");
  auto tokens = Tokenize(text);
  if (!tokens.ok()) return tokens.status();
  Parser parser(std::move(tokens.value()));
  NodePtr root = parser.Template();
  if (root == nullptr) return parser.status();
  Template result;
  result.root_ = std::shared_ptr<const Node>(std::move(root));
  return result;
}

Result<std::string> Template::Render(const Variables& variables, const std::tm* date) const {
  std::string text;
  Interpreter run(date);
  KVC_RETURN_IF_ERROR(run.Render(*root_, variables, &text));
  return text;
}

}  // namespace kvc::jinja
