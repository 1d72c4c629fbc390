// kvc(1), from what the program's commands say of themselves.
#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace kvc::tool {

// Commands and options in the order that they were declared in; what has no group is hidden.
std::vector<const CLI::App*> CommandsOf(const CLI::App& program);
std::vector<const CLI::Option*> OptionsOf(const CLI::App& app);      // with dashes
std::vector<const CLI::Option*> PositionalsOf(const CLI::App& app);  // without

bool TakesValue(const CLI::Option& option);

std::string ManualPage(const CLI::App& program);  // troff, macros of man(7)

}  // namespace kvc::tool
