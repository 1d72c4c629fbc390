// Files the program reads: text, token lists, score and slot tables, task lists. Messages name the file and
// the line. And what must not be written over.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/kvc_handles.h"
#include "tools/output.h"

namespace kvc::tool {

// What is read whole has a limit, so that a device or a pipe without an end costs no more than that.
constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;  // a prompt, and every JSON document
constexpr int64_t kMaxDataBytes = int64_t{256} << 20;   // tasks, texts for perplexity, score logs

// A file, a pipe up to its end, or standard input for "-".
std::string ReadFile(const std::string& path, int64_t max_bytes = kMaxDataBytes);
Json ReadJson(const std::string& path);
Json ParseJsonText(const std::string& text, const std::string& where);  // Throws Failure

// A member of an object that was read; the default when it is absent or null. Throws Failure when it has
// another type or is out of range.
std::string TextMember(const Json& object, const char* key, const std::string& where,
                       const std::string& otherwise = "");
int64_t WholeMember(const Json& object, const char* key, const std::string& where, int64_t min, int64_t max,
                    int64_t otherwise);

// [1, 2, 3], or an object with "tokens" or "ids".
TokenList ReadTokens(const std::string& path);

// Numbers, nested [layer][head] or flat in layer order, or an object that holds them as "scores" ("slots" for
// a table). path: where the document is from.
std::vector<float> HeadScoresIn(const Json& document, const std::string& path);
std::vector<int32_t> SlotTableIn(const Json& document, const std::string& path);

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
std::vector<Task> ParseTasks(const std::string& text, const std::string& path);

// Before any work. Throws UsageError when an output is one of the inputs, by whatever name, or two outputs
// are one file; Failure when one cannot be written. Empty names do not count.
void CheckOutputs(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);

// Replaces the file at once: on any failure the old one stays. Throws Failure.
void WriteTextFile(const std::string& path, const std::string& text);
void WriteJsonFile(const std::string& path, const Json& document);

}  // namespace kvc::tool
