// Jinja templates, as far as published chat templates use them, rendered as transformers renders them: the
// same statements, filters, tests and methods, trim_blocks and lstrip_blocks, raise_exception, strftime_now,
// loop controls, its tojson, the generation tag. A template is untrusted: steps, depth, sizes are bounded,
// nothing outside of it can be reached, and what is not supported is refused by name.
#pragma once
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/status.h"
#include "models/convert/jinja/value.h"

namespace kvc::jinja {

constexpr size_t kMaxTemplateBytes = 1 << 18;
constexpr size_t kMaxTextBytes = 1 << 20;  // of the output, and of every text on the way
constexpr int64_t kMaxSteps = 1 << 18;     // nodes visited, items walked through, 64 bytes of text each

using Variables = std::vector<std::pair<std::string, Value>>;

class Template {
 public:
  // kUnsupported, with the line: what this is no template of, or uses something that is not supported.
  static Result<Template> Parse(const std::string& text);
  // date: what strftime_now tells; null: there is no strftime_now. kInvalid: the template called
  // raise_exception; kUnsupported: any other failure, with the line.
  Result<std::string> Render(const Variables& variables, const std::tm* date) const;

 private:
  std::shared_ptr<const Node> root_;
};

}  // namespace kvc::jinja
