// kvc methods: what the library can do, as it says itself.
#include <memory>

#include "kvc/kvc.h"
#include "tools/command.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct MethodsOptions {
  std::string name;
  bool json = false;
};

// A JSON value as people write it: texts without quotes, [a, b] as "a .. b" where it is a range.
std::string Plain(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "";
  if (value.is_array()) {
    std::string text;
    for (const Json& part : value)
      text += (text.empty() ? "" : value[0].is_number() ? " .. " : ", ") + Plain(part);
    return text;
  }
  return value.dump();
}

std::string Field(const Json& object, const char* key) {
  return object.contains(key) ? Plain(object[key]) : "";
}

void PrintOne(const Json& method) {
  std::string about = Field(method, "name") + ": " + Field(method, "summary") + "\n";
  if (!Field(method, "source").empty()) about += "source: " + Field(method, "source") + "\n";
  size_t begin = 0;
  for (size_t end; (end = about.find('\n', begin)) != std::string::npos; begin = end + 1) {
    for (const std::string& line : WrapLines(about.substr(begin, end - begin), OutputWidth()))
      Print(line + "\n");
  }
  Table table({"option", "kind", "range", "default", "meaning"}, "llwww");
  for (const Json& option : method.value("options", Json::array())) {
    table.AddRow({Field(option, "key"), Field(option, "kind"), Field(option, "range"),
                  Field(option, "default"), Field(option, "help")});
  }
  Print("\n" + table.Text());
}

int Methods(const MethodsOptions& options) {
  Json list = Json::array();
  std::string known;
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvc_method_count(); ++i) {
    names.push_back(kvc_method_name(i));
    known += (i > 0 ? ", " : "") + names.back();
    if (options.name.empty() || options.name == kvc_method_name(i)) list.push_back(MethodJson(i));
  }
  if (!options.name.empty() && list.empty()) {
    const std::string nearest = Nearest(options.name, names);
    throw UsageError("no method \"" + options.name + "\"" +
                     (nearest.empty() ? "." : "; did you mean \"" + nearest + "\"?") +
                     " There are: " + known);
  }
  if (options.json) {
    PrintJson(options.name.empty() ? list : list[0]);
  } else if (!options.name.empty()) {
    PrintOne(list[0]);
  } else {
    Table table({"method", "what it does", "source"}, "lww");
    for (const Json& method : list)
      table.AddRow({Field(method, "name"), Field(method, "summary"), Field(method, "source")});
    Print(table.Text() + "\nkvc methods NAME shows the options of one.\n");
  }
  return kExitGood;
}

}  // namespace

Action AddMethods(CLI::App* app) {
  const auto options = std::make_shared<MethodsOptions>();
  app->add_option("NAME", options->name, "Show the options of this method")->type_name("");
  app->add_flag("--json", options->json, "A JSON list (with NAME: one object) on stdout");
  return [options](Signals*) { return Methods(*options); };
}

}  // namespace kvc::tool
