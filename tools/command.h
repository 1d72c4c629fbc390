// What a subcommand of kvc is. Each cmd_*.cc has one Add function; main.cc has the one list of them.
//
// Inside tools/ a failure is an exception: CLI11 works that way, and it keeps the commands readable. main
// catches all of them.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

namespace kvc::tool {

enum ExitCode { kExitGood = 0, kExitFailed = 1, kExitUsage = 2 };

// Ends the command with kExitFailed and this text.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ends the command with kExitUsage: what was asked for cannot be meant.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Declares a subcommand's options on `app` and returns what to run when it was chosen; that returns an exit
// code.
using AddCommand = std::function<int()> (*)(CLI::App* app);

std::function<int()> AddConvert(CLI::App* app);
std::function<int()> AddInspect(CLI::App* app);
std::function<int()> AddVerify(CLI::App* app);
std::function<int()> AddTokenize(CLI::App* app);
std::function<int()> AddRun(CLI::App* app);
std::function<int()> AddKept(CLI::App* app);
std::function<int()> AddPlan(CLI::App* app);
std::function<int()> AddMethods(CLI::App* app);
std::function<int()> AddScore(CLI::App* app);
std::function<int()> AddScoreMerge(CLI::App* app);
std::function<int()> AddScorePlot(CLI::App* app);
std::function<int()> AddEval(CLI::App* app);
std::function<int()> AddBench(CLI::App* app);
std::function<int()> AddDemo(CLI::App* app);

}  // namespace kvc::tool
