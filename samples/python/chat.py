#!/usr/bin/env python3
"""A conversation that may go on for ever: chat.py MODEL.kvc [POLICY [TOKENS]], one turn a line. Ctrl-C stops the
answer."""
import sys

import kvc


def say(session, line):
    try:
        session.say(line)
    except kvc.UnsupportedError:
        # The model was not trained on conversations and has no marks for turns: it goes on with what the user writes.
        session.set_turn_marks("user", "", "")
        session.say(line)


def main(path, policy="full", max_tokens=512):
    # Past the trained context old entries leave, and what the policy keeps of every turn stays within its budget.
    with kvc.Model(path) as model, model.session(policy, on_full="slide") as session:
        for line in sys.stdin:
            try:
                say(session, line.rstrip("\n"))
                for text in session.generate(max_tokens=int(max_tokens)):
                    print(text, end="", flush=True)
            except KeyboardInterrupt:
                pass
            print(flush=True)


if len(sys.argv) < 2:
    sys.exit("usage: chat.py MODEL.kvc [POLICY [TOKENS]]")
try:
    main(*sys.argv[1:])
except kvc.Error as error:
    sys.exit(f"chat.py: {error}")
