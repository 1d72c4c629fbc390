// Expressions, in Jinja's order of binding.
#include "models/convert/jinja/parser.h"

#include <algorithm>
#include <cstring>

namespace kvc::jinja {
namespace {

constexpr int kMaxLevel = 500;  // functions of the parser within each other

bool IsOneOf(const std::string& text, std::initializer_list<const char*> list) {
  return std::any_of(list.begin(), list.end(), [&](const char* s) { return text == s; });
}

}  // namespace

bool ExpressionParser::Take(const char* op) {
  if (!Sees(op)) return false;
  Next();
  return true;
}

bool ExpressionParser::TakeName(const char* name) {
  if (!SeesName(name)) return false;
  Next();
  return true;
}

NodePtr ExpressionParser::Fail(const std::string& what) {
  if (status_.ok())
    status_ = Error(Code::kUnsupported, "line %d: %s", Now().line, what.substr(0, 200).c_str());
  return nullptr;
}

bool ExpressionParser::Expect(const char* op) {
  if (Take(op)) return true;
  Fail("\"" + std::string(op) + "\" expected, not \"" + Now().text.substr(0, 40) + "\"");
  return false;
}

bool ExpressionParser::ExpectName(std::string* name) {
  if (Now().type != Token::kName) return Fail("a name expected"), false;
  *name = Now().text;
  Next();
  return true;
}

bool ExpressionParser::ExpectEndOfTag() {
  if (Now().type != Token::kBlockEnd) return Unexpected(), false;
  Next();
  return true;
}

NodePtr ExpressionParser::New(Node::Type type) const {
  auto node = std::make_unique<Node>();
  node->type = type, node->line = Now().line;
  return node;
}

bool ExpressionParser::Add(Node* parent, NodePtr kid) {
  if (kid == nullptr) return false;
  parent->depth = std::max(parent->depth, kid->depth + 1);
  parent->kids.push_back(std::move(kid));
  if (parent->depth <= kMaxTreeDepth) return true;
  Fail("the template is nested too deeply");
  return false;
}

NodePtr ExpressionParser::Expression(bool conditional) {
  if (++level_ > kMaxLevel) return Fail("the template is nested too deeply");
  NodePtr node = conditional ? Conditional() : Or();
  --level_;
  return node;
}

NodePtr ExpressionParser::Tuple(bool conditional, bool in_brackets) {
  NodePtr tuple = New(Node::kTuple);
  bool comma = false;
  for (;;) {
    const bool ends = Now().type == Token::kOutputEnd || Now().type == Token::kBlockEnd || Sees(")") ||
                      SeesName("recursive");
    if (ends) break;
    if (!Add(tuple.get(), Expression(conditional))) return nullptr;
    if (!Take(",")) break;
    comma = true;
  }
  if (comma) return tuple;
  if (!tuple->kids.empty()) return std::move(tuple->kids[0]);
  return in_brackets ? std::move(tuple) : Fail("an expression expected");
}

NodePtr ExpressionParser::Target(bool with_attribute) {
  const bool brackets = Take("(");
  NodePtr tuple = New(Node::kTuple);
  bool comma = false;
  for (;;) {
    NodePtr node = New(Node::kName);
    if (!ExpectName(&node->text)) return nullptr;
    if (IsOneOf(node->text, {"true", "false", "none", "True", "False", "None"}))
      return Fail("cannot assign to " + node->text);
    if (with_attribute && Take(".")) {
      NodePtr attribute = New(Node::kAttribute);
      if (!ExpectName(&attribute->text) || !Add(attribute.get(), std::move(node))) return nullptr;
      node = std::move(attribute);
    }
    if (!Add(tuple.get(), std::move(node))) return nullptr;
    if (!Take(",")) break;
    comma = true;
    if (Now().type != Token::kName || SeesName("in")) break;
  }
  if (brackets && !Expect(")")) return nullptr;
  return comma ? std::move(tuple) : std::move(tuple->kids[0]);
}

NodePtr ExpressionParser::Conditional() {
  NodePtr node = Or();
  while (node != nullptr && TakeName("if")) {
    NodePtr choice = New(Node::kConditional);
    if (!Add(choice.get(), std::move(node)) || !Add(choice.get(), Or())) return nullptr;
    if (!TakeName("else")) {
      choice->kids.push_back(nullptr);
    } else if (!Add(choice.get(), Expression())) {
      return nullptr;
    }
    node = std::move(choice);
  }
  return node;
}

NodePtr ExpressionParser::Binary(NodePtr left, NodePtr right, const std::string& op) {
  NodePtr node = New(op == "and" ? Node::kAnd : op == "or" ? Node::kOr : Node::kBinary);
  node->text = op;
  if (left == nullptr || !Add(node.get(), std::move(left)) || !Add(node.get(), std::move(right)))
    return nullptr;
  return node;
}

NodePtr ExpressionParser::Or() {
  NodePtr node = And();
  while (node != nullptr && TakeName("or")) node = Binary(std::move(node), And(), "or");
  return node;
}

NodePtr ExpressionParser::And() {
  NodePtr node = Not();
  while (node != nullptr && TakeName("and")) node = Binary(std::move(node), Not(), "and");
  return node;
}

NodePtr ExpressionParser::Not() {
  if (!SeesName("not")) return Compare();
  if (++level_ > kMaxLevel) return Fail("the template is nested too deeply");
  NodePtr node = New(Node::kNot);
  Next();
  const bool good = Add(node.get(), Not());
  --level_;
  return good ? std::move(node) : nullptr;
}

NodePtr ExpressionParser::Compare() {
  NodePtr first = Sum();
  if (first == nullptr) return nullptr;
  NodePtr node = New(Node::kCompare);
  node->depth = first->depth + 1;
  node->kids.push_back(std::move(first));
  for (;;) {
    std::string op = Now().text;
    const bool sign = Now().type == Token::kOperator && IsOneOf(op, {"==", "!=", "<", "<=", ">", ">="});
    if (sign) {
      Next();
    } else if (TakeName("in")) {
      op = "in";
    } else if (SeesName("not") && Ahead().Is(Token::kName, "in")) {
      Next(), Next();
      op = "not in";
    } else {
      break;
    }
    node->names.push_back(op);
    if (!Add(node.get(), Sum())) return nullptr;
  }
  return node->names.empty() ? std::move(node->kids[0]) : std::move(node);
}

NodePtr ExpressionParser::Sum() {
  NodePtr node = Concat();
  while (node != nullptr && (Sees("+") || Sees("-"))) {
    const std::string op = Now().text;
    Next();
    node = Binary(std::move(node), Concat(), op);
  }
  return node;
}

NodePtr ExpressionParser::Concat() {
  NodePtr node = Product();
  if (node == nullptr || !Sees("~")) return node;
  NodePtr all = New(Node::kConcat);
  if (!Add(all.get(), std::move(node))) return nullptr;
  while (Take("~")) {
    if (!Add(all.get(), Product())) return nullptr;
  }
  return all;
}

NodePtr ExpressionParser::Product() {
  NodePtr node = Power();
  while (node != nullptr && (Sees("*") || Sees("/") || Sees("//") || Sees("%"))) {
    const std::string op = Now().text;
    Next();
    node = Binary(std::move(node), Power(), op);
  }
  return node;
}

NodePtr ExpressionParser::Power() {
  NodePtr node = Unary();
  while (node != nullptr && Take("**")) node = Binary(std::move(node), Unary(), "**");
  return node;
}

NodePtr ExpressionParser::Unary(bool with_filter) {
  if (++level_ > kMaxLevel) return Fail("the template is nested too deeply");
  NodePtr node;
  if (Sees("-") || Sees("+")) {
    node = New(Sees("-") ? Node::kNegative : Node::kPositive);
    Next();
    if (!Add(node.get(), Unary(false))) return nullptr;
  } else {
    node = Primary();
  }
  if (node != nullptr) node = Postfix(std::move(node));
  if (node != nullptr && with_filter) node = Filters(std::move(node), false);
  --level_;
  return node;
}

NodePtr ExpressionParser::Primary() {
  NodePtr node = New(Node::kConstant);
  const Token token = Now();
  switch (token.type) {
    case Token::kName:
      Next();
      if (IsOneOf(token.text, {"true", "True", "false", "False"})) {
        node->constant = Bool(token.text == "true" || token.text == "True");
      } else if (IsOneOf(token.text, {"none", "None"})) {
        node->constant = None();
      } else {
        node->type = Node::kName, node->text = token.text;
      }
      return node;
    case Token::kString: {
      std::string text;
      for (; Now().type == Token::kString; Next()) text += Now().text;
      node->constant = Text(std::move(text));
      return node;
    }
    case Token::kInt:
    case Token::kFloat:
      Next();
      node->constant = token.type == Token::kInt ? Int(token.whole) : Float(token.real);
      return node;
    default:
      break;
  }
  if (Take("(")) {
    node = Tuple(true, true);
    return node != nullptr && Expect(")") ? std::move(node) : nullptr;
  }
  return Sees("[") || Sees("{") ? ListOrDict() : Unexpected();
}

NodePtr ExpressionParser::ListOrDict() {
  const bool dict = Sees("{");
  const char* end = dict ? "}" : "]";
  NodePtr node = New(dict ? Node::kDict : Node::kList);
  Next();
  while (!Sees(end)) {
    if (!node->kids.empty()) {
      if (!Expect(",")) return nullptr;
      if (Sees(end)) break;
    }
    if (!Add(node.get(), Expression())) return nullptr;
    if (dict && (!Expect(":") || !Add(node.get(), Expression()))) return nullptr;
  }
  Next();
  return node;
}

NodePtr ExpressionParser::Postfix(NodePtr node) {
  while (node != nullptr) {
    if (Sees(".") || Sees("[")) {
      node = Subscript(std::move(node));
    } else if (Sees("(")) {
      NodePtr call = New(Node::kCall);
      if (!Add(call.get(), std::move(node)) || !Arguments(call.get())) return nullptr;
      node = std::move(call);
    } else {
      break;
    }
  }
  return node;
}

NodePtr ExpressionParser::Subscript(NodePtr node) {
  if (Take(".")) {
    const bool number = Now().type == Token::kInt;
    NodePtr out = New(number ? Node::kItem : Node::kAttribute);
    if (!Add(out.get(), std::move(node))) return nullptr;
    if (number) return Add(out.get(), Primary()) ? std::move(out) : nullptr;
    return ExpectName(&out->text) ? std::move(out) : nullptr;
  }
  Next();  // [
  NodePtr out = New(Node::kSlice);
  if (!Add(out.get(), std::move(node))) return nullptr;
  size_t colons = 0;
  NodePtr parts[3];
  while (!Sees("]")) {
    if (Take(":")) {
      if (++colons > 2) return Unexpected();
    } else if (parts[colons] != nullptr) {
      return Unexpected();
    } else if ((parts[colons] = Expression()) == nullptr) {
      return nullptr;
    }
  }
  Next();
  if (colons == 0) {
    out->type = Node::kItem;
    if (parts[0] == nullptr) return Fail("an index expected");
    return Add(out.get(), std::move(parts[0])) ? std::move(out) : nullptr;
  }
  for (NodePtr& part : parts) {
    if (part == nullptr) {
      out->kids.push_back(nullptr);
    } else if (!Add(out.get(), std::move(part))) {
      return nullptr;
    }
  }
  return out;
}

// (a, b, *list, name=c); names has an entry for each.
bool ExpressionParser::Arguments(Node* call) {
  if (!Expect("(")) return false;
  for (bool first = true; !Sees(")"); first = false) {
    if (!first) {
      if (!Expect(",")) return false;
      if (Sees(")")) break;
    }
    if (Sees("**")) return Fail("arguments out of a dict (**) are not supported"), false;
    std::string name;
    if (Take("*")) {
      name = kSpread;
    } else if (Now().type == Token::kName && Ahead().Is(Token::kOperator, "=")) {
      name = Now().text;
      Next(), Next();
    } else if (!call->names.empty() && !call->names.back().empty() && call->names.back() != kSpread) {
      return Fail("an argument without a name behind one with a name"), false;
    }
    call->names.push_back(name);
    if (!Add(call, Expression())) return false;
  }
  Next();
  return true;
}

// | filter(..), is test, and calls of what they give. first_named: a filter's name stands here already.
NodePtr ExpressionParser::Filters(NodePtr input, bool first_named) {
  for (;;) {
    if (first_named || Take("|")) {
      first_named = false;
      NodePtr filter = New(Node::kFilter);
      if (!ExpectName(&filter->text)) return nullptr;
      if (input == nullptr) {
        filter->kids.push_back(nullptr);
      } else if (!Add(filter.get(), std::move(input))) {
        return nullptr;
      }
      if (Sees("(") && !Arguments(filter.get())) return nullptr;
      input = std::move(filter);
    } else if (input != nullptr && SeesName("is")) {
      input = Test(std::move(input));
    } else if (input != nullptr && Sees("(")) {
      input = Postfix(std::move(input));
    } else {
      return input;
    }
    if (input == nullptr) return nullptr;
  }
}

NodePtr ExpressionParser::Test(NodePtr node) {
  Next();  // is
  const bool negated = TakeName("not");
  NodePtr test = New(Node::kTest);
  if (!ExpectName(&test->text) || !Add(test.get(), std::move(node))) return nullptr;
  const Token::Type type = Now().type;
  const bool value = type == Token::kString || type == Token::kInt || type == Token::kFloat || Sees("[") ||
                     Sees("{") || (type == Token::kName && !IsOneOf(Now().text, {"else", "or", "and", "is"}));
  if (SeesName("is")) return Fail("a test of a test");
  if (Sees("(")) {
    if (!Arguments(test.get())) return nullptr;
  } else if (value) {
    NodePtr argument = Primary();
    if (argument != nullptr) argument = Postfix(std::move(argument));
    if (!Add(test.get(), std::move(argument))) return nullptr;
    test->names.emplace_back();
  }
  if (!negated) return test;
  NodePtr no = New(Node::kNot);
  return Add(no.get(), std::move(test)) ? std::move(no) : nullptr;
}

}  // namespace kvc::jinja
