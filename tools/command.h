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

// Nobody hears any more: ends even what goes on behind other failures.
class OutputFailure : public Failure {
 public:
  using Failure::Failure;
};

// Ends the command with kExitUsage: what was asked for cannot be meant.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Signals;

// Declares a subcommand's options on `app` and returns what to run when it was chosen; that returns an exit
// code.
using Action = std::function<int(Signals* signals)>;
using AddCommand = Action (*)(CLI::App* app);

Action AddConvert(CLI::App* app);
Action AddInspect(CLI::App* app);
Action AddVerify(CLI::App* app);
Action AddTokenize(CLI::App* app);
Action AddRun(CLI::App* app);
Action AddChat(CLI::App* app);
Action AddKept(CLI::App* app);
Action AddPlan(CLI::App* app);
Action AddMethods(CLI::App* app);
Action AddDevices(CLI::App* app);
Action AddScore(CLI::App* app);
Action AddScoreMerge(CLI::App* app);
Action AddScorePlot(CLI::App* app);
Action AddEval(CLI::App* app);
Action AddTune(CLI::App* app);
Action AddReport(CLI::App* app);
Action AddBench(CLI::App* app);
Action AddDemo(CLI::App* app);

}  // namespace kvc::tool
