"""Models, policies, and what the library knows."""
from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any, Iterable, Literal, NamedTuple, SupportsIndex, Union

from . import _flat
from ._native import (Handle, InvalidError, NotFoundError, Owner, Status, fetch, fetch_bytes, fetch_text, interruptible,
                      numpy)

if TYPE_CHECKING:
    from ._session import Session

Path = Union[str, bytes, "os.PathLike[str]"]
Spec = Union[str, "Policy", None]
Json = dict[str, Any]
Tokens = Iterable[SupportsIndex]  # arrays of numpy too


def schema_version() -> int:
    """Of the newest model file the library reads."""
    return int(_flat.kvc_schema_version())


def devices() -> list[Json]:
    """Each kind of device that the library knows, here or not: name, summary, available and more."""
    def describe(index: int) -> Json:
        return dict(json.loads(fetch_text(lambda buffer: _flat.kvc_device_describe(index, buffer))))

    return [describe(i) for i in range(_flat.kvc_device_count())]


def measure_device(index: int = 0) -> float:
    """Bytes per second that device index of devices() reads from its memory. Takes up to a second."""
    return float(_flat.kvc_device_measure(index))


def methods() -> list[str]:
    """Names of the compression methods."""
    return [_flat.kvc_method_name(i) for i in range(_flat.kvc_method_count())]


def describe_method(name: str) -> Json:
    """One method: its summary, source and options with their ranges and defaults. NotFoundError: there is none."""
    if name not in methods():
        raise NotFoundError(Status.NOT_FOUND, f"there is no method {name!r}; there are {', '.join(methods())}")
    index = methods().index(name)
    return dict(json.loads(fetch_text(lambda buffer: _flat.kvc_method_describe(index, buffer))))


def flat_list(values: Any, kind: str) -> Any:
    """Any nesting of numbers, one row after the other, as the library reads it; not copied where it fits."""
    if numpy is not None:
        return numpy.ascontiguousarray(values, None if kind == "i" else numpy.float32).reshape(-1)
    while len(values) > 0 and hasattr(values[0], "__len__"):
        values = [value for row in values for value in row]
    return values


class Policy(Owner):
    """A compression method and its options, "cokv:budget=128,window=8" (docs/methods.md). Sessions copy it.

    NotFoundError: no such method. InvalidError: a wrong option; the message names the right ones."""

    def __init__(self, spec: str) -> None:
        self._handle = Handle(self, _flat.kvc_policy_create(spec), _flat.kvc_policy_close)

    def describe(self) -> str:
        """The whole spec, defaults written out."""
        return fetch_text(lambda buffer: self._handle.call(_flat.kvc_policy_describe, buffer))

    def _about(self) -> str:
        return " " + self.describe()

    def set_head_scores(self, scores: Any) -> None:
        """Instead of the model's: [layers, KV heads], higher is more important; headkv: [layers, query heads]."""
        self._handle.call(_flat.kvc_policy_set_head_scores, flat_list(scores, "f"))

    def set_table(self, slots: Any) -> None:
        """Slots of method "table", window included: [layers, KV heads]."""
        self._handle.call(_flat.kvc_policy_set_table, flat_list(slots, "i"))


class ModelInfo(NamedTuple):
    """The shape of a model. Tokens that it has not are -1."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    ffn_size: int
    vocab_size: int
    max_tokens: int  # trained context
    bos_token: int
    eos_token: int
    n_head_scores: int  # tables in the file
    weight_bytes: int
    n_parameters: int


class Plan(NamedTuple):
    """What a session would take, in bytes."""

    n_prompt: int
    weight_bytes: int
    workspace_bytes: int
    cache_bytes_peak: int  # during prefill
    cache_bytes_prompt: int  # after prefill
    cache_bytes_end: int  # at max_tokens
    cache_bytes_full: int  # at max_tokens without compression
    total_bytes_peak: int  # weights, workspace and cache at the worst moment
    slots: Any  # of every KV head after the prompt, [layers, KV heads], int32

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in self._fields[:-1])
        return f"Plan({sizes}, slots of {len(self.slots)} {'layers' if numpy is not None else 'KV heads'})"


def _model_params(threads: int, memory_limit: int, trusted: bool, plan_only: bool) -> Any:
    params = _flat.kvc_model_params()
    params.n_threads, params.memory_limit = threads, memory_limit
    params.trusted, params.plan_only = int(bool(trusted)), int(bool(plan_only))
    return params


OnFull = Literal["error", "evict", "slide"]
ON_FULL = {"error": 0, "evict": 1, "slide": 2}


def session_params(max_tokens: int, on_full: str, top_k: int, top_p: float, temperature: float, seed: int) -> Any:
    if on_full not in ON_FULL:
        raise InvalidError(Status.INVALID, f'on_full is one of {", ".join(ON_FULL)}, not {on_full!r}')
    params = _flat.kvc_session_params()
    params.max_tokens, params.on_full = max_tokens, ON_FULL[on_full]
    params.top_k, params.top_p, params.temperature, params.seed = top_k, top_p, temperature, seed
    return params


class Model(Owner):
    """Weights and a tokenizer. It does not change, any thread may use it, and sessions keep it alive.

    device: one of devices(), None = the best. threads: of the CPU, the caller's included, 0 = all fast ones
    that the process may use. memory_limit: bytes, 0 = none; past it OutOfMemoryError. trusted: the bytes of the weights
    are not verified, so that a file which was verified before opens at once. plan_only: they are neither read nor
    counted, for plan, texts and describe; sessions are UnsupportedError. FileError: cannot be read. BadModelError:
    damaged."""

    def __init__(self, path: Path, device: str | None = None, *, threads: int = 0, memory_limit: int = 0,
                 trusted: bool = False, plan_only: bool = False) -> None:
        params = _model_params(threads, memory_limit, trusted, plan_only)
        self._load(_flat.kvc_model_open, _flat.kvc_loader_open, os.fsencode(path), device, params)

    def _load(self, alone: Any, by_loader: Any, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._open(alone(*arguments))
            return
        with Loader() as loader:  # by which Ctrl-C, which comes to this thread only, ends it
            self._open(loader._handle.call_long(by_loader, *arguments))

    def _open(self, pointer: Any, memory: object = None) -> None:
        self._handle = Handle(self, pointer, _flat.kvc_model_close, memory=memory)
        raw = _flat.kvc_model_info()
        self._handle.call(_flat.kvc_model_get_info, raw)
        self._info = ModelInfo(*(getattr(raw, name) for name in ModelInfo._fields))
        self._begins_with_bos: bool | None = None

    @classmethod
    def from_fd(cls, fd: int, offset: int = 0, size: int = 0, device: str | None = None, *, threads: int = 0,
                memory_limit: int = 0, trusted: bool = False, plan_only: bool = False) -> Model:
        """From a part of an open file: size bytes from offset, 0 = to its end. It is mapped where offset is a multiple
        of 64, else read into memory. The file may be closed afterwards."""
        model = cls.__new__(cls)
        params = _model_params(threads, memory_limit, trusted, plan_only)
        model._load(_flat.kvc_model_open_fd, _flat.kvc_loader_open_fd, fd, offset, size, device, params)
        return model

    @classmethod
    def from_memory(cls, data: Any, device: str | None = None, *, threads: int = 0, memory_limit: int = 0,
                    trusted: bool = False, plan_only: bool = False) -> Model:
        """From bytes, a mmap or any other buffer, which must not change while the model or a session of it is open. It
        is used where it is when it begins at a multiple of 64 bytes, as a mmap does, else copied once."""
        model = cls.__new__(cls)
        kept, params = _aligned(memoryview(data).cast("B")), _model_params(threads, memory_limit, trusted, plan_only)
        model._open(interruptible(lambda: _flat.kvc_model_open_memory(kept, device, params), None), kept)
        return model

    def close(self) -> None:
        """Frees the model when its last session is closed too."""
        self._handle.close()

    @property
    def info(self) -> ModelInfo:
        """The shape of the model."""
        if self._handle.closing:
            raise self._handle.closed()
        return self._info

    def _about(self) -> str:
        return (f", {self._info.n_layers} layers, {self._info.vocab_size} tokens, {self._info.weight_bytes} bytes of "
                "weights")

    def describe(self) -> Json:
        """All that the file says about itself: config, tokenizer, turn format, head scores, tensors."""
        return dict(json.loads(fetch_text(lambda buffer: self._handle.call(_flat.kvc_model_describe, buffer))))

    def head_scores(self, index: int = 0) -> Any:
        """A table of the file: float32 [layers, KV heads], per query head for estimator headkv-r2."""
        scores = fetch("f", 0, lambda into: self._handle.call(_flat.kvc_model_get_head_scores, index, into))
        return scores.reshape(self.info.n_layers, -1) if numpy is not None else scores

    def tokenize(self, text: str | bytes, *, bos: bool = False, special: bool = False, goes_on: bool = False) -> Any:
        """Ids, int32. bos: put the token before them that begins a text. special: special tokens in the text are
        special; only for text you trust. goes_on: it goes on behind a text that was tokenized before."""
        flags = ((_flat.KVC_ADD_BOS * bool(bos)) | (_flat.KVC_PARSE_SPECIAL * bool(special))
                 | (_flat.KVC_CONTINUE * bool(goes_on)))
        return fetch("i", len(text) + 16, lambda into: self._handle.call(_flat.kvc_tokenize, text, flags, into))

    def detokenize(self, tokens: Tokens) -> str:
        """The text of ids; bytes that are no whole character become U+FFFD."""
        return self.detokenize_bytes(tokens).decode("utf-8", "replace")

    def detokenize_bytes(self, tokens: Tokens) -> bytes:
        """The bytes of ids as the tokens have them, which need not be whole characters. For grammar engines those of a
        token behind another: the first of a text may lose the space that it begins with."""
        ids = as_tokens(tokens)
        return fetch_bytes(8 * len(ids) + 16, lambda into: self._handle.call(_flat.kvc_detokenize, ids, into))

    def prompt(self, text: str | bytes) -> Any:
        """Ids of a text that begins a session, with BOS where the model wants one."""
        if self._begins_with_bos is None:
            self._begins_with_bos = bool(self.describe().get("tokenizer", {}).get("add_bos", True))
        return self.tokenize(text, bos=self._begins_with_bos)

    def session(self, policy: Spec = None, *, max_tokens: int = 0, on_full: OnFull = "error", top_k: int = 0,
                top_p: float = 0.0, temperature: float = 0.0, seed: int = 0, min_p: float = 0.0,
                repeat_penalty: float = 0.0, repeat_window: int = 0) -> Session:
        """A session. policy: a spec or a Policy, None = keep everything. max_tokens: prompt and answer, 0 = the trained
        context, or 2^26 where the policy drops at steps and counts positions in slots (streaming). on_full: what
        happens then, "error" ContextFullError, "evict" old entries leave, "slide" the same for an endless conversation.
        The rest is set_sampling's."""
        from ._session import Session
        params = session_params(max_tokens, on_full, top_k, top_p, temperature, seed)
        made = Session(self, self._handle, lambda: self._with_policy(policy, _flat.kvc_session_create, params))
        if min_p or repeat_penalty or repeat_window:  # for which the params of a session have no place
            try:
                made.set_sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, min_p=min_p,
                                  repeat_penalty=repeat_penalty, repeat_window=repeat_window)
            except BaseException:
                made.close()
                raise
        return made

    def plan(self, policy: Spec, n_prompt: int, *, max_tokens: int = 0, on_full: OnFull = "error") -> Plan:
        """What a session for a prompt of so many tokens would take, without taking it."""
        params = session_params(max_tokens, on_full, 0, 0.0, 0.0, 0)
        raw = _flat.kvc_plan()
        guess = self.info.n_layers * self.info.n_kv_heads
        slots = fetch("i", guess, lambda into: self._with_policy(
            policy, _flat.kvc_session_plan, params, n_prompt, raw, into))
        if numpy is not None:
            slots = slots.reshape(self.info.n_layers, self.info.n_kv_heads)
        return Plan(slots=slots, **{name: getattr(raw, name) for name in Plan._fields[:-1]})

    def _with_policy(self, policy: Spec, function: Any, *arguments: Any) -> Any:
        if policy is None:
            return self._handle.call(function, None, *arguments)
        if isinstance(policy, str):
            with Policy(policy) as made:
                return self._with_policy(made, function, *arguments)
        if not isinstance(policy, Policy):
            raise TypeError(f"a policy is a spec, a Policy or None, not {type(policy).__name__}")
        return policy._handle.call(lambda native: self._handle.call(function, native, *arguments))

    def restore(self, path: Path) -> Session:
        """Continues a session that Session.save wrote with this model."""
        from ._session import Session
        name = os.fsencode(path)
        return Session(self, self._handle, lambda: self._handle.call_long(_flat.kvc_session_restore, name))

    def restore_memory(self, data: Any) -> Session:
        """Continues a session that Session.save_memory gave with this model."""
        from ._session import Session
        return Session(self, self._handle, lambda: self._handle.call_long(_flat.kvc_session_restore_memory, data))


def _aligned(data: memoryview) -> memoryview:
    alignment = 64
    if not data or _flat.kvc_py_address(data) % alignment == 0:
        return data
    whole = bytearray(len(data) + alignment)
    begin = -_flat.kvc_py_address(whole) % alignment
    aligned = memoryview(whole)[begin:begin + len(data)]
    aligned[:] = data
    return aligned.toreadonly()


class Loader(Owner):
    """Opens models while other threads ask how far it is. One at a time, any number one after the other."""

    def __init__(self) -> None:
        self._handle = Handle(self, _flat.kvc_loader_create(), _flat.kvc_loader_close, _flat.kvc_loader_cancel,
                              _flat.kvc_loader_clear_cancel)

    def close(self) -> None:
        """Ends an open that runs. Models that were opened stay open."""
        self._handle.close()

    def open(self, path: Path, device: str | None = None, *, threads: int = 0, memory_limit: int = 0,
             trusted: bool = False, plan_only: bool = False) -> Model:
        """As Model(path)."""
        params = _model_params(threads, memory_limit, trusted, plan_only)
        return self._made(_flat.kvc_loader_open, os.fsencode(path), device, params)

    def open_fd(self, fd: int, offset: int = 0, size: int = 0, device: str | None = None, *, threads: int = 0,
                memory_limit: int = 0, trusted: bool = False, plan_only: bool = False) -> Model:
        """As Model.from_fd."""
        params = _model_params(threads, memory_limit, trusted, plan_only)
        return self._made(_flat.kvc_loader_open_fd, fd, offset, size, device, params)

    def _made(self, function: Any, *arguments: Any) -> Model:
        model = Model.__new__(Model)
        model._open(self._handle.call_long(function, *arguments))
        return model

    @property
    def progress(self) -> float:
        """Share of the open that runs, 0 to 1; 1 = none runs."""
        return float(self._handle.call(_flat.kvc_loader_get_progress))

    def cancel(self) -> None:
        """The running open, or else the next one, raises CancelledError."""
        self._handle.call(_flat.kvc_loader_cancel)

    def clear_cancel(self) -> None:
        """Withdraws a cancel that came too late."""
        self._handle.withdraw()


def as_tokens(tokens: Tokens) -> Any:
    """Ids as the library reads them: buffers of int32 as they are, all else as integers."""
    return tokens if hasattr(tokens, "__len__") else tuple(tokens)
