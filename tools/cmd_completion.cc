// kvc completion: what a shell needs to complete its command lines, from the commands and options that there
// are. The texts that are installed stand in tools/shell, as a build for another machine cannot run what it
// makes.
#include <algorithm>
#include <memory>

#include "kvc/kvc.h"
#include "tools/command.h"
#include "tools/manual.h"
#include "tools/output.h"
#include "tools/texts.h"

namespace kvc::tool {
namespace {

using Words = std::vector<std::string>;

const Words kShells = {"bash", "zsh", "fish", "man"};

Words Methods() {
  Words names;
  for (int32_t i = 0; i < kvc_method_count(); ++i) names.push_back(kvc_method_name(i));
  return names;
}

Words CommandNames(const CLI::App& program) {
  Words names;
  for (const CLI::App* command : CommandsOf(program)) names.push_back(command->get_name());
  return names;
}

// "-h", "--help"
Words NamesOf(const CLI::Option& option) {
  Words names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

Words OptionNames(const CLI::App& app) {
  Words names;
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : NamesOf(*option)) names.push_back(name);
  }
  return names;
}

// Options whose value is a policy, of all commands.
bool IsPolicy(const CLI::Option& option) { return option.get_type_name() == "SPEC"; }

Words PolicyOptions(const CLI::App& program) {
  Words names;
  for (const CLI::App* command : CommandsOf(program)) {
    for (const CLI::Option* option : OptionsOf(*command)) {
      const std::string name = option->get_name();
      if (IsPolicy(*option) && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
  }
  return names;
}

// Commands whose argument is no file, and what it may be.
struct Argument {
  std::string command;
  Words words;
};

std::vector<Argument> Arguments(const CLI::App& program) {
  return {{"help", CommandNames(program)}, {"methods", Methods()}, {"completion", kShells}};
}

std::string Quoted(const std::string& text) { return "'" + Replaced(text, "'", "'\\''") + "'"; }

std::string FishQuoted(const std::string& text) {
  return "'" + Replaced(Replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string Bash(const CLI::App& program) {
  std::string options, arguments;
  for (const CLI::App* command : CommandsOf(program))
    options += "    " + command->get_name() + ") options=" + Quoted(Join(OptionNames(*command))) + " ;;\n";
  for (const Argument& argument : Arguments(program))
    arguments += "    " + argument.command + ") words=" + Quoted(Join(argument.words)) + " ;;\n";
  return R"(# Completion of kvc for bash, written by kvc completion bash.
_kvc() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= options= words= i
  COMPREPLY=()
  # --name=value comes as three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  case $command in
    '') options=)" +
         Quoted(Join(OptionNames(program))) + " words=" + Quoted(Join(CommandNames(program)) + " help") +
         " ;;\n" + options + "  esac\n  case $command in\n" + arguments + "  esac\n  case $prev in\n    " +
         Join(PolicyOptions(program), "|") + ")\n      words=" + Quoted(Join(Methods())) + R"(
      compopt -o nospace 2>/dev/null # options may follow
      ;;
    *) if [[ $cur == -* ]]; then words=$options; fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _kvc kvc # files where nothing else is known
)";
}

// "'name:what it is' .."
std::string Described(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : NamesOf(*option))
      text += (text.empty() ? "" : " ") + Quoted(name + ":" + option->get_description());
  }
  return text;
}

std::string Zsh(const CLI::App& program) {
  std::string commands, options, arguments;
  for (const CLI::App* command : CommandsOf(program)) {
    commands += "    " + Quoted(command->get_name() + ":" + command->get_description()) + "\n";
    options += "    " + command->get_name() + ") flags=(" + Described(*command) + ") ;;\n";
  }
  for (const Argument& argument : Arguments(program))
    arguments += "    " + argument.command + ") arguments=(" + Join(argument.words) + ") ;;\n";
  return R"(#compdef kvc
# Completion of kvc for zsh, written by kvc completion zsh.
_kvc() {
  local command= before=$words[CURRENT-1] i
  local -a subcommands flags arguments methods
  subcommands=(
)" + commands +
         "    'help:explain a command'\n  )\n  methods=(" + Join(Methods()) + R"()
  for ((i = 2; i < CURRENT; ++i)); do
    if [[ $words[i] != -* ]]; then
      command=$words[i]
      break
    fi
  done
  case $command in
    '') flags=()" +
         Described(program) + ") ;;\n" + options + "  esac\n  case $command in\n" + arguments +
         R"(  esac
  if [[ $PREFIX == --*=* ]]; then
    before=${PREFIX%%=*}
    compset -P 1 '*='
  elif [[ $PREFIX == -* ]]; then
    _describe -o option flags
    return
  fi
  case $before in
    )" + Join(PolicyOptions(program), "|") +
         R"() compadd -S '' -a methods ;;
    *)
      if [[ -z $command ]]; then
        _describe command subcommands
      elif (( $#arguments )); then
        compadd -a arguments
      else
        _files
      fi
      ;;
  esac
}
if [[ $funcstack[1] == _kvc ]]; then
  _kvc "$@"
else
  compdef _kvc kvc
fi
)";
}

std::string FishOptions(const CLI::App& app, const std::string& condition) {
  std::string text;
  for (const CLI::Option* option : OptionsOf(app)) {
    text += "complete -c kvc -n " + FishQuoted(condition);
    for (const std::string& name : option->get_snames()) text += " -s " + name;
    for (const std::string& name : option->get_lnames()) text += " -l " + name;
    if (IsPolicy(*option)) {
      text += " -x -a " + FishQuoted(Join(Methods()));
    } else if (TakesValue(*option)) {
      text += " -r";
    }
    text += " -d " + FishQuoted(option->get_description()) + "\n";
  }
  return text;
}

// Whether the command, which is the first word that is no option, is this one: fish's own function takes the
// word anywhere.
constexpr const char* kFishCommandIs = R"(function __kvc_command_is
  for word in (commandline -opc)[2..-1]
    if not string match -q -- '-*' $word
      test $word = $argv[1]
      return
    end
  end
  return 1
end
)";
constexpr const char* kFishIs = "__kvc_command_is ";

std::string Fish(const CLI::App& program) {
  std::string text = std::string("# Completion of kvc for fish, written by kvc completion fish.\n") +
                     kFishCommandIs + FishOptions(program, "__fish_use_subcommand");
  for (const CLI::App* command : CommandsOf(program)) {
    text += "complete -c kvc -n __fish_use_subcommand -f -a " + command->get_name() + " -d " +
            FishQuoted(command->get_description()) + "\n";
  }
  text += "complete -c kvc -n __fish_use_subcommand -f -a help -d 'explain a command'\n";
  for (const Argument& argument : Arguments(program)) {
    text += "complete -c kvc -n " + FishQuoted(kFishIs + argument.command) + " -f -a " +
            FishQuoted(Join(argument.words)) + "\n";
  }
  for (const CLI::App* command : CommandsOf(program))
    text += FishOptions(*command, kFishIs + command->get_name());
  return text;
}

}  // namespace

Action AddCompletion(CLI::App* app) {
  const auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "bash, zsh or fish; man for the manual page kvc(1) instead")
      ->required()
      ->check(CLI::IsMember(kShells).description(""))
      ->type_name("");
  return [app, shell](Signals*) {
    const CLI::App& program = *app->get_parent();
    Print(*shell == "bash"   ? Bash(program)
          : *shell == "zsh"  ? Zsh(program)
          : *shell == "fish" ? Fish(program)
                             : ManualPage(program));
    return kExitGood;
  };
}

}  // namespace kvc::tool
