// kvc run: a prompt, a policy, an answer; questions after the same compressed prompt, which may be kept in a
// file; the full cache beside it.
#include <algorithm>
#include <memory>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/generate.h"
#include "tools/options.h"
#include "tools/output.h"

#define KVC_EXPERIMENTAL
#include "kvc/kvc_experimental.h"

namespace kvc::tool {
namespace {

constexpr int32_t kAnswer = 128;  // tokens of an answer, where nothing was said

struct RunOptions {
  ModelOptions model;
  PromptOptions prompt;
  TableOptions tables;
  SessionOptions session;
  std::string policy = "full", draft_policy;
  std::string save, load;  // files of compressed prompts
  std::vector<std::string> questions;
  int32_t max_tokens = -1, draft = 0;  // max_tokens -1: kAnswer, as far as there is room
  bool compare = false, stats = false, json = false;
};

// What one cache answered: to the prompt itself, or to each question after it.
struct Answers {
  std::string policy;  // canonical text
  std::vector<Generation> answers;
  kvc_session_stats after_prompt{};
  bool has_codes = false;  // codebooks: what they leave of the cache
  double code_ratio_paper = 0, code_ratio_exact = 0;
  std::string failure;       // not empty: this cache could not be used, and why
  std::string drafts_ended;  // not empty: an answer went on without drafts, and why
};

double StepSeconds(const Answers& run) {
  double seconds = 0, tokens = 0;
  for (const Generation& answer : run.answers) {
    seconds += answer.stats.decode_seconds;
    tokens += static_cast<double>(answer.tokens.size());
  }
  return Ratio(seconds, tokens);
}

std::unique_ptr<Drafter> MakeDrafter(const RunOptions& options, const TokenList& prompt,
                                     const TokenList& asked, PromptOnce* drafts) {
  if (options.draft == 0) return nullptr;
  if (drafts != nullptr) {
    Session* session = options.questions.empty() ? drafts->base() : drafts->Ask(asked);
    return std::make_unique<SessionDrafter>(options.draft, session);
  }
  TokenList text = prompt;
  text.insert(text.end(), asked.begin(), asked.end());
  return std::make_unique<LookupDrafter>(options.draft, std::move(text));
}

Policy DraftPolicy(const RunOptions& options) {
  try {
    return MakePolicy(options.draft_policy, options.tables);
  } catch (const UsageError& error) {
    throw UsageError(std::string("--draft-policy: ") + error.what());
  }
}

// The most tokens of an answer that this session begins.
int32_t MostTokens(const RunOptions& options, const Model& model, const Session& session) {
  if (options.max_tokens >= 0) return options.max_tokens;
  if (!options.load.empty()) return kAnswer;  // how much it holds is the file's
  if (options.session.on_full != "error") return kAnswer;
  const int64_t left = RoomOf(model, options.session) - session.Stats().n_tokens;
  return static_cast<int32_t>(std::clamp<int64_t>(left + 1, 1, kAnswer));  // the last one needs no place
}

// Says it when an answer ended for want of room alone.
void NoteNoRoom(const RunOptions& options, const Generation& answer, int32_t most) {
  if (options.max_tokens >= 0 || most == kAnswer || static_cast<int32_t>(answer.tokens.size()) < most) return;
  Note("kvc: note: the answer ends after " + Counted(most, "token", "tokens") +
       ", where the session is full: --context N makes more room, --on-full slide drops old tokens");
}

PromptOnce NewOnce(const RunOptions& options, const Model& model, const Policy& policy) {
  PromptOnce once(model, policy, SessionParams(options.session));
  once.base()->SetSampling(Sampling(options.session));
  return once;
}

// A session for the prompt, or the one that has read it.
PromptOnce BeginOnce(const RunOptions& options, const Model& model, const Policy& policy) {
  if (options.load.empty()) return NewOnce(options, model, policy);
  PromptOnce once(Session::Restore(model, options.load));
  if (options.session.samples) once.base()->SetSampling(Sampling(options.session));
  return once;
}

TokenList TokensOf(const RunOptions& options, const Model& model, const TokenList& prompt,
                   const std::string& question) {
  const bool continues = !options.load.empty() && !model.framing().chat;  // behind a prompt that is not known
  return continues ? model.TokenizeAnswer(question) : model.TokenizeAfter(prompt, question);
}

// What is to be answered: each question; without any the prompt itself, unless it is only to be kept.
std::vector<std::string> Asked(const RunOptions& options) {
  if (!options.questions.empty() || !options.save.empty()) return options.questions;
  return {""};
}

Answers AnswerAll(const RunOptions& options, const Model& model, const Policy& policy,
                  const TokenList& prompt, CancelOnSignal* cancel, bool stream) {
  Answers run;
  run.policy = options.load.empty() ? policy.Describe() : "of the loaded file";
  bool in_line = false;  // what is said on stderr begins on a line of its own
  const TextSink sink = [&in_line](const std::string& text) {
    in_line = true;
    Print(text);
    FlushOutput();  // a reader that is gone, or a full disk, ends the work
  };
  PromptOnce once = BeginOnce(options, model, policy);
  std::optional<PromptOnce> drafts;  // the same text in a smaller cache
  if (!options.draft_policy.empty()) drafts.emplace(NewOnce(options, model, DraftPolicy(options)));
  if (options.load.empty()) {
    const WatchSession watch(cancel, *once.base());
    drafts ? PromptOnce::StartTogether({&once, &*drafts}, prompt) : once.Start(prompt);
  }
  run.after_prompt = once.prompt_stats();
  run.has_codes =
      kvc_session_get_code_ratios(once.base()->get(), &run.code_ratio_paper, &run.code_ratio_exact) == KVC_OK;
  if (!options.save.empty()) once.base()->Save(options.save);
  try {
    for (const std::string& question : Asked(options)) {
      const std::string parted = model.framing().chat ? "\n" : "";  // an answer is a turn of its own there
      if (stream && !question.empty()) sink(question + parted);
      const TokenList asked =
          options.questions.empty() ? TokenList{} : TokensOf(options, model, prompt, question);
      Session* session = options.questions.empty() ? once.base() : once.Ask(asked);
      const auto drafter = MakeDrafter(options, prompt, asked, drafts ? &*drafts : nullptr);
      const WatchSession watch(cancel, *session);
      const int32_t most = MostTokens(options, model, *session);
      run.answers.push_back(Generate(session, most, stream ? sink : TextSink{}, cancel, drafter.get()));
      if (stream) Print("\n");
      in_line = false;
      if (drafter != nullptr && run.drafts_ended.empty()) run.drafts_ended = drafter->ended();
      if (cancel->received()) throw StatusFailure(KVC_E_CANCELLED, "cancelled");
      NoteNoRoom(options, run.answers.back(), most);
    }
  } catch (const Failure&) {
    if (in_line) Print("\n");
    throw;
  }
  return run;
}

// The full cache of the same prompt. That it does not fit is a result, not an error.
Answers AnswerInFull(const RunOptions& options, const Model& model, const TokenList& prompt,
                     CancelOnSignal* cancel) {
  try {
    return AnswerAll(options, model, Policy("full"), prompt, cancel, /*stream=*/false);
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_MEMORY) throw;
    Answers run;
    run.policy = "full";
    run.failure = failure.what();
    return run;
  }
}

// Tokens at the same place that are equal, and the first place where the two differ (-1: nowhere).
struct Agreement {
  int64_t same = 0, compared = 0, first_difference = -1;
};

Agreement Compare(const TokenList& a, const TokenList& b) {
  Agreement out;
  out.compared = static_cast<int64_t>(std::max(a.size(), b.size()));
  for (int64_t i = 0; i < out.compared; ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool same = at < a.size() && at < b.size() && a[at] == b[at];
    out.same += same;
    if (!same && out.first_difference < 0) out.first_difference = i;
  }
  return out;
}

Agreement CompareAll(const Answers& a, const Answers& b) {
  Agreement total;
  for (size_t i = 0; i < std::min(a.answers.size(), b.answers.size()); ++i) {
    const Agreement one = Compare(a.answers[i].tokens, b.answers[i].tokens);
    if (total.first_difference < 0 && one.first_difference >= 0)
      total.first_difference = total.compared + one.first_difference;
    total.same += one.same;
    total.compared += one.compared;
  }
  return total;
}

void PrintStats(const Answers& run, const Model& model) {
  const kvc_session_stats& at = run.after_prompt;
  const double heads = model.n_kv_heads_total();
  Table table({"", ""}, "lr");
  int64_t n_answer = 0;
  for (const Generation& answer : run.answers) n_answer += static_cast<int64_t>(answer.tokens.size());
  table.AddRow({"prompt", FormatCount(at.n_prompt) + " tokens"});
  table.AddRow({"answer", FormatCount(n_answer) + " tokens"});
  int64_t n_passes = 0;
  for (const Generation& answer : run.answers) n_passes += answer.n_passes;
  if (n_passes < n_answer)
    table.AddRow({"tokens a pass",
                  Format("%.2f", Ratio(static_cast<double>(n_answer), static_cast<double>(n_passes)))});
  table.AddRow({"slots per head", Format("%.1f", static_cast<double>(at.n_slots) / heads)});
  table.AddRow({"share of the cache",
                FormatPercent(Ratio(static_cast<double>(at.n_slots), static_cast<double>(at.n_slots_full)))});
  table.AddRow({"cache after the prompt", FormatBytes(at.cache_bytes)});
  table.AddRow({"cache at its peak", FormatBytes(at.cache_bytes_peak)});
  table.AddRow({"cache uncompressed", FormatBytes(at.cache_bytes_full)});
  if (run.has_codes) {
    table.AddRow({"vectors and codes, as the paper counts", FormatPercent(run.code_ratio_paper)});
    table.AddRow({"vectors and codes, exactly", FormatPercent(run.code_ratio_exact)});
  }
  table.AddRow({"weights", FormatBytes(at.weight_bytes)});
  table.AddRow({"workspace", FormatBytes(at.workspace_bytes)});
  table.AddRow({"prefill", FormatSeconds(at.prefill_seconds)});
  table.AddRow({"  of it compression", FormatSeconds(at.compress_seconds)});
  table.AddRow({"step", FormatSeconds(StepSeconds(run))});
  Note("\n" + run.policy + "\n" + table.Text());
}

// full_name: of the full cache, which has no more room than the other one.
void PrintComparison(const Answers& run, const Answers& full, const std::string& full_name, bool questions,
                     const std::vector<std::string>& asked) {
  Table table({"", "compressed", full_name}, "lrr");
  const bool fits = full.failure.empty();
  const auto row = [&](const char* name, const std::string& a, const std::string& b) {
    table.AddRow({name, a, fits ? b : "-"});
  };
  row("cache after the prompt", FormatBytes(run.after_prompt.cache_bytes),
      FormatBytes(full.after_prompt.cache_bytes));
  row("cache at its peak", FormatBytes(run.after_prompt.cache_bytes_peak),
      FormatBytes(full.after_prompt.cache_bytes_peak));
  row("prefill", FormatSeconds(run.after_prompt.prefill_seconds),
      FormatSeconds(full.after_prompt.prefill_seconds));
  row("step", FormatSeconds(StepSeconds(run)), FormatSeconds(StepSeconds(full)));
  Print("\n" + run.policy + "\n" + table.Text());
  if (!fits) {
    Print("the full cache does not fit: " + full.failure + "\n");
    return;
  }
  const Agreement agreement = CompareAll(run, full);
  Print(Format("agreement: %lld of %lld tokens", static_cast<long long>(agreement.same),
               static_cast<long long>(agreement.compared)));
  if (agreement.first_difference >= 0)
    Print(Format(", first difference at token %lld", static_cast<long long>(agreement.first_difference)));
  Print("\n");
  for (size_t i = 0; i < full.answers.size(); ++i) {
    if (full.answers[i].tokens == run.answers[i].tokens) continue;
    Print("full cache" + (questions ? ", " + asked[i] : std::string()) + ":" + full.answers[i].text + "\n");
  }
}

Json AnswerJson(const Generation& answer) {
  return Json{{"text", answer.text},
              {"tokens", answer.tokens},
              {"n_passes", answer.n_passes},
              {"n_drafted", answer.n_drafted}};
}

Json RunJson(const Answers& run, const RunOptions& options) {
  Generation none;
  none.stats = run.after_prompt;
  const Generation& first = run.answers.empty() ? none : run.answers.front();
  kvc_session_stats stats = first.stats;
  stats.prefill_seconds = run.after_prompt.prefill_seconds;
  stats.compress_seconds = run.after_prompt.compress_seconds;
  Json out{{"text", first.text},
           {"tokens", first.tokens},
           {"n_prompt", run.after_prompt.n_prompt},
           {"policy", run.policy},
           {"stats", StatsJson(stats)},
           {"stats_after_prompt", StatsJson(run.after_prompt)},
           {"seed", options.session.seed},
           {"n_passes", first.n_passes},
           {"n_drafted", first.n_drafted},
           {"answers", Json::array()}};
  if (!options.save.empty()) out["saved"] = options.save;
  if (options.prompt.tokens.empty()) out["framing"] = FramingJson(options.model.framing);
  if (run.has_codes) out["code_ratio"] = {{"paper", run.code_ratio_paper}, {"exact", run.code_ratio_exact}};
  for (size_t i = 0; i < options.questions.size(); ++i) {
    Json answer = AnswerJson(run.answers[i]);
    answer["question"] = options.questions[i];
    out["answers"].push_back(answer);
  }
  return out;
}

Json ComparisonJson(const Answers& run, const Answers& full) {
  if (!full.failure.empty()) return Json{{"failure", full.failure}};
  const Agreement agreement = CompareAll(run, full);
  Json out{{"policy", full.policy},
           {"stats", StatsJson(full.answers.front().stats)},
           {"stats_after_prompt", StatsJson(full.after_prompt)},
           {"agreement", Ratio(static_cast<double>(agreement.same), static_cast<double>(agreement.compared))},
           {"first_difference", agreement.first_difference},
           {"answers", Json::array()}};
  for (const Generation& answer : full.answers) out["answers"].push_back(AnswerJson(answer));
  return out;
}

void Answer(const RunOptions& options, const Model& model, const Policy& policy, Signals* signals) {
  TokenList prompt;
  if (options.load.empty())
    prompt = ReadPrompt(options.prompt, model, !options.questions.empty() || !options.save.empty());
  const int64_t n_prompt = static_cast<int64_t>(prompt.size()), room = RoomOf(model, options.session);
  if (options.load.empty()) NoteReadInParts(model, options.session, n_prompt);
  CancelOnSignal cancel(signals);
  const Answers run = AnswerAll(options, model, policy, prompt, &cancel, /*stream=*/!options.json);
  if (!options.save.empty())
    Note("kvc: " + FormatCount(run.after_prompt.n_prompt) + " tokens, in a cache of " +
         FormatBytes(run.after_prompt.cache_bytes) + ", are in " + Printable(options.save) +
         ": ask with --load" + (options.model.framing.chat ? " and --chat" : ""));
  if (options.stats && !options.json) PrintStats(run, model);
  if (!run.drafts_ended.empty()) Note("kvc: note: no more drafts: " + run.drafts_ended);
  if (options.json) {
    Json out = RunJson(run, options);
    if (n_prompt > room && options.load.empty()) out["read_in_parts_of"] = room;
    if (options.compare) out["compare"] = ComparisonJson(run, AnswerInFull(options, model, prompt, &cancel));
    PrintJson(out);
  } else if (options.compare) {
    const Answers full = AnswerInFull(options, model, prompt, &cancel);
    const std::string full_name = n_prompt > room ? "full, cut to " + FormatCount(room) : "full";
    PrintComparison(run, full, full_name, !options.questions.empty(), options.questions);
  }
}

int Run(const RunOptions& options, Signals* signals) {
  CheckOutputs({options.model.path, options.prompt.file, options.prompt.tokens, options.tables.head_scores,
                options.tables.table},
               {options.save});
  if (!options.save.empty()) signals->RemoveTemporariesOf(options.save);
  const Policy policy = MakePolicy(options.policy, options.tables);
  // Without drafts by a policy, the same one twice.
  NoteIdleTables(options.tables,
                 {options.policy, options.draft_policy.empty() ? options.policy : options.draft_policy});
  const Model model = OpenModel(options.model, signals);
  if (options.session.on_full != "slide" && options.load.empty())
    NoteBeyondTraining(model, policy, options.session.context);
  try {
    Answer(options, model, policy, signals);
  } catch (const StatusFailure& failure) {
    if (!options.load.empty() && failure.status() == KVC_E_CONTEXT_FULL)
      throw StatusFailure(failure.status(), std::string(failure.what()) +
                                                "\nthe room is the file's: --context N where it was saved");
    RethrowWithRoom(failure, model, options.session);
  }
  return kExitGood;
}

}  // namespace

Action AddRun(CLI::App* app) {
  const auto options = std::make_shared<RunOptions>();
  AddModelOptions(app, &options->model);
  AddPromptOptions(app, &options->prompt);
  AddPolicyOption(app, &options->policy);
  AddTableOptions(app, &options->tables);
  app->add_option("--max-tokens", options->max_tokens,
                  "Most tokens to generate; none: 128, as far as the session has room")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option(
         "--draft", options->draft,
         "Foresee up to N tokens from what prompt and answer say, and check them at once: the same answer in "
         "fewer passes; N up to 31")
      ->check(Whole(1, 31))
      ->type_name("N");
  app->add_option("--draft-policy", options->draft_policy,
                  "Foresee them by a second, smaller cache of the prompt instead: snapkv:budget=128")
      ->needs("--draft")
      ->type_name("SPEC");
  app->add_option("--ask", options->questions,
                  "Ask this after the compressed prompt; again for more questions")
      ->allow_extra_args(false)
      ->type_name("TEXT");
  CLI::Option* save = AddOutput(app, "--save", &options->save,
                                "Keep the compressed prompt in this file; answers come only to --ask then");
  CLI::Option* load = AddInput(app, "--load", &options->load, "Ask after a prompt that --save kept");
  AddFramingOptions(app, &options->model.framing);
  app->add_option("--system", options->model.framing.system, "What the model is to be, said before all of it")
      ->needs("--chat")
      ->type_name("TEXT");
  for (const char* of_texts : {"--special", "--chat"})
    app->get_option("--tokens")->excludes(app->get_option(of_texts));
  AddSamplingOptions(app, &options->session);
  AddContextOptions(app, &options->session);
  app->add_flag("--compare", options->compare,
                "Also run the full cache: memory, time, agreement side by side");
  for (const char* own : {"--prompt", "--prompt-file", "--tokens", "--policy", "--head-scores", "--table",
                          "--context", "--on-full", "--system", "--compare", "--draft-policy"})
    load->excludes(app->get_option(own));                        // the file has them, or they need the text
  save->excludes(load)->excludes(app->get_option("--compare"));  // one cache is kept
  app->add_flag("--stats", options->stats, "Memory and time, on stderr");
  app->add_flag("--json", options->json, "One JSON document on stdout; none when it fails");
  return [options, app](Signals* signals) {
    NoteNothingDrawn(*app, options->session);
    for (const char* of_answers : {"--max-tokens", "--draft"})
      RefuseUnless(!Asked(*options).empty(), *app, of_answers,
                   "answers: with --save there are some to --ask");
    return Run(*options, signals);
  };
}

}  // namespace kvc::tool
