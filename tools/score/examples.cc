#include "tools/score/examples.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cinttypes>

#include "tools/failure.h"
#include "tools/score/random.h"

namespace kvc::tool {
namespace {

// As it stands in JSON, which has no other bytes than UTF-8.
std::string BaseName(const std::string& path) { return Printable(path.substr(path.find_last_of('/') + 1)); }

std::string Stem(const std::string& path) {
  const std::string name = BaseName(path);
  return name.substr(0, name.find_last_of('.'));
}

std::string Checksum(const std::string& text) {
  return Format("%016" PRIx64, static_cast<uint64_t>(XXH3_64bits(text.data(), text.size())));
}

void Append(const TokenList& from, TokenList* to) { to->insert(to->end(), from.begin(), from.end()); }

// First and last half of the limit, as the published runs cut long prompts.
void CutMiddle(int32_t limit, TokenList* tokens) {
  const size_t most = static_cast<size_t>(limit), first = most / 2;
  if (limit == 0 || tokens->size() <= most) return;
  tokens->erase(tokens->begin() + static_cast<ptrdiff_t>(first),
                tokens->end() - static_cast<ptrdiff_t>(most - first));
}

class ExampleReader {
 public:
  ExampleReader(const Model& model, const ExampleOptions& options) : model_(model), options_(options) {}

  void AddFile(const std::string& path, ExampleSet* set) const {
    const std::string text = ReadFile(path);  // once: a pipe has nothing left then
    const std::string checksum = Checksum(text);
    for (const Json& other : set->identity) {
      if (other["checksum"] == checksum)
        throw UsageError(path + ": the same tasks as " + other["file"].get<std::string>() +
                         ": they would count twice");
    }
    const std::vector<Task> tasks = ParseTasks(text, path);
    size_t count = tasks.size();
    if (options_.limit > 0) count = std::min(count, static_cast<size_t>(options_.limit));
    const std::vector<int32_t> chosen =
        ValidationExamples(options_.seed, static_cast<int32_t>(count), options_.validation);
    for (const int32_t index : chosen) {
      const Task& task = tasks[static_cast<size_t>(index)];
      AddTask(task, path + ":" + std::to_string(task.line), set);
    }
    set->dataset += (set->dataset.empty() ? "" : "+") + Stem(path);
    set->identity.push_back({{"file", BaseName(path)}, {"checksum", checksum}, {"tasks", chosen}});
  }

 private:
  void AddTask(const Task& task, const std::string& where, ExampleSet* set) const {
    TokenList context = model_.TokenizePrompt(task.context);
    CutMiddle(options_.max_prompt, &context);
    if (options_.ask) set->prefixes.push_back(context);
    for (const Question& question : task.questions) {
      Example example;
      example.where = where, example.question = question.question;
      example.fed = model_.TokenizeAfter(context, question.question);
      example.answer = model_.TokenizeAnswer(question.answer);
      example.answers.push_back(question.answer);
      example.answers.insert(example.answers.end(), question.other_answers.begin(),
                             question.other_answers.end());
      example.classes = task.classes;
      example.needle = question.needle;
      if (!options_.ask) MoveToPrompt(context, &example.fed, set);
      example.prefix = static_cast<int32_t>(set->prefixes.size()) - 1;
      CheckLength(set->prefixes.back().size() + example.fed.size(), example);
      set->examples.push_back(std::move(example));
    }
  }

  // Context and question become the prompt; its last `split` tokens stay to be fed.
  void MoveToPrompt(const TokenList& context, TokenList* fed, ExampleSet* set) const {
    TokenList prompt = context;
    Append(*fed, &prompt);
    const size_t split = std::min(prompt.size() - 1, static_cast<size_t>(options_.split));
    fed->assign(prompt.end() - static_cast<ptrdiff_t>(split), prompt.end());
    prompt.resize(prompt.size() - split);
    set->prefixes.push_back(std::move(prompt));
  }

  void CheckLength(size_t n_before, const Example& example) const {
    const size_t room = static_cast<size_t>(model_.info().max_tokens);
    const size_t n_answer = std::max(example.answer.size(), static_cast<size_t>(options_.max_answer));
    const size_t needed = n_before + n_answer;
    if (needed <= room) return;
    if (example.answer.size() >= room) {
      throw Failure(Format("%s: an answer of %zu tokens is longer than the model's context of %zu",
                           example.where.c_str(), example.answer.size(), room));
    }
    throw Failure(
        Format("%s: %zu tokens before the answer and up to %zu for it, the model's context is %zu; "
               "--max-prompt cuts contexts, --max-answer shortens answers",
               example.where.c_str(), n_before, n_answer, room));
  }

  const Model& model_;
  const ExampleOptions& options_;
};

}  // namespace

double ExampleSet::MedianAnswer() const {
  std::vector<size_t> lengths;
  for (const Example& example : examples) lengths.push_back(example.answer.size());
  if (lengths.empty()) return 0;
  std::nth_element(lengths.begin(), lengths.begin() + static_cast<ptrdiff_t>(lengths.size() / 2),
                   lengths.end());
  return static_cast<double>(lengths[lengths.size() / 2]);
}

ExampleSet ReadExamples(const Model& model, const ExampleOptions& options) {
  ExampleSet set;
  set.identity = Json::array();
  const ExampleReader reader(model, options);
  for (const std::string& file : options.files) reader.AddFile(file, &set);
  return set;
}

}  // namespace kvc::tool
