// How a part of the program fails: by an exception, as CLI11 does, which keeps the commands readable; main
// catches all of them. Apart from command.h, whose CLI11 takes the compiler seconds wherever it is included.
#pragma once
#include <stdexcept>

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

}  // namespace kvc::tool
