"""A session: one KV cache, one sampler, one stream of text."""
from __future__ import annotations

import array
import os
from typing import Any, Callable, Iterator, Literal, Mapping, NamedTuple, Sequence, Union

from . import _flat
from ._model import Model, Path, Tokens, as_tokens
from ._native import (ClosedError, Error, Handle, InvalidError, Owner, Status, empty, fetch, fetch_bytes, interruptible,
                      make_error, stop_all)

READING = _flat.KVC_TOKEN_READING  # of batch_step: the queued prompt is still being read
Prompt = Union[str, bytes, Tokens]
Role = Literal["system", "user", "assistant"]
_ROLES = {"system": _flat.KVC_ROLE_SYSTEM, "user": _flat.KVC_ROLE_USER, "assistant": _flat.KVC_ROLE_ASSISTANT}
_SHORT = 16  # tokens that are read in about the time of a step: not worth a thread that Ctrl-C can end


class Stats(NamedTuple):
    """What a session did and holds. Bytes of its cache: now, at most so far, and without compression."""

    n_prompt: int
    n_answer: int
    n_compactions: int
    cache_bytes: int
    cache_bytes_peak: int
    cache_bytes_full: int
    workspace_bytes: int
    weight_bytes: int
    n_slots: int  # cached entries over all heads
    n_slots_full: int  # without compression
    prefill_seconds: float
    compress_seconds: float  # part of it
    decode_seconds: float
    stop_token: int  # that ended the answer, or -1
    prompt_progress: float  # of a queued prompt; 1 = none waits
    n_tokens: int  # of its text: what max_tokens bounds (unless on_full makes room) and rewind takes from


def draft_lookup(tokens: Tokens, most: int = 8, n_gram: int = 3) -> list[int]:
    """A draft for Session.step_draft from the text itself: at most so many of the tokens that followed the last n_gram
    (1 to 64; two at least where so many stood nowhere before) where they stood before, perhaps none. Good where an
    answer repeats its prompt."""
    into = empty("i", max(most, 0))
    n = _flat.kvc_draft_lookup(as_tokens(tokens), n_gram, into)
    return [int(token) for token in into[:n]]


def _role(role: str) -> int:
    if role not in _ROLES:
        raise InvalidError(Status.INVALID, f"a role is one of {', '.join(_ROLES)}, not {role!r}")
    return int(_ROLES[role])


class Session(Owner):
    """Made by Model.session, Model.restore, Model.restore_memory and fork. For one thread at a time."""

    def __init__(self, model: Model, origin: Handle, make: Callable[[], Any]) -> None:
        self.model = model
        memory = origin.memory  # before make: a close in another thread takes it from origin, and make fails then
        self._handle = Handle(self, make(), _flat.kvc_session_close, _flat.kvc_session_cancel,
                              _flat.kvc_session_clear_cancel, memory)
        self._text = bytearray(1024)
        self._queued = False  # a prompt may be waiting, which the next call that computes reads
        self._n_logits = 0  # until they were asked for once

    def close(self) -> None:
        """Frees the cache. A call that runs in another thread is ended with ClosedError, and frees it then."""
        self._handle.close()

    def generate(self, prompt: Prompt | None = None, max_tokens: int = 256) -> Iterator[str]:
        """Reads a prompt, text or ids, and answers with pieces of text, at most max_tokens tokens of it, as they are
        asked for. A session that has a text goes on behind it; None lets it speak on, or answer what say() said."""
        if prompt is not None:
            self.read(prompt)
        for _ in range(max_tokens):
            token = self.step()
            text = self.read_text()  # behind the end too: a character that was cut off
            if text:
                yield text
            if token is None:
                return

    def read(self, prompt: Prompt) -> None:
        """prefill with text or ids. Text begins with BOS where the session is empty and the model wants one; behind an
        answer that stopped comes the token that stopped it first, so that the model sees its own answer closed. Text
        needs the model open."""
        if isinstance(prompt, (str, bytes)):
            stats = self.stats
            begins = stats.n_slots_full == 0 and stats.prompt_progress == 1  # nothing held and nothing queued
            tokens = self.model.prompt(prompt) if begins else self.model.tokenize(prompt, goes_on=True)
            # Behind a queued prompt the answer is closed already: by what was queued.
            stopped = stats.stop_token >= 0 and stats.prompt_progress == 1
            prompt = [stats.stop_token, *tokens] if stopped else list(tokens)
        self.prefill(prompt)

    def _compute(self, n_tokens: int, function: Any, *arguments: Any) -> Any:
        short = n_tokens <= _SHORT and not self._queued
        result = (self._handle.call if short else self._handle.call_long)(function, *arguments)
        self._queued = False
        return result

    def prefill(self, tokens: Tokens) -> None:
        """Appends ids and compresses when the policy asks. Any failure leaves the session as it was."""
        ids = as_tokens(tokens)
        self._compute(len(ids), _flat.kvc_session_prefill, ids)

    def append(self, tokens: Tokens) -> None:
        """prefill that keeps everything; compress then applies the policy."""
        ids = as_tokens(tokens)
        self._compute(len(ids), _flat.kvc_session_append, ids)

    def compress(self) -> None:
        """Applies the policy to what is cached."""
        self._handle.call_long(_flat.kvc_session_compress)

    def enqueue(self, tokens: Tokens, compress: bool = True) -> None:
        """prefill (compress) or append, but read by the calls of batch_step."""
        self._queued = True
        self._handle.call(_flat.kvc_session_enqueue, as_tokens(tokens), int(bool(compress)))

    def say(self, text: str | bytes, role: Role = "user", *, answer: bool | None = None, queue: bool = False) -> None:
        """One message of a conversation, between the marks of its role ("system", "user", "assistant"). The text is
        never read as marks. answer: the assistant's turn begins behind it, and the steps that follow give the answer;
        None: behind what the user says. queue: only queued, as by enqueue. UnsupportedError: the model file has no
        marks, and set_turn_marks gave none."""
        begins = role == "user" if answer is None else bool(answer)
        flags = (_flat.KVC_ANSWER * begins) | (_flat.KVC_QUEUE * bool(queue))
        self._queued = self._queued or bool(queue)  # until it is known
        self._handle.call_long(_flat.kvc_session_say, _role(role), text, flags)
        self._queued = bool(queue)

    def set_turn_marks(self, role: Role, prefix: str | None, suffix: str | None) -> None:
        """Marks of your own for a role; special tokens in them count as such. Both None: the file's again."""
        self._handle.call(_flat.kvc_session_set_turn_marks, _role(role), prefix, suffix)

    def trim(self, budget: int) -> int:
        """Compresses to budget slots per KV head on average, and keeps that budget. The bytes that became free."""
        return int(self._handle.call_long(_flat.kvc_session_trim, budget))

    def step(self) -> int | None:
        """Generates one token; None when the answer is complete. ContextFullError when max_tokens are held."""
        token = self._compute(1, _flat.kvc_session_step)
        return None if token == _flat.KVC_TOKEN_NONE else token

    def step_draft(self, draft: Tokens) -> list[int]:
        """As step called several times: so many tokens as the draft foresaw, and one more, from one pass over the
        weights; none when the answer is complete. They are those that step gives whatever the draft says, of which 31
        are looked at. One comes where a step does more than append: methods that evict or watch at steps, quantised
        caches."""
        wanted = as_tokens(draft)
        into = empty("i", min(len(wanted), 31) + 1)
        n = self._compute(1, _flat.kvc_session_step_draft, wanted, into)
        return [int(token) for token in into[:n]]

    def accept(self, token: int) -> None:
        """Goes on with a token of your own choice, as if step had given it."""
        self._compute(1, _flat.kvc_session_accept, token)

    def read_text(self) -> str:
        """The text of the steps since the last call, as far as it is whole characters."""
        text = b""
        while True:
            n = self._handle.call(_flat.kvc_session_read_text, self._text)
            text += self._text[:n]
            if n <= len(self._text) - 4:  # a longer character would have fitted
                return text.decode("utf-8", "replace")

    def set_sampling(self, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, min_p: float = 0.0,
                     repeat_penalty: float = 0.0, repeat_window: int = 0, seed: int = 0) -> None:
        """How the following steps choose; temperature 0 is greedy, 0 elsewhere is off. top_p, min_p in (0, 1].
        repeat_penalty to 100 for tokens among the newest repeat_window (to 512, 0 = 64)."""
        raw = _flat.kvc_sampling()
        raw.temperature, raw.top_k, raw.top_p, raw.seed = temperature, top_k, top_p, seed
        raw.min_p, raw.repeat_penalty, raw.repeat_window = min_p, repeat_penalty, repeat_window
        self._handle.call(_flat.kvc_session_set_sampling, raw)

    def set_logit_bias(self, biases: Mapping[int, float] | None) -> None:
        """Added to the logits of these tokens before a step chooses; -inf: never. None: none."""
        pairs = dict(biases or {})
        self._handle.call(_flat.kvc_session_set_logit_bias, list(pairs.keys()), list(pairs.values()), len(pairs))

    def set_token_mask(self, mask: Any = None) -> None:
        """The only tokens that steps may choose: bit t % 32 of mask[t // 32], int32. None: all."""
        self._handle.call(_flat.kvc_session_set_token_mask, () if mask is None else mask)

    def logits(self, out: Any = None) -> Any:
        """Logits [vocab_size] that the next step chooses from, float32, into out where it is given."""
        def get(into: Any) -> int:
            return int(self._compute(1, _flat.kvc_session_get_logits, into))

        if out is None:
            logits = fetch("f", self._n_logits, get)
            self._n_logits = len(logits)
            return logits
        n, room = get(out), memoryview(out).nbytes // 4
        if n > room:
            raise make_error(Status.BUFFER_TOO_SMALL, f"out has {room} elements, logits are {n}")
        return out

    @property
    def stats(self) -> Stats:
        """What the session did and holds, as of now. BusyError while another thread computes with it."""
        raw = _flat.kvc_session_stats()
        self._handle.call(_flat.kvc_session_get_stats, raw)
        return Stats(*(getattr(raw, name) for name in Stats._fields))

    @property
    def progress(self) -> float:
        """Share of the running prefill, append or say that has been read; 1 = none runs. Any thread may ask."""
        return float(self._handle.call(_flat.kvc_session_get_progress))

    def kept(self, layer: int, kv_head: int) -> Any:
        """Token positions still cached for one head, ascending, int32. With reducer=rest the first may be -n: an entry
        that stands for n dropped tokens. A queued prompt is not read for it."""
        return fetch("i", 0, lambda into: self._handle.call(_flat.kvc_session_get_kept, layer, kv_head, into))

    def reset(self) -> None:
        """Empty again. Policy with trim's budget, sampling, seed, bias, mask and marks stay; mends DeviceError."""
        self._handle.call(_flat.kvc_session_reset)

    def cancel(self) -> None:
        """The running call, or else the next one that computes or queues, raises CancelledError. Any thread may."""
        self._handle.call(_flat.kvc_session_cancel)

    def clear_cancel(self) -> None:
        """Withdraws a cancel that came too late."""
        self._handle.withdraw()

    def fork(self) -> Session:
        """A second session with the same cache, which costs nothing until one of them goes on."""
        return Session(self.model, self._handle, lambda: self._compute(1, _flat.kvc_session_fork))

    def rewind(self, n_tokens: int) -> None:
        """Takes the newest tokens back. UnsupportedError: an older one has been dropped since."""
        self._compute(1, _flat.kvc_session_rewind, n_tokens)

    def save(self, path: Path) -> None:
        """Writes the session to a file, whole or not at all, for Model.restore."""
        self._compute(1, _flat.kvc_session_save, os.fsencode(path))

    def save_memory(self) -> bytes:
        """The same to memory, for Model.restore_memory."""
        return fetch_bytes(0, lambda into: self._compute(1, _flat.kvc_session_save_memory, into))


Row = Union[int, None, Error, ClosedError]


class _Batch:
    """One call for every session that is open. A closed one has its own error, and does not stop the others."""

    def __init__(self, sessions: Sequence[Session], prompt_tokens: int, logits: Any = None) -> None:
        self.sessions, self.logits = list(sessions), logits
        self.params = _flat.kvc_batch_params()
        self.params.prompt_tokens = prompt_tokens

    def rows(self) -> list[Row]:
        """A signal's exception ends what takes long."""
        if len(self.sessions) <= _SHORT and not any(session._queued for session in self.sessions):
            rows = self._run()
        else:
            handles = [session._handle for session in self.sessions]
            rows = interruptible(self._run, lambda wait: stop_all(handles, wait))
        return rows

    def _run(self) -> list[Row]:
        use, pointers, places = object(), [], []
        rows: list[Row] = [None] * len(self.sessions)
        try:
            for place, session in enumerate(self.sessions):
                try:
                    pointers.append(session._handle.enter(use))
                    places.append(place)
                except ClosedError as closed:
                    rows[place] = closed
            if pointers or not rows:
                self._call(pointers, places, rows)
        finally:
            for session in self.sessions:
                session._handle.leave(use)
        return rows

    def _call(self, pointers: list[Any], places: list[int], rows: list[Row]) -> None:
        tokens, statuses = (array.array("i", bytes(4 * len(places) + 4)) for _ in range(2))
        text = bytearray(1024)
        if self.logits is None:
            n_text = _flat.kvc_batch_step(tuple(pointers), self.params, tokens, statuses, text)
        else:
            size = 4 * self.sessions[places[0]].model._info.vocab_size if places else 0  # of a row, of one that is open
            room = None if len(places) == len(rows) else self._room(size)
            n_text = _flat.kvc_batch_logits(tuple(pointers), self.params, self.logits, tokens, statuses, text)
            if room is not None:
                _spread(room, size, places)
        last = max((i for i in range(len(places)) if statuses[i] != 0), default=-1)
        for i, place in enumerate(places):
            # The library has a text for the last that failed.
            own = text[:n_text].decode("utf-8", "replace") if i == last else ""
            rows[place] = self._row(self.sessions[place], tokens[i], statuses[i], own)

    def _row(self, session: Session, token: int, status: int, text: str) -> Row:
        if status == Status.CANCELLED and session._handle.closing:
            return session._handle.closed_meanwhile()
        if status != 0:
            return make_error(status, text or _flat.kvc_flat_row_error(status))
        session._queued = token == READING
        return None if token == _flat.KVC_TOKEN_NONE else token

    def _room(self, size: int) -> memoryview:
        room, wanted = memoryview(self.logits).cast("B"), len(self.sessions) * size
        if len(room) < wanted:
            raise make_error(Status.BUFFER_TOO_SMALL, f"logits: {wanted // 4} numbers, room for {len(room) // 4}")
        return room


def _spread(room: memoryview, size: int, places: list[int]) -> None:
    """Moves rows that lie one behind the other to their places."""
    for i, place in reversed(list(enumerate(places))):
        if i != place:
            room[place * size:(place + 1) * size] = room[i * size:(i + 1) * size]


def batch_step(sessions: Sequence[Session], *, prompt_tokens: int = 0) -> list[Row]:
    """A step of each session, all of one model, in one pass over its weights. For each: its token, None when its
    answer is complete, READING while its queued prompt is read, or the error of one that cannot go on, which does not
    stop the others: an Error, or ClosedError where it was closed, before or meanwhile. prompt_tokens: of queued
    prompts read before the step, 0 = 256."""
    return _Batch(sessions, prompt_tokens).rows()


def batch_logits(sessions: Sequence[Session], logits: Any, *, prompt_tokens: int = 0) -> list[Row]:
    """The same for samplers of your own: fills logits, float32 [sessions, vocab_size], to choose from and accept. For
    each session: None, READING, or its error; only where it is None its row holds logits."""
    if logits is None:
        raise TypeError("logits: a buffer of float32 is expected, not None")
    return _Batch(sessions, prompt_tokens, logits).rows()
