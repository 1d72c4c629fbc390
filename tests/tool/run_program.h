// Runs a program and catches what it prints.
#pragma once
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
// Sends SIGINT, as Ctrl-C does, once the program has printed something.
ProgramResult RunKvcAndInterrupt(const std::vector<std::string>& arguments);

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

std::string ReadWholeFile(const std::string& path);
