// kvc chat: a conversation in the terminal.
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <memory>

#include "tools/command.h"
#include "tools/conversation.h"
#include "tools/files.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct ChatOptions {
  ModelOptions model;
  TableOptions tables;
  SessionOptions session;
  std::string policy = "full", system, load;
  int32_t max_tokens = 512;
  bool json = false;
};

// Lines of standard input; one that ends in a backslash goes on in the next.
bool ReadLine(bool prompts, std::string* line) {
  line->clear();
  for (const char* sign = "> ";; sign = "  ") {
    if (prompts) {
      std::fputs(sign, stderr);
      std::fflush(stderr);
    }
    std::string part;
    if (!std::getline(std::cin, part)) return !line->empty();
    const bool goes_on = !part.empty() && part.back() == '\\';
    if (goes_on) part.back() = '\n';
    *line += part;
    if (!goes_on) return true;
  }
}

class Chat {
 public:
  Chat(const ChatOptions& options, const Model& model, Signals* signals)
      : options_(options),
        signals_(signals),
        talk_(model, options.tables, options.policy, options.session),
        terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0) {
    if (!options.load.empty()) talk_.Load(options.load);
    if (!options.system.empty()) talk_.SetSystem(options.system);
  }

  void Run() {
    if (!talk_.has_turns())
      Note("This model was not made for conversations: it goes on with the text that you type.");
    if (terminal_) Note("/help lists what there is beside talking. Ctrl-C stops an answer, Ctrl-D ends.");
    for (std::string line; !ends_ && ReadLine(terminal_, &line);) {
      try {
        Take(line);
      } catch (const OutputFailure&) {
        throw;
      } catch (const Failure& failure) {
        if (!terminal_) throw;  // a script wants to know
        Complain(failure.what());
      } catch (const UsageError& error) {
        if (!terminal_) throw;
        Complain(error.what());
      }
    }
    if (std::ferror(stdin) != 0) throw Failure("standard input cannot be read");
  }

 private:
  struct Command {
    const char *name, *arguments, *help;
    void (Chat::*action)(const std::string& argument);
  };
  static const Command kCommands[];

  void Take(const std::string& line) {
    if (line.size() < 2 || line[0] != '/') return Ask(line);
    if (line[1] == '/') return Ask(line.substr(1));  // a text that begins with a slash
    const size_t space = line.find(' ');
    const std::string name = line.substr(1, space == std::string::npos ? space : space - 1),
                      argument = space == std::string::npos ? "" : line.substr(space + 1);
    std::vector<std::string> known;
    for (const Command* c = kCommands; c->name != nullptr; ++c) {
      if (name == c->name) return (this->*c->action)(argument);
      known.push_back(c->name);
    }
    const std::string nearest = Nearest(name, known);
    throw UsageError("no command /" + name + (nearest.empty() ? "" : "; did you mean /" + nearest + "?") +
                     "\n/help lists them; a text that begins with a slash is typed with two");
  }

  // A failure in the middle of an answer is told on a line of its own.
  Conversation::Answer AnswerTo(const std::string& text) {
    bool began = false;
    const TextSink sink = [&began](const std::string& piece) {
      began = true;
      Print(piece);
      FlushOutput();
    };
    try {
      return talk_.Ask(text, options_.max_tokens, options_.json ? TextSink{} : sink, signals_);
    } catch (const StatusFailure&) {
      if (began) Print("\n");
      throw;
    }
  }

  void Ask(const std::string& text) {
    const Conversation::Answer answer = AnswerTo(text);
    const Generation& g = answer.generation;
    if (options_.json) {
      PrintJson(Json{{"user", text},
                     {"text", g.text},
                     {"tokens", g.tokens},
                     {"stopped", answer.stopped},
                     {"stats", StatsJson(g.stats)}});
      return FlushOutput();
    }
    Print(answer.stopped ? " [stopped]\n" : "\n");
    FlushOutput();
    if (terminal_) Note(Held(g.stats));
  }

  // "[214 tokens in 22.9 KiB, 214 KiB uncompressed]"
  static std::string Held(const kvc_session_stats& s) {
    return "[" + FormatCount(int64_t{s.n_prompt} + s.n_answer) + " tokens in " + FormatBytes(s.cache_bytes) +
           ", " + FormatBytes(s.cache_bytes_full) + " uncompressed]";
  }

  void Help(const std::string&) {
    Table table({"", ""}, "lw");
    for (const Command* c = kCommands; c->name != nullptr; ++c)
      table.AddRow({std::string("/") + c->name + c->arguments, c->help});
    table.AddRow({"//...", "say something that begins with a slash"});
    table.AddRow({"...\\", "a line that ends in a backslash goes on in the next"});
    Note(table.Text());
  }
  void Stats(const std::string&) {
    const kvc_session_stats s = talk_.Stats();
    Table table({"", ""}, "lr");
    table.AddRow({"policy", talk_.policy()});
    table.AddRow({"heard, said", FormatCount(s.n_prompt) + ", " + FormatCount(s.n_answer) + " tokens"});
    table.AddRow({"cache", FormatBytes(s.cache_bytes)});
    table.AddRow({"cache at its peak", FormatBytes(s.cache_bytes_peak)});
    table.AddRow({"cache uncompressed", FormatBytes(s.cache_bytes_full)});
    table.AddRow({"slots kept",
                  FormatPercent(Ratio(static_cast<double>(s.n_slots), static_cast<double>(s.n_slots_full)))});
    table.AddRow({"weights", FormatBytes(s.weight_bytes)});
    table.AddRow({"workspace", FormatBytes(s.workspace_bytes)});
    table.AddRow({"reading", FormatSeconds(s.prefill_seconds)});
    table.AddRow({"a step", FormatSeconds(Ratio(s.decode_seconds, s.n_answer))});
    Note(table.Text());
  }
  void Policy(const std::string& spec) {
    if (!spec.empty()) talk_.SetPolicy(spec);
    Note("policy " + talk_.policy() + " " + Held(talk_.Stats()));
  }
  void Trim(const std::string& budget) {
    const std::string wrong = Whole(1, INT32_MAX)(const_cast<std::string&>(budget));
    if (!wrong.empty()) throw UsageError("/trim N: " + wrong);
    const int64_t freed = talk_.Trim(static_cast<int32_t>(std::stol(budget)));
    Note(FormatBytes(freed) + " given back " + Held(talk_.Stats()));
  }
  void System(const std::string& text) {
    talk_.SetSystem(text);
    Note("begun anew " + Held(talk_.Stats()));
  }
  void Forget(const std::string&) {
    const bool system_known = talk_.Forget();
    Note(std::string(system_known ? "begun anew " : "begun anew, without the loaded file's system text ") +
         Held(talk_.Stats()));
  }
  void Save(const std::string& path) {
    if (path.empty()) throw UsageError("/save FILE: a name is needed");
    CheckOutputs({options_.model.path, options_.tables.head_scores, options_.tables.table}, {path});
    talk_.Save(path);
    Note("saved to " + path);
  }
  void Load(const std::string& path) {
    if (path.empty()) throw UsageError("/load FILE: a name is needed");
    talk_.Load(path);
    Note("loaded " + path + " " + Held(talk_.Stats()));
  }
  void Quit(const std::string&) { ends_ = true; }

  const ChatOptions& options_;
  Signals* const signals_;
  Conversation talk_;
  const bool terminal_;
  bool ends_ = false;
};

const Chat::Command Chat::kCommands[] = {
    {"help", "", "this list", &Chat::Help},
    {"stats", "", "memory, slots, times", &Chat::Stats},
    {"policy", " [SPEC]", "compress by another policy from now on: the conversation is read again",
     &Chat::Policy},
    {"trim", " N", "compress harder, to N slots a head on average", &Chat::Trim},
    {"system", " TEXT", "what the model is to be; the conversation begins anew", &Chat::System},
    {"forget", "", "begin anew", &Chat::Forget},
    {"save", " FILE", "keep the conversation, compressed as it is", &Chat::Save},
    {"load", " FILE", "go on with a saved one", &Chat::Load},
    {"quit", "", "end", &Chat::Quit},
    {nullptr, nullptr, nullptr, nullptr}};

int Run(const ChatOptions& options, Signals* signals) {
  NoteIdleTables(options.tables, {options.policy});
  const Model model = OpenModel(options.model, signals);
  if (options.session.on_full != "slide")
    NoteBeyondTraining(model, MakePolicy(options.policy, options.tables), options.session.context);
  Chat(options, model, signals).Run();
  return kExitGood;
}

}  // namespace

Action AddChat(CLI::App* app) {
  const auto options = std::make_shared<ChatOptions>();
  options->session.on_full = "slide";  // a conversation goes on for ever
  AddModelOptions(app, &options->model);
  AddPolicyOption(app, &options->policy);
  AddTableOptions(app, &options->tables);
  app->add_option("--system", options->system, "What the model is to be, said before everything else")
      ->type_name("TEXT");
  CLI::Option* load = AddInput(app, "--load", &options->load,
                               "Go on with a conversation that /save kept, as it was compressed");
  app->add_option("--max-tokens", options->max_tokens, "Most tokens of an answer")
      ->check(AtLeast(1))
      ->capture_default_str()
      ->type_name("N");
  AddSamplingOptions(app, &options->session);
  AddContextOptions(app, &options->session);
  for (const char* own : {"--policy", "--head-scores", "--table", "--context", "--on-full", "--system"})
    load->excludes(app->get_option(own));  // the file has them
  app->add_flag("--json", options->json, "A line of JSON a turn on stdout");
  app->footer(
      "A GGUF file or a Hugging Face folder is converted once, into a cache folder ($KVC_CACHE).\n"
      "Lines of standard input are what the user says; those that begin with a slash are commands\n"
      "(/help). Ctrl-C stops an answer, a second one or Ctrl-D ends. What is piped in is read until\n"
      "the first command that fails.\n"
      "--on-full is slide unless said otherwise: a conversation goes on for ever.");
  return [options, app](Signals* signals) {
    if (options->load.empty()) NoteNothingDrawn(*app, options->session);  // a loaded one may have been drawn
    return Run(*options, signals);
  };
}

}  // namespace kvc::tool
