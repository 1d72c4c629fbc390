#!/usr/bin/env python3
"""Reads a document once, keeps a compressed cache of it, and answers any number of questions from that: ask_document.py
MODEL.kvc POLICY DOCUMENT QUESTION...

ask_document.py recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
"""
import sys

import kvc


def main(path, policy, file, *questions):
    with open(file, encoding="utf-8") as document:
        text = document.read()
    with kvc.Model(path) as model, model.session(policy) as document:
        document.read(text)
        stats = document.stats
        print(f"{stats.n_prompt} tokens in {stats.cache_bytes >> 10} KiB instead of {stats.cache_bytes_full >> 10}")
        for question in questions:
            # A fork shares the cache of the document, and what is asked of one the others do not see. The question is
            # appended: as the prompt of generate it would be compressed, and the document once more with it.
            with document.fork() as fork:
                fork.append(model.tokenize(" " + question, goes_on=True))
                print(question, end="")
                for piece in fork.generate(max_tokens=6):
                    if "." in piece:
                        break
                    print(piece, end="", flush=True)
                print()


if len(sys.argv) < 5:
    sys.exit("usage: ask_document.py MODEL.kvc POLICY DOCUMENT QUESTION...")
try:
    main(*sys.argv[1:])
except kvc.Error as error:
    sys.exit(f"ask_document.py: {error}")
