// The kvc program: finds the subcommand, runs it, turns failures into a line on stderr and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <set>

#include "tools/command.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"
#include "tools/signals.h"

namespace kvc::tool {
namespace {

struct Command {
  const char* name;
  const char* summary;
  const char* example;
  AddCommand add;
};

// Every subcommand, in the order users meet them.
constexpr Command kCommands[] = {
    {"convert", "make a model file from a checkpoint (Hugging Face, GGUF, llama2.c)",
     "kvc convert models/recall recall.kvc --weights int8 --head-scores models/recall/head_scores.json",
     AddConvert},
    {"inspect", "show what a model file contains", "kvc inspect recall.kvc", AddInspect},
    {"verify", "check a model file completely and try it", "kvc verify recall.kvc", AddVerify},
    {"tokenize", "turn text into token ids", "kvc tokenize recall.kvc --text \"Hello there\" --bos",
     AddTokenize},
    {"run", "answer a prompt from a compressed cache",
     "kvc run recall.kvc --prompt-file book.txt --policy cokv:budget=64 --ask \" The code of Ada is\" "
     "--stats\n"
     "  kvc run recall.kvc --prompt-file book.txt --policy reconstruct:budget=64 --save book.kvcs\n"
     "  kvc run recall.kvc --load book.kvcs --ask \" The code of Ada is\"\n"
     "  kvc run instruct.kvc --chat --prompt-file book.txt --policy snapkv:budget=256 --ask \" Who is "
     "Ada?\"\n"
     "  kvc run instruct.kvc --chat --system \"Answer in one sentence.\" --prompt \"Who was Ada Lovelace?\"",
     AddRun},
    {"chat", "talk with a model; every turn brings what is kept of the conversation back to its budget",
     "kvc chat model.kvc --policy snapkv:budget=256 --system \"Answer in one sentence.\"", AddChat},
    {"kept", "list the token positions a policy keeps in every head",
     "kvc kept recall.kvc --prompt-file book.txt --policy snapkv:budget=64 --json", AddKept},
    {"plan", "tell the memory a session will take, before taking it",
     "kvc plan recall.kvc --policy cokv:budget=64 --context 900 --memory-limit 64MiB", AddPlan},
    {"devices", "list where models can run here, and how fast memory is", "kvc devices", AddDevices},
    {"licenses", "what this program is made of, and under which terms", "kvc licenses", AddLicenses},
    {"methods", "list the compression methods and their options", "kvc methods snapkv", AddMethods},
    {"score", "measure what every KV head is worth",
     "kvc score recall.kvc --data tasks.jsonl --utility nll --samples 120 --out scores.json", AddScore},
    {"score-merge", "join the records of several machines",
     "kvc score-merge scores.json.*.log --out scores.json", AddScoreMerge},
    {"score-plot", "draw head scores",
     "kvc score-plot scores.json --out scores.svg --model recall.kvc --budget 16,64", AddScorePlot},
    {"eval", "measure what compression costs in quality",
     "kvc eval recall.kvc --data tasks.jsonl --policy snapkv:budget=64 --policy cokv:budget=64\n"
     "  kvc eval instruct.kvc --chat --data tasks.jsonl --policy full --policy snapkv:budget=256\n"
     "  kvc eval model.kvc --suite ruler --data ruler/4096 --policy full --policy snapkv:budget_ratio=5%\n"
     "  kvc eval model.kvc --suite longbench --data LongBench/data --tasks hotpotqa,trec --policy "
     "snapkv:budget=256",
     AddEval},
    {"tune", "find the smallest cache that keeps a promise on quality",
     "kvc tune recall.kvc --data tasks.jsonl --policy cokv-document --policy snapkv --max-loss 5% --out "
     "policy.txt",
     AddTune},
    {"report", "draw quality, memory and speed of policies on one page",
     "kvc report recall.kvc --data tasks.jsonl --policy snapkv --policy cokv-document -o report.html",
     AddReport},
    {"bench", "measure prefill and decode speed",
     "kvc bench recall.kvc --policy cokv:budget=64 --depth 512 --prompt 256\n"
     "  kvc bench recall.kvc --prompt 256 --gen 32 --batch 4,16 --arrive 2048",
     AddBench},
    {"demo", "questions about a long context, full cache and compressed, side by side",
     "kvc demo --model build/models/recall.kvc --tasks samples/data/recall_demo.jsonl", AddDemo},
    {"completion", "print what a shell needs to complete the command lines of kvc",
     "kvc completion bash > ~/.local/share/bash-completion/completions/kvc", AddCompletion},
};

std::string VersionText() {
  return "kvc " + LibraryVersion() + ", model files up to version " + std::to_string(kvc_schema_version());
}

bool IsOption(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  return names;
}

// What CLI11 says, but of options that may be given once.
std::string WhatOf(const CLI::Error& error) {
  const std::string what = error.what();
  const size_t at = what.find(": At Most 1 required but received ");
  return at == std::string::npos ? what : what.substr(0, at) + " is given more than once";
}

// What a wrong command line is told: what is wrong, what was perhaps meant, where the rest stands. An option
// that the program does not have is what is wrong, also where a command is missing then.
std::string FailureText(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* used = app;
  for (const CLI::App* sub : app->get_subcommands()) used = sub;
  if (!app->remaining().empty()) used = app;
  const std::string name = used == app ? "kvc" : "kvc " + used->get_name();
  const std::vector<std::string> extra = used->remaining();
  const bool unknown = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) || used == app;
  if (!unknown || extra.empty())
    return name + ": " + WhatOf(error) + "\n" + name + " --help shows what there is.\n";
  std::vector<std::string> known;
  for (const CLI::Option* option : used->get_options()) {
    for (const std::string& option_name : option->get_lnames()) known.push_back("--" + option_name);
  }
  std::string text = name + ": not expected:", meant;
  for (const std::string& word : extra) {
    text += " " + word;
    const std::string nearest = IsOption(word) ? Nearest(word, known) : "";
    if (!nearest.empty()) meant += "; did you mean " + nearest + "?";
  }
  return text + meant + "\n" + name + " --help shows what there is.\n";
}

// "help" and "help COMMAND", as many programs have it; a first word that is no command.
void ReadCommand(std::vector<std::string>* arguments) {
  if (arguments->empty())
    throw UsageError("a command is needed; kvc --help lists them, kvc COMMAND --help explains one");
  std::string& first = arguments->front();
  const std::vector<std::string> names = CommandNames();
  if (first == "help") {
    arguments->erase(arguments->begin());
    arguments->push_back("--help");
    return ReadCommand(arguments);
  }
  if (IsOption(first) || std::find(names.begin(), names.end(), first) != names.end()) return;
  const std::string nearest = Nearest(first, names);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  throw UsageError("no command \"" + first + "\"" +
                   (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?") +
                   "\nthe commands are: " + all + "\nkvc --help explains them");
}

// What the library logs, on stderr.
void PrintLog(void*, int32_t level, const char* text) {
  constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  const bool known = level >= 0 && level < static_cast<int32_t>(std::size(kNames));
  try {
    Complain(std::string(known ? kNames[level] : "log") + ": " + text);
  } catch (const std::bad_alloc&) {  // a line less
  }
}

// Of that, without --verbose: what was asked for and is not to be had, or costs more than it seems. Each line
// once, as some commands make a session for every text; those not that the program says in its own words.
void PrintWarning(void* user, int32_t level, const char* text) {
  constexpr const char* kSaidAnyway[] = {"a call fails: ", "max_tokens="};
  const std::string line = text;
  for (const char* said : kSaidAnyway)
    if (line.rfind(said, 0) == 0) return;
  static std::mutex mutex;
  static std::set<std::string> printed;
  const std::lock_guard<std::mutex> lock(mutex);
  if (printed.insert(line).second) PrintLog(user, level, text);
}

// CLI11 gives --name= the next argument for its value: an empty one is meant.
std::vector<std::string> WithEmptyValues(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  for (const std::string& argument : arguments) {
    out.push_back(argument);
    if (argument.size() < 4 || argument.compare(0, 2, "--") != 0 || argument.find('=') != argument.size() - 1)
      continue;
    out.back().pop_back();
    out.emplace_back();
  }
  return out;
}

int Run(std::vector<std::string> arguments, Signals* signals) {
  CLI::App app("kvc: language models on a compressed KV cache", "kvc");
  app.set_version_flag("--version", VersionText(), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.failure_message(FailureText);
  app.footer(
      "kvc COMMAND --help shows the options of a command and an example.\n"
      "Exit codes: 0 all is well; 1 something failed, or the answer is no (verify, plan\n"
      "with --memory-limit, convert with --check-against, tune where no budget passes);\n"
      "2 the command line makes no sense. Ctrl-C and other signals end it as they end\n"
      "other programs (a shell says 130 of Ctrl-C).");
  bool verbose = false;
  const auto add_verbose = [&verbose](CLI::App* to) {
    to->add_flag("-v,--verbose", verbose, "What the library does, line by line, on stderr");
  };
  add_verbose(&app);
  Action actions[std::size(kCommands)];
  const CLI::App* subcommands[std::size(kCommands)] = {};
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    CLI::App* sub = app.add_subcommand(kCommands[i].name, kCommands[i].summary);
    sub->footer("");  // not the program's
    sub->get_formatter()->column_width(34);
    subcommands[i] = sub;
    actions[i] = kCommands[i].add(sub);
    const std::string more = sub->get_footer();  // of the command's own
    sub->footer((more.empty() ? "" : more + "\n\n") + "Example:\n  " + kCommands[i].example);
    add_verbose(sub);
  }
  arguments = WithEmptyValues(arguments);
  ReadCommand(&arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitGood : kExitUsage;
  }
  kvc_set_log(verbose ? KVC_LOG_DEBUG : KVC_LOG_WARNING, verbose ? &PrintLog : &PrintWarning, nullptr);
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    if (subcommands[i]->parsed()) return actions[i](signals);
  }
  return kExitUsage;
}

// Runs a command; what it throws becomes a message.
int RunAndComplain(const std::vector<std::string>& arguments, Signals* signals) {
  try {
    const int code = Run(arguments, signals);
    FlushOutput();
    return code;
  } catch (const UsageError& error) {
    Complain(error.what());
    return kExitUsage;
  } catch (const StatusFailure& error) {
    const bool ended = error.status() == KVC_E_CANCELLED && signals->received() != 0;
    Complain(ended ? signals->Ending() : error.what());
  } catch (const std::bad_alloc&) {
    Complain("out of memory");
  } catch (const std::exception& error) {
    Complain(error.what());
  }
  return kExitFailed;
}

// Descriptors 0 to 2 that are closed would be taken by files that are opened later, and output would go into
// those. Opened the wrong way round, using them fails as it would have.
void ReserveStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY));
  }
}

int RunProgram(const std::vector<std::string>& arguments) {
  try {
    Signals signals;
    const int code = RunAndComplain(arguments, &signals);
    if (code != kExitGood && signals.received() != 0) signals.DieOf(signals.received());
    return code;
  } catch (const std::exception& error) {
    Complain(error.what());
  }
  return kExitFailed;
}

}  // namespace
}  // namespace kvc::tool

int main(int argc, char** argv) {
  kvc::tool::ReserveStandardDescriptors();
  return kvc::tool::RunProgram({argv + (argc > 0 ? 1 : 0), argv + argc});
}
