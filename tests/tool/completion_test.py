"""kvc completion and kvc(1): what is installed (tools/shell) is what the program writes, bash completes by it what
--help lists, other shells and troff take it.

Usage: completion_test.py KVC SOURCE"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FILES = {"bash": "kvc.bash", "zsh": "_kvc", "fish": "kvc.fish", "man": "kvc.1"}
DRIVER = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_kvc; printf '%s\\n' "${COMPREPLY[@]}"
"""


def run(*command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, check=True, **kwargs).stdout


def kept(kind):
    with open(os.path.join(SOURCE, "tools/shell", FILES[kind]), encoding="utf-8") as file:
        return file.read()


def commands():
    """As --help lists them."""
    return re.findall(r"^  ([a-z-]+) ", run(KVC, "--help").split("\nSubcommands:\n")[1], re.M)


def options(*command):
    listed = re.findall(r"^  (-[\w,-]+)", run(KVC, *command, "--help"), re.M)
    return {name for names in listed for name in names.split(",")}


def methods():
    return [method["name"] for method in json.loads(run(KVC, "methods", "--json"))]


def complete(*words):
    """What bash offers for the last of these words, as readline splits a line."""
    script = os.path.join(SOURCE, "tools/shell", FILES["bash"])
    return run("bash", "-c", DRIVER, "bash", script, *words).split()


def complete_in_fish(line):
    script = os.path.join(SOURCE, "tools/shell", FILES["fish"])
    out = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', script, line)
    return [offered.split("\t")[0] for offered in out.splitlines()]


class Completion(unittest.TestCase):
    def test_what_is_installed_is_what_the_program_writes(self):
        for kind, name in FILES.items():
            self.assertEqual(run(KVC, "completion", kind), kept(kind), f"{name}: the target kvc_shell writes it anew")

    def test_bash_completes_commands(self):
        self.assertGreater(len(commands()), 15)
        self.assertEqual(complete("kvc", ""), [*commands(), "help"])
        self.assertEqual(complete("kvc", "to"), ["tokenize"])
        self.assertEqual(complete("kvc", "-v", "score-"), ["score-merge", "score-plot"])
        self.assertEqual(complete("kvc", "help", ""), commands())
        self.assertEqual(set(complete("kvc", "-")), options())

    def test_bash_completes_options(self):
        for command in commands():
            self.assertEqual(set(complete("kvc", command, "-")), options(command), command)
        self.assertEqual(complete("kvc", "run", "m.kvc", "--prompt-"), ["--prompt-file"])

    def test_bash_completes_methods(self):
        self.assertIn("snapkv", methods())
        for words in (("run", "m.kvc", "--policy"), ("run", "m.kvc", "--policy", "="), ("run", "--draft-policy"),
                      ("eval", "m.kvc", "--policy"), ("methods",)):  # fmt: skip
            self.assertEqual(complete("kvc", *words, ""), methods(), words)
        self.assertEqual(complete("kvc", "plan", "--policy", "="), methods())
        self.assertEqual(complete("kvc", "kept", "--policy", "snapkv-"), ["snapkv-w8"])
        self.assertEqual(complete("kvc", "completion", ""), list(FILES))

    def test_bash_leaves_files_to_itself(self):
        for words in (("run", ""), ("run", "m.kvc", "--prompt-file", ""), ("run", "--policy", "snapkv", ":", "b"),
                      ("convert", "models/")):  # fmt: skip
            self.assertEqual(complete("kvc", *words), [], words)
        script = os.path.join(SOURCE, "tools/shell", FILES["bash"])
        self.assertIn("-o default", run("bash", "-c", 'source "$1"; complete -p kvc', "bash", script))

    def test_shells_read_it(self):
        checked = [shell for shell in ("bash", "zsh", "fish") if shutil.which(shell)]
        for shell in checked:
            done = subprocess.run([shell, "-n", os.path.join(SOURCE, "tools/shell", FILES[shell])], capture_output=True,
                                  text=True, check=False)  # fmt: skip
            self.assertEqual((done.returncode, done.stderr), (0, ""), shell)
        print("read by", *checked)

    @unittest.skipUnless(shutil.which("fish"), "no fish")
    def test_fish_completes(self):
        self.assertEqual(set(complete_in_fish("kvc ")), {*commands(), "help"})
        for command in commands():
            self.assertEqual(set(complete_in_fish(f"kvc {command} -")) - {"-"}, options(command), command)
        self.assertEqual(set(complete_in_fish("kvc plan --policy ")), set(methods()))
        self.assertEqual(complete_in_fish("kvc -v run m.kvc --prompt-"), ["--prompt-file"])
        self.assertEqual(complete_in_fish("kvc demo --model run --bud"), ["--budget"], "run is no command here")
        self.assertEqual(complete_in_fish("kvc demo --model run --prompt-"), [])

    def test_the_others_have_the_same_words(self):
        """Where zsh and fish are not installed, at least what they are to offer is there."""
        zsh, fish = kept("zsh"), kept("fish")
        for command in commands():
            self.assertIn(f"\n    '{command}:", zsh)
            self.assertRegex(fish, rf"__fish_use_subcommand -f -a {command} ")
            flags = re.search(rf"^    {command}\) flags=\((.*)\) ;;$", zsh, re.M).group(1)
            self.assertEqual(set(re.findall(r"(?:^|' )'(-[\w-]+):", flags)), options(command), command)
            lines = re.findall(rf"^complete -c kvc -n '__kvc_command_is {command}'( -[sl].*)$", fish, re.M)
            names = {(" -" if kind == "s" else " --")[1:] + name for line in lines
                     for kind, name in re.findall(r" -([sl]) ([\w-]+)", line.split(" -d ")[0])}  # fmt: skip
            self.assertEqual(names, options(command), command)
        for name in methods():
            self.assertRegex(zsh, rf"methods=\(.*\b{name}\b.*\)")


class ManualPage(unittest.TestCase):
    def test_it_has_every_command_and_option(self):
        text = kept("man").replace("\\-", "-").replace("\\fB", "").replace("\\fI", "").replace("\\fR", "")
        sections = dict(re.findall(r"^\.SS (\S+)\n(.*?)(?=^\.SS |\Z)", text, re.M | re.S))
        self.assertEqual(list(sections), commands())
        for command, section in sections.items():
            there = {name for line in re.findall(r"^\.TP\n(-.*)$", section, re.M)
                     for name in re.findall(r"(?:^|, )(-[\w-]+)", line)}  # fmt: skip
            self.assertEqual(there, options(command), command)
        for name in options():
            self.assertRegex(text.split("\n.SS ")[0], rf"(?m)^(.*, )?{name}\b")

    def test_troff_takes_it(self):
        checks = {"groff": ["groff", "-man", "-ww", "-z"], "mandoc": ["mandoc", "-Tlint", "-Werror"]}
        found = [command for name, command in checks.items() if shutil.which(name)]
        for command in found:
            done = subprocess.run([*command, os.path.join(SOURCE, "tools/shell/kvc.1")], capture_output=True, text=True,
                                  check=False)  # fmt: skip
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), command)
        print("taken by", *(command[0] for command in found))

    @unittest.skipUnless(shutil.which("man"), "no man")
    def test_man_shows_it(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "man1"))
            shutil.copy(os.path.join(SOURCE, "tools/shell/kvc.1"), os.path.join(folder, "man1"))
            environment = dict(os.environ, MANPATH=folder, MANWIDTH="100", MAN_KEEP_FORMATTING="", PAGER="cat")
            shown = re.sub(".\b", "", run("man", "-P", "cat", "kvc", env=environment))
        self.assertIn("kvc - language models on a compressed KV cache", shown)
        self.assertIn("--prompt-file FILE", shown)
        self.assertIn('--ask " The code of Ada is" --stats', shown)


if __name__ == "__main__":
    KVC, SOURCE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
