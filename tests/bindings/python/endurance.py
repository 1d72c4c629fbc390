#!/usr/bin/env python3
"""10,000 sessions opened, fed, stepped and closed, and 200 models: the memory of the process stays where it was."""
import gc
import sys

from checks import RECALL, STORIES, kvc

SESSIONS, MODELS = 10000, 200


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def part(model, policy, tokens, sessions, models):
    for _ in range(sessions):
        with model.session(policy) as session:
            session.prefill(tokens)
            session.step()
            session.read_text()
    for _ in range(models):
        kvc.Model(RECALL).close()


def main():
    with kvc.Model(STORIES) as model, kvc.Policy("snapkv:budget=16,window=4") as policy:
        tokens = model.prompt("Once upon a time there was a little dog")
        part(model, policy, tokens, SESSIONS // 5, MODELS // 5)  # what allocators keep has come by then
        early = resident_bytes()
        part(model, policy, tokens, SESSIONS * 4 // 5, MODELS * 4 // 5)
        grown = resident_bytes() - early
    print(f"grown by {grown >> 10} KiB in {SESSIONS * 4 // 5} sessions and {MODELS * 4 // 5} models")
    # A leak of 1 KiB a session, or of 50 KiB a model, is more than that.
    if grown >= 8 << 20:
        sys.exit(1)


main()
