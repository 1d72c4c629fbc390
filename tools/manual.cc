#include "tools/manual.h"

#include <set>

#include "tools/kvc_handles.h"

namespace kvc::tool {

std::vector<const CLI::App*> CommandsOf(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return option->nonpositional() && !option->get_group().empty(); });
}

std::vector<const CLI::Option*> PositionalsOf(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

namespace {

// Text as troff prints it; no line of it is a request.
std::string Troff(const std::string& text) {
  std::string out;
  bool begins = true;  // a line
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    begins = c == '\n';
  }
  return out;
}

std::string Bold(const std::string& text) { return "\\fB" + Troff(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Troff(text) + "\\fR"; }

// Those of `some` that an app has, in its order: sets of pointers have none.
std::string Names(const CLI::App& app, const std::set<CLI::Option*>& some) {
  std::string names;
  for (const CLI::Option* option : app.get_options()) {
    for (const CLI::Option* one : some)
      if (one == option) names += (names.empty() ? "" : ", ") + option->get_name();
  }
  return names;
}

std::string Entry(const CLI::App& app, const CLI::Option& option) {
  std::string text = ".TP\n";
  if (option.get_positional()) {
    text += Italic(option.get_name(true));
  } else {
    std::string names;
    for (const std::string& name : option.get_snames())
      names += (names.empty() ? "" : ", ") + Bold("-" + name);
    for (const std::string& name : option.get_lnames())
      names += (names.empty() ? "" : ", ") + Bold("--" + name);
    text += names;
    if (TakesValue(option) && !option.get_type_name().empty()) text += " " + Italic(option.get_type_name());
  }
  if (option.get_expected_max() > 1) text += " ...";
  text += "\n" + Troff(option.get_description()) + "\n";
  const std::string needs = Names(app, option.get_needs()), excludes = Names(app, option.get_excludes());
  std::string more;
  if (option.get_required()) more += " Required.";
  if (TakesValue(option) && !option.get_default_str().empty())
    more += " Default: " + option.get_default_str() + ".";
  if (!needs.empty()) more += " Needs " + needs + ".";
  if (!excludes.empty()) more += " Not with " + excludes + ".";
  if (!more.empty()) text += "(" + Troff(more.substr(1)) + ")\n";
  return text;
}

std::string Usage(const CLI::App& command) {
  std::string text = Bold("kvc " + command.get_name()) + " [" + Italic("OPTIONS") + "]";
  for (const CLI::Option* option : PositionalsOf(command)) {
    const std::string name = Italic(option->get_name(true)) + (option->get_expected_max() > 1 ? " ..." : "");
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  return text;
}

std::string Lines(const std::string& text) { return ".PP\n.nf\n" + Troff(text) + "\n.fi\n"; }

std::string Section(const CLI::App& command) {
  std::string text = ".SS " + command.get_name() + "\n" + Usage(command) + "\n.PP\n" +
                     Troff(command.get_description()) + ".\n";
  for (const CLI::Option* option : PositionalsOf(command)) text += Entry(command, *option);
  for (const CLI::Option* option : OptionsOf(command)) text += Entry(command, *option);
  return text + Lines(command.get_footer());
}

}  // namespace

std::string ManualPage(const CLI::App& program) {
  const std::string about = program.get_description();  // "kvc: language models .."
  std::string text = ".\\\" Written by kvc completion man.\n.TH KVC 1 \"\" \"kvc " + LibraryVersion() +
                     "\" \"User Commands\"\n.SH NAME\nkvc \\- " + Troff(about.substr(about.find(' ') + 1)) +
                     "\n.SH SYNOPSIS\n" + Bold("kvc") + " " + Italic("COMMAND") + " [" + Italic("OPTIONS") +
                     "]\n.SH DESCRIPTION\n" + Troff(program.get_footer()) + "\n.SH OPTIONS\n";
  for (const CLI::Option* option : OptionsOf(program)) text += Entry(program, *option);
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : CommandsOf(program)) text += Section(*command);
  return text;
}

}  // namespace kvc::tool
