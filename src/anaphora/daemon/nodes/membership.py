"""This node's membership in a store: the grants it serves, its drain state and reports, and changes
made by others.

node = await NodeMembership.join(address, "node-1", home=home, files=files)
task = asyncio.create_task(node.feed(directory).run())
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.client.config.secrets import Secret
from anaphora.client.failures import log
from anaphora.daemon.access.identity import Directory
from anaphora.daemon.access.tokens import TokenHash
from anaphora.daemon.home.extensions import Grants
from anaphora.errors import InvalidConfig, StoreUnavailable
from anaphora.postgres.lane import Lane

from . import generations
from .directory import NodeReport, drained_for, running_nodes

if TYPE_CHECKING:
    from anaphora.daemon.home import Home
    from anaphora.daemon.home.settings import SettingsFiles
    from anaphora.daemon.store.postgres.epoch import ClockCheck
    from anaphora.postgres.address import PostgresAddress
    from anaphora.postgres.connection import Connection

_log = logging.getLogger("anaphora.daemon")

_MINUTE = 60.0
CHANNEL = "anaphora_changes"
_LOOK_SECONDS = 0.5
#: Timeout of a statement in seconds; then it is tried on a new connection.
_TIMEOUT = 5.0
#: Starts and ends of nodes have no row in `changes`.
_VERSIONS = """
SELECT name, version FROM changes
UNION ALL SELECT 'nodes', sum(id)::bigint FROM nodes WHERE state = 'alive'
"""


class NodeMembership:
    """This node in the store. Used from one event loop."""

    def __init__(self, address: PostgresAddress, name: str, files: SettingsFiles) -> None:
        """Use `join`."""
        self.address = address
        self.name = name
        self._files = files
        self.count = 1
        """Nodes that run."""
        self.describe: Callable[[], Mapping[str, object]] = dict
        """Makes the report, with `described`. Set when the daemon listens."""
        self.clock: ClockCheck | None = None
        self._drained: float | None = None
        self._stored_number = 0
        self._counted: deque[tuple[float, int]] = deque()

    @classmethod
    async def join(
        cls, address: PostgresAddress, name: str, *, home: Home, files: SettingsFiles
    ) -> NodeMembership:
        """Raises `InvalidConfig` if this node must not run on the store: it has another key of
        token hashes, or cannot read the grants."""
        node = cls(address, name, files)
        lane = Lane(address, "start")
        try:
            await check_token_key(lane, home)
            generation = await first_generation(lane, home, by=name)
            if generation is not None:
                # Grants that this version cannot read must not be replaced by the file's.
                Grants.from_text(generation.text, generation.name)
                node._use(generation)
                files.reload()
            await node._read_drain(lane)
        finally:
            await lane.close()
        for problem in files.problems:
            _log.warning("not in force: %s", problem)
        if node.is_draining:
            _log.warning("this node is drained; undo it with: anaphora nodes drain %s --undo", name)
        return node

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────

    def feed(self, directory: Directory) -> ChangeFeed:
        async def tokens(_: Lane) -> None:
            await directory.refresh()

        async def grants(lane: Lane) -> None:
            if (found := await generations.latest(lane)) is not None:
                self._use(found)

        handlers = {
            "tokens": tokens,
            "budgets": tokens,
            "grant_generations": grants,
            "drains": self._read_drain,
            "nodes": self._count_nodes,
        }
        return ChangeFeed(self.address, handlers)

    def _use(self, generation: generations.GrantGeneration) -> None:
        before, self._stored_number = self._stored_number, generation.number
        if generation.number < before:
            _log.error("the store holds %s of the grants; this node keeps %d, which it has applied",
                       generation.name, before)  # fmt: skip
        self._files.use_generation(generation)

    async def _count_nodes(self, lane: Lane) -> None:
        self.count = max(1, await running_nodes(lane))

    async def _read_drain(self, lane: Lane) -> None:
        seconds = await drained_for(lane, self.name)
        if (seconds is None) != (self._drained is None):
            _log.info("this node is %s", "in service again" if seconds is None else "drained")
        self._drained = None if seconds is None else time.monotonic() - seconds

    # ── For requests ─────────────────────────────────────────────────────────────────────────────

    @property
    def generation(self) -> int:
        """The generation of grants that it serves; 0: none."""
        return self._files.generation.number if self._files.generation else 0

    @property
    def is_draining(self) -> bool:
        return self._drained is not None

    def drained_for(self) -> float | None:
        """Seconds since the drain; None: in service."""
        return None if self._drained is None else time.monotonic() - self._drained

    @property
    def problems(self) -> list[str]:
        found, served = [], self._files.generation
        if served is not None and self._stored_number < served.number:
            found.append(
                f"the store holds generation {self._stored_number} of the grants, older than"
                f" {served.number}, which this node has applied; apply it again with: anaphora"
                " grants apply"
            )
        if self.clock is not None and (wrong := self.clock.problem) is not None:
            found.append(wrong)
        return found

    def report(self) -> Mapping[str, object]:
        """The report of this node for other nodes and `anaphora nodes`."""
        return self.describe()

    def described(
        self,
        *,
        address: str,
        status: str,
        calls: int,
        total: int,
        waiting: int,
        refuses_calls: bool,
        problems: list[str],
    ) -> dict[str, object]:
        """A `NodeReport`. `total` is the number of calls since the start."""
        now, counted = time.monotonic(), self._counted
        counted.append((now, total))
        while len(counted) > 2 and counted[1][0] <= now - _MINUTE:
            counted.popleft()
        since, before = counted[0]
        report = NodeReport(
            address=address,
            status=status,
            calls=calls,
            calls_per_minute=round((total - before) / max(now - since, 1.0) * _MINUTE, 1),
            waiting=waiting,
            generation=self.generation,
            draining=self.is_draining,
            refuses_calls=refuses_calls,
            problems=tuple(problems),
        )
        return msgspec.structs.asdict(report)


async def first_generation(
    lane: Lane, home: Home, *, by: str
) -> generations.GrantGeneration | None:
    """The latest generation. If the store has none, extensions.yaml of this home becomes the
    first."""
    found = await generations.latest(lane)
    if found is not None or not home.extensions_yaml.exists():
        return found
    text = home.extensions_yaml.read_text("utf-8-sig")
    found, is_new = await generations.apply(lane, text, by=by, only_first=True)
    if is_new:
        _log.info("extensions.yaml is the first generation of the grants of all nodes")
    return found


async def check_token_key(lane: Lane, home: Home) -> None:
    """All nodes check tokens with the same key. The store keeps a hash of it from the first node.
    Raises `InvalidConfig` if this home has another key."""
    own = TokenHash(home.token_key())(Secret("tokens.key")).hex()
    await lane.execute(
        "INSERT INTO settings (name, value) VALUES ('token_key', $1) ON CONFLICT DO NOTHING", own
    )
    if await lane.fetchval("SELECT value FROM settings WHERE name = 'token_key'") != own:
        raise InvalidConfig(
            "is not the key of the tokens in the store, so that no app could log in here: copy"
            " tokens.key from the home of another node",
            file=str(home.token_key_file),
        )


class ChangeFeed:
    """Reads tokens, grants and drains written by other nodes or commands, within a second:
    PostgreSQL notifies each node, and each also looks twice a second in case a notification is
    lost.

    Calls the handler of a table when its rows have changed, and all handlers at the start. A failed
    handler is called again."""

    def __init__(
        self, address: PostgresAddress, handlers: Mapping[str, Callable[[Lane], Awaitable[None]]]
    ) -> None:
        self._handlers = handlers
        self._lane = Lane(address, "changes", on_connect=self._listen, timeout=_TIMEOUT)
        self._seen: dict[str, int | None] = {}
        self._woken = asyncio.Event()

    async def _listen(self, connection: Connection) -> None:
        """On a new connection everything is read again, and pending writes of this node are
        made."""
        self._seen.clear()
        await connection.add_listener(CHANNEL, self._notified)

    def _notified(self, *_: Any) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):  # tried again; `/readyz` says so
                    await self._guarded_look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _LOOK_SECONDS)
                self._woken.clear()
        finally:
            await self._lane.close()

    async def _guarded_look(self) -> None:
        try:
            await self.look()
        except StoreUnavailable:
            raise
        except Exception as problem:
            log(logging.ERROR, f"a change was not read: {type(problem).__name__}", problem)

    async def look(self) -> None:
        """Calls the handlers of tables that changed since the last look."""
        found = {row["name"]: row["version"] for row in await self._lane.fetch(_VERSIONS)}
        for name, handler in self._handlers.items():
            version = found.get(name)
            if name not in self._seen or self._seen[name] != version:
                await handler(self._lane)
                self._seen[name] = version
