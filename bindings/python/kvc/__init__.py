"""Language models on a compressed KV cache, with libkvc.

    import kvc
    with kvc.Model("recall.kvc") as model, model.session("snapkv:budget=64,window=8") as session:
        for text in session.generate("The code of Robin is 386. The code of Robin is", max_tokens=4):
            print(text, end="", flush=True)

A Model may be used by any number of threads at once, a Session by one at a time (a second one gets BusyError), but for
cancel, clear_cancel, progress and close. close() may come at any time, twice, or never; what is closed raises
ClosedError. The GIL is free during every call of the library. Arrays are numpy's where numpy is installed, else those
of the standard library; arrays of int32 and float32 that you give are read and filled where they are.

For those who know kvpress: kvc.kept tells what a policy keeps of a prompt, kvc.eval what it costs.
"""
from ._log import log_poll, log_start, log_stop
from ._model import (Loader, Model, ModelInfo, Plan, Policy, describe_method, devices, measure_device, methods,
                     schema_version)
from ._native import (BadModelError, BufferTooSmallError, BusyError, CancelledError, ClosedError, ContextFullError,
                      DeviceError, Error, FileError, InvalidError, NotFoundError, OutOfMemoryError, Status,
                      UnsupportedError, version)
from ._research import Result, eval as eval, kept  # pylint: disable=redefined-builtin,useless-import-alias
from ._session import READING, Session, Stats, batch_logits, batch_step, draft_lookup

__version__ = version()
__all__ = [
    "BadModelError", "BufferTooSmallError", "BusyError", "CancelledError", "ClosedError", "ContextFullError",
    "DeviceError", "Error", "FileError", "InvalidError", "Loader", "Model", "ModelInfo", "NotFoundError",
    "OutOfMemoryError", "Plan", "Policy", "READING", "Result", "Session", "Stats", "Status", "UnsupportedError",
    "batch_logits", "batch_step", "describe_method", "devices", "draft_lookup", "kept", "log_poll", "log_start",
    "log_stop", "measure_device", "methods", "schema_version", "version"]  # not eval, which is a name of Python's too
