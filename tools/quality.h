// What compression costs: answers right, divergence from the full cache, perplexity. Used by kvc eval and kvc
// demo.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/files.h"
#include "tools/generate.h"
#include "tools/interval.h"
#include "tools/kvc_handles.h"

namespace kvc::tool {

class Explainer;

// How a question meets the compressed context.
enum class TaskProtocol {
  kAsk,     // the context is compressed, then the question is fed: the compressor does not know it
  kPrompt,  // context and question are one prompt; the first answer token, which the full prefill gives, does
            // not count
};

// How a text is scored. Both score the second half of windows that overlap by half.
enum class TextProtocol {
  kStream,  // token by token from the start of the window, the policy applied after each
  kPrefix,  // the first half is one prompt, compressed once; the second half is fed token by token and kept
};

// Sums over everything measured for one policy and one kind of data.
struct QualitySums {
  int64_t n = 0, n_right = 0;              // questions
  int64_t n_compared = 0, n_same_top = 0;  // positions compared with the full cache
  double kl = 0;                           // nats, full || compressed, summed over n_compared
  int64_t n_scored = 0;                    // text tokens
  double log_likelihood = 0;               // nats
  int64_t n_prompts = 0, n_steps = 0;
  double cache_bytes = 0, cache_bytes_full = 0, slots = 0, slots_full = 0, prefill_seconds = 0,
         step_seconds = 0;       // summed
  int64_t cache_bytes_peak = 0;  // the largest

  double accuracy() const { return Ratio(static_cast<double>(n_right), static_cast<double>(n)); }
  double mean(double sum) const { return Ratio(sum, static_cast<double>(n_prompts)); }
  double perplexity() const;
};

void AddSums(const QualitySums& from, QualitySums* to);
void AddPrompt(const kvc_session_stats& stats,
               QualitySums* sums);  // bytes, slots and time after one more prompt

// 95 % of a share that was seen in n independent draws (Wilson, JASA 1927). n 0: all there is.
Interval WilsonInterval(double share, double n);
using TaskCounts = std::vector<std::array<int64_t, 2>>;  // of each task: answered right, asked
// The same of the questions of several tasks, of which tasks are drawn independently and questions of a task
// are not: as many draws as would spread as the tasks do, at least one a task and at most one a question.
Interval AccuracyInterval(const TaskCounts& by_task);

// What one question gave: the tokens generated and, before each, the logits they were picked from.
struct AnswerTrace {
  TokenList tokens;
  std::vector<std::vector<float>> logits;  // released once they are compared
  bool right = false;
  bool counts = false;  // whether the answer has tokens that count
  std::string text;
  int64_t n_compared = 0;  // positions compared with the full cache
  double kl = 0;           // nats, summed over them
};
// What a task adds to its TaskCounts.
std::array<int64_t, 2> CountsOf(const std::vector<AnswerTrace>& answers);

// Runs tasks with several policies beside the full cache, the reference of divergence.
class TaskEvaluator {
 public:
  TaskEvaluator(const Model& model, const std::vector<const Policy*>& policies, TaskProtocol protocol);
  // Whether the context and the longest question and answer fit the model's context.
  bool Fits(const Task& task) const;
  // Whether an answer has tokens that count in this protocol.
  bool Counts(const Question& question) const;
  // From now on every question is shown to this one too (tools/explain/measure.h), policies in their order.
  void ShowTo(Explainer* explainer) { explainer_ = explainer; }
  // Adds to sums[p] for every policy. Returns the answers of each policy to each question,
  // [policy][question].
  std::vector<std::vector<AnswerTrace>> Run(const Task& task, std::vector<QualitySums>* sums);

 private:
  void Start(const TokenList& prompt, std::vector<QualitySums>* sums);
  void Show(const TokenList& asked, const TokenList& answer);
  AnswerTrace Answer(Session* session, const TokenList& answer, QualitySums* sums);

  const Model& model_;
  const TaskProtocol protocol_;
  Explainer* explainer_ = nullptr;
  Policy full_;
  PromptOnce reference_;
  std::vector<std::optional<PromptOnce>>
      prompts_;  // one a policy; empty: the policy is the full cache, the reference serves
};

// The first tasks of a file that the model's context holds, at most limit (0: all); says how many it does not
// hold. Throws Failure when it holds none.
std::vector<Task> TasksThatFit(const Model& model, const TaskEvaluator& evaluator, const std::string& file,
                               int32_t limit);

// Scores windows of a text with several policies in step.
class TextEvaluator {
 public:
  TextEvaluator(const Model& model, const std::vector<const Policy*>& policies, TextProtocol protocol,
                int32_t window);
  // The shortest window: its second half, which is scored, is text alone and follows something.
  static int32_t ShortestWindow(const Model& model);
  // tokens: a whole text without BOS. The number of windows it has.
  int64_t CountWindows(const TokenList& tokens) const;
  void Run(const TokenList& tokens, int64_t window_index, std::vector<QualitySums>* sums);

 private:
  const Model& model_;
  const TextProtocol protocol_;
  const int32_t window_;
  const TokenList added_;          // what every window begins with, before its text
  std::vector<Session> sessions_;  // the full cache first, then one a policy
  bool used_ = false;
};

}  // namespace kvc::tool
