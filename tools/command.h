// What a subcommand of kvc is. Each cmd_*.cc has one Add function; main.cc has the one list of them.
#pragma once
#include <functional>

#include <CLI/CLI.hpp>

#include "tools/failure.h"

namespace kvc::tool {

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
Action AddLicenses(CLI::App* app);
Action AddScore(CLI::App* app);
Action AddScoreMerge(CLI::App* app);
Action AddScorePlot(CLI::App* app);
Action AddEval(CLI::App* app);
Action AddTune(CLI::App* app);
Action AddReport(CLI::App* app);
Action AddBench(CLI::App* app);
Action AddDemo(CLI::App* app);
Action AddCompletion(CLI::App* app);

}  // namespace kvc::tool
