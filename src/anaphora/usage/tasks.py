"""The tasks of `usage`: to read on in a file, and to find what the calls of a session lost.

Tasks and results have no text of prompts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

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


class JudgedSession(msgspec.Struct, frozen=True):
    losses: list[list[CallLoss]]
    """Of each file."""
    notices: list[str]
    """Why calls were not judged."""


class ReadTask(msgspec.Struct, frozen=True):
    """To read on in a file."""

    program: ProgramName
    path: str
    known: bytes
    state: FileState
    size: int


class JudgeTask(msgspec.Struct, frozen=True):
    """To find what the calls of a session lost."""

    mark: bytes
    size: int
    files: list[Unjudged]


class Failed(msgspec.Struct, frozen=True):
    """A file that cannot be read."""

    reason: str


Task: TypeAlias = ReadTask | JudgeTask
Done: TypeAlias = FilePiece | JudgedSession | Failed


def work(tasks: list[Task]) -> list[Done]:
    return [_done(task) for task in tasks]


def _done(task: Task) -> Done:
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
        for entry in answers.once(path, trace.read(program, lines)):
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
