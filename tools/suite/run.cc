#include "tools/suite/run.h"

#include <algorithm>
#include <numeric>

#include "tools/output.h"
#include "tools/score/random.h"
#include "tools/suite/read.h"
#include "tools/suite/ruler.h"
#include "tools/suite/utf8.h"
#include "tools/texts.h"

namespace kvc::tool {
namespace {

// Both ends of a text that is too long, as many tokens as there is room for.
TokenList CutMiddle(const TokenList& tokens, size_t room) {
  if (tokens.size() <= room) return tokens;
  const std::ptrdiff_t head = static_cast<std::ptrdiff_t>((room + 1) / 2),
                       tail = static_cast<std::ptrdiff_t>(room / 2);
  TokenList cut(tokens.begin(), tokens.begin() + head);
  cut.insert(cut.end(), tokens.end() - tail, tokens.end());
  return cut;
}

struct ItemTokens {
  TokenList prompt, question;  // question: what is fed after the compression; empty: nothing
};

ItemTokens TokensOf(const Model& model, const SuiteItem& item, TaskProtocol protocol, int32_t n_answer) {
  ItemTokens out;
  const size_t context = static_cast<size_t>(model.info().max_tokens);
  const bool ask = protocol == TaskProtocol::kAsk;
  out.prompt = ask ? model.TokenizePrompt(item.context) : model.TokenizeWhole(item.context + item.question);
  if (ask) out.question = model.TokenizeAfter(out.prompt, item.question);
  const size_t taken = out.question.size() + static_cast<size_t>(n_answer);
  if (taken + 2 > context) throw Failure("a question and its answer do not fit the model's context");
  out.prompt = CutMiddle(out.prompt, context - taken);
  return out;
}

std::string AnswerThatCounts(const SuiteTask& task, const std::string& answer) {
  return task.first_line ? FirstLine(answer) : answer;
}

// A task for each length, shortest first.
std::vector<SuiteTask> NeedleTasks(const SuiteOptions& options, const RulerOptions& ruler,
                                   const TokenCounter& count) {
  constexpr int32_t kShortest = 512;
  constexpr size_t kMostLengths = 5;
  constexpr int kDepths = 10;
  std::vector<int32_t> lengths = options.lengths;
  if (lengths.empty()) lengths.push_back(ruler.length);
  while (options.lengths.empty() && lengths.size() < kMostLengths && lengths.back() / 2 >= kShortest)
    lengths.push_back(lengths.back() / 2);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  if (lengths.back() > ruler.length)
    throw UsageError(Format("--lengths %d: the model's context has %d tokens", lengths.back(), ruler.length));
  std::vector<double> depths;
  for (int i = 0; i <= kDepths; ++i) depths.push_back(static_cast<double>(i) / kDepths);
  std::vector<SuiteTask> tasks;
  for (const int32_t length : lengths) {
    RulerOptions of_length = ruler;
    of_length.length = length;
    tasks.push_back(MakeNeedleTask(of_length, depths, count));
  }
  return tasks;
}

}  // namespace

double SuiteRow::mean() const {
  return Ratio(std::accumulate(scores.begin(), scores.end(), 0.0), static_cast<double>(scores.size()));
}

int32_t ItemsOf(const SuiteOptions& options) {
  const int32_t wanted = options.n_items > 0 ? options.n_items : options.name == "needle" ? 1 : 10;
  return options.limit > 0 ? std::min(options.limit, wanted) : wanted;
}

std::vector<SuiteTask> SuiteTasks(const SuiteOptions& options, const Model& model) {
  std::vector<SuiteTask> tasks;
  if (options.name == "needle" &&
      !(options.data.empty() && options.tasks.empty() && options.questions.empty()))
    throw UsageError("--suite needle is made here: it has no --data, no --tasks and no --questions");
  for (const std::string& path : options.data) {
    for (SuiteTask& task :
         options.name == "ruler" ? ReadRuler(path, options.tasks) : ReadLongBench(path, options.tasks))
      tasks.push_back(std::move(task));
  }
  if (!options.data.empty()) return tasks;
  if (options.name == "longbench")
    throw UsageError("--suite longbench needs --data with the published files");
  RulerOptions ruler;
  ruler.length = options.length > 0 ? options.length : model.info().max_tokens;
  if (ruler.length > model.info().max_tokens)
    throw UsageError(
        Format("--length %d: the model's context has %d tokens", ruler.length, model.info().max_tokens));
  ruler.n_items = ItemsOf(options);
  ruler.seed = static_cast<uint64_t>(options.seed);
  if (!options.essay.empty()) ruler.essay = ReadFile(options.essay);
  for (const std::string& path : options.questions)
    ruler.questions.push_back(ParseQuestionSet(ReadFile(path), path));
  const TokenCounter count = [&](const std::string& text) {
    return static_cast<int64_t>(model.TokenizeWhole(text).size());
  };
  if (options.name == "needle") return NeedleTasks(options, ruler, count);
  std::vector<std::string> left_out;
  for (const RulerTask& known : RulerTasks()) {
    const bool all = options.tasks.empty();
    if (all && !HasWhatItNeeds(known, ruler)) {
      left_out.push_back(known.name +
                         std::string(known.needs == RulerNeeds::kEssay ? " (--essay)" : " (--questions)"));
    } else if (all || std::count(options.tasks.begin(), options.tasks.end(), known.name) > 0) {
      tasks.push_back(MakeRulerTask(known.name, ruler, count));
    }
  }
  if (!left_out.empty()) Note("kvc: note: left out for what they need: " + Join(left_out, ", "));
  for (const std::string& name : options.tasks) {
    const bool made =
        std::any_of(tasks.begin(), tasks.end(), [&](const SuiteTask& t) { return t.name == name; });
    if (!made) throw UsageError("--tasks " + name + ": no task of RULER that can be made");
  }
  return tasks;
}

std::vector<SuiteRow> RunSuiteTask(const Model& model, const std::vector<Policy>& policies,
                                   TaskProtocol protocol, const SuiteTask& task, int32_t limit) {
  std::vector<SuiteRow> rows;
  std::vector<PromptOnce> prompts;
  prompts.reserve(policies.size());
  std::vector<PromptOnce*> together;
  for (const Policy& policy : policies) {
    SuiteRow row;
    row.spec = policy.spec(), row.policy = policy.Describe();
    row.task = task.name, row.file = task.file, row.metric = MetricName(task.metric);
    rows.push_back(std::move(row));
    prompts.emplace_back(model, policy, DefaultSessionParams());
    together.push_back(&prompts.back());
  }
  const size_t n = limit > 0 ? std::min(task.items.size(), static_cast<size_t>(limit)) : task.items.size();
  Progress progress(task.name);
  for (size_t i = 0; i < n; ++i) {
    progress.Update(static_cast<double>(i), static_cast<double>(n), Format("item %zu of %zu", i + 1, n));
    const SuiteItem& item = task.items[i];
    const ItemTokens tokens = TokensOf(model, item, protocol, task.max_tokens);
    PromptOnce::StartTogether(together, tokens.prompt);
    for (size_t p = 0; p < policies.size(); ++p) {
      SuiteRow& row = rows[p];
      AddPrompt(prompts[p].prompt_stats(), &row.sums);
      Session* session = tokens.question.empty() ? prompts[p].base() : prompts[p].Ask(tokens.question);
      const double before = session->Stats().decode_seconds;
      const Generation answer = Generate(session, task.max_tokens, {});
      row.sums.n_steps += static_cast<int64_t>(answer.tokens.size());
      row.sums.step_seconds += answer.stats.decode_seconds - before;
      if (item.depth >= 0) row.depths.push_back(item.depth);
      if (item.draw >= 0) row.draws.push_back(item.draw);
      row.scores.push_back(
          ScoreAnswer(task.metric, AnswerThatCounts(task, answer.text), item.expected, item.classes));
    }
  }
  return rows;
}

std::map<double, double> MeanByDepth(const SuiteRow& row) {
  std::map<double, double> sums, counts;
  for (size_t i = 0; i < row.depths.size(); ++i)
    sums[row.depths[i]] += row.scores[i], ++counts[row.depths[i]];
  for (auto& [depth, sum] : sums) sum /= counts[depth];
  return sums;
}

std::vector<double> DrawnScores(const SuiteRow& row) {
  if (row.draws.empty()) return row.scores;
  std::map<int32_t, std::pair<double, double>> draws;  // sum, items
  for (size_t i = 0; i < row.draws.size(); ++i)
    draws[row.draws[i]].first += row.scores[i], ++draws[row.draws[i]].second;
  std::vector<double> scores;
  for (const auto& [draw, sums] : draws) scores.push_back(sums.first / sums.second);
  return scores;
}

Interval BootstrapInterval(const std::vector<double>& values, uint64_t seed) {
  constexpr uint32_t kResamples = 2000, kTag = 0x4253;
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (*least == *most) return WilsonInterval(*least, static_cast<double>(values.size()));
  std::vector<double> means;
  for (uint32_t r = 0; r < kResamples; ++r) {
    double sum = 0;
    std::array<uint32_t, 4> words{};
    for (uint32_t i = 0; i < values.size(); ++i) {
      if (i % 4 == 0) words = PhiloxWords(r, i / 4, 0, kTag, seed);
      sum += values[static_cast<size_t>(uint64_t{words[i % 4]} * values.size() >> 32)];
    }
    means.push_back(sum / static_cast<double>(values.size()));
  }
  std::sort(means.begin(), means.end());
  return {means[kResamples / 40], means[kResamples - 1 - kResamples / 40]};
}

}  // namespace kvc::tool
