#include "tools/suite/ruler.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "tools/suite/draws.h"
#include "tools/suite/ruler_words.h"
#include "tools/suite/utf8.h"
#include "tools/texts.h"

namespace kvc::tool {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kNoiseText =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// ---- needles in a haystack --------------------------------------------------------------------------------

enum class Hay { kNoise, kEssay, kNeedles };
enum class Kind { kWords, kNumbers, kUuids };

struct NeedleTask {
  const char* name;
  Hay hay;
  Kind key, value;
  int n_keys, n_values, n_queries;
};

// The table of RULER's configuration.
constexpr NeedleTask kNeedleTasks[] = {
    {"niah_single_1", Hay::kNoise, Kind::kWords, Kind::kNumbers, 1, 1, 1},
    {"niah_single_2", Hay::kEssay, Kind::kWords, Kind::kNumbers, 1, 1, 1},
    {"niah_single_3", Hay::kEssay, Kind::kWords, Kind::kUuids, 1, 1, 1},
    {"niah_multikey_1", Hay::kEssay, Kind::kWords, Kind::kNumbers, 4, 1, 1},
    {"niah_multikey_2", Hay::kNeedles, Kind::kWords, Kind::kNumbers, 1, 1, 1},
    {"niah_multikey_3", Hay::kNeedles, Kind::kUuids, Kind::kUuids, 1, 1, 1},
    {"niah_multivalue", Hay::kEssay, Kind::kWords, Kind::kNumbers, 1, 4, 1},
    {"niah_multiquery", Hay::kEssay, Kind::kWords, Kind::kNumbers, 4, 1, 4}};

const char* PluralOf(Kind kind) {
  return kind == Kind::kWords ? "words" : kind == Kind::kNumbers ? "numbers" : "uuids";
}

std::string DrawValue(Kind kind, Draws* draws) {
  if (kind == Kind::kNumbers) return std::to_string(1000000 + draws->Below(9000000));
  if (kind == Kind::kWords) {
    const std::string adjective = kAdjectives[draws->Below(std::size(kAdjectives))];
    return adjective + "-" + kNouns[draws->Below(std::size(kNouns))];
  }
  std::string uuid;
  for (int i = 0; i < 32; ++i) {
    uint32_t digit = draws->Below(16);
    if (i == 12) digit = 4;              // version
    if (i == 16) digit = 8 + digit % 4;  // variant
    if (i == 8 || i == 12 || i == 16 || i == 20) uuid += '-';
    uuid += "0123456789abcdef"[digit];
  }
  return uuid;
}

std::string Needle(Kind kind, const std::string& key, const std::string& value) {
  return std::string("One of the special magic ") + PluralOf(kind) + " for " + key + " is: " + value + ".";
}

// Sentences of the first n words of a text that is repeated as often as needed.
Texts EssaySentences(const Texts& words, size_t n) {
  Texts sentences;
  std::string sentence;
  for (size_t i = 0; i < n; ++i) {
    const std::string& word = words[i % words.size()];
    sentence += (sentence.empty() ? "" : " ") + word;
    const char last = word.back();
    if (last == '.' || last == '!' || last == '?' || i + 1 == n) {
      sentences.push_back(sentence);
      sentence.clear();
    }
  }
  return sentences;
}

// Where needles go, as shares of the text before them, ascending: different ones of forty, or the one that is
// given.
std::vector<double> DrawDepths(size_t n_needles, double depth, Draws* draws) {
  constexpr size_t kDepths = 40;
  if (depth >= 0) return {depth};
  std::vector<double> depths;
  for (const size_t i : draws->Sample(kDepths, n_needles))
    depths.push_back(std::nearbyint(static_cast<double>(i) * 100 / (kDepths - 1)) / 100);
  std::sort(depths.begin(), depths.end());
  return depths;
}

// Needles between the sentences of an essay.
std::string HideInEssay(const Texts& sentences, const Texts& needles, const std::vector<double>& depths) {
  Texts parts;
  size_t from = 0;
  for (size_t i = 0; i <= needles.size(); ++i) {
    const size_t to = i == needles.size()
                          ? sentences.size()
                          : static_cast<size_t>(static_cast<double>(sentences.size()) * depths[i]);
    for (size_t k = from; k < to; ++k) parts.push_back(sentences[k]);
    if (i < needles.size()) parts.push_back(needles[i]);
    from = std::max(from, to);
  }
  return Join(parts, " ");
}

// depth: of a task with one needle, the share of the text before it; below 0: drawn.
SuiteItem NeedleItem(const NeedleTask& task, const Texts& essay, size_t size, double depth, Draws draws) {
  Texts keys, needles;
  std::vector<Texts> values;
  for (int k = 0; k < task.n_keys; ++k) {
    do {
      if (keys.size() > static_cast<size_t>(k)) keys.pop_back();
      keys.push_back(DrawValue(task.key, &draws));
    } while (std::count(keys.begin(), keys.end(), keys.back()) > 1);
    values.emplace_back();
    for (int v = 0; v < task.n_values; ++v) {
      values.back().push_back(DrawValue(task.value, &draws));
      needles.push_back(Needle(task.value, keys.back(), values.back().back()));
    }
  }
  draws.Shuffle(&needles);
  const std::vector<size_t> asked =
      draws.Sample(static_cast<size_t>(task.n_keys), static_cast<size_t>(task.n_queries));
  std::string context;
  if (task.hay == Hay::kEssay) {
    context = HideInEssay(EssaySentences(essay, size), needles, DrawDepths(needles.size(), depth, &draws));
  } else {
    Texts lines(size, kNoiseText);
    for (std::string& line : lines) {
      if (task.hay != Hay::kNeedles) break;
      const std::string key = DrawValue(task.key, &draws), value = DrawValue(task.value, &draws);
      line = Needle(task.value, key, value);
    }
    std::vector<size_t> places;
    if (depth < 0) {
      places = draws.Sample(size, needles.size());
    } else {
      places = {static_cast<size_t>(static_cast<double>(size) * depth)};
    }
    std::sort(places.rbegin(), places.rend());
    for (size_t i = 0; i < needles.size(); ++i)
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(places[i]), needles[i]);
    context = Join(lines, "\n");
  }
  SuiteItem item;
  Texts queries;
  for (const size_t k : asked) {
    queries.push_back(keys[k]);
    item.expected.insert(item.expected.end(), values[k].begin(), values[k].end());
  }
  std::string query = queries.back();
  if (queries.size() > 1)
    query = Join(Texts(queries.begin(), queries.end() - 1), ", ") + ", and " + queries.back();
  const bool single = task.n_queries * task.n_values == 1;
  std::string plural = PluralOf(task.value);
  if (single) plural.pop_back();
  item.context = std::string(single ? "A" : "Some") + " special magic " + plural + (single ? " is" : " are") +
                 " hidden within the following text. Make sure to memorize it. I will quiz you about the " +
                 plural + " afterwards.\n" + context;
  item.question = std::string("\nWhat ") + (single ? "is the" : "are all the") + " special magic " + plural +
                  " for " + query + " mentioned in the provided text? The special magic " + plural + " for " +
                  query + " mentioned in the provided text " + (single ? "is" : "are");
  return item;
}

// ---- variables, common words, frequent words --------------------------------------------------------------

constexpr int kHops = 4;

// A chain of assignments in noise: the question, and the names that hold the value.
SuiteItem ChainItem(size_t size, int n_letters, const std::string& value, Draws* draws) {
  Texts names;
  while (names.size() <= kHops) {
    const std::string name = draws->Letters(n_letters, 'A');
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  Texts lines(size, kNoiseText);
  std::vector<size_t> places = draws->Sample(size, names.size());
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string source = i == 0 ? value : "VAR " + names[i - 1] + " ";
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(places[i] + i),
                 "VAR " + names[i] + " = " + source);
  }
  SuiteItem item;
  item.expected = names;
  item.context = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n" +
                 Join(lines, "\n");
  item.context = Replaced(item.context, ". \n", ".\n");
  item.question = "\nQuestion: Find all variables that are assigned the value " + value +
                  " in the text above. Answer: According to the chain(s) of variable assignment in the text "
                  "above, " +
                  std::to_string(kHops + 1) + " variables are assigned the value " + value + ", they are: ";
  return item;
}

std::string DrawFiveDigits(Draws* draws) { return std::to_string(10000 + draws->Below(89999)); }

SuiteItem VariableItem(size_t size, size_t example_size, Draws draws) {
  const SuiteItem example = ChainItem(example_size, 3, DrawFiveDigits(&draws), &draws);
  SuiteItem item = ChainItem(size, 5, DrawFiveDigits(&draws), &draws);
  item.context =
      example.context + example.question + " " + Join(example.expected, " ") + "\n\n" + item.context;
  return item;
}

// Different words: plain ones while they last, then pairs.
Texts DrawWords(size_t n, Draws* draws) {
  Texts pool(std::begin(kNouns), std::end(kNouns));
  pool.insert(pool.end(), std::begin(kAdjectives), std::end(kAdjectives));
  if (n > pool.size()) {
    for (const char* adjective : kAdjectives) {
      for (const char* noun : kNouns) pool.push_back(std::string(adjective) + "-" + noun);
    }
  }
  Texts words;
  for (const size_t i : draws->Sample(pool.size(), std::min(n, pool.size()))) words.push_back(pool[i]);
  return words;
}

constexpr size_t kCommonWords = 10;

SuiteItem CommonWordsList(size_t n_words, int common_times, int other_times, Draws* draws) {
  const Texts words = DrawWords(n_words, draws);
  SuiteItem item;
  Texts list;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i < kCommonWords) item.expected.push_back(words[i]);
    for (int k = 0; k < (i < kCommonWords ? common_times : other_times); ++k) list.push_back(words[i]);
  }
  draws->Shuffle(&list);
  for (size_t i = 0; i < list.size(); ++i) list[i] = std::to_string(i + 1) + ". " + list[i];
  item.context =
      "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
      "ones "
      "that appear most often.\n" +
      Join(list, " ");
  item.question =
      "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words that appear "
      "most often in the list are:";
  return item;
}

SuiteItem CommonWordsItem(size_t n_words, bool is_short, Draws draws) {
  const SuiteItem example = is_short ? CommonWordsList(20, 3, 1, &draws) : CommonWordsList(40, 10, 3, &draws);
  SuiteItem item =
      is_short ? CommonWordsList(n_words, 6, 1, &draws) : CommonWordsList(n_words, 30, 3, &draws);
  Texts answer;
  for (size_t i = 0; i < example.expected.size(); ++i)
    answer.push_back(std::to_string(i + 1) + ". " + example.expected[i]);
  item.context = example.context + example.question + " " + Join(answer, " ") + "\n" + item.context;
  return item;
}

// Coded words, each as often as a zeta distribution with exponent 2 has it; the most frequent is noise.
SuiteItem FrequentWordsItem(size_t n_words, size_t vocabulary, Draws draws) {
  constexpr double kZetaOfTwo = 1.6449340668482264;
  std::set<std::string> known;
  Texts words = {"..."};
  while (words.size() < std::max<size_t>(vocabulary, 4)) {
    const std::string word = draws.Letters(6, 'a');
    if (known.insert(word).second) words.push_back(word);
  }
  Texts text;
  for (size_t k = 0; k < words.size(); ++k) {
    const double rank = static_cast<double>(k + 1);
    const double times = static_cast<double>(n_words) / (rank * rank * kZetaOfTwo);
    text.insert(text.end(), static_cast<size_t>(times), words[k]);
  }
  draws.Shuffle(&text);
  SuiteItem item;
  item.expected.assign(words.begin() + 1, words.begin() + 4);
  item.context =
      "Read the following coded text and track the frequency of each coded word. Find the three most "
      "frequently "
      "appeared coded words. " +
      Join(text, " ");
  item.question =
      "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
      "frequently appeared words in the above coded text? Answer: According to the coded text above, the "
      "three "
      "most frequently appeared words are:";
  return item;
}

// ---- length -----------------------------------------------------------------------------------------------

// The largest size whose text fits; 0: not even the smallest does.
size_t LargestSize(size_t smallest, const std::function<bool(size_t)>& fits) {
  if (!fits(smallest)) return 0;
  size_t low = smallest, high = smallest * 2;
  while (fits(high)) low = high, high *= 2;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

using MakeItem = std::function<SuiteItem(size_t size, Draws draws)>;

const NeedleTask* FindNeedleTask(const std::string& name) {
  for (const NeedleTask& task : kNeedleTasks) {
    if (name == task.name) return &task;
  }
  return nullptr;
}

// The data set whose questions a task asks; empty: none.
std::string SetOf(const std::string& name) {
  return name == "qa_1" ? "SQuAD" : name == "qa_2" ? "HotpotQA" : "";
}

const QuestionSet* FindQuestions(const std::string& name, const RulerOptions& options) {
  for (const QuestionSet& set : options.questions) {
    if (set.name == SetOf(name)) return &set;
  }
  return nullptr;
}

// How an item of a task is made, the smallest of its sizes, and the largest where there is one.
MakeItem MakerOf(const std::string& name, const RulerOptions& options, const TokenCounter& count,
                 size_t* smallest, size_t* largest) {
  if (!SetOf(name).empty()) {
    const QuestionSet* set = FindQuestions(name, options);
    if (set == nullptr)
      throw std::invalid_argument(name + " asks the questions of " + SetOf(name) + ": --questions FILE");
    *smallest = 1, *largest = set->documents.size();
    return [set](size_t size, Draws draws) { return QuestionItem(*set, size, draws); };
  }
  *smallest = kHops + 1;
  if (const NeedleTask* task = FindNeedleTask(name)) {
    *smallest = static_cast<size_t>(task->n_keys * task->n_values);
    const Texts essay = SplitWords(options.essay);
    if (task->hay == Hay::kEssay && essay.empty())
      throw std::invalid_argument(name + " hides its needles in a text: --essay FILE");
    return [task, essay](size_t size, Draws draws) { return NeedleItem(*task, essay, size, -1, draws); };
  }
  if (name == "vt") {
    const int64_t room = std::min<int64_t>(500, options.length / 2);
    const size_t example = LargestSize(*smallest, [&](size_t size) {
      Draws draws(options.seed, 0, 0);
      const SuiteItem item = ChainItem(size, 3, "12345", &draws);
      return count(item.context + item.question) <= room;
    });
    return [example](size_t size, Draws draws) {
      return VariableItem(size, std::max<size_t>(example, kHops + 1), draws);
    };
  }
  *smallest = kCommonWords;
  if (name == "cwe") {
    const bool is_short = options.length < 4096;
    const size_t most = std::size(kNouns) * std::size(kAdjectives);
    return [is_short](size_t size, Draws draws) {
      if (size > most) throw std::invalid_argument("cwe: there are no words for contexts as long");
      return CommonWordsItem(size, is_short, draws);
    };
  }
  if (name != "fwe") throw std::invalid_argument("no task " + name + " that can be made");
  *smallest = 60;  // the fourth word occurs twice, the third more often
  const size_t vocabulary = static_cast<size_t>(options.length) / 50;
  return [vocabulary](size_t size, Draws draws) { return FrequentWordsItem(size, vocabulary, draws); };
}

uint32_t TagOf(const std::string& name) {
  uint32_t tag = 0;
  for (const char c : name) tag = tag * 31 + static_cast<unsigned char>(c);
  return tag;
}

// The item of the largest size that leaves room for the answer.
SuiteItem LongestItem(const SuiteTask& task, const RulerOptions& options, const TokenCounter& count,
                      size_t smallest, size_t largest, const std::function<SuiteItem(size_t)>& make) {
  const size_t size = LargestSize(smallest, [&](size_t n) {
    if (n > largest) return false;
    const SuiteItem item = make(n);
    return count(item.context + item.question) + task.max_tokens <= options.length;
  });
  if (size == 0)
    throw std::invalid_argument(task.name + ": its shortest text does not fit " +
                                std::to_string(options.length) + " tokens");
  return make(size);
}

}  // namespace

const std::vector<RulerTask>& RulerTasks() {
  static const std::vector<RulerTask> tasks = [] {
    std::vector<RulerTask> all;
    for (const NeedleTask& task : kNeedleTasks)
      all.push_back({task.name, task.hay == Hay::kEssay ? RulerNeeds::kEssay : RulerNeeds::kNothing});
    for (const char* name : {"vt", "cwe", "fwe"}) all.push_back({name, RulerNeeds::kNothing});
    for (const char* name : {"qa_1", "qa_2"}) all.push_back({name, RulerNeeds::kQuestions});
    return all;
  }();
  return tasks;
}

bool HasWhatItNeeds(const RulerTask& task, const RulerOptions& options) {
  if (task.needs == RulerNeeds::kEssay) return !options.essay.empty();
  return task.needs == RulerNeeds::kNothing || FindQuestions(task.name, options) != nullptr;
}

bool RulerRules(const std::string& name, Metric* metric, int32_t* max_tokens) {
  constexpr struct {
    const char* prefix;
    int32_t max_tokens;
  } kRules[] = {{"niah", 128}, {"vt", 30}, {"cwe", 120}, {"fwe", 50}, {"qa", 32}};
  for (const auto& rule : kRules) {
    const std::string prefix = rule.prefix;
    if (name != prefix && name.rfind(prefix + "_", 0) != 0) continue;
    *metric = prefix == "qa" ? Metric::kMatchPart : Metric::kMatchAll;
    *max_tokens = rule.max_tokens;
    return true;
  }
  return false;
}

SuiteTask MakeRulerTask(const std::string& name, const RulerOptions& options, const TokenCounter& count) {
  SuiteTask task;
  task.name = name;
  RulerRules(name, &task.metric, &task.max_tokens);
  size_t smallest = 0, largest = SIZE_MAX;
  const MakeItem make = MakerOf(name, options, count, &smallest, &largest);
  const uint32_t tag = TagOf(name);
  for (int32_t i = 0; i < options.n_items; ++i) {
    const Draws draws(options.seed, tag, static_cast<uint32_t>(i));
    task.items.push_back(
        LongestItem(task, options, count, smallest, largest, [&](size_t size) { return make(size, draws); }));
  }
  return task;
}

SuiteTask MakeNeedleTask(const RulerOptions& options, const std::vector<double>& depths,
                         const TokenCounter& count) {
  SuiteTask task;
  task.name = "needle_" + std::to_string(options.length);
  const Texts essay = SplitWords(options.essay);
  const NeedleTask& needle = *FindNeedleTask(essay.empty() ? "niah_single_1" : "niah_single_2");
  task.metric = Metric::kMatchAll;
  task.max_tokens = 32;  // a number of seven digits; RULER's 128 are for four of them
  const uint32_t tag = TagOf(task.name);
  for (const double depth : depths) {
    for (int32_t i = 0; i < options.n_items; ++i) {
      // The same key and value at every depth: what differs is the place.
      const Draws draws(options.seed, tag, static_cast<uint32_t>(i));
      task.items.push_back(LongestItem(task, options, count, 1, SIZE_MAX, [&](size_t size) {
        return NeedleItem(needle, essay, size, depth, draws);
      }));
      task.items.back().depth = depth, task.items.back().draw = i;
    }
  }
  return task;
}

}  // namespace kvc::tool
