"""Nanoseconds of a call that does nothing, and of a step: bench.py STORIES.kvc"""
import sys
import time

import kvc


def main(path):
    start = time.perf_counter_ns()
    model = kvc.Model(path)
    opening = (time.perf_counter_ns() - start) / 1e6
    session = model.session()
    prompt = model.tokenize("Once upon a time", bos=True)
    call = step = 1e9
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(20000):
            session.progress
        call = min(call, (time.perf_counter_ns() - start) / 20000)
        session.reset()
        session.prefill(prompt)
        start = time.perf_counter_ns()
        for _ in range(200):
            session.step()
        step = min(step, (time.perf_counter_ns() - start) / 200)
    print(f"{call:.0f} {step:.0f} {opening:.1f}")


main(sys.argv[1])
