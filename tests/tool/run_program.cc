#include "tests/tool/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteRecallWithTwoStops(const TemporaryFolder& folder) {
  const std::string recall = KVC_SOURCE_DIR "/models/recall/";
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
    folder.Write(name, ReadWholeFile(recall + name));
  const auto tokenizer = nlohmann::json::parse(ReadWholeFile(recall + "tokenizer.json"));
  folder.Write("generation_config.json",
               nlohmann::json{{"eos_token_id", {1, tokenizer["model"]["vocab"]["."]}}}.dump());
}

TemporaryFolder::TemporaryFolder() {
  std::string name = std::filesystem::temp_directory_path().string() + "/kvc_tool_test_XXXXXX";
  path_ = mkdtemp(name.data());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& content) const {
  std::ofstream(Path(name), std::ios::binary) << content;
  return Path(name);
}

namespace {

using Ready = std::function<bool(const std::string& out_so_far)>;

// Once ready says so (null: never), sends the signals one after the other.
ProgramResult Run(const std::string& program, const std::vector<std::string>& arguments, const Ready& ready,
                  const std::vector<int>& signals) {
  const TemporaryFolder folder;
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string out = folder.Write("out", ""), err = folder.Write("err", "");
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY), STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  bool ended = false;
  while (ready && !ended && !ready(ReadWholeFile(out))) {
    ended = waitpid(child, &status, WNOHANG) == child;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (!ended) {
    for (const int number : signals) kill(child, number);
    waitpid(child, &status, 0);
  }
  ProgramResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = ReadWholeFile(out);
  result.err = ReadWholeFile(err);
  return result;
}

}  // namespace

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments) {
  return Run(program, arguments, nullptr, {});
}

ProgramResult RunKvc(const std::vector<std::string>& arguments) { return RunProgram(KVC_PROGRAM, arguments); }

ProgramResult RunShell(const std::string& script, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"-c", script, "bash", KVC_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return RunProgram("/bin/bash", all);
}

ProgramResult RunKvcAndInterrupt(const std::vector<std::string>& arguments) {
  return RunAndSignal(KVC_PROGRAM, arguments, {SIGINT}, [](const std::string& out) { return !out.empty(); });
}

ProgramResult RunAndSignal(const std::string& program, const std::vector<std::string>& arguments,
                           const std::vector<int>& signals,
                           const std::function<bool(const std::string& out_so_far)>& ready) {
  return Run(program, arguments, ready, signals);
}
