#!/usr/bin/env python3
"""The scenario of tests/bindings in Python: scenario.py MODEL SCENARIO FOLDER."""
import json
import os
import shutil
import sys
import threading

import kvc

ROLES = ("system", "user", "assistant")
ON_FULL = ("error", "evict", "slide")
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_window", "seed")


class Runner:
    """A method a step; it gives what is compared with `expect`."""

    def __init__(self, model, folder):
        self.file, self.folder, self.names = model, folder, {}

    def path(self, step, key="path"):
        return os.path.join(self.folder, step[key])

    def tokens(self, step):
        return self.names[step["tokens"]] if isinstance(step["tokens"], str) else step["tokens"]

    def run(self, step):
        named = {key: self.names[step[key]] for key in ("model", "policy", "session", "data") if key in step}
        result = getattr(self, "do_" + step["do"])(step, **named)
        if "as" in step:
            self.names[step["as"]] = result
        return result.tolist() if hasattr(result, "tolist") else result

    def do_copy(self, step):
        shutil.copyfile(self.file, self.path(step, "to"))

    def do_open(self, step):
        return kvc.Model(self.path(step))

    def do_load(self, step):
        with kvc.Loader() as loader:
            model = loader.open(self.path(step))
            assert loader.progress == 1
            return model

    def do_info(self, step, model):
        return getattr(model.info, step["field"])

    def do_tokenize(self, step, model):
        flags = step["flags"]
        return model.tokenize(step["text"], bos=bool(flags & 1), special=bool(flags & 2), goes_on=bool(flags & 4))

    def do_detokenize(self, step, model):
        return model.detokenize(self.tokens(step))

    def do_policy(self, step):
        return kvc.Policy(step["spec"])

    def do_describe_policy(self, step, policy):
        return policy.describe()

    def do_session(self, step, model, policy=None):
        options = {key: step[key] for key in ("max_tokens", "top_k", "top_p", "temperature", "seed") if key in step}
        return model.session(policy, on_full=ON_FULL[step.get("on_full", 0)], **options)

    def do_prefill(self, step, session):
        session.prefill(self.tokens(step))

    def do_append(self, step, session):
        session.append(self.tokens(step))

    def do_enqueue(self, step, session):
        session.enqueue(self.tokens(step))

    def do_compress(self, step, session):
        session.compress()

    def do_reset(self, step, session):
        session.reset()

    def do_cancel(self, step, session):
        session.cancel()

    def do_clear_cancel(self, step, session):
        session.clear_cancel()

    def do_trim(self, step, session):
        session.trim(step["budget"])

    def do_rewind(self, step, session):
        session.rewind(step["n"])

    def do_accept(self, step, session):
        session.accept(step["token"])

    def do_step(self, step, session):
        return steps(session, step["n"])

    def do_step_draft(self, step, session):
        return session.step_draft(self.tokens(step))

    def do_draft_lookup(self, step):
        return kvc.draft_lookup(self.tokens(step), step["most"], step["n_gram"])

    def do_read_text(self, step, session):
        return session.read_text()

    def do_kept(self, step, session):
        return session.kept(step["layer"], step["kv_head"])

    def do_best(self, step, session):
        return best(session.logits())

    def do_stats(self, step, session):
        return getattr(session.stats, step["field"])

    def do_sampling(self, step, session):
        session.set_sampling(**{key: step[key] for key in SAMPLING if key in step})

    def do_bias(self, step, session):
        session.set_logit_bias(dict(zip(step["tokens"], step["biases"])))

    def do_mask(self, step, session):
        words = [0] * (session.model.info.vocab_size // 32) if step["tokens"] else []
        for token in step["tokens"]:
            words[token // 32] |= 1 << token % 32
        session.set_token_mask([word - (word >> 31 << 32) for word in words])

    def do_turn_marks(self, step, session):
        session.set_turn_marks(ROLES[step["role"]], step["prefix"], step["suffix"])

    def do_say(self, step, session):
        flags = step["flags"]
        session.say(step["text"], ROLES[step["role"]], answer=bool(flags & 1), queue=bool(flags & 2))

    def do_fork(self, step, session):
        return session.fork()

    def do_save(self, step, session):
        session.save(self.path(step))

    def do_restore(self, step, model):
        return model.restore(self.path(step))

    def do_save_memory(self, step, session):
        return session.save_memory()

    def do_restore_memory(self, step, model, data):
        return model.restore_memory(data)

    def do_batch_step(self, step):
        return kvc.batch_step([self.names[name] for name in step["sessions"]])

    def do_plan(self, step, model, policy):
        slots = model.plan(policy, step["n_prompt"]).slots
        return int(slots.sum()) if hasattr(slots, "sum") else sum(slots)

    def do_threads(self, step, model, policy):
        answers = []

        def answer():
            with model.session(policy) as session:
                session.prefill(self.tokens(step))
                answers.append(steps(session, step["steps"]))

        threads = [threading.Thread(target=answer) for _ in range(step["n"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == step["n"] and all(own == answers[0] for own in answers), answers
        return answers[0]

    def do_close(self, step):
        self.names[step["name"]].close()


def steps(session, n):
    tokens = []
    for _ in range(n):
        token = session.step()
        tokens.append(-1 if token is None else token)
        if token is None:
            break
    return tokens


def best(logits):
    return max(range(len(logits)), key=lambda i: logits[i])


def check(runner, step):
    try:
        result = runner.run(step)
    except kvc.Error as failed:
        return None if failed.status.name == step.get("error") else f"failed: {failed}"
    if "error" in step:
        return f"did not fail with {step['error']}"
    return None if "expect" not in step or result == step["expect"] else f"gave {result}"


def main():
    model, scenario, folder = sys.argv[1:]
    runner = Runner(model, folder)
    with open(scenario, encoding="utf-8") as file:
        all_steps = json.load(file)
    for number, step in enumerate(all_steps, 1):
        wrong = check(runner, step)
        if wrong:
            sys.exit(f"step {number}, {json.dumps(step)[:200]}: {wrong}")
    print(f"{len(all_steps)} steps passed")


main()
