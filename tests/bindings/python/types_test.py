#!/usr/bin/env python3
"""The package and a program that uses it, under mypy --strict; skipped where there is no mypy."""
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = """\
import kvc
with kvc.Model("a.kvc") as model, model.session("full") as session:
    for text in session.generate("text", max_tokens=8):
        reveal_type(text)
    reveal_type(session.step())
    reveal_type(session.fork())
    session.generate(max_tokens="8")
    session.fork().generate(3)
    session.prefill("text")
    session.say("text", "nobody")
    model.session(on_full="none")
    for row in kvc.batch_step([session]):
        reveal_type(row)
    session.read([1, 2])
    session.prefill(model.tokenize("text"))
    kvc.eval(model, "tasks.jsonl", "full")
"""
WANTED = ('Revealed type is "str"', 'Revealed type is "int | None"', 'Revealed type is "kvc._session.Session"',
          'Argument "max_tokens" to "generate"', 'Argument 1 to "generate"', 'Argument 1 to "prefill"',
          'Argument 2 to "say"', 'Argument "on_full" to "session"',
          "kvc._native.Error", "kvc._native.ClosedError")  # of a batch


def main():
    commands = [[sys.executable, "-m", "mypy"], [shutil.which("mypy") or "false"]]
    command = next((c for c in commands
                    if subprocess.run([*c, "--version"], capture_output=True, check=False).returncode == 0), None)
    if command is None:
        print("mypy was not found")
        sys.exit(77)
    package = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        cache = ["--strict", "--python-version", "3.11", "--cache-dir", os.path.join(folder, "cache")]
        done = subprocess.run([*command, *cache, package], capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        if done.returncode != 0:
            sys.exit(1)
        program = os.path.join(folder, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        done = subprocess.run([*command, *cache, program], capture_output=True, text=True, check=False,
                              env=dict(os.environ, MYPYPATH=os.path.dirname(package)))
        print(done.stdout, done.stderr)
        shown = done.stdout.replace("builtins.", "").replace("Union[int, None]", "int | None")  # as versions write it
        if any(wanted not in shown for wanted in WANTED) or "5 errors" not in shown:
            sys.exit("the types are not those that were wanted")


main()
