"""The compiled half: found, checked, its errors, and handles that outlive no call."""
from __future__ import annotations

import array
import enum
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Sequence, Type

if TYPE_CHECKING:
    from typing import Self

try:
    from . import _flat
except ImportError as failed:
    _folder = os.path.dirname(os.path.abspath(__file__))
    raise ImportError(
        f"kvc cannot load its native library: {failed}. Looked for the compiled module _flat and for libkvc.so.0 in "
        f"{_folder} (where a wheel has both), then for libkvc.so.0 in LD_LIBRARY_PATH="
        f"{os.environ.get('LD_LIBRARY_PATH', '')!r} and in the folders of the system's loader") from failed

numpy: Any
try:
    import numpy as _numpy
    numpy = _numpy
except ImportError:  # then arrays are those of the standard library
    numpy = None


def _text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def version() -> str:
    """Of the libkvc that is loaded, as "0.1.0"."""
    return _text(_flat.kvc_version())


def check_version(compiled: int, loaded: int) -> None:
    """Refuses a library whose functions and structs may be others than those this package was compiled for. A later
    minor version has all of an earlier one; before 1.0 they do not promise that."""
    if compiled < 10000:
        fits = compiled // 100 == loaded // 100
    else:
        fits = compiled // 10000 == loaded // 10000 and loaded >= compiled
    if not fits:
        raise ImportError(f"this package was built for libkvc {_text(compiled)} and has loaded libkvc {_text(loaded)}: "
                          "install both from one release, or let the loader find the right libkvc.so.0 "
                          "(LD_LIBRARY_PATH)")


check_version(_flat.KVC_VERSION, _flat.kvc_version())


class Status(enum.IntEnum):
    """What kind of failure an Error is: KVC_E_* of kvc.h."""

    INVALID = -1
    MEMORY = -2
    IO = -3
    BAD_MODEL = -4
    UNSUPPORTED = -5
    NOT_FOUND = -6
    BUFFER_TOO_SMALL = -7
    CONTEXT_FULL = -8
    CANCELLED = -9
    DEVICE = -10
    BUSY = -11
    INTERNAL = -99


class Error(Exception):
    """A call that the library refused or could not finish. Its subclasses say which kind; status too."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = Status(status) if status in Status._value2member_map_ else Status.INTERNAL
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({_flat.kvc_status_name(int(self.status))})"


class InvalidError(Error, ValueError):
    """An argument is wrong; the message says which and what is right."""


class OutOfMemoryError(Error, MemoryError):
    """No memory left, or the memory_limit of the model is reached."""


class FileError(Error):
    """A file cannot be read or written."""


class BadModelError(Error):
    """The model file is damaged, or newer than the library."""


class UnsupportedError(Error):
    """Not by this build, this device or this model."""


class NotFoundError(Error, LookupError):
    """No such method, no such head scores, nothing under this index."""


class BufferTooSmallError(Error, ValueError):
    """An array the caller gave is too small."""


class ContextFullError(Error):
    """max_tokens are held, and on_full is "error"."""


class CancelledError(Error):
    """cancel() ended the call."""


class DeviceError(Error):
    """The device failed."""


class BusyError(Error):
    """Another thread uses the session."""


class ClosedError(ValueError):
    """The object, or what it belongs to, is closed: the message says which."""


_KINDS: dict[int, Type[Error]] = {
    Status.INVALID: InvalidError, Status.MEMORY: OutOfMemoryError, Status.IO: FileError,
    Status.BAD_MODEL: BadModelError, Status.UNSUPPORTED: UnsupportedError, Status.NOT_FOUND: NotFoundError,
    Status.BUFFER_TOO_SMALL: BufferTooSmallError, Status.CONTEXT_FULL: ContextFullError,
    Status.CANCELLED: CancelledError, Status.DEVICE: DeviceError, Status.BUSY: BusyError}


for _kind in (Error, ClosedError, *_KINDS.values()):
    _kind.__module__ = "kvc"  # the name that users see and write


def make_error(status: int, message: str) -> Error:
    return _KINDS.get(status, Error)(status, message)


_flat.kvc_py_set_error(make_error)


def empty(kind: str, n: int) -> Any:
    """n elements to fill: "i" int32, "f" float32. numpy's where there is numpy."""
    if numpy is not None:
        return numpy.empty(n, numpy.int32 if kind == "i" else numpy.float32)
    return array.array(kind, bytes(4 * n))


def fetch(kind: str, guess: int, call: Callable[[Any], Any]) -> Any:
    """Elements whose number the library knows: into guess of them, and again where that is too few."""
    while True:
        into = empty(kind, guess)
        n = call(into if guess else None)
        if n <= guess:
            return into[:n]
        guess = n


def fetch_bytes(guess: int, call: Callable[[Any], Any]) -> bytes:
    while True:
        into = bytearray(guess)
        n = call(into)
        if n <= guess:
            del into[n:]
            return bytes(into)
        guess = n


def fetch_text(call: Callable[[Any], Any]) -> str:
    return fetch_bytes(4096, call).decode("utf-8", "replace")


def interruptible(call: Callable[[], Any], stop: Callable[[Callable[[], None]], None] | None) -> Any:
    """Makes a call that a signal's exception ends: stop(wait) cancels it and waits for its end. None: nothing can stop
    it, and it is left to itself; what it makes then is dropped. Python runs handlers of signals in the main thread
    between its own instructions only, so the call is made in another thread."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: list[Any] = []
    failure: list[BaseException] = []
    begun, done = threading.Lock(), threading.Lock()
    done.acquire()
    alone = False

    def work() -> None:
        if not begun.acquire(blocking=False):
            return  # interrupted before: nobody waits for the call, and it is not made
        try:
            result.append(call())
        except BaseException as failed:  # pylint: disable=broad-except
            failure.append(failed)
        finally:
            done.release()

    def wait() -> None:
        # What was done is the state, the lock only wakes: a signal's exception can come right behind an acquire.
        while not (result or failure):
            done.acquire(timeout=0.1)

    try:
        try:
            threading.Thread(target=work, name="kvc", daemon=True).start()
        except RuntimeError:  # no more threads to be had
            alone = True
        if not alone:
            wait()
    except BaseException:
        if not begun.acquire(blocking=False) and stop is not None:
            stop(wait)
        raise
    if alone:
        return call()
    if failure:
        try:
            raise failure[0]
        finally:
            failure.clear()  # else the exception and this frame would keep each other alive
    return result[0]


class Handle:
    """What the library gave. It is given back by close(), or by the last call that still uses it then.

    Those who use it are in a set, so that a call cut off by a signal's exception takes itself out once or twice alike,
    and code of a handler, which may close between any two lines, finds it whole."""

    __slots__ = ("pointer", "users", "closing", "lock", "free", "cancel", "clear_cancel", "memory", "what",
                 "__weakref__")

    def __init__(self, owner: object, pointer: Any, free: Callable[[Any], None],
                 cancel: Callable[[Any], None] | None = None,
                 clear_cancel: Callable[[Any], None] | None = None, memory: object = None) -> None:
        self.pointer, self.closing, self.lock = pointer, False, threading.RLock()
        self.users: set[object] = set()
        self.free, self.cancel, self.clear_cancel = free, cancel, clear_cancel
        self.memory = memory  # what the library reads while this is open
        self.what = type(owner).__name__.lower()  # in messages
        weakref.finalize(owner, self.close)  # also at the end of the interpreter

    def enter(self, use: object) -> Any:
        """The pointer, for as long as use is among the users: leave takes it out, however often it is asked."""
        self.users.add(use)
        if self.closing:
            raise self.closed()
        return self.pointer

    def closed(self) -> ClosedError:
        return ClosedError(f"the {self.what} is closed")

    def closed_meanwhile(self) -> ClosedError:
        return ClosedError(f"the {self.what} was closed during the call")

    def leave(self, use: object) -> None:
        self.users.discard(use)
        if self.closing and not self.users:
            self._give_back()

    def close(self) -> None:
        """Ends a call that runs in another thread; that one gives back."""
        with self.lock:
            self.closing = True
            if not self.users:
                self._give_back()
            elif self.cancel is not None and self.pointer is not None:
                self.cancel(self.pointer)

    def _give_back(self) -> None:
        with self.lock:  # not while close cancels, and once
            pointer, self.pointer = self.pointer, None
            if pointer is not None:
                self.free(pointer)
                self.memory = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        use = object()
        try:
            return function(self.enter(use), *arguments)
        except CancelledError:
            if self.closing:
                raise self.closed_meanwhile() from None
            raise
        finally:
            self.users.discard(use)  # no function of Python's: a signal's exception could come at its first line
            if self.closing and not self.users:
                self._give_back()

    def call_long(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The same for what may take long: a signal's exception, as of Ctrl-C, ends it."""
        return interruptible(lambda: self.call(function, *arguments), None if self.cancel is None else self._stop)

    def _stop(self, wait: Callable[[], None]) -> None:
        stop_all((self,), wait)

    def withdraw(self) -> None:
        """Takes a cancel back, but not that of close, which comes before or behind."""
        assert self.clear_cancel is not None
        with self.lock:
            self.call(self.clear_cancel)

    def ask(self, function: Callable[[Any], None] | None) -> None:
        """For what may have been closed."""
        try:
            if function is not None:
                self.call(function)
        except ClosedError:
            pass  # closing cancels too


def stop_all(handles: Sequence[Handle], wait: Callable[[], None]) -> None:
    """Cancels the call that all of them are in, and waits for its end. What of it came too late is withdrawn."""
    asked = False
    while True:
        try:
            if not asked:
                for handle in handles:
                    handle.ask(handle.cancel)
                asked = True
            wait()
            for handle in handles:
                handle.ask(handle.clear_cancel)
            return
        except BaseException:  # pylint: disable=broad-except
            continue  # impatience: the call is ending already


class Owner:
    """What has a Handle: a context manager that one object has, and no copy or pickle of it."""

    _handle: Handle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"a kvc.{type(self).__name__} cannot be copied or pickled")

    def close(self) -> None:
        """Gives it back: any number of times, at any time."""
        self._handle.close()

    def __repr__(self) -> str:
        closed = not hasattr(self, "_handle") or self._handle.closing  # or never opened
        return f"<kvc.{type(self).__name__}{', closed' if closed else self._about()}>"

    def _about(self) -> str:
        return ""  # nothing that a thread at work would hear of as BusyError
