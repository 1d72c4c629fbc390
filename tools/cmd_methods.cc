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

// What every policy has beside the options of its method.
std::string AboutPolicy(const Json& method) {
  const std::string name = Field(method, "name"), budget = Field(method, "budget");
  const bool of_table = Field(method, "allocator") == "table";
  std::string text = "budget: ";
  if (budget == "none") {
    text += "none, as everything is kept\n";
  } else if (of_table) {
    text += "the slots of every head, from --table\n";
  } else {
    text += budget + ", as budget=N slots a KV head, budget_ratio=R of the prompt or budget_bytes=B\n";
  }
  if (method.contains("allocator")) {
    text += "parts:";
    for (const char* part : {"allocator", "scorer", "reducer", "decode", "pos_mode"})
      text += std::string(text.back() == ':' ? " " : ", ") + part + "=" + Field(method, part);
    text += " (docs/methods.md 4 has others)\n";
  }
  if (method.value("head_scores", false))
    text +=
        "head scores: wanted, the model file's (kvc inspect) or --head-scores; scores=NAME names a table\n";
  const std::string options = budget == "none" ? ":kv=int8" : budget == "required" ? ":budget=256" : "";
  return text + "example: --policy " + name + options + (of_table ? " --table slots.json" : "") + "\n";
}

void PrintOne(const Json& method) {
  std::string about = Field(method, "name") + ": " + Field(method, "summary") + "\n";
  if (!Field(method, "source").empty()) about += "source: " + Field(method, "source") + "\n";
  about += AboutPolicy(method);
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

// The library says what is wrong with a name as it does in a policy.
[[noreturn]] void RefuseName(const std::string& name) {
  try {
    const Policy policy(name);
  } catch (const StatusFailure& failure) {
    if (failure.status() == KVC_E_NOT_FOUND) throw UsageError(failure.what());
  }
  throw UsageError("\"" + name + "\" is more than the name of a method");
}

int Methods(const MethodsOptions& options) {
  Json list = Json::array();
  for (int32_t i = 0; i < kvc_method_count(); ++i) {
    if (options.name.empty() || options.name == kvc_method_name(i)) list.push_back(MethodJson(i));
  }
  if (list.empty()) RefuseName(options.name);
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
