"""What agent programs on this machine cost: from session files to a report.

    report = usage(UsageQuery(by="daily"), causes=True)

Files are read through an index in the user's cache folder, so a later run reads only what was
appended. With many bytes to read, several processes read them.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from anaphora.analysis.trace.log_lines import Problem
from anaphora.catalog.pricing import PriceBook
from anaphora.errors import InvalidConfig
from anaphora.wording import counted

from .index import UsageIndex, index_file, remove_index
from .pieces import PIECE, FilePiece, ReadPosition, file_state, is_unchanged, pack, unpack_position
from .places import SessionFile, session_files
from .processes import Died, WorkProcesses, processors
from .records import COUNTS, usage_of
from .report import UsageReport
from .sums import UsageQuery, usage_report
from .tasks import (
    Done,
    Failed,
    JudgedSession,
    JudgeTask,
    ReadTask,
    Task,
    batches,
    work,
)

#: Bytes from which on the work is worth the start of processes.
_MANY_TO_READ, _MANY_TO_JUDGE = 100_000_000, 20_000_000
#: Bytes of files that are read or judged by one task.
_BATCH_TO_JUDGE = 2_000_000


_Doing: TypeAlias = Literal["reading", "judging"]


class UsageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the work is."""

    doing: _Doing
    files: int
    all_files: int
    bytes: int
    all_bytes: int
    usd: float
    """The cost of the calls that were read so far, at about their prices."""


Progress = Callable[[UsageProgress], None]


def usage(
    query: UsageQuery | None = None,
    files: Iterable[SessionFile] | None = None,
    *,
    causes: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    index: Path | None = None,
) -> UsageReport:
    """Sums the calls in session files, by default in those of all programs on this machine.

    `causes` looks for lost caches; `processes` is by default the number of processors; `index` is
    by default a file in the user's cache folder. Ctrl-C ends the work, not the report: it has what
    is known so far, and is not `complete`.
    """
    problems: list[Problem] = []
    if files is None:
        files = session_files((), os.environ, Path.home(), problems)
    (report,) = usage_reports(
        [query or UsageQuery()],
        files,
        causes=causes,
        progress=progress,
        processes=processes,
        index=index,
    )
    report.problems = (*map(str, problems), *report.problems)
    return report


def usage_reports(
    queries: Sequence[UsageQuery],
    files: Iterable[SessionFile],
    *,
    causes: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
    index: Path | None = None,
) -> list[UsageReport]:
    """`usage` for several queries: the files are read once."""
    collector = _Collector(queries, files, progress, processes)
    notices: list[str] = []
    path = _index_path(index, notices)
    while True:
        try:
            with closing(UsageIndex(path)) as opened:
                reports = collector.reports(opened, causes=causes)
            for report in reports:
                report.notices = (*notices, *report.notices)
            return reports
        except (OSError, sqlite3.Error) as problem:
            if path is None:
                raise
            is_usable = isinstance(problem, OSError | sqlite3.OperationalError)
            if not is_usable and not notices:
                remove_index(path)
                notices.append(f"{path}: {problem}; the index was made anew")
            else:
                reason = problem.strerror if isinstance(problem, OSError) else None
                notices.append(f"{path}: {reason or problem}; nothing is kept for the next run")
                path = None


def _index_path(index: Path | None, notices: list[str]) -> Path | None:
    try:
        return index or index_file()
    except InvalidConfig as problem:
        notices.append(f"{problem}; nothing is kept for the next run")
        return None


class _Collector:
    def __init__(
        self,
        queries: Sequence[UsageQuery],
        files: Iterable[SessionFile],
        progress: Progress | None,
        processes: int | None,
    ) -> None:
        self._queries, self._progress = queries, progress
        self._processes = processors() if processes is None else processes
        self._files = {os.path.abspath(file.path): file for file in files}
        self._prices = PriceBook(time.time())

    def reports(self, index: UsageIndex, *, causes: bool) -> list[UsageReport]:
        self._problems: dict[str, list[str]] = {path: [] for path in self._files}
        self._summed = dict.fromkeys(self._files)
        self._usd = 0.0
        self._notices: list[str] = []
        complete = True
        try:
            self._read(index)
            if causes:
                self._judge(index)
        except KeyboardInterrupt:
            complete = False
        with index.counted(self._summed):
            now = time.time()
            reports = [
                usage_report(index, query, now=now, with_causes=causes) for query in self._queries
            ]
            self._notices += index.notices() if causes else ()
        for report in reports:
            report.problems = tuple(one for found in self._problems.values() for one in found)
            report.notices = tuple(sorted(self._notices))
            report.files = len(self._summed)
            report.complete = complete
        return reports

    # ── Bills ────────────────────────────────────────────────────────────────────────────────────

    def _read(self, index: UsageIndex) -> None:
        known = index.known()
        gone = [path for path in known if path not in self._files and not os.path.exists(path)]
        if gone:
            index.forget(gone)
        tasks: list[Task] = []
        for path, file in self._files.items():
            try:
                state = file_state(file)
            except OSError as problem:
                self._fail(path, f"cannot be read: {problem.strerror or problem}")
                continue
            packed = known.get(path, b"")
            position = unpack_position(packed) if packed else ReadPosition()
            if packed and is_unchanged(position, state):
                self._note(path, position)
            else:
                left = state.size - (position.offset if position.size <= state.size else 0)
                tasks.append(ReadTask(file.program, path, packed, state, left))
        self._do(index, tasks, "reading", PIECE, _MANY_TO_READ)

    def _fail(self, path: str, reason: str) -> None:
        self._problems[path].append(f"{path}: {reason}")
        self._summed.pop(path, None)

    def _note(self, path: str, position: ReadPosition) -> None:
        """Notes broken lines of a file that was read."""
        problems = self._problems[path]
        problems += position.problems
        if more := position.broken - len(position.problems):
            problems.append(f"{path}: {counted(more, 'more broken line')}")
        if position.unfinished:
            lines = counted(position.lines, "line")
            self._notices.append(f"{path}: the last line is not complete; {lines} before it read")

    def _add(
        self, index: UsageIndex, workers: WorkProcesses, pieces: list[tuple[ReadTask, FilePiece]]
    ) -> int:
        """Adds what was read, and goes on with files that have more. Returns their number."""
        more = 0
        conflicts = set(index.add(piece for _, piece in pieces))
        for task, piece in pieces:
            self._spend(piece)
            if piece.finished and piece.path not in conflicts:
                self._note(piece.path, piece.position)
                continue
            more += 1
            is_ours = piece.path not in conflicts
            known = pack(piece.position) if is_ours else index.position(piece.path)
            workers.submit(work, [replace(task, known=known, size=0)])
        return more

    def _spend(self, piece: FilePiece) -> None:
        if self._progress is None:
            return
        sums: dict[tuple[str, str, str], list[int]] = {}
        for call in piece.calls:
            kept = sums.setdefault((call.provider, call.model, call.tier), [0] * len(COUNTS))
            for place, name in enumerate(COUNTS):
                kept[place] += getattr(call, name)
        for (provider, model, tier), counts in sums.items():
            price = self._prices.price(provider, model, piece.position.began, service_tier=tier)
            cost = None if price is None else price.total(usage_of(counts))
            self._usd += float(cost or 0)

    # ── Losses ───────────────────────────────────────────────────────────────────────────────────

    def _judge(self, index: UsageIndex) -> None:
        with index.counted(self._summed):
            tasks: list[Task] = [JudgeTask(*unjudged) for unjudged in index.to_judge()]
        self._do(index, tasks, "judging", _BATCH_TO_JUDGE, _MANY_TO_JUDGE)

    # ── Both ─────────────────────────────────────────────────────────────────────────────────────

    def _do(
        self, index: UsageIndex, tasks: list[Task], doing: _Doing, most: int, many: int
    ) -> None:
        size = sum(task.size for task in tasks)
        parts = batches(tasks, most)
        in_parallel = self._processes > 1 and len(parts) > 1 and size >= many and sys.executable
        count = min(self._processes, len(parts)) if in_parallel else 0
        files = done_bytes = 0
        with WorkProcesses(count) as workers:
            for part in parts:
                workers.submit(work, part)
            while workers.busy:
                (part,), results = workers.next()
                done = self._survived(workers, part, results)
                files += len(done) - self._take(index, workers, done)
                done_bytes += sum(task.size for task, _ in done)
                if self._progress is not None:
                    so_far = UsageProgress(
                        doing=doing,
                        files=files,
                        all_files=len(tasks),
                        bytes=done_bytes,
                        all_bytes=size,
                        usd=self._usd,
                    )
                    self._progress(so_far)

    def _survived(
        self, workers: WorkProcesses, tasks: list[Task], done: list[Done] | Died
    ) -> list[tuple[Task, Done]]:
        """The results; if the process has died, the tasks again, one by one."""
        if not isinstance(done, Died):
            return [*zip(tasks, done, strict=True)]
        if len(tasks) == 1:
            return [(tasks[0], Failed(f"the process that read it ended with {done.code}"))]
        for task in tasks:
            workers.submit(work, [task])
        return []

    def _take(
        self, index: UsageIndex, workers: WorkProcesses, done: list[tuple[Task, Done]]
    ) -> int:
        """Adds the results to the index. Returns how many files are not finished."""
        pieces: list[tuple[ReadTask, FilePiece]] = []
        for task, one in done:
            if isinstance(task, ReadTask):
                if isinstance(one, FilePiece):
                    pieces.append((task, one))
                elif isinstance(one, Failed):
                    self._fail(task.path, one.reason)
            elif isinstance(one, JudgedSession):
                paths = [path for path, _, _ in task.files]
                index.add_losses(task.mark, paths, one.losses, one.notices)
            elif isinstance(one, Failed):
                for path, _, _ in task.files:
                    self._problems[path].append(f"{path}: not judged, {one.reason}")
        return self._add(index, workers, pieces) if pieces else 0
