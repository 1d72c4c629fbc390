// Tokens to a tree. What Jinja has and conversations do not need (include, import, extends, block, call, do)
// is refused by name.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "models/convert/jinja/lexer.h"
#include "models/convert/jinja/node.h"

namespace kvc::jinja {

using NodePtr = std::unique_ptr<Node>;

// Expressions. A function that fails returns null, and status() says why.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  const Status& status() const { return status_; }

 protected:
  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool Sees(const char* op) const { return Now().Is(Token::kOperator, op); }
  bool SeesName(const char* name) const { return Now().Is(Token::kName, name); }
  bool Take(const char* op);
  bool TakeName(const char* name);
  bool Expect(const char* op);
  bool ExpectName(std::string* name);
  bool ExpectEndOfTag();
  NodePtr Fail(const std::string& what);
  NodePtr Unexpected() { return Fail("unexpected \"" + Now().text.substr(0, 40) + "\""); }
  NodePtr New(Node::Type type) const;
  bool Add(Node* parent, NodePtr kid);  // false: no kid, or a tree too deep
  void Next() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }

  NodePtr Expression(bool conditional = true);
  // Expressions between commas; of one without a comma that one itself.
  NodePtr Tuple(bool conditional = true, bool in_brackets = false);
  NodePtr Target(bool with_attribute);  // what for and set assign to
  NodePtr Filters(NodePtr input, bool first_named);

 private:
  NodePtr Conditional();
  NodePtr Or();
  NodePtr And();
  NodePtr Not();
  NodePtr Compare();
  NodePtr Sum();
  NodePtr Concat();
  NodePtr Product();
  NodePtr Power();
  NodePtr Unary(bool with_filter = true);
  NodePtr Primary();
  NodePtr Postfix(NodePtr node);
  NodePtr Subscript(NodePtr node);
  NodePtr Test(NodePtr node);
  NodePtr ListOrDict();
  NodePtr Binary(NodePtr left, NodePtr right, const std::string& op);
  bool Arguments(Node* call);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  Status status_;
};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;
  NodePtr Template();

 private:
  // Statements up to a block whose name is one of `ends`; it is not taken. No ends: up to the end.
  NodePtr Body(const std::vector<std::string>& ends);
  NodePtr Statement(const std::string& name);
  NodePtr If();
  NodePtr For();
  NodePtr Set();
  NodePtr Macro();
  NodePtr FilterBlock();
  NodePtr With();
  NodePtr Generation();
  bool AtEnd(const std::vector<std::string>& ends) const;
  bool EndBlock(const char* name);

  int depth_ = 0, loops_ = 0;
};

}  // namespace kvc::jinja
