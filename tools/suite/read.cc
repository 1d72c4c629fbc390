#include "tools/suite/read.h"

#include <algorithm>
#include <filesystem>

#include "tools/files.h"
#include "tools/suite/ruler.h"

namespace kvc::tool {
namespace {

namespace fs = std::filesystem;

struct DataFile {
  std::string name, path;  // of the task
};

// A file below a folder of its task is named validation.jsonl or test.jsonl.
std::string TaskName(const fs::path& path) {
  const std::string stem = path.stem().string();
  const bool is_split = stem == "validation" || stem == "test";
  return is_split && path.has_parent_path() ? path.parent_path().filename().string() : stem;
}

std::vector<DataFile> FindFiles(const std::string& path, const std::vector<std::string>& names) {
  std::error_code error;
  std::vector<DataFile> files;
  if (!fs::is_directory(path, error)) {
    files.push_back({TaskName(path), path});
  } else {
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      if (it.depth() >= 2) it.disable_recursion_pending();
      if (it->path().extension() == ".jsonl" && it->is_regular_file(error))
        files.push_back({TaskName(it->path()), it->path().string()});
    }
    if (error) throw Failure(path + ": " + error.message());
  }
  std::sort(files.begin(), files.end(), [](const DataFile& a, const DataFile& b) { return a.path < b.path; });
  std::vector<DataFile> wanted;
  for (const DataFile& file : files) {
    if (names.empty() || std::count(names.begin(), names.end(), file.name) > 0) wanted.push_back(file);
  }
  for (const std::string& name : names) {
    const bool there =
        std::any_of(files.begin(), files.end(), [&](const DataFile& f) { return f.name == name; });
    if (!there) throw Failure(path + ": there is no " + name + ".jsonl and no " + name + "/validation.jsonl");
  }
  if (wanted.empty()) throw Failure(path + ": there is no file .jsonl");
  return wanted;
}

// Every line of a file as an object.
std::vector<Json> ReadLines(const std::string& path, std::vector<std::string>* where) {
  const std::string text = ReadFile(path);
  std::vector<Json> lines;
  size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    where->push_back(path + ":" + std::to_string(number));
    lines.push_back(ParseJsonText(line, where->back() + ": not a JSON object"));
    if (!lines.back().is_object()) throw Failure(where->back() + ": not a JSON object");
  }
  if (lines.empty()) throw Failure(path + ": holds no task");
  return lines;
}

std::string Text(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key) || !object[key].is_string())
    throw Failure(where + ": expected a text under \"" + key + "\"");
  return object[key].get<std::string>();
}

// A list of texts; one text or number alone is a list of it, as some published files have it.
std::vector<std::string> Texts(const Json& object, const char* key, const std::string& where) {
  std::vector<std::string> texts;
  if (!object.contains(key) || object[key].is_null()) return texts;
  const Json& value = object[key];
  for (const Json& entry : value.is_array() ? value : Json::array({value})) {
    if (!entry.is_string() && !entry.is_number_integer())
      throw Failure(where + ": expected texts under \"" + key + "\"");
    texts.push_back(entry.is_string() ? entry.get<std::string>() : entry.dump());
  }
  return texts;
}

std::vector<std::string> Expected(const Json& object, const char* key, const std::string& where) {
  const std::vector<std::string> texts = Texts(object, key, where);
  if (texts.empty()) throw Failure(where + ": expected at least one answer under \"" + key + "\"");
  return texts;
}

struct LongBenchRule {
  const char* name;
  Metric metric;
  bool first_line;
};

constexpr LongBenchRule kLongBench[] = {{"narrativeqa", Metric::kTokenF1, false},
                                        {"qasper", Metric::kTokenF1, false},
                                        {"multifieldqa_en", Metric::kTokenF1, false},
                                        {"hotpotqa", Metric::kTokenF1, false},
                                        {"2wikimqa", Metric::kTokenF1, false},
                                        {"musique", Metric::kTokenF1, false},
                                        {"gov_report", Metric::kRougeL, false},
                                        {"qmsum", Metric::kRougeL, false},
                                        {"multi_news", Metric::kRougeL, false},
                                        {"trec", Metric::kClassification, true},
                                        {"triviaqa", Metric::kTokenF1, true},
                                        {"samsum", Metric::kRougeL, true},
                                        {"lsht", Metric::kClassification, true},
                                        {"passage_retrieval_en", Metric::kRetrieval, false},
                                        {"passage_retrieval_zh", Metric::kRetrievalZh, false},
                                        {"passage_count", Metric::kCount, false},
                                        {"lcc", Metric::kEditSimilarity, false},
                                        {"repobench-p", Metric::kEditSimilarity, false}};
constexpr const char* kSegmented[] = {"multifieldqa_zh", "dureader", "vcsum"};

// LongBench-E has the same tasks under names that end in _e.
std::string BaseName(const std::string& name) {
  const bool is_e = name.size() > 2 && name.compare(name.size() - 2, 2, "_e") == 0;
  return is_e ? name.substr(0, name.size() - 2) : name;
}

// The rule of a task; null: no task of LongBench, or one that is left out, which is said.
const LongBenchRule* FindRule(const DataFile& file, bool was_asked_for) {
  const std::string base = BaseName(file.name);
  for (const LongBenchRule& rule : kLongBench) {
    if (base == rule.name) return &rule;
  }
  const bool segmented = std::count(std::begin(kSegmented), std::end(kSegmented), base) > 0;
  const std::string why =
      file.name + (segmented ? ": its metric needs Chinese words to be segmented, which kvc does not do"
                             : ": no task of LongBench");
  if (was_asked_for) throw Failure(why);
  Note("kvc: note: " + why + "; left out");
  return nullptr;
}

Json ReadConfig(const std::string& path, const char* name) {
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  for (const fs::path& place : {folder / name, folder / "config" / name, folder / ".." / "config" / name}) {
    std::error_code error;
    if (fs::exists(place, error)) return ReadJson(place.string());
  }
  throw Failure(
      Format("%s: there is no %s in it, its config/ or the config/ beside it; LongBench has it in config/",
             path.c_str(), name));
}

// A prompt of Python's str.format: fields in braces, doubled braces for themselves. Cut behind the context.
void FillPrompt(const std::string& form, const Json& object, const std::string& where, SuiteItem* item) {
  std::string text;
  for (size_t i = 0; i < form.size(); ++i) {
    const char c = form[i];
    if ((c == '{' || c == '}') && i + 1 < form.size() && form[i + 1] == c) {
      text += c;
      ++i;
      continue;
    }
    if (c != '{') {
      text += c;
      continue;
    }
    const size_t end = form.find('}', i);
    if (end == std::string::npos)
      throw Failure(where + ": the prompt of this task has a brace without an end");
    const std::string key = form.substr(i + 1, end - i - 1);
    text += Text(object, key.c_str(), where);
    i = end;
    if (key != "context") continue;
    item->context += text;
    text.clear();
  }
  (item->context.empty() ? item->context : item->question) = text;
}

}  // namespace

std::vector<SuiteTask> ReadRuler(const std::string& path, const std::vector<std::string>& names) {
  std::vector<SuiteTask> tasks;
  for (const DataFile& file : FindFiles(path, names)) {
    SuiteTask task;
    task.name = file.name, task.file = file.path;
    if (!RulerRules(file.name, &task.metric, &task.max_tokens)) {
      if (!names.empty()) throw Failure(file.path + ": no task of RULER");
      Note("kvc: note: " + file.path + ": no task of RULER; left out");
      continue;
    }
    std::vector<std::string> where;
    for (const Json& line : ReadLines(file.path, &where)) {
      const std::string& place = where[task.items.size()];
      SuiteItem item;
      const std::string input = Text(line, "input", place);
      const size_t last = input.find_last_not_of('\n');
      const size_t cut = last == std::string::npos ? 0 : input.rfind('\n', last);
      item.context = cut == std::string::npos ? input : input.substr(0, cut);
      item.question = cut == std::string::npos ? "" : input.substr(cut);
      if (line.contains("answer_prefix")) item.question += Text(line, "answer_prefix", place);
      item.expected = Expected(line, "outputs", place);
      task.items.push_back(std::move(item));
    }
    tasks.push_back(std::move(task));
  }
  if (tasks.empty()) throw Failure(path + ": holds no task of RULER");
  return tasks;
}

std::vector<SuiteTask> ReadLongBench(const std::string& path, const std::vector<std::string>& names) {
  const Json prompts = ReadConfig(path, "dataset2prompt.json"),
             lengths = ReadConfig(path, "dataset2maxlen.json");
  std::vector<SuiteTask> tasks;
  for (const DataFile& file : FindFiles(path, names)) {
    const LongBenchRule* rule = FindRule(file, !names.empty());
    if (rule == nullptr) continue;
    SuiteTask task;
    task.name = file.name, task.file = file.path;
    task.metric = rule->metric, task.first_line = rule->first_line;
    const std::string form = Text(prompts, rule->name, "dataset2prompt.json");
    task.max_tokens =
        static_cast<int32_t>(WholeMember(lengths, rule->name, "dataset2maxlen.json", 1, 1 << 20, 0));
    if (task.max_tokens == 0)
      throw Failure(std::string("dataset2maxlen.json: has no length of ") + rule->name);
    std::vector<std::string> where;
    for (const Json& line : ReadLines(file.path, &where)) {
      const std::string& place = where[task.items.size()];
      SuiteItem item;
      FillPrompt(form, line, place, &item);
      item.expected = Expected(line, "answers", place);
      item.classes = Texts(line, "all_classes", place);
      task.items.push_back(std::move(item));
    }
    tasks.push_back(std::move(task));
  }
  if (tasks.empty()) throw Failure(path + ": holds no task of LongBench");
  return tasks;
}

}  // namespace kvc::tool
