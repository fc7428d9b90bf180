"""The index of prompt beginnings sent before, in a file that all processes of a user share.

    index = seen_index()                              $XDG_CACHE_HOME/anaphora/seen.sqlite
    found = await index.find(scope, keys)             before a call: earlier uses of its prompt
    index.record(scope, uses)                         after the answer; returns at once

The file holds keyed digests, times and counts: no text, and no key of a provider. The key of the
digests is random and in the file. One thread does all work with it. If the file cannot be used,
nothing is found or recorded, and calls go on without it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from anaphora.cache.plan import RecallingPlanner, SeenBeginning, SeenUse
from anaphora.errors import InvalidConfig
from anaphora.rendered import Rendered
from anaphora.sqlite_files import BUSY_SECONDS, is_locked

from .config.folders import user_folder
from .seen_file import SeenFile

T = TypeVar("T")

#: The most records that wait to be written; more are dropped.
_MOST_WAITING = 10_000
#: Seconds that a call waits for the index.
_FIND_SECONDS = 0.25
#: Seconds without work after which the thread closes the file and ends.
_IDLE_SECONDS = 5.0


class SeenIndex:
    """The index in one file, for any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start()
        atexit.register(self._finish)

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: SeenFile | None = None
        self._reads = self._writes = True
        """Whether the file can be used."""
        self._is_late = False
        """A call gave up waiting for the thread, which is still at work."""

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────

    async def recall(
        self, host: str, planner: RecallingPlanner, rendered: Rendered, at: float
    ) -> bool:
        """Gives the planner the earlier uses of a prompt that is about to be sent. True if one of
        its beginnings is expected to recur."""
        positions = planner.beginnings(rendered) if self._reads else None
        if positions is None:
            return False
        found = await self.find(_scope(host, rendered), planner.keys(rendered, positions))
        return bool(found) and planner.recall(rendered, positions, found, at)

    def recall_now(
        self, host: str, planner: RecallingPlanner, rendered: Rendered, at: float
    ) -> bool:
        """As `recall`, for code that cannot await: previews, and a thread that places markers."""
        positions = planner.beginnings(rendered) if self._reads else None
        if positions is None:
            return False
        pending = self._look_up(_scope(host, rendered), planner.keys(rendered, positions))
        try:
            found = None if pending is None else pending.result(_FIND_SECONDS)
        except TimeoutError:
            self._is_late = True
            return False
        return bool(found) and planner.recall(rendered, positions, found or {}, at)

    def keep(self, host: str, planner: RecallingPlanner, rendered: Rendered, at: float) -> None:
        """Records an answered call, after the planner has recorded it."""
        self.record(_scope(host, rendered), planner.uses(rendered, at))

    async def find(self, scope: str, keys: Mapping[int, bytes]) -> dict[int, SeenBeginning]:
        """The earlier uses of beginnings, by the same numbers. Empty if that takes too long."""
        pending = self._look_up(scope, keys)
        if pending is None:
            return {}
        try:
            async with asyncio.timeout(_FIND_SECONDS):
                return await asyncio.wrap_future(pending) or {}
        except TimeoutError:
            self._is_late = True
            return {}

    def _look_up(
        self, scope: str, keys: Mapping[int, bytes]
    ) -> Future[dict[int, SeenBeginning] | None] | None:
        if not keys or not self._reads or self._is_late or not self.path.exists():
            return None
        return self._submit(lambda file: file.find(scope, keys))

    def record(self, scope: str, uses: Sequence[SeenUse]) -> None:
        """Adds a call. Never waits, and never raises because of the file."""
        if uses and self._reads and self._writes and self._jobs.qsize() < _MOST_WAITING:
            self._submit(lambda file: self._record(file, scope, uses))

    async def flush(self) -> None:
        """Waits until all records are written, for a limited time."""
        if self._thread is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_SECONDS):
                    await asyncio.wrap_future(self._submit(lambda _: None))

    def _submit(self, act: Callable[[SeenFile], T]) -> Future[T | None]:
        if self._process != os.getpid():
            # After a fork: the thread and the connection are the parent's, and stay open.
            self._inherited = self._file
            self._start()
        result: Future[T | None] = Future()

        def job() -> None:
            done = self._done(act)
            self._is_late = False
            if result.set_running_or_notify_cancel():
                result.set_result(done)

        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="anaphora seen", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process ends
                    thread.start()
                    self._thread = thread
        return result

    def _finish(self) -> None:
        """At exit: waits until all records are written, for a limited time."""
        thread = self._thread
        if thread is not None and self._process == os.getpid():
            self._jobs.put(None)
            thread.join(BUSY_SECONDS)

    # ── Its own thread ───────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while True:
            job = None
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            if job is not None:
                job()
                continue
            with self._lock:
                if self._jobs.empty():
                    self._thread, file, self._file = None, self._file, None
                    break
        if file is not None:
            file.close()

    def _done(self, act: Callable[[SeenFile], T]) -> T | None:
        if not self._reads:
            return None
        try:
            if self._file is None:
                self._file = SeenFile(self.path)
            return act(self._file)
        except Exception as problem:
            # A lock that others hold for long may be free for the next call.
            self._reads = is_locked(problem)
            return None

    def _record(self, file: SeenFile, scope: str, uses: Sequence[SeenUse]) -> None:
        if self._writes:
            try:
                file.record(scope, uses)
            except Exception as problem:
                self._writes = is_locked(problem)


def _scope(host: str, rendered: Rendered) -> str:
    """The scope of a cache: the same beginning at another model or server is another one."""
    return f"{rendered.wire}\0{host}\0{rendered.model}"


_indexes: dict[Path, SeenIndex] = {}


def seen_path() -> Path:
    return user_folder("XDG_CACHE_HOME", ".cache") / "seen.sqlite"


def seen_index() -> SeenIndex | None:
    """The user's index, one object a process; None for a user without a home folder."""
    try:
        path = seen_path()
    except InvalidConfig:
        return None
    if path not in _indexes:
        _indexes.setdefault(path, SeenIndex(path))
    return _indexes[path]
