// kvc bench: prefill and decode speed of one policy, beside the memory bandwidth its device gives in the
// same run, and of many sessions at once.
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"
#include "tools/bench_batch.h"
#include "tools/bench_draft.h"
#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct BenchOptions {
  ModelOptions model;
  TableOptions tables;
  std::string policy = "full", tokens;
  int32_t prompt = 0, gen = 128, depth = 0, repeat = 3, arrive = 0;  // prompt: the one that is measured
  std::vector<int32_t> prompts = {512}, batch, draft;
  bool json = false;
};

// What the device of the model gives, bytes per second: what its steps have to be compared with. Of none: 0.
double ReadBandwidth(const Model* model) {
  double rate = 0;
  if (model != nullptr) Check(kvc_model_measure(model->get(), &rate), "cannot measure the device");
  return rate;
}

// What the process has had in memory at most, mapped files included.
int64_t ProcessBytesPeak() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return int64_t{usage.ru_maxrss} * 1024;
#endif
}

// Weights a step reads: all but the embedding matrix where the output head is another one, and of experts
// those that work on a token.
int64_t WeightBytesPerStep(const Model& model) {
  const Json about = model.Describe(), config = about.value("config", Json::object());
  const int64_t n_experts = config.value("n_experts", int64_t{0}),
                n_chosen = config.value("n_chosen", int64_t{0});
  int64_t embedding = 0, idle = 0;
  bool own_head = false;
  for (const Json& tensor : about.value("tensors", Json::array())) {
    const std::string role = tensor.value("role", "");
    const int64_t size = tensor.value("size", int64_t{0});
    if (role == "embedding") embedding = size;
    if (n_experts > 0 && role.compare(0, 7, "expert_") == 0)
      idle += size / n_experts * (n_experts - n_chosen);
    own_head = own_head || role == "output_head";
  }
  return model.info().weight_bytes - idle - (own_head ? embedding : 0);
}

// Steps that follow each other, and what reading the same weights gave right before and right behind them.
struct Stretch {
  double seconds_mean, bandwidth;
};

struct Measured {
  double prefill_seconds = 0, compress_seconds = 0, first_token_seconds = 0, cache_bytes_mean = 0;
  std::vector<double> steps;      // seconds each
  std::vector<double> following;  // of those behind another step
  std::vector<Stretch> stretches;
  int64_t n_fed = 0;  // by the steps: all tokens of the answer but the last, which waits
  kvc_session_stats stats{};
};

// Memory gives more in some seconds than in others, and neighbours come and go: what steps are compared with
// is measured among them, so that both had the same machine. The first step behind such a pause finds clocks
// and caches as the measurement left them. One of 8 steps is such a one, in an answer none: quantiles leave
// them out.
void MeasureSteps(const Model* model, int32_t n, Session* session, int32_t instead, Measured* out) {
  constexpr int32_t kStretches = 8, kLeast = 8;
  const int32_t length = std::max(kLeast, (n + kStretches - 1) / kStretches);
  double before = ReadBandwidth(model);
  if (n == 0) out->stretches.push_back({0, before});
  for (int32_t begin = 0; begin < n; begin += length) {
    std::vector<double> seconds;
    for (int32_t i = begin; i < std::min(begin + length, n); ++i) {
      const Clock::time_point start = Clock::now();
      StepOn(session, instead);
      seconds.push_back(SecondsSince(start));
    }
    const double behind = ReadBandwidth(model);
    out->stretches.push_back({Mean(seconds), (before + behind) / 2});
    out->steps.insert(out->steps.end(), seconds.begin(), seconds.end());
    out->following.insert(out->following.end(), seconds.begin() + (seconds.size() > 1 ? 1 : 0),
                          seconds.end());
    before = behind;
  }
}

// Depth tokens, then the measured prompt and the token that its logits give, then steps. A step feeds the
// token before it to the network, so the first one that is measured is that after the first token. Steps are
// compared with what the device of `model` gives, of none with nothing.
Measured MeasureOnce(const BenchOptions& options, const Model* model, Session* session,
                     const TokenList& tokens) {
  Measured out;
  const auto prompt = tokens.begin() + options.depth;
  if (options.depth > 0) session->Prefill(TokenList(tokens.begin(), prompt));
  const double compressed_before = options.depth > 0 ? session->Stats().compress_seconds : 0;
  const Clock::time_point start = Clock::now();
  session->Prefill(TokenList(prompt, tokens.end()));
  out.prefill_seconds = SecondsSince(start);
  const kvc_session_stats before = session->Stats();
  if (options.gen > 0) {
    StepOn(session, tokens.back());
    out.first_token_seconds = SecondsSince(start);
  }
  MeasureSteps(model, options.gen, session, tokens.back(), &out);
  out.stats = session->Stats();
  out.n_fed = std::max(out.stats.n_answer - before.n_answer - 1, 0);
  out.compress_seconds = out.stats.compress_seconds - compressed_before;
  out.cache_bytes_mean = static_cast<double>(before.cache_bytes + out.stats.cache_bytes) / 2;
  return out;
}

struct BenchResult {
  double prefill_seconds = 0, compress_seconds = 0, first_token_seconds = 0, step_seconds = 0,
         step_median = 0, step_p99 = 0, cache_bytes_mean = 0;
  double bandwidth = 0, bandwidth_fraction = 0;
  double slow_stretch = 0, low_fraction = 0;  // what a tenth of the stretches is not below; not above
  int64_t bytes_per_step = 0, decode_passes = 0, steps_timed = 0, process_bytes_peak = 0;
  kvc_session_stats stats{};
  BatchResult together;
  std::vector<DraftSpeed> drafts;
};

// Medians over the repetitions.
BenchResult Measure(const BenchOptions& options, const Model& model, const Policy& policy,
                    const TokenList& tokens) {
  std::vector<double> prefill, compress, first, step, medians, following, stretches, bandwidth, fractions;
  BenchResult result;
  const int64_t weights = WeightBytesPerStep(model);
  kvc_session_params params = DefaultSessionParams();
  params.max_tokens = static_cast<int32_t>(tokens.size()) + 2 * options.gen + kMostDrafted + 3;
  Session session(model, policy, params);
  Progress progress("bench");
  for (int32_t i = 0; i <= options.repeat; ++i) {
    progress.Update(i, options.repeat + 1, i == 0 ? "warming up" : "");
    if (i > 0) session.Reset();
    const Measured one = MeasureOnce(options, i == 0 ? nullptr : &model, &session, tokens);
    if (i == 0) {  // pages touched for the first time, clocks not yet up
      // Of a session alone: measuring the device may take a buffer.
      result.process_bytes_peak = ProcessBytesPeak();
      if (!options.draft.empty()) TryDraft(&session, options.draft[0]);
      continue;
    }
    prefill.push_back(one.prefill_seconds);
    compress.push_back(one.compress_seconds);
    first.push_back(one.first_token_seconds);
    step.push_back(Mean(one.steps));
    medians.push_back(Median(one.following));
    following.insert(following.end(), one.following.begin(), one.following.end());
    result.cache_bytes_mean = one.cache_bytes_mean;
    result.stats = one.stats;
    result.decode_passes = one.n_fed;
    result.bytes_per_step = weights + static_cast<int64_t>(one.cache_bytes_mean);
    for (const Stretch& s : one.stretches) {
      const double used = Ratio(static_cast<double>(result.bytes_per_step), s.seconds_mean);
      stretches.push_back(s.seconds_mean);
      bandwidth.push_back(s.bandwidth);
      fractions.push_back(Ratio(used, s.bandwidth));
    }
  }
  if (!options.draft.empty()) result.drafts = MeasureDrafts(model, &session, options.draft, options.repeat);
  result.prefill_seconds = Median(prefill);
  result.compress_seconds = Median(compress);
  result.first_token_seconds = Median(first);
  result.step_seconds = Median(step);
  result.step_median = Median(medians);
  result.step_p99 = Quantile(following, 0.99);
  result.steps_timed = static_cast<int64_t>(following.size());
  result.bandwidth = Median(bandwidth);
  result.bandwidth_fraction = Median(fractions);
  result.slow_stretch = Quantile(stretches, 0.9);
  result.low_fraction = Quantile(fractions, 0.1);
  return result;
}

BatchWork BatchWorkOf(const BenchOptions& options) {
  return {options.batch, options.arrive, options.gen, options.repeat};
}

Json ResultJson(const BenchOptions& options, const BenchResult& result, const Model& model,
                const Policy& policy) {
  const auto decoded = [&](double value) { return options.gen > 0 ? Json(value) : Json(nullptr); };
  return Json{{"prefill_tokens_per_second", Ratio(options.prompt, result.prefill_seconds)},
              {"decode_tokens_per_second", decoded(Ratio(1, result.step_seconds))},
              {"decode_tokens_per_second_p10", decoded(Ratio(1, result.slow_stretch))},
              {"first_token_seconds", decoded(result.first_token_seconds)},
              {"compress_seconds", result.compress_seconds},
              {"cache_bytes", result.stats.cache_bytes},
              {"cache_bytes_peak", result.stats.cache_bytes_peak},
              {"cache_bytes_full", result.stats.cache_bytes_full},
              {"workspace_bytes", result.stats.workspace_bytes},
              {"weight_bytes", result.stats.weight_bytes},
              {"process_bytes_peak", result.process_bytes_peak},
              {"bandwidth_fraction", decoded(result.bandwidth_fraction)},
              {"bandwidth_fraction_p10", decoded(result.low_fraction)},
              {"read_bandwidth_bytes_per_second", result.bandwidth},
              {"bytes_per_step", result.bytes_per_step},
              {"prefill_seconds", result.prefill_seconds},
              {"step_seconds_mean", decoded(result.step_seconds)},
              {"step_seconds_median", decoded(result.step_median)},
              {"step_seconds_p99", decoded(result.step_p99)},
              {"steps_timed", result.steps_timed},
              {"n_prompt", options.prompt},
              {"n_gen", options.gen},
              {"decode_passes", result.decode_passes},
              {"batches", BatchesJson(result.together)},
              {"arrivals", ArrivalsJson(result.together)},
              {"n_arriving", options.arrive},
              {"drafts", DraftsJson(result.drafts)},
              {"depth", options.depth},
              {"repeat", options.repeat},
              {"threads", ThreadsUsed(options.model)},
              {"device", options.model.device},
              {"made_on", model.Device()},
              {"model", options.model.path},
              {"policy", policy.Describe()},
              {"library_version", LibraryVersion()}};
}

void PrintResult(const BenchOptions& options, const BenchResult& result, const Policy& policy) {
  Table table({"", ""}, "lr");
  table.AddRow({"prefill", Format("%.0f tokens/s", Ratio(options.prompt, result.prefill_seconds))});
  table.AddRow({"  of it compression", FormatSeconds(result.compress_seconds)});
  if (options.gen > 0) {
    table.AddRow({"first token after", FormatSeconds(result.first_token_seconds)});
    table.AddRow({"decode", Format("%.1f tokens/s", Ratio(1, result.step_seconds))});
    table.AddRow({"step, median", FormatSeconds(result.step_median)});
  }
  table.AddRow({"cache", FormatBytes(result.stats.cache_bytes)});
  table.AddRow({"cache at its peak", FormatBytes(result.stats.cache_bytes_peak)});
  table.AddRow({"cache uncompressed", FormatBytes(result.stats.cache_bytes_full)});
  table.AddRow({"read bandwidth", Format("%.1f GB/s", result.bandwidth / 1e9)});
  if (options.gen > 0) {
    const double used = Ratio(static_cast<double>(result.bytes_per_step), result.step_seconds);
    table.AddRow(
        {"  used by a step", Format("%.1f GB/s, ", used / 1e9) + FormatPercent(result.bandwidth_fraction)});
  }
  Print(Format("%s\nprompt %d, generated %d, depth %d, %d threads, median of %d\n", policy.Describe().c_str(),
               options.prompt, options.gen, options.depth, ThreadsUsed(options.model), options.repeat) +
        table.Text() + BatchText(result.together, BatchWorkOf(options)) + DraftText(result.drafts));
}

// A row for every prompt.
class PromptTable {
 public:
  void Add(const BenchOptions& options, const BenchResult& result) {
    const auto decoded = [&](const std::string& text) { return options.gen > 0 ? text : "-"; };
    table_.AddRow(
        {Format("%d", options.prompt), Format("%.0f", Ratio(options.prompt, result.prefill_seconds)),
         FormatSeconds(result.compress_seconds), decoded(FormatSeconds(result.first_token_seconds)),
         decoded(Format("%.1f", Ratio(1, result.step_seconds))), decoded(FormatSeconds(result.step_median)),
         FormatBytes(result.stats.cache_bytes), decoded(FormatPercent(result.bandwidth_fraction))});
  }
  std::string Text(const BenchOptions& options, const Policy& policy) const {
    return Format("%s\ngenerated %d, depth %d, %d threads, median of %d\n", policy.Describe().c_str(),
                  options.gen, options.depth, ThreadsUsed(options.model), options.repeat) +
           table_.Text();
  }

 private:
  Table table_{{"prompt", "prefill tokens/s", "compression", "first token", "decode tokens/s", "step",
                "cache", "of bandwidth"},
               "rrrrrrrr"};
};

void CheckPrompts(const BenchOptions& options) {
  const int32_t longest = *std::max_element(options.prompts.begin(), options.prompts.end());
  if (int64_t{options.depth} + longest + 2 * int64_t{options.gen} + kMostDrafted + 3 >= INT32_MAX)
    throw UsageError("--depth, --prompt and --gen are too large");
  if (options.prompts.size() > 1 && !(options.batch.empty() && options.draft.empty()))
    throw UsageError("--batch and --draft are of one prompt: --prompt N");
}

void CheckBatch(const BenchOptions& options) {
  if (options.batch.empty() && options.arrive > 0)
    throw UsageError("--arrive needs sessions that its prompt arrives among: --batch N");
  if (!options.batch.empty() && options.gen == 0)
    throw UsageError("--batch needs steps to time: --gen 1 or more");
  const auto most = std::max_element(options.batch.begin(), options.batch.end());
  if (options.arrive > 0 && *most == kMostInBatch)
    throw UsageError(Format("--arrive adds a session, and a batch has at most %d: --batch %d or less",
                            kMostInBatch, kMostInBatch - 1));
}

// Of a list, every prompt has a session of its own and, with --json, a line that is there once it is
// measured.
int BenchPrompts(const BenchOptions& options, const Model& model, const Policy& policy) {
  PromptTable table;
  for (const int32_t prompt : options.prompts) {
    BenchOptions one = options;
    one.prompt = prompt;
    TokenList tokens = SyntheticTokens(options.depth + prompt, model.info().vocab_size);
    if (!options.tokens.empty()) {
      tokens = ReadTokens(options.tokens);
      if (tokens.size() <= static_cast<size_t>(options.depth))
        throw UsageError("--tokens has no token beyond --depth");
      one.prompt = static_cast<int32_t>(tokens.size()) - options.depth;
    }
    BenchResult result = Measure(one, model, policy, tokens);
    if (!options.batch.empty()) result.together = MeasureBatches(model, policy, tokens, BatchWorkOf(one));
    if (options.json) {
      PrintJson(ResultJson(one, result, model, policy));
      FlushOutput();
    } else if (options.prompts.size() == 1) {
      PrintResult(one, result, policy);
    } else {
      table.Add(one, result);
    }
  }
  if (!options.json && options.prompts.size() > 1) Print(table.Text(options, policy));
  return kExitGood;
}

int Bench(const BenchOptions& options, Signals* signals) {
  CheckBatch(options);
  CheckPrompts(options);
  const Policy policy = MakePolicy(options.policy, options.tables);
  NoteIdleTables(options.tables, {options.policy});
  return BenchPrompts(options, OpenModel(options.model, signals), policy);
}

}  // namespace

Action AddBench(CLI::App* app) {
  const auto options = std::make_shared<BenchOptions>();
  AddModelOptions(app, &options->model);
  AddPolicyOption(app, &options->policy);
  AddTableOptions(app, &options->tables);
  const auto count = [&](const char* name, int32_t* value, int least, const char* help) {
    return app->add_option(name, *value, help)->check(AtLeast(least))->capture_default_str()->type_name("N");
  };
  CLI::Option* prompt =
      app->add_option("--prompt", options->prompts,
                      "Tokens of the measured prompt; a list, 512,4096: of one after another, a line each")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(AtLeast(1))
          ->default_str("512")
          ->type_name("N,...");
  count("--gen", &options->gen, 0, "Tokens to generate after the prompt's first");
  count("--depth", &options->depth, 0, "Tokens in the session before the measured prompt");
  count("--repeat", &options->repeat, 1, "Repetitions; medians are reported");
  app->add_option("--batch", options->batch,
                  "Also steps of N sessions as one batch, in turns with one alone: 4,16")
      ->delimiter(',')
      ->check(Whole(1, kMostInBatch))
      ->type_name("N,...");
  app->add_option("--arrive", options->arrive,
                  "With --batch: steps while a prompt of N tokens is read among them")
      ->check(AtLeast(1))
      ->type_name("N");
  app->add_option("--draft", options->draft,
                  "Also passes that check a draft of N tokens, beside plain steps: 2,4,8")
      ->delimiter(',')
      ->check(Whole(1, kMostDrafted))
      ->type_name("N,...");
  AddInput(app, "--tokens", &options->tokens, "Token ids from a JSON array instead of made-up ones")
      ->excludes(prompt);
  app->add_flag("--json", options->json, "One JSON document on stdout; of several prompts a line each");
  return [options](Signals* signals) { return Bench(*options, signals); };
}

}  // namespace kvc::tool
