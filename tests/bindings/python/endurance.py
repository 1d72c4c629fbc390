#!/usr/bin/env python3
"""10,000 sessions opened, fed, stepped and closed, and 200 models: over the second half of them the memory of the
process stays where it was, and what is allocated."""
import ctypes
import gc
import sys

from checks import RECALL, STORIES, kvc

SESSIONS, MODELS = 10000, 200


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def allocated_bytes():
    """By malloc: libkvc's, and what Python takes from it in pieces of its own."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


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
        part(model, policy, tokens, SESSIONS // 2, MODELS // 2)  # what allocators keep has come by then
        resident, allocated = resident_bytes(), allocated_bytes()
        part(model, policy, tokens, SESSIONS // 2, MODELS // 2)
        resident, allocated = resident_bytes() - resident, allocated_bytes() - allocated
    print(f"grown by {resident >> 10} KiB, {allocated} bytes of them allocated, in {SESSIONS // 2} sessions and "
          f"{MODELS // 2} models")
    # A leak of one byte a session, or of 41 a model, is more than that.
    if resident >= 1 << 20 or allocated >= 4 << 10:
        sys.exit(1)


main()
