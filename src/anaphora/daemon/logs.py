"""The daemon's log: one JSON object a line, with the id of the request that it is about.

    {"time":"2026-11-16T10:00:00.123Z","level":"info","message":"request","request_id":"req_…",…}

Lines are written by a thread, so that a full pipe or a slow disk delays no call. There are no
bodies, headers and query strings in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from anaphora.errors import Io
from anaphora.wording import visible_json

REQUEST_ID: ContextVar[str] = ContextVar("anaphora_request_id", default="")
"""Of the request that is being answered: part of each line that is logged meanwhile."""

#: Lines that wait to be written; further ones are counted and left out.
_MOST_WAITING = 10_000
#: Seconds in which lines are collected, to be written together.
_COLLECT_SECONDS = 0.05
_encode = msgspec.json.Encoder().encode


class JsonLog:
    """Writes to standard output, or to a file that `reopen` opens again after it was renamed."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._descriptor = _opened(file)
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._closed = False
        self._second = (0, "")
        self._thread = threading.Thread(target=self._run, name="anaphora-log", daemon=True)
        self._thread.start()

    def _timestamp(self, seconds: float) -> str:
        whole = int(seconds)
        second, text = self._second
        if second != whole:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
            self._second = whole, text
        return f"{text}.{int((seconds - whole) * 1000):03d}Z"

    def line(self, level: str, message: str, /, **fields: Any) -> None:
        """Takes a line, without waiting."""
        if len(self._waiting) >= _MOST_WAITING:
            self._left_out += 1
            return
        row = {"time": self._timestamp(time.time()), "level": level, "message": message}
        if "request_id" not in fields and (request_id := REQUEST_ID.get()):
            row["request_id"] = request_id
        row |= fields
        self._waiting.append(visible_json(_encode(row)))
        if not self._wake.is_set():
            self._wake.set()

    def reopen(self) -> None:
        """After a rotation: further lines go to a new file of the same name."""
        if self._file is not None:
            opened = _opened(self._file)
            with self._writing:
                os.dup2(opened, self._descriptor)
                os.close(opened)

    def close(self) -> None:
        """Writes what waits."""
        self._closed = True
        self._wake.set()
        self._thread.join(5.0)
        with self._writing:
            if self._file is not None and self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait()
            if not self._closed:
                time.sleep(_COLLECT_SECONDS)
            self._wake.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._waiting.popleft())
        left_out, self._left_out = self._left_out, 0
        if left_out:
            text = f"{left_out:,} log lines were left out: the log is written too slowly"
            row = {"time": self._timestamp(time.time()), "level": "warning", "message": text}
            lines.append(_encode(row))
        data = memoryview(b"".join(line + b"\n" for line in lines))
        # A full disk or a closed pipe must not end the daemon.
        with self._writing, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._descriptor, data) :]


def _opened(file: Path | None) -> int:
    if file is None:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Io(f"{file}: the log cannot be opened: {error.strerror or error}") from None


class _Handler(logging.Handler):
    """Passes what is logged through `logging` to the JSON log, without exceptions: their messages
    may quote a prompt."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            message, _, trace = record.getMessage().partition("\n")
            more = {"trace": trace} if trace else {}
            self._log.line(record.levelname.lower(), message, logger=record.name, **more)


@contextlib.contextmanager
def logging_to(log: JsonLog) -> Iterator[None]:
    """What the package logs goes to `log` while the block runs."""
    handler, logger = _Handler(log), logging.getLogger("anaphora")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
