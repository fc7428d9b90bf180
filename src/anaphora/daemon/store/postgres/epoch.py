"""The epoch and heartbeats of this node, and the sweeping of silent nodes.

Times are PostgreSQL's, so that the clocks of nodes may differ. A clock far ahead would begin the
next day, with new limits, for all nodes, so each node compares its clock with PostgreSQL's.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from anaphora.daemon.store import IsUnsent, RecoveredHolds, all_sent
from anaphora.errors import AnaphoraError, InvalidConfig, StoreUnavailable
from anaphora.postgres.connection import described, is_data_error, transaction
from anaphora.postgres.lane import Lane
from anaphora.wording import counted

from .statements import settle_open_holds

if TYPE_CHECKING:
    from anaphora.postgres.connection import Connection


#: Allowed difference of a node's clock in seconds; with NTP it is less than one.
MOST_SKEW = 30.0

#: Maximum duration of reading PostgreSQL's clock in seconds, which bounds the error.
_MOST_LATE = 2.0

PUBLIC = "this node cannot take calls at the moment; send the call again later"


class ClockCheck:
    """Compares this node's clock with PostgreSQL's. Between reads PostgreSQL's time is extrapolated
    by the monotonic clock, so that the next call notices a moved clock."""

    def __init__(self, clock: Callable[[], float], most: float | None) -> None:
        """Nothing is checked if `most` is None."""
        self._clock = clock
        self._most = most
        self._offset: float | None = None
        """PostgreSQL's time minus the monotonic time."""

    def seen(self, at: float, *, asked: float) -> None:
        """Records PostgreSQL's time `at`, requested at the monotonic time `asked`."""
        now = time.monotonic()
        if now - asked <= _MOST_LATE:
            self._offset = at - (asked + now) / 2

    @property
    def skew(self) -> float:
        """Seconds by which this clock is ahead; 0 if PostgreSQL's is unknown."""
        if self._offset is None:
            return 0.0
        return self._clock() - self._offset - time.monotonic()

    @property
    def problem(self) -> str | None:
        if self._most is None or abs(skew := self.skew) <= self._most:
            return None
        direction = "ahead of" if skew > 0 else "behind"
        return (
            f"the clock of this node is {abs(skew):,.0f} s {direction} PostgreSQL's, and may differ"
            f" by {self._most:g} s; set both by NTP"
        )


_log = logging.getLogger("anaphora.daemon")

#: Seconds between heartbeats, and without one until a node is declared dead.
BEAT_SECONDS, SILENT_SECONDS = 1.0, 10.0

#: Heartbeats between checks of the ledger's connection, which may be idle for long.
_IDLE = 30
#: Heartbeats between searches for holds that an ended node left open.
_LEFTOVERS = 10

OnFenced: TypeAlias = Callable[[], Awaitable[None] | None]

#: Silence before the start of PostgreSQL does not count.
_SILENT = """
SELECT nodes.id, nodes.name FROM nodes LEFT JOIN beats ON beats.node = nodes.id
WHERE nodes.state = 'alive' AND nodes.id <> $1
    AND greatest(beats.at, nodes.started, pg_postmaster_start_time())
        < clock_timestamp() - make_interval(secs => $2)
ORDER BY nodes.id
"""

_BEAT = """
UPDATE beats SET at = clock_timestamp(), report = $2::jsonb
WHERE node = $1 AND EXISTS (SELECT FROM nodes WHERE id = $1 AND state = 'alive')
RETURNING extract(epoch FROM clock_timestamp())::float8
"""

#: Not if the node has sent a heartbeat since it was found silent, by a node that was suspended
#: meanwhile.
_DEAD = """
UPDATE nodes SET state = 'dead', ended = clock_timestamp()
WHERE id = $1 AND state = 'alive' AND ($2::float8 = 0 OR NOT EXISTS (
    SELECT FROM beats WHERE node = $1 AND at >= clock_timestamp() - make_interval(secs => $2)))
RETURNING name
"""

_LEFT = """
SELECT DISTINCT nodes.id FROM holds JOIN nodes ON nodes.id = holds.node
WHERE nodes.state <> 'alive'
"""

_EARLIER = """
SELECT id, EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'anaphora #' || nodes.id
) AS connected
FROM nodes
WHERE name = $1 AND state = 'alive' AND id <> $2
ORDER BY id
"""


class Epoch:
    """The row of this node in `nodes`. `id` and `lane` are its fencing token."""

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.id = 0
        self.lane = 0
        self.audit_epoch = 0
        """Of the writer of this node's audit log; 0 without one."""
        self.on_fenced: list[OnFenced] = []
        self._tasks: set[asyncio.Future[None]] = set()

    async def connect(self, connection: Connection) -> None:
        """Prepares a new connection for holds. A statement of the preceding connection is done or
        comes too late: this waits for its lock on the node's row."""
        lane = await connection.fetchval(
            "UPDATE nodes SET lane = lane + 1 WHERE id = $1 AND state = 'alive' RETURNING lane",
            self.id,
        )
        if lane is None:
            await self.begin(connection)
        else:
            self.lane = lane
        await connection.execute(f"SET application_name TO 'anaphora #{self.id}'")

    async def begin(self, connection: Connection) -> None:
        """Begins a new epoch: at the start, or because this node was declared dead."""
        before = self.id
        async with transaction(connection):
            id = await connection.fetchval(
                "INSERT INTO nodes (name, version, audit_epoch) VALUES ($1, $2, $3)"
                " RETURNING id",
                self.name, self.version, self.audit_epoch,
            )  # fmt: skip
            await connection.execute("INSERT INTO beats (node) VALUES ($1)", id)
        self.id, self.lane = id, 0
        if before:
            _log.error(
                "node %s was silent, and was declared dead: it goes on as #%d (before: #%d); its"
                " running calls are charged at their bound until they settle",
                self.name, id, before,
            )  # fmt: skip
            for callback in self.on_fenced:
                self._call(callback)

    def _call(self, callback: OnFenced) -> None:
        try:
            result = callback()
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(result)
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except Exception:
            _log.exception("a callback of a node that was declared dead failed")

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            _log.error("a callback of a node that was declared dead failed", exc_info=problem)


class Keeper:
    """Sends heartbeats of this node and sweeps silent nodes, on its own lane."""

    def __init__(
        self,
        lane: Lane,
        epoch: Epoch,
        *,
        beat: float = BEAT_SECONDS,
        silent: float = SILENT_SECONDS,
        check: Callable[[], None],
        clock: ClockCheck,
    ) -> None:
        """`check` finds out whether this node was declared dead."""
        self.report: Callable[[], Mapping[str, Any]] = dict
        self._lane = lane
        self._epoch = epoch
        self._beat = beat
        self._silent = silent
        self._check = check
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._since = self._last = 0.0
        """Monotonic times of the first and last heartbeat of an unbroken series."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="anaphora beats")

    async def check_clock(self) -> None:
        """Raises `InvalidConfig` if the clocks of this node and PostgreSQL differ too much."""
        query = "SELECT extract(epoch FROM clock_timestamp())::float8"
        async with self._lane.connection() as connection:  # opened before the time is taken
            asked = time.monotonic()
            self._clock.seen(await connection.fetchval(query), asked=asked)
        if (problem := self._clock.problem) is not None:
            raise InvalidConfig(problem)

    async def wait_for_earlier(self, name: str) -> None:
        """Returns when no other process runs under this name. Raises `InvalidConfig` if
        one does."""
        deadline = time.monotonic() + self._silent + self._beat
        while True:
            is_last = time.monotonic() > deadline  # before the query, which may take long
            rows = await self._lane.fetch(_EARLIER, name, 0)
            silent = {row["id"] for row in await self._lane.fetch(_SILENT, 0, self._silent)}
            running = [row for row in rows if row["connected"] and row["id"] not in silent]
            if not running:
                return
            if is_last:
                raise InvalidConfig(
                    f"a node named {name!r} is running already; give each node a name of its"
                    " own with `node: NAME` in the section daemon of llm.yaml"
                )
            await asyncio.sleep(min(0.05, self._beat))

    async def sweep_earlier(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:
        """Settles open holds of earlier epochs of this node."""
        rows = await self._lane.fetch(_EARLIER, self._epoch.name, self._epoch.id)
        earlier = (row["id"] for row in rows if not row["connected"])
        return await self._sweep_all(earlier, is_unsent=is_unsent)

    async def _run(self) -> None:
        for number in itertools.count():
            started = time.monotonic()
            try:
                await self.beat()
                if number % _IDLE == _IDLE - 1:
                    self._check()
                if self._last - self._since >= self._silent:
                    await self.sweep(leftovers=number % _LEFTOVERS == 0)
            except StoreUnavailable:
                self._since = 0.0
            except AnaphoraError as problem:
                _log.error("beats of this node: %s", problem)
            except Exception:
                _log.exception("beats of this node failed")
            if self._closed:  # if a lost connection hid the cancellation of the task
                return
            spent = time.monotonic() - started
            await asyncio.sleep(max(self._beat - spent, self._beat / 10))

    async def beat(self) -> None:
        try:
            report = msgspec.json.encode(self.report()).decode()
        except Exception:
            _log.exception("the report of this node failed")
            report = "{}"
        asked = time.monotonic()
        try:
            at = await self._lane.fetchval(_BEAT, self._epoch.id, report)
        except Exception as problem:
            if not is_data_error(problem):
                raise
            _log.error("the report of this node cannot be stored: %s", described(problem))
            asked = time.monotonic()
            at = await self._lane.fetchval(_BEAT, self._epoch.id, "{}")
        now = time.monotonic()
        if not self._since or now - self._last > self._silent / 2:
            # This node could not send heartbeats, so perhaps others could not either.
            self._since = now
        self._last = now
        if at is None:
            self._check()
        else:
            self._clock.seen(at, asked=asked)

    async def sweep(self, *, leftovers: bool = True) -> RecoveredHolds:
        """Takes over from all silent nodes."""
        rows = await self._lane.fetch(_SILENT, self._epoch.id, self._silent)
        swept = await self._sweep_all((row["id"] for row in rows), silent=self._silent)
        if leftovers:
            swept += await self._sweep_all(row["id"] for row in await self._lane.fetch(_LEFT))
        return swept

    async def _sweep_all(
        self, nodes: Iterable[int], *, silent: float = 0.0, is_unsent: IsUnsent = all_sent
    ) -> RecoveredHolds:
        swept = RecoveredHolds()
        for node in nodes:
            swept += await self._sweep(node, silent, is_unsent)
        return swept

    async def _sweep(
        self, node: int, silent: float = 0.0, is_unsent: IsUnsent = all_sent
    ) -> RecoveredHolds:
        """With `silent`, only if the node has been silent for that many seconds."""
        async with self._lane.transaction() as connection:
            # Waits for a running transaction of that node; the next one is refused.
            name = await connection.fetchval(_DEAD, node, silent)
            if name is None and silent:
                return RecoveredHolds()
            recovered = await settle_open_holds(connection, node, is_unsent)
        if name is not None:
            _log.warning(
                "node %s (#%d) is silent, and was declared dead; settled at their bound: %s",
                name, node, counted(recovered.count - recovered.unsent, "hold"),
            )  # fmt: skip
        return recovered

    async def close(self) -> None:
        """Ends this node. Its open holds are settled at their bound."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        try:
            async with asyncio.timeout(5.0), self._lane.transaction() as connection:
                await connection.execute(
                    "UPDATE nodes SET state = 'ended', ended = clock_timestamp()"
                    " WHERE id = $1 AND state = 'alive'",
                    self._epoch.id,
                )
                await settle_open_holds(connection, self._epoch.id)
        except (TimeoutError, StoreUnavailable):
            _log.warning("PostgreSQL is gone: other nodes will find this one silent")
        await self._lane.close()
