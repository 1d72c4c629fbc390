#include "tools/files.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

namespace kvc::tool {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

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

// Numbers of an array nested at most once.
std::vector<double> FlatNumbers(const Json& array, const std::string& path) {
  std::vector<double> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    const Json row = array[i].is_array() ? array[i] : Json::array({array[i]});
    for (const Json& number : row) {
      if (!number.is_number() || !std::isfinite(number.get<double>())) {
        throw BadFile(path,
                      "element " + std::to_string(i) + " is not a number: " + number.dump().substr(0, 40));
      }
      numbers.push_back(number.get<double>());
    }
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
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw Failure(where + ": not a JSON object");
  Task task;
  task.context = TextField(object, "context", where);
  task.classes = TextList(object, "classes", where);
  task.kind = object.contains("kind") ? TextField(object, "kind", where) : "tasks";
  if (!object.contains("questions") || !object["questions"].is_array() || object["questions"].empty()) {
    throw Failure(where + ": expected a list of questions under \"questions\"");
  }
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

std::string ReadFile(const std::string& path) {
  std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file) throw BadFile(path, std::strerror(errno));
  std::string text;
  char buffer[65536];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) text.append(buffer, n);
  if (std::ferror(file.get())) throw BadFile(path, "cannot read: " + std::string(std::strerror(errno)));
  return text;
}

Json ReadJson(const std::string& path) {
  try {
    return Json::parse(ReadFile(path));
  } catch (const Json::parse_error& error) {
    throw BadFile(path, Format("not valid JSON, at byte %zu", error.byte));
  }
}

TokenList ReadTokens(const std::string& path) {
  const Json document = ReadJson(path);
  TokenList tokens = WholeNumbers(ArrayIn(document, path, {"tokens", "ids"}), path, "token id");
  if (tokens.empty()) throw BadFile(path, "holds no token");
  return tokens;
}

std::vector<float> ReadHeadScores(const std::string& path) {
  const Json document = ReadJson(path);
  const std::vector<double> numbers = FlatNumbers(ArrayIn(document, path, {"scores"}), path);
  return std::vector<float>(numbers.begin(), numbers.end());
}

std::vector<int32_t> ReadSlotTable(const std::string& path) {
  const Json document = ReadJson(path);
  return WholeNumbers(ArrayIn(document, path, {"slots", "table", "scores"}), path, "number of slots");
}

std::vector<Task> ReadTasks(const std::string& path) {
  const std::string text = ReadFile(path);
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

}  // namespace kvc::tool
