// kvc score: what every KV head is worth, measured on tasks.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/generate.h"
#include "tools/kvc_handles.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/score/experiments.h"
#include "tools/score/headkv.h"
#include "tools/score/players.h"
#include "tools/score/score_file.h"
#include "tools/score/scorer.h"
#include "tools/score/team.h"

namespace kvc::tool {
namespace {

struct ScoreCommand {
  ModelOptions model;
  ExampleOptions examples;
  EvaluatorOptions evaluator;
  ScorerOptions scorer;
  ScorePlan plan;
  std::string method = "ssv", out, log, name, shard, given, utility = "exact", protocol = "ask",
              variant = "both", mask_experiment;
  std::vector<int32_t> alpha_budgets, alphas;
  int64_t seed = 1;
  double epsilon = 0, delta = 0.05;  // epsilon 0: no bound was asked for
  bool resume = false, with_offset = false, json = false;
};

// What the command line asks for, as the parts take it; refuses what cannot be meant.
void Settle(ScoreCommand* c) {
  c->evaluator.metric = ParseMetric(c->utility);
  c->scorer.estimate.variant = ParseVariant(c->variant);
  c->scorer.estimate.centre = !c->with_offset;
  if (!c->shard.empty()) c->scorer.shard = ParseShard(c->shard);
  c->plan.seed = c->examples.seed = static_cast<uint64_t>(c->seed);
  c->plan.exact = c->method == "exact";
  c->examples.ask = c->protocol == "ask";
  c->examples.max_answer = IsTextMetric(c->evaluator.metric) ? c->evaluator.max_answer : 0;
  if (c->examples.ask && c->examples.split > 0) throw UsageError("--split is for --protocol prompt");
  const bool sharded = c->scorer.shard.count > 1;
  if (c->epsilon > 0 &&
      (c->method != "ssv" || c->scorer.estimate.variant != Variant::kLeft || c->plan.balanced))
    throw UsageError(
        "--epsilon bounds means of independent samples: it needs --method ssv --variant left, without "
        "--balanced");
  if (c->epsilon > 0 && c->scorer.estimate.standardise)
    throw UsageError(
        "--epsilon is in units of the utility, and --standardise leaves none: give one of the two");
  if (c->epsilon > 0 && c->scorer.samples > 0)
    throw UsageError("--epsilon says how many --samples there are: give one of the two");
  if (c->method == "headkv-r2") {
    if (sharded || c->resume) throw UsageError("headkv-r2 takes one short pass: no --shard, no --resume");
    if (!c->examples.ask) throw UsageError("headkv-r2 needs --protocol ask");
    if (!c->alpha_budgets.empty() || !c->mask_experiment.empty()) {
      throw UsageError(
          "headkv-r2 counts what heads look at: --choose-alpha and --mask-experiment try its scores in a "
          "second run, with --scores");
    }
  }
  const bool by_rule =
      c->scorer.samples == 0 && c->epsilon == 0 && !OfSingleHeads(c->scorer.estimate.variant);
  if (sharded && c->method == "ssv" && by_rule) {
    throw UsageError("--shard needs --samples: the stopping rule must see all samples");
  }
  if (sharded && (!c->alpha_budgets.empty() || !c->mask_experiment.empty())) {
    throw UsageError(
        "--choose-alpha and --mask-experiment need all samples: merge the shards, then run with --resume");
  }
  if (!c->given.empty() && c->alpha_budgets.empty() && c->mask_experiment.empty())
    throw UsageError("--scores measures nothing: say what to try, --choose-alpha or --mask-experiment");
  if (!c->alphas.empty() && c->alpha_budgets.empty()) throw UsageError("--alphas is for --choose-alpha");
  if (!c->log.empty() && (c->method == "headkv-r2" || !c->given.empty()))
    throw UsageError("--log records how coalitions were measured; here none is");
  if (c->log.empty()) {
    c->log = c->out + (sharded ? Format(".%d-of-%d", c->scorer.shard.index + 1, c->scorer.shard.count) : "") +
             ".log";
  }
}

// Every head once: more samples of the same coalitions would say the same again, unless their questions are
// drawn.
void SettleSingleHeads(int32_t n_players, ScoreCommand* c) {
  ScorePlan& plan = c->plan;
  if (!plan.sizes.empty() && plan.sizes != std::vector<int32_t>{1})
    throw UsageError("--variant " + c->variant + " is of single heads: it needs --sizes 1");
  plan.sizes = {1};
  if (c->scorer.samples > 0) return;
  plan.runs = 1, plan.balanced = true, c->scorer.samples = n_players;
}

void SettlePlan(const Model& model, ScoreCommand* c) {
  ScorePlan& plan = c->plan;
  plan.n_layers = model.info().n_layers, plan.n_kv_heads = model.info().n_kv_heads;
  plan.layers = PlayingLayers(model);
  if (plan.layers.size() == static_cast<size_t>(plan.n_layers)) plan.layers.clear();
  const int32_t n = plan.n_players();
  if (plan.exact) {
    if (n > kMostExactPlayers) {
      throw UsageError(Format(
          "exact scores need all 2^%d coalitions of the %d KV heads; at most %d heads: use --method ssv", n,
          n, kMostExactPlayers));
    }
    plan.runs = 1, plan.sizes.clear();
    return;
  }
  if (n < 2) throw UsageError("a model with one KV head has nothing to share out");
  if (OfSingleHeads(c->scorer.estimate.variant)) SettleSingleHeads(n, c);
  if (plan.sizes.empty()) plan.sizes = DefaultSizes(n);
  CheckPlan(plan);
  if (c->scorer.estimate.variant == Variant::kPooled && (plan.sizes.size() != 1 || 2 * plan.sizes[0] != n)) {
    throw UsageError(
        Format("--variant pooled needs --sizes %d, half of the heads: other sizes mix two slices", n / 2));
  }
}

// --epsilon as a number of samples, the same for every shard and resumed run.
void SettleError(ScoreCommand* c) {
  if (c->epsilon == 0) return;
  const int32_t n = c->plan.n_players(), n_sizes = static_cast<int32_t>(c->plan.sizes.size());
  const int64_t needed = SamplesForError(c->epsilon, c->delta, n_sizes, n);
  // The smallest size has a player least often; told before it is counted.
  const int32_t smallest = *std::min_element(c->plan.sizes.begin(), c->plan.sizes.end());
  const int64_t about = needed * n / smallest / c->plan.runs;
  c->scorer.samples = about > kMostSamples ? kMostSamples + 1 : SamplesToReach(c->plan, needed);
  if (c->scorer.samples > kMostSamples) {
    throw UsageError(Format(
        "--epsilon %g, --delta %g: every head must be in %lld coalitions of each size, about %lld samples of "
        "each; at "
        "most %d are possible",
        c->epsilon, c->delta, static_cast<long long>(needed), static_cast<long long>(about), kMostSamples));
  }
}

std::vector<int32_t> Alphas(const ScoreCommand& c) {
  if (c.alphas.empty()) return WiderAlphaCandidates(c.plan.n_players());
  // Ascending: of equal ones the smallest is the best (methods.md 3.10).
  std::vector<int32_t> alphas = c.alphas;
  std::sort(alphas.begin(), alphas.end());
  alphas.erase(std::unique(alphas.begin(), alphas.end()), alphas.end());
  return alphas;
}

// Said before hours of work and not after them.
void CheckExperiments(const ScoreCommand& c) {
  for (const int32_t alpha : c.alphas) {
    if (alpha >= c.plan.n_players())
      throw UsageError(Format("--alphas %d: this model has %d heads", alpha, c.plan.n_players()));
  }
  for (const int32_t budget : c.alpha_budgets) {
    for (const int32_t alpha : Alphas(c)) Policy(Format("cokv:budget=%d,alpha=%d", budget, alpha));
  }
}

void CheckSamples(const ScoreCommand& c) {
  if (c.plan.exact || c.scorer.samples == 0 || c.method == "headkv-r2" || !c.given.empty()) return;
  const int32_t needed = SamplesToTellApart(c.plan, c.scorer.estimate);
  if (c.scorer.samples >= needed) return;
  throw UsageError(
      Format("--samples %d: not enough samples to tell %d heads apart; with this seed at least %d are needed",
             c.scorer.samples, c.plan.n_players(), needed));
}

MeasuredWhat Describe(const ScoreCommand& c, const Model& model, const ExampleSet& examples) {
  const Json about = model.Describe();
  MeasuredWhat what;
  if (about.contains("config")) what.model = about["config"].value("name", "");
  what.fingerprint = about.value("fingerprint", "");
  what.method = c.method, what.utility = c.utility, what.protocol = c.protocol;
  what.dataset = examples.dataset, what.data = examples.identity;
  what.window = c.evaluator.window, what.split = c.examples.split, what.max_prompt = c.examples.max_prompt;
  what.max_answer = c.examples.max_answer, what.first_line = c.evaluator.first_line;
  what.n_examples = static_cast<int32_t>(examples.examples.size());
  what.framing = c.model.framing;
  return what;
}

void WarnOfShortAnswers(const ScoreCommand& c, const ExampleSet& examples) {
  if (c.examples.ask || c.examples.split > 0 || examples.MedianAnswer() > 1) return;
  Note(
      "kvc: note: most answers have one token, which the prompt alone decides; --split feeds the question "
      "after masking");
}

// The mask curves of both ends, at eight steps or every head of a small model.
Json MaskJson(const ScoreCommand& c, UtilityEvaluator* evaluator, const std::vector<double>& scores) {
  const int32_t n = static_cast<int32_t>(scores.size()), step = std::max(1, n / 24);
  std::vector<int32_t> counts;
  for (int32_t count = 0; count < n; count += step) counts.push_back(count);
  counts.push_back(n);
  Json out{{"masked", counts}};
  for (const char* end : {"top", "bottom"}) {
    if (c.mask_experiment != "both" && c.mask_experiment != end) continue;
    out[end] = MaskCurve(evaluator, c.plan, scores, std::string(end) == "top", counts);
  }
  return out;
}

// scores: [L, G].
void AddExperiments(const ScoreCommand& c, const Model& model, const ExampleSet& examples,
                    const std::vector<double>& scores, UtilityEvaluator* evaluator, Json* out) {
  if (!c.mask_experiment.empty()) (*out)["mask_curves"] = MaskJson(c, evaluator, OfPlayers(c.plan, scores));
  if (c.alpha_budgets.empty()) return;
  const std::vector<int32_t> alphas = Alphas(c);
  std::vector<AlphaChoice> choices;
  Progress progress("choosing alpha");
  double n_done = 0;
  const double n_total = static_cast<double>(alphas.size() * c.alpha_budgets.size());
  for (const int32_t budget : c.alpha_budgets) {
    choices.push_back(ChooseAlpha(model, examples, c.evaluator, scores, budget, alphas, [&] {
      n_done += 1;
      progress.Update(n_done, n_total, Format("%.0f of %.0f", n_done, n_total));
    }));
  }
  progress.Clear();
  if (choices.size() == 1) (*out)["budget"] = choices[0].budget;
  (*out)["alpha"] = BestAlpha(choices);
  (*out)["alpha_by_budget"] = AlphaJson(choices);
}

Json CostJson(const EvaluatorCounts& counts, double seconds) {
  return Json{{"evaluations", counts.n_evaluations},
              {"seconds", seconds},
              {"evaluations_per_second", Ratio(static_cast<double>(counts.n_evaluations), seconds)},
              {"prefills", counts.n_prefills},
              {"weight_passes", counts.passes()},
              {"weight_passes_alone", counts.n_passes_alone}};
}

void PrintAlphas(const Json& scores) {
  if (!scores.contains("alpha_by_budget")) return;
  for (const Json& choice : scores["alpha_by_budget"]) {
    Print(Format("alpha %d is best at %d slots a head\n", choice["alpha"].get<int>(),
                 choice["budget"].get<int>()));
  }
  Print(Format("alpha %d is best on average and goes with the scores\n", scores["alpha"].get<int>()));
}

void PrintSummary(const Json& scores, const Json& cost, const std::string& out) {
  const double passes = cost["weight_passes"].get<double>(),
               alone = cost["weight_passes_alone"].get<double>();
  if (cost["evaluations"].get<int64_t>() > 0) {
    Print(Format(
        "%s evaluations in %s, %.1f a second; weights read %s times instead of %s (%.1f times fewer)\n",
        FormatCount(cost["evaluations"].get<int64_t>()).c_str(),
        FormatSeconds(cost["seconds"].get<double>()).c_str(), cost["evaluations_per_second"].get<double>(),
        FormatCount(cost["weight_passes"].get<int64_t>()).c_str(),
        FormatCount(cost["weight_passes_alone"].get<int64_t>()).c_str(), Ratio(alone, passes)));
  }
  if (scores.contains("mae_between_runs")) {
    Print(AgreementText(scores) + ", same lowest heads " +
          FormatPercent(scores["lowest_overlap"].get<double>()) + "\n");
  }
  PrintAlphas(scores);
  Print(Printable(out) + ": scores of " + scores["dataset"].get<std::string>() +
        "; kvc convert --head-scores puts them into a model file\n");
}

int ScoreRetrieval(const ScoreCommand& c, const Model& model, const ExampleSet& examples) {
  Progress progress("scoring");
  const RetrievalScores found = MeasureRetrieval(model, PlayingLayers(model), examples, [&](int32_t done) {
    progress.Update(done, static_cast<double>(examples.examples.size()),
                    Format("%d of %zu questions", done, examples.examples.size()));
  });
  progress.Clear();
  const MeasuredWhat what = Describe(c, model, examples);
  Json out{{"name", c.name.empty() ? "headkv-r2-" + examples.dataset : c.name},
           {"estimator", "headkv-r2"},
           {"model", what.model},
           {"fingerprint", what.fingerprint},
           {"dataset", what.dataset},
           {"data", what.data},
           {"examples", found.n_examples},
           {"samples", found.n_counted},
           {"shape", {model.info().n_layers, model.info().n_heads}},
           {"tool", "kvc " + LibraryVersion()},
           {"scores", NestedScores(found.scores, model.info().n_layers)}};
  if (!c.plan.layers.empty()) out["layers"] = c.plan.layers;
  if (!what.framing.plain()) out["framing"] = FramingJson(what.framing);
  WriteJsonFile(c.out, out);
  if (c.json) {
    PrintJson(out);
  } else {
    Print(Format("%s: retrieval scores of %d query heads from %d of %d questions answered\n",
                 Printable(c.out).c_str(), static_cast<int>(found.scores.size()), found.n_counted,
                 found.n_examples));
  }
  return kExitGood;
}

// Experiments on scores measured before: the file again, with what they found.
int TryScores(const ScoreCommand& c, const Model& model, const ExampleSet& examples) {
  Json out = ReadJson(c.given);
  int32_t n_layers = 0, n_heads = 0;
  const std::vector<double> scores = FlatScores(out, c.given, &n_layers, &n_heads);
  if (n_layers != c.plan.n_layers || n_heads != c.plan.n_kv_heads) {
    throw Failure(Format("%s has scores of %d x %d heads, this model has %d x %d", c.given.c_str(), n_layers,
                         n_heads, c.plan.n_layers, c.plan.n_kv_heads));
  }
  const std::string measured_on = TextMember(out, "fingerprint", c.given),
                    here = model.Describe().value("fingerprint", "");
  if (!measured_on.empty() && measured_on != here)
    throw Failure(c.given + ": scores of another model: its fingerprint is " + measured_on + ", this one's " +
                  here);
  const Policy full("full");
  UtilityEvaluator evaluator(model, full, examples, c.evaluator);
  AddExperiments(c, model, examples, scores, &evaluator, &out);
  WriteJsonFile(c.out, out);
  if (c.json) {
    PrintJson(out);
  } else {
    PrintAlphas(out);
    Print(Printable(c.out + ": the scores of " + c.given) + " with what was found\n");
  }
  return kExitGood;
}

int ScoreCoalitions(const ScoreCommand& c, const Model& model, const ExampleSet& examples,
                    const CancelOnSignal& cancel, Team* team) {
  WarnOfShortAnswers(c, examples);
  const MeasuredWhat what = Describe(c, model, examples);
  const Policy full("full");
  UtilityEvaluator evaluator(model, full, examples, c.evaluator);
  WorkResults done;
  Json header = LogHeader(c.plan, what);
  header["estimate"] = EstimateJson(c.scorer.estimate);
  const auto log = WorkLogWriter::Open(c.log, header, c.resume, &done);
  CheckResults(c.plan, what.n_examples, done, c.log);
  Scorer scorer(c.plan, c.scorer, &evaluator, log.get(), &done, cancel, team);
  scorer.Run();
  if (team != nullptr) team->Dismiss();
  Json cost = CostJson(evaluator.counts(), scorer.seconds());
  if (team != nullptr) cost["processes"] = team->n_workers();
  if (c.scorer.shard.count > 1) {
    if (c.json) {
      PrintJson(Json{{"log", c.log}, {"items", done.size()}, {"cost", cost}});
    } else {
      Print(Format("%s: shard %s is complete; kvc score-merge makes scores of all shards\n",
                   Printable(c.log).c_str(), c.shard.c_str()));
    }
    return kExitGood;
  }
  const ScoreReport report = MakeReport(c.plan, done, c.scorer.estimate);
  Json out =
      ScoreJson(c.plan, what, c.scorer.estimate, report, c.name.empty() ? "ssv-" + examples.dataset : c.name);
  if (c.epsilon > 0) {
    out["epsilon"] = c.epsilon, out["delta"] = c.delta;
    out["samples_with_a_head"] =
        SamplesForError(c.epsilon, c.delta, static_cast<int32_t>(c.plan.sizes.size()), c.plan.n_players());
  }
  AddExperiments(c, model, examples, TableOf(c.plan, report.scores), &evaluator, &out);
  WriteJsonFile(c.out, out);
  if (c.json) {
    out["cost"] = cost, out["log"] = c.log;
    PrintJson(out);
  } else {
    PrintSummary(out, cost, c.out);
  }
  return kExitGood;
}

// What a team cannot do, and how many threads each of its processes takes.
void SettleTeam(const Team& team, ScoreCommand* c) {
  if (c->scorer.shard.count > 1)
    throw UsageError("--shard and several processes: one of the two shares out the work");
  if (c->method == "headkv-r2" || !c->given.empty())
    throw UsageError("several processes measure coalitions: this needs one process");
  if (c->model.threads == 0)
    c->model.threads = std::max(1, ThreadsUsed(c->model) / std::max(1, team.n_here() - 1));
}

// What is written is none of what is read.
void SettleFiles(const ScoreCommand& c, Signals* signals) {
  std::vector<std::string> inputs = c.examples.files;
  inputs.insert(inputs.end(), {c.model.path, c.given});
  const bool logs = c.method != "headkv-r2" && c.given.empty();
  CheckOutputs(inputs, {c.out, logs ? c.log : ""});
  signals->RemoveTemporariesOf(c.out);
}

int ScoreWith(ScoreCommand c, Signals* signals, Team* team) {
  const bool works_for_another = team != nullptr && !team->coordinates();
  if (works_for_another) team->Begin();
  Settle(&c);
  if (!works_for_another) SettleFiles(c, signals);
  if (team != nullptr) SettleTeam(*team, &c);
  // Of several processes each would convert.
  const Model model = team == nullptr ? OpenModel(c.model, signals) : OpenModelFile(c.model);
  SettlePlan(model, &c);
  CheckExperiments(c);
  SettleError(&c);
  CheckSamples(c);
  const ExampleSet examples = ReadExamples(model, c.examples);
  if (c.plan.draw_examples >= static_cast<int32_t>(examples.examples.size())) c.plan.draw_examples = 0;
  if (works_for_another) {
    const Policy full("full");
    UtilityEvaluator evaluator(model, full, examples, c.evaluator);
    team->Serve([&](const WorkChunk& chunk) { return MeasureChunk(c.plan, chunk, &evaluator); });
    return kExitGood;
  }
  if (!c.plan.layers.empty()) {
    Note(Format("kvc: note: %zu of %d layers see all tokens: %d KV heads play; the others score 0",
                c.plan.layers.size(), c.plan.n_layers, c.plan.n_players()));
  }
  if (team != nullptr) team->Begin();
  if (!c.given.empty()) return TryScores(c, model, examples);
  if (c.method == "headkv-r2") return ScoreRetrieval(c, model, examples);
  const CancelOnSignal cancel(signals);
  return ScoreCoalitions(c, model, examples, cancel, team);
}

int Score(const ScoreCommand& c, Signals* signals) {
  const std::unique_ptr<Team> team = Team::Join();
  if (team == nullptr) return ScoreWith(c, signals, nullptr);
  // A process that fails takes the others with it: none would end otherwise.
  int code = kExitFailed;
  try {
    code = ScoreWith(c, signals, team.get());
    FlushOutput();
    return code;
  } catch (const UsageError& error) {
    Complain(error.what());
    code = kExitUsage;
  } catch (const std::exception& error) {
    Complain(error.what());
  }
  team->Abort(code);
  return code;
}

void AddDataOptions(CLI::App* app, ScoreCommand* c) {
  AddInputs(app, "--data", &c->examples.files, "Tasks, one JSON object a line; again for more files")
      ->required();
  AddFramingOptions(app, &c->model.framing);
  app->add_option("--protocol", c->protocol,
                  "ask: the question is fed after the masking. prompt: it is part of the prompt")
      ->check(CLI::IsMember({"ask", "prompt"}).description(""))
      ->capture_default_str()
      ->type_name("P");
  app->add_option("--split", c->examples.split, "prompt: so many last tokens are fed after the masking")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--validation", c->examples.validation,
                  "Share of each file's tasks to use, drawn by --seed")
      ->check(Real(1e-9, 1))
      ->capture_default_str()
      ->type_name("X");
  app->add_option("--limit", c->examples.limit, "At most so many tasks of a file; 0 = all")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--max-prompt", c->examples.max_prompt,
                  "Cut longer contexts to first and last half of this; 0 = never")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--utility", c->utility,
                  "How good an answer is: exact, nll, f1, rouge-l, classification, retrieval, code or needle")
      ->check(CLI::IsMember(MetricNames()).description(""))
      ->capture_default_str()
      ->type_name("U");
  app->add_option("--max-answer", c->evaluator.max_answer, "Tokens generated for utilities of texts")
      ->check(AtLeast(1))
      ->capture_default_str()
      ->type_name("N");
  app->add_flag("--first-line", c->evaluator.first_line, "The first line of an answer counts");
}

void AddSamplingPlan(CLI::App* app, ScoreCommand* c) {
  app->add_option("--samples", c->scorer.samples,
                  "Coalitions of each size and run; none: until two runs agree")
      ->check(Whole(1, kMostSamples))
      ->type_name("N");
  app->add_option("--max-samples", c->scorer.max_samples, "Without --samples: at most so many")
      ->check(Whole(1, kMostSamples))
      ->capture_default_str()
      ->type_name("N");
  CLI::Option* epsilon =
      app->add_option("--epsilon", c->epsilon,
                      "As many samples as it takes for every score, before its offset is taken off, to be "
                      "within this of its value, with a probability of 1 - --delta (utilities are 0 to 1; "
                      "--variant left)")
          ->check(Real(1e-4, 2))
          ->type_name("X");
  app->add_option("--delta", c->delta, "Of --epsilon: how often it may fail")
      ->check(Real(1e-9, 0.999))
      ->capture_default_str()
      ->needs(epsilon)
      ->type_name("X");
  app->add_option("--min-spearman", c->scorer.min_spearman,
                  "Rank correlation the runs must reach too; 0.9 is a good one")
      ->check(Real(0, 1))
      ->type_name("X");
  app->add_option("--sizes", c->plan.sizes, "Sizes of coalitions, such as 3,6; none: N/8, N/4, 3N/8, N/2")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  app->add_option("--runs", c->plan.runs, "Independent runs")
      ->check(Whole(1, kMostRuns))
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--window", c->evaluator.window, "Newest entries a masked head keeps")
      ->check(AtLeast(1))
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--variant", c->variant,
                  "Estimator: both halves of the samples, left (the paper), pooled or regression. Of single "
                  "heads, no Shapley values: alone (all others masked) or leftout (it alone masked)")
      ->check(CLI::IsMember(VariantNames()).description(""))
      ->capture_default_str()
      ->type_name("V");
  app->add_option("--draw-examples", c->plan.draw_examples,
                  "Try each coalition on so many questions drawn for it; 0 = on all")
      ->check(AtLeast(0))
      ->capture_default_str()
      ->type_name("N");
  app->add_flag("--balanced", c->plan.balanced, "Every head equally often: blocks of one permutation");
  app->add_flag("--standardise", c->scorer.estimate.standardise, "Every size counts the same");
  app->add_flag("--with-offset", c->with_offset, "Add the offset that all heads share");
  app->add_option("--seed", c->seed, "Of all draws")
      ->check(Whole(INT64_MIN, INT64_MAX))
      ->capture_default_str()
      ->type_name("N");
}

// A command is often given again with another method, or with --scores.
void NoteIdle(const CLI::App& app, const ScoreCommand& c) {
  const bool measures = c.method != "headkv-r2" && c.given.empty(), draws = measures && c.method == "ssv";
  const std::string method =
      c.given.empty() ? "with --method " + c.method : "of scores that were measured before";
  const auto note = [&](bool has_effect, const char* option, const std::string& why) {
    if (!has_effect && app.count(option) > 0)
      Note(std::string("kvc: note: ") + option + " changes nothing " + why);
  };
  for (const char* option : {"--samples", "--sizes", "--runs", "--balanced"}) note(draws, option, method);
  for (const char* option : {"--max-samples", "--min-spearman"})
    note(draws && c.scorer.samples == 0, option, draws ? "with --samples" : method);
  for (const char* option : {"--variant", "--draw-examples", "--standardise", "--with-offset"})
    note(measures, option, method);
  const bool of_texts = c.utility != "exact" && c.utility != "nll";
  for (const char* option : {"--max-answer", "--first-line"})
    note(of_texts, option, "with --utility " + c.utility);
}

}  // namespace

Action AddScore(CLI::App* app) {
  const auto c = std::make_shared<ScoreCommand>();
  AddModelOptions(app, &c->model);
  app->add_option("--method", c->method, "ssv (sliced Shapley values), exact (16 heads at most) or headkv-r2")
      ->check(CLI::IsMember({"ssv", "exact", "headkv-r2"}).description(""))
      ->capture_default_str()
      ->type_name("M");
  AddOutput(app, "--out", &c->out, "The score file to write (JSON)")->required();
  app->add_option("--name", c->name, "Name of the table; none: after method and data")->type_name("TEXT");
  AddDataOptions(app, c.get());
  AddSamplingPlan(app, c.get());
  app->add_option("--shard", c->shard, "Do part I of N, for several machines")->type_name("I/N");
  AddOutput(app, "--log", &c->log, "Record of the work; none: beside --out");
  app->add_flag("--resume", c->resume, "Go on with the record of an earlier call");
  app->add_option("--batch", c->evaluator.batch, "Sequences decoded together")
      ->check(Whole(1, 256))
      ->capture_default_str()
      ->type_name("N");
  AddBytesOption(app, "--cache-limit", &c->evaluator.cache_limit, "Prefilled prompts held at a time: 1GiB");
  app->add_option("--choose-alpha", c->alpha_budgets, "Slots a head, such as 16,64: the best alpha of each")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  app->add_option("--alphas", c->alphas,
                  "Candidates of --choose-alpha; none: the published ones, scaled, and up to 7N/8")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  app->add_option("--mask-experiment", c->mask_experiment,
                  "Mask the best or worst heads alone: top, bottom or both")
      ->check(CLI::IsMember({"top", "bottom", "both"}).description(""))
      ->type_name("WHICH");
  AddInput(app, "--scores", &c->given,
           "Measure nothing: try --choose-alpha, --mask-experiment on these scores");
  app->add_flag("--json", c->json, "One JSON document on stdout");
  app->footer(
      "Scored are the heads of layers that see all tokens. Layers with a window keep their newest\n"
      "whatever is masked: their heads score 0, and no method looks at it.");
  return [c, app](Signals* signals) {
    NoteIdle(*app, *c);
    return Score(*c, signals);
  };
}

}  // namespace kvc::tool
