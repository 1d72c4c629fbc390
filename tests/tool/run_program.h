// Runs a program and catches what it prints.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;
  nlohmann::json Json() const { return nlohmann::json::parse(out); }
};

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments);
ProgramResult RunKvc(const std::vector<std::string>& arguments);
// A script of the shell, for what only a shell has: "$1" is the kvc program, "$2" and on are the arguments.
ProgramResult RunShell(const std::string& script, const std::vector<std::string>& arguments);
// Sends SIGINT, as Ctrl-C does, once the program has printed something.
ProgramResult RunKvcAndInterrupt(const std::vector<std::string>& arguments);
// Sends the signals, one after the other, as soon as ready says so. The exit code of a program that died of a
// signal is 128 and its number, as the shell has it.
ProgramResult RunAndSignal(const std::string& program, const std::vector<std::string>& arguments,
                           const std::vector<int>& signals,
                           const std::function<bool(const std::string& out_so_far)>& ready);

// A folder for the files of one test, removed with them.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& content) const;  // returns the path

 private:
  std::string path_;
};

// models/recall as a checkpoint of the folder, with "." as a second stop token.
void WriteRecallWithTwoStops(const TemporaryFolder& folder);

std::string ReadWholeFile(const std::string& path);
