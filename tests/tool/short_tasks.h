// Tasks of the model recall that are read in a quarter of the time: about 220 tokens of context, not 900.
#pragma once
#include <sstream>
#include <string>

#include "tests/tool/run_program.h"

// The same questions of the same prose, cut: what is asked for stands in the first third, one sentence every
// 50 characters.
inline nlohmann::json ShortTask(nlohmann::json task) {
  constexpr size_t kBetween = 50, kLength = 700;
  std::string prose = task["context"], text;
  for (const nlohmann::json& question : task["questions"]) {
    const std::string fact = question["question"].get<std::string>() + question["answer"].get<std::string>();
    const size_t at = prose.find(fact);
    if (at != std::string::npos) prose.erase(at, fact.size());
  }
  prose.resize(prose.rfind(' ', kLength));
  for (const nlohmann::json& question : task["questions"]) {
    const size_t end = prose.find(' ', kBetween);
    text += prose.substr(0, end);
    text += question["question"].get<std::string>() + question["answer"].get<std::string>();
    prose.erase(0, end);
  }
  task["context"] = text + prose;
  return task;
}

// The first `limit` tasks of a file, short, in a file of the same name that lasts as long as the program.
// Returns its path.
inline std::string ShortTasks(const std::string& path, int limit) {
  static const TemporaryFolder folder;
  std::istringstream lines(ReadWholeFile(path));
  std::string tasks;
  for (std::string line; limit > 0 && std::getline(lines, line); --limit)
    tasks += ShortTask(nlohmann::json::parse(line)).dump() + "\n";
  return folder.Write(path.substr(path.rfind('/') + 1), tasks);
}
