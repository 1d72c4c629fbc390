// Statements.
#include <algorithm>
#include <iterator>

#include "models/convert/jinja/parser.h"

namespace kvc::jinja {

NodePtr Parser::Template() {
  NodePtr body = Body({});
  return status().ok() ? std::move(body) : nullptr;
}

bool Parser::AtEnd(const std::vector<std::string>& ends) const {
  if (Now().type == Token::kEnd) return true;
  if (Now().type != Token::kBlockBegin) return false;
  return Ahead().type == Token::kName && std::count(ends.begin(), ends.end(), Ahead().text) > 0;
}

NodePtr Parser::Body(const std::vector<std::string>& ends) {
  if (++depth_ > kMaxTreeDepth / 4) return Fail("the template is nested too deeply");
  NodePtr block = New(Node::kBlock);
  while (!AtEnd(ends)) {
    const Token token = Now();
    Next();
    NodePtr node;
    if (token.type == Token::kText) {
      node = New(Node::kText);
      node->text = token.text;
    } else if (token.type == Token::kOutputBegin) {
      node = New(Node::kOutput);
      if (!Add(node.get(), Tuple())) return nullptr;
      if (Now().type != Token::kOutputEnd) return Unexpected();
      Next();
    } else {
      std::string name;
      if (!ExpectName(&name)) return nullptr;
      node = Statement(name);
    }
    if (!Add(block.get(), std::move(node))) return nullptr;
  }
  --depth_;
  if (Now().type == Token::kEnd && !ends.empty()) return Fail("the template ends within " + ends.back());
  return block;
}

// {% endif %} and the like, where Body has stopped.
bool Parser::EndBlock(const char* name) {
  if (Now().type != Token::kBlockBegin) return Unexpected(), false;
  Next();
  if (!TakeName(name)) return Unexpected(), false;
  return ExpectEndOfTag();
}

NodePtr Parser::Statement(const std::string& name) {
  constexpr struct {
    const char* name;
    NodePtr (Parser::*parse)();
  } kStatements[] = {{"if", &Parser::If},
                     {"for", &Parser::For},
                     {"set", &Parser::Set},
                     {"macro", &Parser::Macro},
                     {"with", &Parser::With},
                     {"filter", &Parser::FilterBlock},
                     {"generation", &Parser::Generation}};
  for (const auto& statement : kStatements) {
    if (name == statement.name) return (this->*statement.parse)();
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return Fail(name + " outside of a loop");
    NodePtr node = New(name == "break" ? Node::kBreak : Node::kContinue);
    return ExpectEndOfTag() ? std::move(node) : nullptr;
  }
  return Fail("\"" + name.substr(0, 40) + "\" is not supported");
}

NodePtr Parser::If() {
  NodePtr node = New(Node::kIf);
  for (;;) {
    if (!Add(node.get(), Tuple(false)) || !ExpectEndOfTag()) return nullptr;
    if (!Add(node.get(), Body({"elif", "else", "endif"}))) return nullptr;
    Next();  // {%
    if (TakeName("elif")) continue;
    if (!TakeName("else")) break;
    if (!ExpectEndOfTag() || !Add(node.get(), Body({"endif"}))) return nullptr;
    return EndBlock("endif") ? std::move(node) : nullptr;
  }
  Next();  // endif
  node->kids.push_back(nullptr);
  return ExpectEndOfTag() ? std::move(node) : nullptr;
}

NodePtr Parser::For() {
  NodePtr node = New(Node::kFor);
  if (!Add(node.get(), Target(false))) return nullptr;
  if (!TakeName("in")) return Fail("\"in\" expected");
  if (!Add(node.get(), Tuple(false))) return nullptr;
  if (!TakeName("if")) {
    node->kids.push_back(nullptr);
  } else if (!Add(node.get(), Expression())) {
    return nullptr;
  }
  if (SeesName("recursive")) return Fail("a recursive loop is not supported");
  ++loops_;
  if (!ExpectEndOfTag() || !Add(node.get(), Body({"else", "endfor"}))) return nullptr;
  --loops_;
  Next();  // {%
  if (TakeName("else")) {
    if (!ExpectEndOfTag() || !Add(node.get(), Body({"endfor"}))) return nullptr;
    return EndBlock("endfor") ? std::move(node) : nullptr;
  }
  Next();  // endfor
  node->kids.push_back(nullptr);
  return ExpectEndOfTag() ? std::move(node) : nullptr;
}

NodePtr Parser::Set() {
  NodePtr node = New(Node::kSet);
  if (!Add(node.get(), Target(true))) return nullptr;
  if (Take("=")) {
    if (!Add(node.get(), Tuple())) return nullptr;
    return ExpectEndOfTag() ? std::move(node) : nullptr;
  }
  node->type = Node::kSetBlock;
  if (Take("|")) {
    if (!Add(node.get(), Filters(nullptr, true))) return nullptr;
  } else {
    node->kids.push_back(nullptr);
  }
  if (!ExpectEndOfTag() || !Add(node.get(), Body({"endset"}))) return nullptr;
  return EndBlock("endset") ? std::move(node) : nullptr;
}

NodePtr Parser::Macro() {
  NodePtr node = New(Node::kMacro);
  if (!ExpectName(&node->text) || !Expect("(")) return nullptr;
  std::vector<NodePtr> defaults;
  while (!Take(")")) {
    std::string name;
    if (!node->names.empty() && !Expect(",")) return nullptr;
    if (Take(")")) break;
    if (!ExpectName(&name)) return nullptr;
    node->names.push_back(name);
    defaults.emplace_back();
    if (Take("=") && (defaults.back() = Expression()) == nullptr) return nullptr;
  }
  const int loops = std::exchange(loops_, 0);
  if (!ExpectEndOfTag() || !Add(node.get(), Body({"endmacro"}))) return nullptr;
  loops_ = loops;
  for (NodePtr& value : defaults) {
    if (value == nullptr) {
      node->kids.push_back(nullptr);
    } else if (!Add(node.get(), std::move(value))) {
      return nullptr;
    }
  }
  return EndBlock("endmacro") ? std::move(node) : nullptr;
}

NodePtr Parser::FilterBlock() {
  NodePtr node = New(Node::kFilterBlock);
  if (!Add(node.get(), Filters(nullptr, true)) || !ExpectEndOfTag()) return nullptr;
  if (!Add(node.get(), Body({"endfilter"}))) return nullptr;
  return EndBlock("endfilter") ? std::move(node) : nullptr;
}

NodePtr Parser::With() {
  NodePtr node = New(Node::kWith);
  std::vector<NodePtr> assigned;
  while (Now().type != Token::kBlockEnd) {
    if (!assigned.empty() && !Expect(",")) return nullptr;
    assigned.push_back(Target(false));
    if (assigned.back() == nullptr || !Expect("=")) return nullptr;
    assigned.push_back(Expression());
    if (assigned.back() == nullptr) return nullptr;
  }
  if (!ExpectEndOfTag() || !Add(node.get(), Body({"endwith"}))) return nullptr;
  for (NodePtr& part : assigned) {
    if (!Add(node.get(), std::move(part))) return nullptr;
  }
  return EndBlock("endwith") ? std::move(node) : nullptr;
}

// What transformers marks as said by the assistant.
NodePtr Parser::Generation() {
  NodePtr node = New(Node::kGeneration);
  const int loops = std::exchange(loops_, 0);
  if (!ExpectEndOfTag() || !Add(node.get(), Body({"endgeneration"}))) return nullptr;
  loops_ = loops;
  return EndBlock("endgeneration") ? std::move(node) : nullptr;
}

}  // namespace kvc::jinja
