#include "tools/report/measure.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tools/suite/utf8.h"

namespace kvc::tool {
namespace {

constexpr int kDepths = 5, kMostLengths = 3;

// Where the fact that answers a question begins in a text; npos: nowhere.
size_t FindFact(const std::string& text, const Question& question, size_t* size) {
  for (const std::string& fact : {question.needle, question.question + question.answer}) {
    const size_t begin = std::min(fact.find_first_not_of(" \n"), fact.size());
    const std::string words = fact.substr(begin);
    const size_t at = words.empty() ? std::string::npos : text.find(words);
    *size = words.size();
    if (at != std::string::npos) return at;
  }
  return std::string::npos;
}

// Lengths of contexts in equal ranges; one where they hardly differ.
struct LengthRanges {
  int32_t least = 0, most = 0;
  int count = 1;
  explicit LengthRanges(const std::vector<int32_t>& lengths) {
    least = *std::min_element(lengths.begin(), lengths.end());
    most = *std::max_element(lengths.begin(), lengths.end());
    if (most - least > most / 5) count = kMostLengths;
  }
  int Of(int32_t length) const {
    return std::min(count - 1, static_cast<int>(int64_t{length - least} * count / std::max(1, most - least)));
  }
  std::string Name(int range) const {
    const auto edge = [this](int i) {
      return least + static_cast<int32_t>(int64_t{most - least} * i / count);
    };
    return Format("%d - %d", edge(range), edge(range + 1));
  }
};

NeedleGrid EmptyGrid(const Policy& policy, const LengthRanges& ranges) {
  NeedleGrid grid;
  grid.spec = policy.spec(), grid.n_columns = kDepths;
  for (int r = 0; r < ranges.count; ++r) grid.rows.push_back(ranges.Name(r));
  grid.accuracy.resize(static_cast<size_t>(ranges.count * kDepths));  // answers right, until all are counted
  grid.counts.resize(grid.accuracy.size());
  return grid;
}

void AddToGrid(const Task& task, int range, const std::vector<AnswerTrace>& answers, NeedleGrid* grid) {
  for (size_t q = 0; q < answers.size(); ++q) {
    size_t size = 0;
    const size_t at = FindFact(task.context, task.questions[q], &size);
    if (at == std::string::npos || !answers[q].counts) continue;
    const size_t column = std::min<size_t>(kDepths - 1, at * kDepths / task.context.size());
    const size_t cell = static_cast<size_t>(range * kDepths) + column;
    ++grid->counts[cell];
    grid->accuracy[cell] += answers[q].right;
  }
}

ReportPoint PointOf(const std::string& spec, const QualitySums& sums, const TaskCounts& by_task,
                    int32_t n_heads) {
  const Interval interval = AccuracyInterval(by_task);
  ReportPoint point;
  point.spec = spec;
  point.cache_bytes = sums.mean(sums.cache_bytes);
  point.share = Ratio(sums.cache_bytes, sums.cache_bytes_full);
  point.slots = sums.mean(sums.slots) / n_heads;
  point.accuracy = sums.accuracy(), point.low = interval.low, point.high = interval.high;
  point.kl = Ratio(sums.kl, static_cast<double>(sums.n_compared));
  point.prefill_seconds = sums.mean(sums.prefill_seconds);
  point.step_seconds = Ratio(sums.step_seconds, static_cast<double>(sums.n_steps));
  return point;
}

// "snapkv:window=8" of "snapkv:budget=64,window=8".
std::string WithoutBudget(const std::string& spec) {
  std::string options;
  for (const std::string& option : PolicyOptions(spec))
    if (option.compare(0, 6, "budget") != 0) options += (options.empty() ? ":" : ",") + option;
  return spec.substr(0, spec.find(':')) + options;
}

bool IsUtf8(const std::string& text) {
  const std::u32string points = CodePoints(text);
  return std::none_of(points.begin(), points.end(), [](char32_t c) { return c >= 0xd800 && c < 0xe000; });
}

}  // namespace

void MeasureCurves(const Model& model, const std::vector<Task>& tasks, std::vector<TuneLadder>* ladders,
                   const std::vector<size_t>& shown, Report* report) {
  const Policy full("full");
  std::vector<const Policy*> policies = {&full};
  std::vector<int32_t> lengths;
  for (const Task& task : tasks)
    lengths.push_back(static_cast<int32_t>(model.TokenizePrompt(task.context).size()));
  const LengthRanges ranges(lengths);
  std::map<size_t, size_t> grid_of = {{0, 0}};  // by number of the policy
  report->grids.push_back(EmptyGrid(full, ranges));
  for (size_t l = 0; l < ladders->size(); ++l) {
    for (size_t r = 0; r < (*ladders)[l].size(); ++r) {
      if (r == shown[l]) {
        grid_of[policies.size()] = report->grids.size();
        report->grids.push_back(EmptyGrid((*ladders)[l][r].policy, ranges));
      }
      policies.push_back(&(*ladders)[l][r].policy);
    }
  }
  TaskEvaluator evaluator(model, policies, TaskProtocol::kAsk);
  std::vector<QualitySums> sums(policies.size());
  std::vector<TaskCounts> by_task(policies.size());
  Progress progress("report");
  for (size_t t = 0; t < tasks.size(); ++t) {
    progress.Update(static_cast<double>(t), static_cast<double>(tasks.size()),
                    Format("task %zu of %zu", t + 1, tasks.size()));
    const std::vector<std::vector<AnswerTrace>> answers = evaluator.Run(tasks[t], &sums);
    for (size_t p = 0; p < policies.size(); ++p) by_task[p].push_back(CountsOf(answers[p]));
    for (const auto& [policy, grid] : grid_of)
      AddToGrid(tasks[t], ranges.Of(lengths[t]), answers[policy], &report->grids[grid]);
  }
  for (NeedleGrid& grid : report->grids) {
    for (size_t i = 0; i < grid.counts.size(); ++i)
      grid.accuracy[i] = Ratio(grid.accuracy[i], static_cast<double>(grid.counts[i]));
  }
  const int32_t n_heads = model.n_kv_heads_total();
  report->full = PointOf("full", sums[0], by_task[0], n_heads);
  size_t next = 1;
  for (TuneLadder& ladder : *ladders) {
    ReportSeries series{WithoutBudget(ladder[0].policy.spec()), {}};
    for (TuneRung& rung : ladder) {
      series.points.push_back(PointOf(rung.policy.spec(), sums[next], by_task[next], n_heads));
      ++next;
    }
    report->series.push_back(std::move(series));
  }
}

KeptContext MeasureKept(const Model& model, const Policy& policy, const Task& task) {
  const TokenList tokens = model.TokenizePrompt(task.context);
  Session session(model, policy, DefaultSessionParams());
  session.Prefill(tokens);
  KeptContext out;
  out.spec = policy.spec();
  out.n_layers = model.info().n_layers, out.n_heads = model.info().n_kv_heads;
  std::vector<double> share(tokens.size());
  for (int32_t layer = 0; layer < out.n_layers; ++layer) {
    for (int32_t head = 0; head < out.n_heads; ++head) {
      const std::vector<int32_t> kept = session.Kept(layer, head);
      out.slots.push_back(static_cast<double>(kept.size()));
      for (const int32_t position : kept) {
        if (position >= 0 && static_cast<size_t>(position) < share.size())
          share[static_cast<size_t>(position)] += 1.0 / (out.n_layers * out.n_heads);
      }
    }
  }
  // Tokens whose text is no character of its own are shown together with those that complete it.
  std::string all;
  TokenList group;
  double most = 0;
  const TokenList& begin = model.begin_tokens();
  const bool starts = tokens.size() >= begin.size() && std::equal(begin.begin(), begin.end(), tokens.begin());
  for (size_t i = starts ? begin.size() : 0; i < tokens.size(); ++i) {
    group.push_back(tokens[i]);
    most = std::max(most, share[i]);
    const std::string text = model.Detokenize(group);
    if (!IsUtf8(text) && group.size() < 4 && i + 1 < tokens.size()) continue;
    out.pieces.push_back({text, most, false});
    all += text;
    group.clear();
    most = 0;
  }
  for (const Question& question : task.questions) {
    size_t size = 0, begins = 0;
    const size_t at = FindFact(all, question, &size);
    if (at == std::string::npos) continue;
    for (KeptPiece& piece : out.pieces) {
      piece.is_wanted = piece.is_wanted || (begins < at + size && begins + piece.text.size() > at);
      begins += piece.text.size();
    }
  }
  return out;
}

}  // namespace kvc::tool
