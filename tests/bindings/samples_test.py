#!/usr/bin/env python3
"""Runs the samples `chat` and `ask_document` of one language on the model recall, and holds their output to the same
text for every language: samples_test.py [--terminal] --chat COMMAND... --ask COMMAND...
KVC_SAMPLES_SECONDS says after how long it gives up, if not after 100 seconds."""
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios

SOURCE, RECALL = os.environ["KVC_SOURCE"], os.environ["KVC_RECALL"]
CHAT = [" The code of Robin is 386. The code of Zachary is 736. The code of Robin is", " The code of Zachary is"]
CHAT_ANSWERS = [" 386.", " 736."]
# What a compressed cache still knows: right answers, see the questions of samples/data/recall_demo.jsonl.
ASK_OUTPUT = """901 tokens in 155 KiB instead of 5508
The code of Zachary is 736
The code of Nina is 417
The code of Rosa is 115
"""
# A question that is long beside the budget: were the cache compressed again for it, the answer would be 444.
ASK_LONG_OUTPUT = """901 tokens in 146 KiB instead of 5508
There was a silence. It looked like a long row of carriages, and the people went by without a word. The code of \
Nadia is 553
"""


def compare(what, wanted, got):
    if wanted != got:
        sys.exit(f"{what}: wanted\n{wanted!r}\ngot\n{got!r}")
    print(f"{what}: {got!r}")


def chat(command):
    done = subprocess.run([*command, RECALL, "snapkv:budget=64,window=8", "5"], input="\n".join(CHAT) + "\n",
                          stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    compare("chat", "\n".join(CHAT_ANSWERS) + "\n", done.stdout)


def chat_stopped(command):
    """An answer without an end, stopped by Ctrl-C; the conversation goes on, and ends with its input."""
    talk = subprocess.Popen([*command, RECALL, "snapkv:budget=64,window=8", "1000000"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    for line in CHAT:
        talk.stdin.write(line.encode() + b"\n")
        talk.stdin.flush()
        byte = talk.stdout.read(8)[-1:]  # it has begun
        talk.send_signal(signal.SIGINT)
        while byte != b"\n":
            byte = talk.stdout.read(1)
            if not byte:
                sys.exit(f"Ctrl-C ended the chat, with {talk.wait()}")
    talk.stdin.close()
    if talk.wait() != 0:
        sys.exit(f"chat ended with {talk.returncode} behind Ctrl-C")
    print("chat: stopped twice by Ctrl-C")


def chat_stopped_in_terminal(command):
    """The same for Mono, which hears of Ctrl-C only where input and output are a terminal: typed there."""
    master, slave = pty.openpty()
    talk = subprocess.Popen([*command, RECALL, "snapkv:budget=64,window=8", "1000000"], stdin=slave, stdout=slave,
                            env={**os.environ, "TERM": "xterm"}, start_new_session=True,
                            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def until_quiet():
        while select.select([master], [], [], 1)[0]:
            os.read(master, 4096)

    start = b""
    while b"\x1b[6n" not in start:  # it asks where the cursor is, and takes the next input for the answer
        start += os.read(master, 64)
    os.write(master, b"\x1b[1;1R")
    until_quiet()
    os.write(master, CHAT[0].encode() + b"\n")
    said = b""
    while len(said) < 400:  # the echo of the line is shorter
        said += os.read(master, 64)
    os.write(master, b"\x03")
    until_quiet()
    if talk.poll() is not None:
        sys.exit(f"Ctrl-C ended the chat, with {talk.returncode}")
    os.write(master, CHAT[1].encode() + b"\n")
    os.read(master, 64)
    talk.kill()
    talk.wait()
    print("chat: stopped by Ctrl-C in a terminal")


def ask(command):
    with open(os.path.join(SOURCE, "samples/data/recall_demo.jsonl"), encoding="utf-8") as file:
        task = json.loads(file.readline())
    with tempfile.TemporaryDirectory(prefix="kvc-sample-") as folder:
        document = os.path.join(folder, "Dokument-ä.txt")
        with open(document, "w", encoding="utf-8") as file:
            file.write(task["context"])
        for policy, output in (("cokv-document:budget=24", ASK_OUTPUT), ("snapkv:budget=24,window=8", ASK_LONG_OUTPUT)):
            questions = [line.rsplit(" ", 1)[0] for line in output.splitlines()[1:]]
            done = subprocess.run([*command, RECALL, policy, document, *questions], stdout=subprocess.PIPE, text=True,
                                  encoding="utf-8", check=True)
            compare(f"ask_document {policy}", output, done.stdout)


def missing(name, command, *arguments):
    """A model that is not there is one line and exit code 1, not a trace of the stack."""
    done = subprocess.run([*command, "no-such-model.kvc", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, encoding="utf-8", check=False)
    if done.returncode != 1 or "no-such-model.kvc" not in done.stderr or done.stderr.count("\n") != 1:
        sys.exit(f"{name} without its model: exit code {done.returncode}, and it says\n{done.stderr}")
    print(f"{name}: a missing model is told")


def main():
    signal.alarm(int(os.environ.get("KVC_SAMPLES_SECONDS", "100")))
    begin, end = sys.argv.index("--chat"), sys.argv.index("--ask")
    command = sys.argv[begin + 1:end]
    chat(command)
    (chat_stopped_in_terminal if "--terminal" in sys.argv[:begin] else chat_stopped)(command)
    ask(sys.argv[end + 1:])
    missing("chat", command, "full")
    missing("ask_document", sys.argv[end + 1:], "full", __file__, "Who is")


main()
