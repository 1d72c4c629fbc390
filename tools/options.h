// Options that several subcommands share: which model, which policy, which prompt, what session.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/command.h"
#include "tools/kvc_handles.h"
#include "tools/signals.h"

namespace kvc::tool {

// A decimal number within limits, said only when it is not. CLI11 alone takes 010 for eight, and a number
// that does not fit for the largest that does.
CLI::Validator Whole(int64_t least, int64_t most);
constexpr int64_t kMostContext = 1 << 26;  // tokens: the most that kvc_session_params.max_tokens may be
CLI::Validator Real(double least, double most);
CLI::Validator AtLeast(int32_t least);  // a whole number that an int32_t holds

// A file to read, a file to write: an empty name is refused, and "-" where it is no file. Positional when the
// name has no dashes.
CLI::Option* AddInput(CLI::App* app, const std::string& name, std::string* path, const std::string& help);
CLI::Option* AddInputs(CLI::App* app, const std::string& name, std::vector<std::string>* paths,
                       const std::string& help);
CLI::Option* AddOutput(CLI::App* app, const std::string& name, std::string* path, const std::string& help);

// Throws UsageError when an option was given that has no effect: what it is for was not asked for.
void RefuseUnless(bool has_effect, const CLI::App& app, const std::string& option, const std::string& is_for);

struct ModelOptions {
  std::string path, device = "auto";
  int32_t threads = 0;
  int64_t memory_limit = 0;
  bool trusted = false;
  bool plan_only = false;  // the command looks at no weight (kvc_model_params)
  Framing framing;         // of the model's texts from its opening on
};
// What a command takes for its model: kAnyModel with OpenModel, kModelFile with OpenModelFile.
constexpr char kModelFile[] = "Model file (.kvc)",
               kAnyModel[] = "Model file (.kvc); a GGUF file or a Hugging Face folder is converted once";
// path_option: "FILE" makes the model a positional argument, "--model" a named one.
void AddModelOptions(CLI::App* app, ModelOptions* options, const std::string& path_option = "FILE",
                     const char* help = kAnyModel);
// Both throw UsageError where --device names none.
Model OpenModelFile(const ModelOptions& options);
// The same of what is no model file yet (model_cache.h).
Model OpenModel(const ModelOptions& options, Signals* signals);
int32_t ThreadsUsed(const ModelOptions& options);  // 0 resolved to the processors of this machine

// The caller's own head scores or slots; every policy of a command gets them.
struct TableOptions {
  std::string head_scores, table;
};
void AddTableOptions(CLI::App* app, TableOptions* options);
// Both as documents, read once: a pipe gives its content once. Null: not given.
struct Tables {
  Json head_scores, table;
};
Tables ReadTables(const TableOptions& options);
CLI::Option* AddPolicyOption(CLI::App* app, std::string* spec);
Policy MakePolicy(const std::string& spec, const TableOptions& options, const Tables& tables);
Policy MakePolicy(const std::string& spec, const TableOptions& options);
// Says it when none of a command's policies takes the scores or slots that were given.
void NoteIdleTables(const TableOptions& options, const std::vector<std::string>& specs);

void AddSpecialOption(CLI::App* app, Framing* framing);   // --special
void AddFramingOptions(CLI::App* app, Framing* framing);  // --special --chat

struct PromptOptions {
  std::string text, file, tokens;
};
void AddPromptOptions(CLI::App* app, PromptOptions* options);
// Token ids of the prompt; --tokens are taken as they are. asked: questions follow it.
TokenList ReadPrompt(const PromptOptions& options, const Model& model, bool asked);

struct SessionOptions {
  int32_t context = 0, top_k = 0;
  std::string on_full = "error";
  double temperature = 0, top_p = 0, min_p = 0, repeat_penalty = 0;
  int64_t seed = 0;
  bool samples = false;  // whether anything was said of sampling
};
void AddContextOptions(CLI::App* app, SessionOptions* options);   // --context --on-full
void AddSamplingOptions(CLI::App* app, SessionOptions* options);  // --temperature --top-p --top-k --min-p ...
kvc_session_params SessionParams(const SessionOptions& options);
kvc_sampling Sampling(const SessionOptions& options);
// Says so when options for drawing tokens were given, and the likeliest is taken.
void NoteNothingDrawn(const CLI::App& app, const SessionOptions& options);
// Says so when a session of so many tokens goes beyond what the model was trained for.
// Nothing where positions are counted in a cache that stays small (pos_mode=incache, decode=step).
void NoteBeyondTraining(const Model& model, const Policy& policy, int64_t n_tokens);
// Most tokens of a session with these options.
int64_t RoomOf(const Model& model, const SessionOptions& options);
// Says it when a prompt of n_prompt tokens does not fit and --on-full drops what came before.
void NoteReadInParts(const Model& model, const SessionOptions& options, int64_t n_prompt);
// Of a session that is full, what the command line could have said instead; any other failure as it is.
[[noreturn]] void RethrowWithRoom(const StatusFailure& failure, const Model& model,
                                  const SessionOptions& options);

// A subcommand with all that it was given, as a line for sh.
std::string CommandLine(const CLI::App& app);

// "512MiB", "2 GB", "65536": bytes. Throws UsageError.
int64_t ParseBytes(const std::string& text);
// "5%" or "0.05" of [low, high]: a share.
void AddShareOption(CLI::App* app, const std::string& name, double* share, double low, double high,
                    const std::string& help);
void AddBytesOption(CLI::App* app, const std::string& name, int64_t* n_bytes, const std::string& help);

}  // namespace kvc::tool
