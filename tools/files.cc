#include "tools/files.h"

#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>

#include "models/convert/json.h"
#include "models/convert/output_file.h"
#include "models/convert/source_file.h"

namespace kvc::tool {
namespace {

void ThrowUnlessOk(const Status& status) {
  if (!status.ok()) throw Failure(status.message());
}

template <typename T>
T Got(Result<T> result) {
  ThrowUnlessOk(result.status());
  return std::move(result.value());
}

Failure BadFile(const std::string& path, const std::string& what) { return Failure(path + ": " + what); }

// The array inside `document`, which may be an object that holds it under one of the names.
const Json& ArrayIn(const Json& document, const std::string& path, std::initializer_list<const char*> names) {
  if (document.is_array()) return document;
  std::string wanted;
  for (const char* name : names) {
    if (document.is_object() && document.contains(name) && document[name].is_array()) return document[name];
    wanted += std::string(wanted.empty() ? "\"" : " or \"") + name + "\"";
  }
  throw BadFile(path, "expected an array of numbers, or an object with " + wanted);
}

// Numbers of an array, or of rows of one length: with others a head would take its neighbour's place.
std::vector<double> FlatNumbers(const Json& array, const std::string& path) {
  std::vector<double> numbers;
  for (const Json& row : array) {
    const bool like_first = row.is_array() == array[0].is_array() && row.size() == array[0].size();
    if ((row.is_array() || array[0].is_array()) && !like_first)
      throw BadFile(path, "rows of unequal length, or numbers among rows");
  }
  const auto add = [&](const Json& number, size_t index) {
    if (!number.is_number())
      throw BadFile(path,
                    "element " + std::to_string(index) + " is not a number: " + number.dump().substr(0, 40));
    numbers.push_back(number.get<double>());
  };
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_array()) add(array[i], i);
    if (!array[i].is_array()) continue;
    for (const Json& number : array[i]) add(number, i);
  }
  return numbers;
}

std::vector<int32_t> WholeNumbers(const Json& array, const std::string& path, const char* what) {
  std::vector<int32_t> whole;
  for (const double number : FlatNumbers(array, path)) {
    if (number < 0 || number > INT32_MAX || number != std::floor(number)) {
      throw BadFile(path, Format("%g is no %s", number, what));
    }
    whole.push_back(static_cast<int32_t>(number));
  }
  return whole;
}

std::string TextField(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) {
    throw Failure(where + ": expected a text under \"" + key + "\"");
  }
  return object[key].get<std::string>();
}

std::vector<std::string> TextList(const Json& object, const char* key, const std::string& where) {
  std::vector<std::string> texts;
  if (!object.contains(key)) return texts;
  for (const Json& entry : object[key]) {
    if (!object[key].is_array() || !entry.is_string())
      throw Failure(where + ": expected texts under \"" + key + "\"");
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

Task ParseTask(const std::string& line, const std::string& where) {
  const Json object = ParseJsonText(line, where + ": not a JSON object");
  if (!object.is_object()) throw Failure(where + ": not a JSON object");
  Task task;
  task.context = TextField(object, "context", where);
  task.classes = TextList(object, "classes", where);
  task.kind = object.contains("kind") ? TextField(object, "kind", where) : "tasks";
  if (!object.contains("questions") || !object["questions"].is_array())
    throw Failure(where + ": expected a list of questions under \"questions\"");
  if (object["questions"].empty())
    throw Failure(where + ": \"questions\" is empty: a context has one at least");
  for (const Json& entry : object["questions"]) {
    Question question{TextField(entry, "question", where), TextField(entry, "answer", where), "",
                      TextList(entry, "answers", where)};
    if (question.answer.empty()) throw Failure(where + ": an answer is empty");
    if (entry.contains("needle")) question.needle = TextField(entry, "needle", where);
    task.questions.push_back(std::move(question));
  }
  return task;
}

}  // namespace

std::string ReadFile(const std::string& path, int64_t max_bytes) {
  const Result<std::string> text = path == "-" ? ReadDescriptor(STDIN_FILENO, "standard input", max_bytes)
                                               : ReadWholeFile(path, max_bytes);
  if (text.ok()) return text.value();
  if (text.status().code() == Code::kNotFound && !FileExists(path))
    throw BadFile(path, "No such file or directory");
  throw Failure(text.status().message());
}

Json ParseJsonText(const std::string& text, const std::string& where) {
  return Got(ParseJson<Json>(BytesOf(text), where));
}

Json ReadJson(const std::string& path) { return ParseJsonText(ReadFile(path, kMaxPromptBytes), path); }

std::string TextMember(const Json& object, const char* key, const std::string& where,
                       const std::string& otherwise) {
  std::string text = otherwise;
  ThrowUnlessOk(JsonReader<Json>(object, where).String(key, &text));
  return text;
}

int64_t WholeMember(const Json& object, const char* key, const std::string& where, int64_t min, int64_t max,
                    int64_t otherwise) {
  int64_t number = otherwise;
  ThrowUnlessOk(JsonReader<Json>(object, where).Int(key, min, max, &number));
  return number;
}

TokenList ReadTokens(const std::string& path) {
  const Json document = ReadJson(path);
  const Json& array = ArrayIn(document, path, {"tokens", "ids"});
  if (array.empty()) throw BadFile(path, "holds no token");
  if (array[0].is_array()) throw BadFile(path, "element 0 is not a number, but a list");
  TokenList tokens = WholeNumbers(array, path, "token id");
  return tokens;
}

std::vector<float> HeadScoresIn(const Json& document, const std::string& path) {
  std::vector<float> scores;
  for (const double number : FlatNumbers(ArrayIn(document, path, {"scores"}), path)) {
    if (std::fabs(number) > FLT_MAX) throw BadFile(path, Format("%g is too large for a score", number));
    scores.push_back(static_cast<float>(number));
  }
  if (scores.empty()) throw BadFile(path, "holds no score");
  return scores;
}

std::vector<int32_t> SlotTableIn(const Json& document, const std::string& path) {
  const std::vector<int32_t> slots =
      WholeNumbers(ArrayIn(document, path, {"slots", "table", "scores"}), path, "number of slots");
  if (slots.empty()) throw BadFile(path, "holds no number of slots");
  return slots;
}

std::vector<Task> ReadTasks(const std::string& path) {
  return ParseTasks(ReadFile(path, kMaxDataBytes), path);
}

std::vector<Task> ParseTasks(const std::string& text, const std::string& path) {
  std::vector<Task> tasks;
  size_t begin = 0;
  for (int line_number = 1; begin < text.size(); ++line_number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      tasks.push_back(ParseTask(line, path + ":" + std::to_string(line_number)));
      tasks.back().line = line_number;
    }
    begin = end + 1;
  }
  if (tasks.empty()) throw BadFile(path, "holds no task");
  return tasks;
}

void CheckOutputs(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  InputFiles files;
  for (const std::string& input : inputs) files.Add(input);
  std::vector<std::string> resolved;
  for (const std::string& output : outputs) {
    if (output.empty()) continue;
    const Status status = files.CheckOutput(output);
    if (status.code() == Code::kInvalid) throw UsageError(status.message());
    ThrowUnlessOk(status);
    resolved.push_back(Got(ResolveOutput(output)));
    if (std::count(resolved.begin(), resolved.end(), resolved.back()) > 1)
      throw UsageError(output + ": two outputs of this command are one file");
  }
}

void WriteTextFile(const std::string& path, const std::string& text) {
  ThrowUnlessOk(WriteWholeFile(path, text));
}

void WriteJsonFile(const std::string& path, const Json& document) {
  WriteTextFile(path, document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace kvc::tool
