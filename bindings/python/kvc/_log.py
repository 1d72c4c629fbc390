"""The library's log, for those who ask for it: no call goes from C into Python."""
from __future__ import annotations

import logging

from . import _flat

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def log_start(level: int = logging.INFO) -> None:
    """Keeps the library's lines of a level of the logging module and above for log_poll, the newest 256."""
    _flat.kvc_log_start(next((i for i, known in enumerate(_LEVELS) if level <= known), len(_LEVELS) - 1))


def log_stop() -> None:
    """Silent again. Lines that were kept can still be polled."""
    _flat.kvc_log_stop()


def log_poll() -> list[tuple[int, str]]:
    """Takes the lines that were kept: levels of the logging module and texts, the oldest first."""
    lines: list[tuple[int, str]] = []
    buffer = bytearray(1024)  # longer than any
    while True:
        level, n = _flat.kvc_log_poll(buffer)
        if level < 0:
            return lines
        lines.append((_LEVELS[level], buffer[:n].decode("utf-8", "replace")))
