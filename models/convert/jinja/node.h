// A template's tree.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/convert/jinja/value.h"

namespace kvc::jinja {

struct Node {
  enum Type {
    // Expressions. kids:
    kConstant,     // `constant`
    kName,         // `text`
    kList,         // items
    kTuple,        // items
    kDict,         // key, value, key, value ..
    kAttribute,    // of kids[0]: `text`
    kItem,         // kids[0][kids[1]]
    kSlice,        // kids[0][kids[1]:kids[2]:kids[3]], each of the three may be null
    kCall,         // kids[0] (arguments kids[1] ..): `names`
    kFilter,       // kids[0] | text(kids[1] ..): `names`; kids[0] null: of a filter block
    kTest,         // kids[0] is text(kids[1] ..): `names`
    kNot,          // kids[0]
    kNegative,     // kids[0]
    kPositive,     // kids[0]
    kAnd,          // both
    kOr,           // both
    kCompare,      // kids[0] names[0] kids[1] names[1] kids[2] ..
    kBinary,       // kids[0] text kids[1]
    kConcat,       // all
    kConditional,  // kids[0] if kids[1] else kids[2] (may be null)
    // Statements. kids:
    kBlock,     // statements, in order
    kText,      // `text`
    kOutput,    // an expression
    kIf,        // condition, block, condition, block .., block of else (may be null)
    kFor,       // target, what it walks through, condition (may be null), body, block of else (may be null)
    kSet,       // target, expression
    kSetBlock,  // target, filters (kFilter upon kFilter, innermost without input; may be null), body
    kMacro,     // `text`, parameters `names`; body, then a default for each parameter, or null
    kFilterBlock,  // filters, body
    kWith,         // body, then target, expression, target, expression ..
    kGeneration,   // body
    kBreak,
    kContinue,
  };
  Type type = kConstant;
  int line = 0;
  int depth = 1;  // nodes from here to the deepest below
  std::string text;
  Value constant;
  std::vector<std::string> names;  // kCall, kFilter, kTest: of each argument, "" where it has none
  std::vector<std::unique_ptr<Node>> kids;
};

constexpr char kSpread[] = "*";  // the name of an argument that is a list of arguments

// Deeper trees are refused: what walks over them is recursive.
constexpr int kMaxTreeDepth = 200;

}  // namespace kvc::jinja
