"""For those who compare methods: what a policy keeps of a prompt, and what it costs. The measures of kvc eval."""
from __future__ import annotations

import json
import math
import os
from dataclasses import astuple, dataclass
from typing import Any, Iterable, Mapping, Union

from ._model import Model, Path, Policy, Spec
from ._native import numpy
from ._session import Session

Task = Mapping[str, Any]
Models = Union[Model, str, "os.PathLike[str]"]


def kept(model: Models, prompt: Any, policy: Spec) -> list[list[Any]]:
    """Positions of a prompt, text or ids, that a policy keeps: [layer][KV head] of int32 arrays, as Session.kept
    gives them."""
    with _Opened(model) as opened, opened.session(policy) as session:
        session.read(prompt)
        info = opened.info
        return [[session.kept(layer, head) for head in range(info.n_kv_heads)] for layer in range(info.n_layers)]


@dataclass
class Result:
    """What one policy did with the data. What does not apply to the data is NaN."""

    policy: str  # the canonical spec
    n: int = 0  # questions asked, or text tokens scored
    n_right: int = 0
    n_compared: int = 0  # positions compared with the full cache
    accuracy: float = math.nan  # share of answers that are right to the token
    kl: float = math.nan  # nats, full cache || compressed, mean over n_compared
    top1: float = math.nan  # share of n_compared with the same likeliest token
    perplexity: float = math.nan  # of text
    cache_share: float = math.nan  # cached entries after the prompts, of those of the full cache
    cache_bytes: float = math.nan  # after a prompt, mean

    def __eq__(self, other: object) -> bool:
        """What does not apply to both is equal. A comparison field by field, as dataclasses have it from Python 3.13
        on, would find no result of tasks equal to any, itself included."""
        if not isinstance(other, Result):
            return NotImplemented
        return all(a == b or a != a and b != b for a, b in zip(astuple(self), astuple(other)))


class _Sums:
    def __init__(self) -> None:
        self.n = self.n_right = self.n_compared = self.n_same = self.n_scored = self.n_prompts = 0
        self.slots = self.slots_full = self.cache_bytes = 0
        self.kl = self.log_likelihood = 0.0

    def compare(self, reference: Any, other: Any) -> None:
        self.n_compared += 1
        self.n_same += int(reference.argmax() == other.argmax())
        log_p, log_q = _log_softmax(reference), _log_softmax(other)
        self.kl += max(0.0, float((numpy.exp(log_p) * (log_p - log_q)).sum()))

    def add_prompt(self, session: Session) -> None:
        stats = session.stats
        self.n_prompts += 1
        self.slots, self.slots_full = self.slots + stats.n_slots, self.slots_full + stats.n_slots_full
        self.cache_bytes += stats.cache_bytes

    def result(self, policy: str) -> Result:
        def ratio(part: float, whole: float) -> float:
            return part / whole if whole else math.nan
        return Result(policy, self.n + self.n_scored, self.n_right, self.n_compared, ratio(self.n_right, self.n),
                      ratio(self.kl, self.n_compared), ratio(self.n_same, self.n_compared),
                      math.exp(-self.log_likelihood / self.n_scored) if self.n_scored else math.nan,
                      ratio(self.slots, self.slots_full), ratio(self.cache_bytes, self.n_prompts))


def _log_softmax(logits: Any) -> Any:
    shifted = logits.astype(numpy.float64) - logits.max()
    return shifted - math.log(numpy.exp(shifted).sum())


class _Opened:
    """A model of the caller's, or one that is opened here and closed again."""

    def __init__(self, model: Models) -> None:
        self.model, self.ours = (model, False) if isinstance(model, Model) else (Model(model), True)

    def __enter__(self) -> Model:
        return self.model

    def __exit__(self, *exception: object) -> None:
        if self.ours:
            self.model.close()


def eval(model: Models, data: Path | Iterable[Task], policies: Spec | Iterable[Spec], *, limit: int = 0,
         window: int = 0) -> list[Result]:
    """What each policy costs, beside the full cache of the same model: a Result for each, in their order. One policy
    alone need not be in a list; None keeps everything.

    data: tasks, or the path of a file of them, one JSON object a line: {"context": text, "questions": [{"question":
    text, "answer": text}, ...]}. The context is compressed, then each question is asked (kvc eval --data). Or the path
    of any other text, "*.txt": windows of `window` tokens (0 = the trained context, at most 2048) that overlap by
    half are read token by token, compressed all the time, and the second half is scored (kvc eval --text).
    limit: at most so many tasks or windows, 0 = all. Tasks that the model's context does not hold are left out; one
    without questions is a ValueError."""
    if numpy is None:
        raise ImportError("kvc.eval needs numpy")
    with _Opened(model) as opened:
        if policies is None or isinstance(policies, (str, Policy)):
            policies = [policies]
        policies = list(policies)
        specs = [_canonical(policy) for policy in policies]
        is_path = isinstance(data, (str, bytes, os.PathLike))
        if is_path and os.fsdecode(data).endswith(".txt"):  # type: ignore[arg-type]
            sums = _eval_text(opened, data, policies, limit, window)  # type: ignore[arg-type]
        else:
            tasks = _read_tasks(data) if is_path else data  # type: ignore[arg-type]
            sums = _eval_tasks(opened, tasks, policies, limit)  # type: ignore[arg-type]
        return [own.result(spec) for spec, own in zip(specs, sums)]


def _canonical(policy: Spec) -> str:
    if isinstance(policy, Policy):
        return policy.describe()
    with Policy("full" if policy is None else policy) as made:
        return made.describe()


def _read_tasks(path: Path) -> Iterable[Task]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _eval_tasks(model: Model, tasks: Iterable[Task], policies: list[Spec], limit: int) -> list[_Sums]:
    sums = [_Sums() for _ in policies]
    n_used = 0
    for number, task in enumerate(tasks, 1):
        if not task.get("questions"):
            raise ValueError(f'task {number}: expected a list of questions under "questions"')
        context = model.prompt(task["context"])
        asked = [(_ids(model, question["question"]), _ids(model, question["answer"]))
                 for question in task["questions"]]
        if len(context) + max(len(question) + len(answer) for question, answer in asked) > model.info.max_tokens:
            continue
        with model.session() as session:
            session.prefill(context)
            reference = [_answer(session, question, answer) for question, answer in asked]
        for own, policy in zip(sums, policies):
            with model.session(policy) as session:
                session.prefill(context)
                own.add_prompt(session)
                for (question, answer), expected in zip(asked, reference):
                    own.n += 1
                    own.n_right += _score(own, expected, _answer(session, question, answer), answer)
        n_used += 1
        if n_used == limit:
            break
    return sums


def _ids(model: Model, text: str) -> list[int]:
    return [int(token) for token in model.tokenize(text, goes_on=True)]


def _answer(session: Session, question: list[int], answer: list[int]) -> tuple[list[int], list[Any]]:
    """As many tokens as the answer has, behind a fork of the context, and the logits each was chosen from."""
    tokens: list[int] = []
    logits: list[Any] = []
    with session.fork() as fork:
        if question:
            fork.append(question)
        for _ in answer:
            logits.append(fork.logits())
            token = fork.step()
            if token is None:
                break
            tokens.append(token)
    return tokens, logits


def _score(sums: _Sums, reference: tuple[list[int], list[Any]], own: tuple[list[int], list[Any]],
           answer: list[int]) -> bool:
    """Compares where both saw the same tokens: up to the first that differs, which itself is compared."""
    for i, (full, compressed) in enumerate(zip(reference[1], own[1])):
        sums.compare(full, compressed)
        if reference[0][i:i + 1] != own[0][i:i + 1] or i >= len(own[0]):
            break
    return own[0] == answer


def _eval_text(model: Model, path: Path, policies: list[Spec], limit: int, window: int) -> list[_Sums]:
    with open(path, "rb") as file:
        tokens = model.tokenize(file.read())
    begin = model.prompt("")  # nothing, where the model wants nothing before a text
    longest, least, most = 2048, max(2, 2 * len(begin)), model.info.max_tokens
    window = window or min(most, longest)
    if not least <= window <= most:
        raise ValueError(f"window {window}: a window of text has {least} to {most} tokens, the context of the model")
    half, body = window // 2, window - len(begin)
    n_windows = 0 if len(tokens) < body else 1 + (len(tokens) - body) // half
    if n_windows == 0:
        raise ValueError(f"{os.fsdecode(path)}: {len(tokens)} tokens are less than one window of {window}")
    sums = [_Sums() for _ in policies]
    for index in range(min(n_windows, limit or n_windows)):
        text = [*begin, *tokens[index * half:index * half + body]]
        _score_window(model, text, half, policies, sums)
    return sums


def _score_window(model: Model, text: list[int], half: int, policies: list[Spec], sums: list[_Sums]) -> None:
    sessions = [model.session(), *(model.session(policy) for policy in policies)]
    try:
        for i, token in enumerate(text):
            if i >= half:
                logits = [session.logits() for session in sessions]
                for own, mine in zip(sums, logits[1:]):
                    own.n_scored += 1
                    own.log_likelihood += float(_log_softmax(mine)[token])
                    own.compare(logits[0], mine)
            for session in sessions:
                session.prefill((int(token),))
        for own, session in zip(sums, sessions[1:]):
            own.add_prompt(session)
    finally:
        for session in sessions:
            session.close()
