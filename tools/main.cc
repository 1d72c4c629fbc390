// The kvc program: finds the subcommand, runs it, turns failures into a line on stderr and an exit code.
#include <iterator>
#include <new>

#include "tools/command.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"

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
     "kvc convert models/recall recall.kvc --weights int8", AddConvert},
    {"inspect", "show what a model file contains", "kvc inspect recall.kvc", AddInspect},
    {"verify", "check a model file completely and try it", "kvc verify recall.kvc", AddVerify},
    {"tokenize", "turn text into token ids", "kvc tokenize recall.kvc --text \"Hello there\" --bos",
     AddTokenize},
    {"run", "answer a prompt from a compressed cache",
     "kvc run recall.kvc --prompt-file book.txt --policy cokv:budget=64 --ask \" The code of Ada is\" "
     "--stats",
     AddRun},
    {"kept", "list the token positions a policy keeps in every head",
     "kvc kept recall.kvc --prompt-file book.txt --policy snapkv:budget=64 --json", AddKept},
    {"plan", "tell the memory a session will take, before taking it",
     "kvc plan recall.kvc --policy cokv:budget=64 --context 900 --memory-limit 64MiB", AddPlan},
    {"methods", "list the compression methods and their options", "kvc methods snapkv", AddMethods},
    {"score", "measure what every KV head is worth",
     "kvc score recall.kvc --data tasks.jsonl --utility nll --samples 120 --out scores.json", AddScore},
    {"score-merge", "join the records of several machines",
     "kvc score-merge scores.json.*.log --out scores.json", AddScoreMerge},
    {"score-plot", "draw head scores",
     "kvc score-plot scores.json --out scores.svg --model recall.kvc --budget 16,64", AddScorePlot},
    {"eval", "measure what compression costs in quality",
     "kvc eval recall.kvc --data tasks.jsonl --policy snapkv:budget=64 --policy cokv:budget=64", AddEval},
    {"bench", "measure prefill and decode speed",
     "kvc bench recall.kvc --policy cokv:budget=64 --depth 512 --prompt 256", AddBench},
    {"demo", "questions about a long context, full cache and compressed, side by side",
     "kvc demo --model build/models/recall.kvc --tasks samples/data/recall_demo.jsonl", AddDemo},
};

std::string VersionText() {
  return "kvc " + LibraryVersion() + ", model files up to version " + std::to_string(kvc_schema_version());
}

int Run(int argc, char** argv) {
  CLI::App app("kvc: language models on a compressed KV cache", "kvc");
  app.set_version_flag("--version", VersionText(), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.footer("kvc COMMAND --help shows the options of a command and an example.");
  std::function<int()> actions[std::size(kCommands)];
  const CLI::App* subcommands[std::size(kCommands)] = {};
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    CLI::App* sub = app.add_subcommand(kCommands[i].name, kCommands[i].summary);
    sub->footer(std::string("Example:\n  ") + kCommands[i].example);
    sub->get_formatter()->column_width(34);
    subcommands[i] = sub;
    actions[i] = kCommands[i].add(sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitGood : kExitUsage;
  }
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    if (subcommands[i]->parsed()) return actions[i]();
  }
  return kExitUsage;
}

int RunSafely(int argc, char** argv) {
  try {
    const int code = Run(argc, argv);
    FlushOutput();
    return code;
  } catch (const UsageError& error) {
    Complain(error.what());
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    Complain("out of memory");
  } catch (const std::exception& error) {
    Complain(error.what());
  }
  return kExitFailed;
}

}  // namespace
}  // namespace kvc::tool

int main(int argc, char** argv) { return kvc::tool::RunSafely(argc, argv); }
