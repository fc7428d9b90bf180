"""Processes on this machine that call functions.

    with WorkProcesses(2) as processes:
        for result in processes.each(function, [(argument,), …]): ...

Each is a fresh interpreter, not a fork: a fork of a process with threads (a progress display) may
hang, and the interpreters of `multiprocessing` import the user's script again. Calls and results
are pickled, each after its length. Ctrl-C reaches this process only, which then ends the others.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, TypeAlias, TypeVar

from anaphora.errors import Io

T = TypeVar("T")
_LENGTH = 8
#: How often a call is made whose process was killed.
_TRIES = 3

WorkCall: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def processors() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Died(NamedTuple):
    """The result of a call whose process ended."""

    code: int | None


class WorkProcesses:
    """Makes calls in some order. `count` 0: in this process, one after the other."""

    def __init__(self, count: int) -> None:
        self.cpu = 0.0
        """Seconds of work in the processes, without their start."""
        self._waiting: deque[WorkCall] = deque()
        self._jobs: queue.SimpleQueue[WorkCall | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[WorkCall, Any]] = queue.SimpleQueue()
        self._busy = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._drive, name="anaphora usage", daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> WorkProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._busy += 1
        call = function, arguments
        if self._threads:
            self._jobs.put(call)
        else:
            self._waiting.append(call)

    @property
    def busy(self) -> bool:
        return self._busy > 0

    def next(self) -> tuple[tuple[Any, ...], Any]:
        """The arguments of the next call that is done, and its result. Raises its exception."""
        if self._threads:
            (_, arguments), result = self._done.get()
        else:
            function, arguments = self._waiting.popleft()
            result = function(*arguments)
        self._busy -= 1
        if isinstance(result, Exception):
            raise result
        return arguments, result

    def each(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> Iterator[T]:
        """The result of each call, in the order of the calls. A call whose process was killed is
        made again. Raises `Io` if it was killed too often."""
        if not self._threads:
            yield from (function(*arguments) for arguments in calls)
            return
        tries, done = [0] * len(calls), dict[int, T]()
        for number, arguments in enumerate(calls):
            self.submit(_numbered, number, function, arguments)
        for wanted in range(len(calls)):
            while wanted not in done:
                (number, _, arguments), result = self.next()
                if not isinstance(result, Died):
                    done[number] = result
                    continue
                tries[number] += 1
                if tries[number] == _TRIES:
                    raise Io(f"a process was killed {_TRIES} times: out of memory?")
                self.submit(_numbered, number, function, arguments)
            yield done.pop(wanted)

    def stop(self) -> None:
        """Ends the processes, at once if they are at work."""
        self._stopped = True
        for _ in self._threads:
            self._jobs.put(None)
        for process in self._processes:
            if self._busy:
                process.kill()
        for thread in self._threads:
            thread.join()

    # ── A thread for each process ────────────────────────────────────────────────────────────────

    def _drive(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        while (call := self._jobs.get()) is not None and not self._stopped:
            try:
                process = process or self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                _write(process.stdin, call)
                result, cpu = _read(process.stdout)
                self.cpu += cpu
            except (OSError, EOFError, pickle.UnpicklingError):
                result = Died(None if process is None else _end(process))
                process = None
            self._done.put((call, result))
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, process_group=0
        )
        self._processes.append(process)
        if self._stopped:
            process.kill()
        return process


def _numbered(_: int, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    return function(*arguments)


def _end(process: subprocess.Popen[bytes]) -> int:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes its pipes
        pass
    return process.wait()


def _write(pipe: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    pipe.write(len(data).to_bytes(_LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    """Raises `EOFError` at the end."""
    head = pipe.read(_LENGTH)
    size = int.from_bytes(head, "big")
    data = pipe.read(size) if len(head) == _LENGTH else b""
    if len(head) < _LENGTH or len(data) < size:
        raise EOFError
    return pickle.loads(data)


def serve() -> None:
    """In a process of its own: makes calls until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as answers, suppress(EOFError, BrokenPipeError):
        os.dup2(2, 1)  # so that nothing else gets between the answers
        while True:
            function, arguments = _read(sys.stdin.buffer)
            began = time.process_time()
            try:
                result = function(*arguments)
            except Exception as problem:
                result = problem
            _write(answers, (result, time.process_time() - began))
