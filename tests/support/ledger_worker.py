"""Nodes' ledgers under load, each in a process of its own that a test kills, pauses and restarts.

    python -m support.ledger_worker

Reads commands, one JSON array a line: `["start", {...}]` forks a node and prints its process id;
`["wait", PID]` prints how it ended: its exit status, or the signal as a negative number. The package
is imported once.

A node writes the outcomes that it got to its log, which outlives it: each line is one write to a file that
is open to append.

    o NODE                  open, under this id
    h ID BOUND BILLED KIND  a hold is durable; the worker will settle it like this
    s ID                    its settlement is durable
    x                       a limit refused a hold
    u                       the store was not available for a hold
    e NAME                  a hold failed with an error that no caller expects
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import mmap
import os
import random
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from support.ledgers import an_app

from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import Settled
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.errors import GrantExceeded, StoreUnavailable
from anaphora.postgres.address import PostgresAddress

APPS = 3
PER_DAY, PER_MONTH = 700_000, 4_000_000
CALLERS = 12
#: Seconds between two beats of a node, and without one until it is declared dead.
BEAT, SILENT = 0.1, 0.6

_KINDS: tuple[Settled, ...] = ("billed", "billed", "estimated", "free", "bound")


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a node is started."""

    name: str
    store: str
    folder: str
    """Of the shared clock, the log and the journal."""
    seed: int
    skew: float = 0.0
    """Seconds that its clock is ahead of the others."""


class SharedClock:
    """One time for all processes, in a file that the test changes."""

    def __init__(self, path: Path, skew: float = 0.0) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._skew = skew

    def __call__(self) -> float:
        (now,) = struct.unpack("d", self._memory[:8])
        return float(now) + self._skew

    def set(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now)


class Worker:
    """One node: callers that hold and settle until it is killed or stopped."""

    def __init__(self, options: WorkerOptions) -> None:
        folder = Path(options.folder)
        self._options = options
        self._clock = SharedClock(folder / "clock", options.skew)
        self._journal = folder / f"{options.name}.journal"
        self._draw = random.Random(options.seed)
        log = folder / f"{options.name}.log"
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _say(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        store, own = await self._opened()
        self._say(f"o {store.node_id}")
        store.on_fenced.append(lambda: self._say(f"o {store.node_id}"))
        orphaned = asyncio.create_task(_end_with_parent())
        callers = [
            asyncio.create_task(self._call(own, number, stop.is_set)) for number in range(CALLERS)
        ]
        await asyncio.gather(*callers)
        await store.close()
        orphaned.cancel()

    async def _opened(self) -> tuple[PostgresStore, Ledger]:
        """As soon as PostgreSQL can be reached."""
        address = PostgresAddress.parse(self._options.store)
        while True:
            with suppress(StoreUnavailable):
                store = await PostgresStore.open(
                    address, node=self._options.name, journal=self._journal, clock=self._clock,
                    beat=BEAT, silent=SILENT,
                )  # fmt: skip
                own = Ledger(store, self._clock)
                try:
                    await own.recover()
                except StoreUnavailable:
                    await store.close()
                else:
                    return store, own
            await asyncio.sleep(0.02)

    async def _call(self, own: Ledger, number: int, stopping: Callable[[], bool]) -> None:
        draw = self._draw
        app = an_app(f"app{number % APPS}", PER_DAY, PER_MONTH)
        while not stopping():
            bound = draw.randrange(1, 40_000)
            try:
                hold = await own.hold(
                    app, provider="p", model="m", request_id=f"r{number}", bound=bound
                )
            except GrantExceeded:
                self._say("x")
                await asyncio.sleep(0.01)
                continue
            except StoreUnavailable:
                self._say("u")
                await asyncio.sleep(0.01)
                continue
            except Exception as error:
                self._say(f"e {type(error).__name__}: {error}")
                await asyncio.sleep(0.01)
                continue
            await self._settle(hold)

    async def _settle(self, hold: OpenHold) -> None:
        draw, bound = self._draw, hold.hold.bound
        kind = draw.choice(_KINDS)
        billed = {"free": 0, "bound": bound}.get(kind, draw.randrange(bound + 1))
        self._say(f"h {hold.hold.id} {bound} {billed} {kind}")
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() * 0.02)  # the provider answers
        way = draw.random()
        if way < 0.2:
            hold.settle_later(billed, kind)
            return
        if way < 0.3:
            hold.settle_at_bound()  # the bill comes after it
        await hold.settle(billed, kind, labels={"rules": billed // 2})
        self._say(f"s {hold.hold.id}")
        if way > 0.95:
            hold.settle_at_bound()  # too late: it changes nothing


async def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(1)
    os._exit(1)


def _run(options: WorkerOptions) -> int:
    try:
        asyncio.run(Worker(options).run())
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    importlib.import_module("asyncpg")
    gc.freeze()  # what is imported stays shared
    for line in sys.stdin:
        command, argument = json.loads(line)
        if command == "start":
            child = os.fork()
            if not child:
                os._exit(_run(msgspec.convert(argument, WorkerOptions)))
            print(child, flush=True)
        else:
            status = os.waitpid(argument, 0)[1]
            print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
