"""Processes that read and judge session files.

Each is a fresh interpreter, not a fork: a fork of a process with threads (a progress display) may
hang, and the interpreters of `multiprocessing` import the user's script again. Tasks and answers
are packed values without text of prompts, each after its length.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from anaphora.analysis import trace
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry
from anaphora.analysis.trace.programs import ProgramName
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.catalog.pricing import PriceBook

from .causes import losses
from .index import Unjudged
from .log_files import records_of
from .pieces import FilePiece, FileState, read_piece
from .records import CallLoss

_LENGTH = 8


class JudgedSession(msgspec.Struct, frozen=True, array_like=True, tag=True):
    losses: list[list[CallLoss]]
    """Of each file."""
    notices: list[str]
    """Why calls were not judged."""


class ReadTask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To read on in a file."""

    program: ProgramName
    path: str
    known: bytes
    state: FileState
    size: int


class JudgeTask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To find what the calls of a session lost."""

    mark: bytes
    size: int
    files: list[Unjudged]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A file that cannot be read."""

    reason: str


Task: TypeAlias = ReadTask | JudgeTask
Done: TypeAlias = FilePiece | JudgedSession | Failed


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    done: list[Done]
    cpu: float
    """Seconds that the work took."""


_pack = msgspec.msgpack.Encoder().encode
_unpack_tasks = msgspec.msgpack.Decoder(list[Task]).decode
_unpack_answer = msgspec.msgpack.Decoder(_Answer).decode


def work(task: Task) -> Done:
    try:
        if isinstance(task, ReadTask):
            return read_piece(task.path, task.program, task.known, task.state)
        return judged_session(task.files)
    except OSError as problem:
        return Failed(f"cannot be read: {problem.strerror or problem}")


def judged_session(files: Sequence[Unjudged]) -> JudgedSession:
    """What the calls of a session lost, which may have several files: subagents write their own.
    Raises `OSError`."""
    entries: list[TraceEntry] = []
    owners: dict[bytes, int] = {}
    for number, (path, program, kept_elsewhere) in enumerate(files):
        answers = AnswerIndex(kept_elsewhere)
        lines = records_of(Path(path), [])  # problems are named with the bills
        for entry in answers.once(path, trace.read(program, iter(lines))):
            if isinstance(entry, FoundTrace):
                entries.append(entry)
                owners.update((answer.key, number) for answer in entry.answers)
    found: list[list[CallLoss]] = [[] for _ in files]
    notices: dict[str, None] = {}
    for one in losses(entries, PriceBook(time.time()), LearnedSteps()):
        if isinstance(one, Problem):
            notices[one.reason] = None
        elif one.key in owners:
            found[owners[one.key]].append(one)
    return JudgedSession(found, [*notices])


class UsageWorkers:
    """Does tasks in some order. `count` 0: in this process, one after the other."""

    def __init__(self, count: int) -> None:
        self.cpu = 0.0
        """Seconds of work in the processes, without their start."""
        self._waiting: deque[list[Task]] = deque()
        self._jobs: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[list[Task], list[Done] | int | None]]
        self._done = queue.SimpleQueue()
        """With the results, or the exit code of a process that has died."""
        self._busy = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._drive, name="anaphora usage", daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: list[Task]) -> None:
        self._busy += 1
        if self._threads:
            self._jobs.put(tasks)
        else:
            self._waiting.append(tasks)

    @property
    def busy(self) -> bool:
        return self._busy > 0

    def next(self) -> list[tuple[Task, Done]]:
        """The next tasks that are done, with their results."""
        if not self._threads:
            tasks = self._waiting.popleft()
            done = [work(task) for task in tasks]
        else:
            tasks, answered = self._done.get()
            done = answered if isinstance(answered, list) else self._failed(tasks, answered)
        self._busy -= 1
        return [*zip(tasks, done, strict=True)]

    def _failed(self, tasks: list[Task], code: int | None) -> list[Done]:
        """After a process has died: its files again, one by one."""
        if len(tasks) == 1:
            return [Failed(f"the process that read it ended with {code}")]
        for task in tasks:
            self.submit([task])
        tasks.clear()
        return []

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
        while (tasks := self._jobs.get()) is not None and not self._stopped:
            try:
                process = process or self._start()
                answer = self._ask(process, tasks)
                self.cpu += answer.cpu
                self._done.put((tasks, answer.done))
            except (OSError, EOFError, msgspec.DecodeError):
                code = None if process is None else _end(process)
                process = None
                self._done.put((tasks, code))
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
        self._processes.append(process)
        if self._stopped:
            process.kill()
        return process

    def _ask(self, process: subprocess.Popen[bytes], tasks: list[Task]) -> _Answer:
        assert process.stdin is not None
        assert process.stdout is not None
        _write(process.stdin, _pack(tasks))
        return _unpack_answer(_read(process.stdout))


def _end(process: subprocess.Popen[bytes]) -> int:
    with process:  # closes its pipes: it ends
        process.kill()
    return process.returncode


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Raises `EOFError` at the end."""
    head = pipe.read(_LENGTH)
    size = int.from_bytes(head, "big")
    data = pipe.read(size) if len(head) == _LENGTH else b""
    if len(head) < _LENGTH or len(data) < size:
        raise EOFError
    return data


def serve() -> None:
    """In a process of its own: does tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # so that nothing else gets between the answers
        while True:
            try:
                tasks = _unpack_tasks(_read(sys.stdin.buffer))
            except EOFError:
                return
            began = time.process_time()
            done = [work(task) for task in tasks]
            _write(answers, _pack(_Answer(done, time.process_time() - began)))


def batches(tasks: Sequence[Task], most: int) -> list[list[Task]]:
    """The tasks in lists of at most so many bytes, the largest first."""
    found: list[list[Task]] = []
    total = 0
    for task in sorted(tasks, key=lambda one: -one.size):
        if not found or total + task.size > most:
            found.append([])
            total = 0
        found[-1].append(task)
        total += task.size
    return found
