// Files the program reads: text, token lists, score and slot tables, task lists. Messages name the file and
// the line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {

std::string ReadFile(const std::string& path);  // "-" is standard input
Json ReadJson(const std::string& path);

// [1, 2, 3], or an object with "tokens" or "ids".
TokenList ReadTokens(const std::string& path);

// Numbers, nested [layer][head] or flat in layer order, or an object that holds them as "scores" ("slots" for
// a table).
std::vector<float> ReadHeadScores(const std::string& path);
std::vector<int32_t> ReadSlotTable(const std::string& path);

// One line of a task file: {"context": text, "questions": [{"question": text, "answer": text}], "kind":
// name}. May hold: "classes" of the task; "answers", others as good, and "needle", the sentence that answers,
// of a question.
struct Question {
  std::string question, answer, needle;
  std::vector<std::string> other_answers;
};
struct Task {
  std::string kind, context;
  std::vector<Question> questions;
  std::vector<std::string> classes;
  int32_t line = 0;  // of the file, from 1
};
std::vector<Task> ReadTasks(const std::string& path);

}  // namespace kvc::tool
