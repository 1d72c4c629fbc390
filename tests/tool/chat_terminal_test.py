#!/usr/bin/env python3
"""kvc chat typed in a terminal, which is a pty: a prompt before every line, the memory behind every answer, and no
mistake ends the conversation: chat_terminal_test.py KVC MODEL"""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile

KVC, MODEL = sys.argv[1:3]
ARGUMENTS = [KVC, "chat", MODEL, "--policy", "snapkv:budget=64,window=8", "--max-tokens", "6", "--context", "1000"]
ARGUMENTS += ["--on-full", "error"]
FIRST = "The code of Robin is 386. The code of Zachary is 736. The code of Robin is"
SECOND = " The code of Zachary is"
MEMORY = re.compile(r"\[[0-9,]+ tokens in [^\]]*\]")


class Terminal:
    """What the program writes to its terminal, and what is typed there. Standard output is apart: the answers."""

    def __init__(self):
        self.master, slave = pty.openpty()
        self.program = subprocess.Popen(ARGUMENTS, stdin=slave, stderr=slave, stdout=subprocess.PIPE)
        os.close(slave)
        self.seen = ""

    def until(self, end):
        """Reads up to a line that is `end` so far; returns what came."""
        while self.seen.rpartition("\n")[2] != end:
            if not select.select([self.master], [], [], 90)[0]:
                sys.exit(f"no {end!r} after {self.seen!r}")
            try:
                self.seen += os.read(self.master, 4096).decode()
            except OSError:  # its other end is closed
                sys.exit(f"ended with {self.program.wait()}, and no {end!r}, after {self.seen!r}")
        came, self.seen = self.seen, ""
        return came.replace("\r\n", "\n")

    def type(self, text, end="> "):
        os.write(self.master, text.encode())
        return self.until(end)

    def says(self, line, words):
        came = self.type(line + "\n")
        expect(words in came.partition("\n")[2], f"{line} says {words!r} and ends nothing", came)


def expect(good, what, came):
    if not good:
        sys.exit(f"{what}: {came!r}")


def piped(lines):
    done = subprocess.run(ARGUMENTS, input=lines, capture_output=True, text=True, encoding="utf-8", check=True)
    return done.stdout, done.stderr


def main():
    signal.alarm(500)
    answers, said = piped(f"{FIRST}\n/policy\n{SECOND}\n/policy\n")
    memory = MEMORY.findall(said)
    expect(len(memory) == 2 and "> " not in said, "a script sees no prompt", said)

    terminal = Terminal()
    begin = terminal.until("> ")
    expect("/help lists what there is" in begin, "what there is beside talking", begin)
    came = terminal.type(FIRST + "\n")
    expect(MEMORY.findall(came) == memory[:1], f"the memory behind an answer is {memory[0]}", came)
    for line, words in (("/trim", "/trim N"), ("/polcy x", "did you mean /policy?"), ("/load /no/such", "/no/such"),
                        ("/policy snapkv:bugdet=3", "budget"), ("/policy nothing", "nothing"),
                        (f"/system {'7q' * 1500}", "max_tokens")):  # fmt: skip
        terminal.says(line, words)
    came = terminal.type(SECOND + "\n")
    expect(MEMORY.findall(came) == memory[1:], f"the memory behind an answer is {memory[1]}", came)
    came = terminal.type("a line\\\n", end="  ")  # goes on in the next
    came = terminal.type("and its end\n")
    expect(len(MEMORY.findall(came)) == 1, "one answer to two lines", came)
    with tempfile.TemporaryDirectory() as folder:
        other = "/policy snapkv:budget=24,window=4"
        for line, words in ((f"/save {folder}/talk.kvcs", "saved to"), (f"/load {folder}/talk.kvcs", "loaded"),
                            ("/policy", "policy of the loaded file ["), (other, "/forget begins anew"),
                            ("/forget", "begun anew, without the loaded file's system text [0 tokens"),
                            (other, "policy snapkv:budget=24,window=4 [")):  # fmt: skip
            terminal.says(line, words)
    os.write(terminal.master, b"\x04")
    expect(terminal.program.wait() == 0, "Ctrl-D ends the conversation", terminal.program.returncode)
    out = terminal.program.stdout.read().decode()
    expect(out.startswith(answers), f"the answers are those a script gets, {answers!r}", out)
    print("chat in a terminal:", memory)


main()
