#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "models/convert/size_text.h"
#include "tools/files.h"
#include "tools/model_cache.h"
#include "tools/texts.h"

namespace kvc::tool {

CLI::Validator Whole(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (stop != end || text.empty() || error == std::errc::invalid_argument)
          return "\"" + text + "\" is no whole number";
        if (error != std::errc() || value < least || value > most)
          return Format("%s is not in the range %lld .. %lld", text.c_str(), static_cast<long long>(least),
                        static_cast<long long>(most));
        if (text != std::to_string(value)) return "\"" + text + "\" is written " + std::to_string(value);
        return "";
      },
      "");
}

CLI::Validator Real(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        char* end = nullptr;
        const double value =
            std::strtod(text.c_str(), &end);  // std::from_chars of a double: not in every library
        if (end != text.c_str() + text.size() || text.empty() || text[0] == '+' ||
            text.find_first_not_of("0123456789+-.eE") != std::string::npos)
          return "\"" + text + "\" is no number";
        if (!(value >= least && value <= most))
          return Format("%s is not in the range %g .. %g", text.c_str(), least, most);
        return "";
      },
      "");
}

CLI::Validator AtLeast(int32_t least) { return Whole(least, INT32_MAX); }

namespace {

std::string RefuseEmpty(std::string& path) { return path.empty() ? "the file name is empty" : ""; }

std::string RefuseOutput(std::string& path) {
  if (path == "-") return "an output goes to a file; ./- is the file of that name";
  return RefuseEmpty(path);
}

CLI::Option* Described(CLI::Option* option, const std::string& name) {
  return option->type_name(name[0] == '-' ? "FILE" : "");
}

}  // namespace

CLI::Option* AddInput(CLI::App* app, const std::string& name, std::string* path, const std::string& help) {
  return Described(app->add_option(name, *path, help)->check(CLI::Validator(RefuseEmpty, "")), name);
}

CLI::Option* AddInputs(CLI::App* app, const std::string& name, std::vector<std::string>* paths,
                       const std::string& help) {
  CLI::Option* option = app->add_option(name, *paths, help)->check(CLI::Validator(RefuseEmpty, ""));
  if (name[0] == '-') option->allow_extra_args(false);
  return Described(option, name);
}

CLI::Option* AddOutput(CLI::App* app, const std::string& name, std::string* path, const std::string& help) {
  return Described(app->add_option(name, *path, help)->check(CLI::Validator(RefuseOutput, "")), name);
}

void RefuseUnless(bool has_effect, const CLI::App& app, const std::string& option,
                  const std::string& is_for) {
  if (!has_effect && app.count(option) > 0) throw UsageError(option + " is for " + is_for);
}

// As budget_bytes of a policy has them (docs/methods.md 1.1).
int64_t ParseBytes(const std::string& text) {
  double value = 0;
  if (!ReadSize(text, &value) || std::signbit(value) || value > 9e18)
    throw UsageError("\"" + text + "\" is no size; write for example 512MiB, 2GiB, 100KB or 65536");
  if (value > 0 && value < 1) throw UsageError("\"" + text + "\" is less than a byte");
  return static_cast<int64_t>(value);
}

void AddBytesOption(CLI::App* app, const std::string& name, int64_t* n_bytes, const std::string& help) {
  app->add_option_function<std::string>(
         name, [n_bytes](const std::string& text) { *n_bytes = ParseBytes(text); }, help)
      ->type_name("SIZE");
}

void AddShareOption(CLI::App* app, const std::string& name, double* share, double low, double high,
                    const std::string& help) {
  const auto parse = [share, low, high, name](const std::string& text) {
    const bool is_percent = !text.empty() && text.back() == '%';
    std::string number = text.substr(0, text.size() - (is_percent ? 1 : 0));
    const double scale = is_percent ? 100 : 1;
    std::string problem = Real(low * scale, high * scale)(number);
    const double value = std::strtod(number.c_str(), nullptr), as_percent = value / 100;
    if (!problem.empty() && is_percent && value > high * scale)
      problem = Format("%s is not in the range %g%% .. %g%%", text.c_str(), low * scale, high * scale);
    else if (!problem.empty() && !is_percent && as_percent >= low && as_percent <= high)
      problem += Format(": it is a share; write %g%% or %g", value, as_percent);
    if (!problem.empty()) throw CLI::ValidationError(name, problem);
    *share = std::strtod(number.c_str(), nullptr) / scale;
  };
  app->add_option_function<std::string>(name, parse, help)->type_name("SHARE");
}

void AddModelOptions(CLI::App* app, ModelOptions* options, const std::string& path_option, const char* help) {
  AddInput(app, path_option, &options->path, help)->required();
  app->add_option("--threads", options->threads, "CPU threads; 0 = as many as kvc devices says")
      ->check(Whole(0, 1024))
      ->type_name("N");
  app->add_option("--device", options->device, "auto, or one that kvc devices lists, such as cpu")
      ->type_name("D");
  AddBytesOption(app, "--memory-limit", &options->memory_limit,
                 "Refuse to take more for weights, caches and workspace: 512MiB");
  app->add_flag("--trusted", options->trusted,
                "Open without reading all of the weights first: for a file that was opened before");
}

Model OpenModelFile(const ModelOptions& options) {
  std::error_code error;
  if (std::filesystem::is_directory(std::filesystem::u8path(options.path), error))
    throw Failure(Printable(options.path) + ": is a folder; kvc convert makes a model file of it");
  try {
    kvc_model_params params = DefaultModelParams();
    params.n_threads = options.threads, params.memory_limit = options.memory_limit;
    params.trusted = options.trusted ? 1 : 0, params.plan_only = options.plan_only ? 1 : 0;
    Model model(options.path, options.device, params);
    model.SetFraming(options.framing);
    return model;
  } catch (const StatusFailure& failure) {
    const std::string text = failure.what();
    if (failure.status() != KVC_E_INVALID || text.find("device \"") == std::string::npos) throw;
    throw UsageError("--device: " + text);
  }
}

// What `source` was converted into, which is `path`.
static Model OpenConverted(ModelOptions options, const std::string& source, const std::string& path) {
  options.path = path;
  Model model = OpenModelFile(options);
  model.NoteScoresBeside(ScoresBeside(source));
  return model;
}

Model OpenModel(const ModelOptions& options, Signals* signals) {
  const std::string path = ModelFileFor(options.path, signals);
  if (path == options.path) return OpenModelFile(options);
  try {
    return OpenConverted(options, options.path, path);
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_BAD_MODEL) throw;
    Note(std::string("kvc: note: ") + failure.what() + ": made again");
  }
  ForgetModelFile(path);
  return OpenConverted(options, options.path, ModelFileFor(options.path, signals));
}

int32_t ThreadsUsed(const ModelOptions& options) {
  if (options.threads > 0) return options.threads;
  for (int32_t i = 0; i < kvc_device_count(); ++i) {
    const Json device = DeviceJson(i);
    if (device["name"] == "cpu") return device.value("threads", 1);
  }
  return 1;
}

void AddTableOptions(CLI::App* app, TableOptions* options) {
  CLI::Option* scores = AddInput(app, "--head-scores", &options->head_scores,
                                 "JSON with [layer][head] scores to use instead of the model's own");
  scores->excludes(
      AddInput(app, "--table", &options->table, "JSON with [layer][head] slots, for policy \"table\""));
}

Tables ReadTables(const TableOptions& options) {
  Tables tables;
  if (!options.head_scores.empty()) tables.head_scores = ReadJson(options.head_scores);
  if (!options.table.empty()) tables.table = ReadJson(options.table);
  return tables;
}

CLI::Option* AddPolicyOption(CLI::App* app, std::string* spec) {
  return app
      ->add_option("--policy", *spec, "Method and options, e.g. cokv:budget=64,window=8 (see kvc methods)")
      ->capture_default_str()
      ->type_name("SPEC");
}

Policy MakePolicy(const std::string& spec, const TableOptions& options, const Tables& tables) {
  Policy policy(spec);
  if (!options.head_scores.empty())
    policy.SetHeadScores(HeadScoresIn(tables.head_scores, options.head_scores));
  if (!options.table.empty()) policy.SetTable(SlotTableIn(tables.table, options.table));
  return policy;
}

Policy MakePolicy(const std::string& spec, const TableOptions& options) {
  return MakePolicy(spec, options, ReadTables(options));
}

// Parts can be put together freely, and what does not exist is refused elsewhere: of such policies nothing is
// said.
static bool MayTakeHeadScores(const std::string& spec) {
  const std::string name = spec.substr(0, spec.find(':'));
  for (const char* other : {"allocator=", "scorer=", "reducer=", "kv=mixed"})
    if (spec.find(other) != std::string::npos) return true;
  for (int32_t i = 0; i < kvc_method_count(); ++i)
    if (name == kvc_method_name(i)) return MethodJson(i).value("head_scores", false);
  return true;
}

static bool MayTakeTable(const std::string& spec) {
  return spec.substr(0, spec.find(':')) == "table" || spec.find("allocator=table") != std::string::npos;
}

void NoteIdleTables(const TableOptions& options, const std::vector<std::string>& specs) {
  const auto note = [&](const std::string& file, bool (*may_take)(const std::string&), const char* option) {
    if (!file.empty() && std::none_of(specs.begin(), specs.end(), may_take))
      Note(std::string("kvc: note: ") + option + " changes nothing with --policy " + specs.front());
  };
  note(options.head_scores, MayTakeHeadScores, "--head-scores");
  note(options.table, MayTakeTable, "--table");
}

void AddPromptOptions(CLI::App* app, PromptOptions* options) {
  CLI::Option* text =
      app->add_option("--prompt", options->text, "The prompt; none = the begin-of-text token alone")
          ->type_name("TEXT");
  CLI::Option* file =
      AddInput(app, "--prompt-file", &options->file, "The prompt from a file; - = standard input");
  CLI::Option* tokens =
      AddInput(app, "--tokens", &options->tokens, "Token ids from a JSON array; nothing is added");
  file->excludes(text);
  tokens->excludes(text)->excludes(file);
}

void AddSpecialOption(CLI::App* app, Framing* framing) {
  app->add_flag("--special", framing->special, "Special tokens written in the texts become their ids");
}

void AddFramingOptions(CLI::App* app, Framing* framing) {
  AddSpecialOption(app, framing);
  app->add_flag("--chat", framing->chat,
                "A context is said as a user's message, by the turn format of the model file: it begins the "
                "message, a question ends it, and the assistant answers");
}

TokenList ReadPrompt(const PromptOptions& options, const Model& model, bool asked) {
  if (!options.tokens.empty()) return ReadTokens(options.tokens);
  const std::string text = options.file.empty() ? options.text : ReadFile(options.file, kMaxPromptBytes);
  return asked ? model.TokenizePrompt(text) : model.TokenizeWhole(text);
}

void AddContextOptions(CLI::App* app, SessionOptions* options) {
  app->add_option(
         "--context", options->context,
         "Most tokens of prompt and answer; 0 = the model's trained context, or any number where the "
         "policy counts positions in slots (streaming)")
      ->check(Whole(0, kMostContext))
      ->type_name("N");
  app->add_option("--on-full", options->on_full, "At the end of the context: error, evict or slide")
      ->check(CLI::IsMember({"error", "evict", "slide"}).description(""))
      ->type_name("WHAT");
}

void AddSamplingOptions(CLI::App* app, SessionOptions* options) {
  const auto said = [options](const std::string&) { options->samples = true; };
  app->add_option("--temperature", options->temperature, "0 = greedy")
      ->check(Real(0, 100))
      ->type_name("X")
      ->each(said);
  app->add_option("--top-p", options->top_p, "Sample from the likeliest tokens that sum to this; 0 = off")
      ->check(Real(0, 1))
      ->type_name("X")
      ->each(said);
  app->add_option("--top-k", options->top_k, "Sample from so many likeliest tokens; 0 = off")
      ->check(AtLeast(0))
      ->type_name("N")
      ->each(said);
  app->add_option("--min-p", options->min_p,
                  "Sample from tokens of at least this share of the likeliest one's probability; 0 = off")
      ->check(Real(0, 1))
      ->type_name("X")
      ->each(said);
  app->add_option("--repeat-penalty", options->repeat_penalty,
                  "Make the newest 64 tokens less likely, about 1.1; 0 = off")
      ->check(Real(0, 100))
      ->type_name("X")
      ->each(said);
  app->add_option("--seed", options->seed, "Of sampling; the same seed gives the same text")
      ->check(Whole(INT64_MIN, INT64_MAX))
      ->type_name("N")
      ->each(said);
}

void NoteNothingDrawn(const CLI::App& app, const SessionOptions& options) {
  if (options.temperature > 0 || app.count("--temperature") > 0) return;
  for (const char* option : {"--top-p", "--top-k", "--min-p", "--seed"}) {
    if (app.count(option) > 0)
      return Note(std::string("kvc: note: ") + option +
                  " changes nothing without --temperature: the likeliest token is taken");
  }
}

void NoteBeyondTraining(const Model& model, const Policy& policy, int64_t n_tokens) {
  const int32_t trained = model.info().max_tokens;
  const std::vector<std::string> of_policy = PolicyOptions(policy.Describe());
  const auto has = [&](const char* option) {
    return std::find(of_policy.begin(), of_policy.end(), option) != of_policy.end();
  };
  if (n_tokens <= trained || (has("pos_mode=incache") && has("decode=step"))) return;
  Note("kvc: note: " + FormatCount(n_tokens) + " tokens are beyond the " + FormatCount(trained) +
       " that this model was trained for: what it says past those is worth little");
}

int64_t RoomOf(const Model& model, const SessionOptions& options) {
  return options.context > 0 ? options.context : model.info().max_tokens;
}

void NoteReadInParts(const Model& model, const SessionOptions& options, int64_t n_prompt) {
  const int64_t room = RoomOf(model, options);
  if (options.on_full == "error" || n_prompt <= room) return;
  Note("kvc: note: the prompt has " + FormatCount(n_prompt) + " tokens and the session room for " +
       FormatCount(room) + ": it is read in parts, and old tokens are dropped (--on-full " + options.on_full +
       "); --context N makes room for N");
}

void RethrowWithRoom(const StatusFailure& failure, const Model& model, const SessionOptions& options) {
  if (failure.status() != KVC_E_CONTEXT_FULL || options.on_full != "error") throw;
  // max_tokens is what the library calls it; here --max-tokens is another thing.
  throw StatusFailure(failure.status(), Replaced(failure.what(), "max_tokens=", "--context ") +
                                            "\n--context N makes room for N tokens (the model was " +
                                            "trained for " + FormatCount(model.info().max_tokens) +
                                            "); --on-full slide goes on and drops old ones");
}

namespace {

std::string ForShell(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%_-+=:,./";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// What an option was given, each time that it has to be said.
std::vector<std::string> ValuesOf(const CLI::Option& option) {
  if (option.get_delimiter() == '\0') return option.results();
  return {CLI::detail::join(option.results(), std::string(1, option.get_delimiter()))};
}

}  // namespace

std::string CommandLine(const CLI::App& app) {
  std::string line = "kvc " + app.get_name();
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->nonpositional() ? option->get_name() : "";
    if (option->get_items_expected_max() == 0) {  // a flag, which may also be given as --name=false
      const std::string& value = option->results().back();
      line += " " + name + (value == "true" ? "" : "=" + ForShell(value));
      continue;
    }
    for (const std::string& value : ValuesOf(*option)) {
      const bool like_option = !name.empty() && !value.empty() && value[0] == '-';
      line += name.empty() ? " " : " " + name + (like_option ? "=" : " ");
      line += ForShell(value);
    }
  }
  return line;
}

kvc_session_params SessionParams(const SessionOptions& options) {
  kvc_session_params params = DefaultSessionParams();
  params.max_tokens = options.context;
  params.on_full = options.on_full == "evict"   ? KVC_ON_FULL_EVICT
                   : options.on_full == "slide" ? KVC_ON_FULL_SLIDE
                                                : KVC_ON_FULL_ERROR;
  params.top_k = options.top_k;
  params.top_p = static_cast<float>(options.top_p);
  params.temperature = static_cast<float>(options.temperature);
  params.seed = options.seed;
  return params;
}

kvc_sampling Sampling(const SessionOptions& options) {
  kvc_sampling sampling;
  kvc_params_init(&sampling, static_cast<int32_t>(sizeof sampling));
  sampling.top_k = options.top_k;
  sampling.top_p = static_cast<float>(options.top_p);
  sampling.temperature = static_cast<float>(options.temperature);
  sampling.seed = options.seed;
  sampling.min_p = static_cast<float>(options.min_p);
  sampling.repeat_penalty = static_cast<float>(options.repeat_penalty);
  return sampling;
}

}  // namespace kvc::tool
