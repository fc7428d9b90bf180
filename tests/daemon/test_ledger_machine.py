"""Random holds, settlements, aborts, clocks, kills and restarts against a model of the ledger: it
never loses a settled cent, and never exceeds a limit."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from support.ledgers import (
    DAY,
    NOON,
    Clock,
    OnPostgres,
    StorePlace,
    an_app,
    copy_killed,
    memory_folder,
    open_store,
    problems_of,
)
from support.servers import PostgresServer

from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import Hold
from anaphora.daemon.store.reading import day_of
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.errors import GrantExceeded

T = TypeVar("T")

LIMITS = {"small": (300, 500), "large": (1000, None), "free": (None, None)}
apps = st.sampled_from(sorted(LIMITS))
bounds = st.integers(0, 200)


class LedgerMachine(RuleBasedStateMachine):
    """The model: the amount and the day of each hold and each entry."""

    holds: Bundle[Hold] = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = memory_folder()
        self.root = self.folder.__enter__()
        self.place = self.new_place()
        self.clock = Clock()
        self.day = ""
        self.held: dict[str, tuple[Hold, str]] = {}
        self.entries: dict[str, tuple[Hold, str, int]] = {}
        self.at_bound: set[str] = set()
        self.open()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def new_place(self) -> StorePlace:
        return self.root / "store.sqlite"

    def open(self, *, recovered: bool = True) -> None:
        self.store = self.run(open_store(self.place, self.clock))
        self.ledger = Ledger(self.store, self.clock)
        found = self.run(self.ledger.recover())
        assert found.count == (len(self.held) if recovered else 0)
        for id, (hold, day) in self.held.items():
            self.entries[id] = hold, day, hold.bound
            self.at_bound.add(id)
        self.held.clear()

    # ── What happens ─────────────────────────────────────────────────────────────────────────────

    async def take(self, app: str, bound: int) -> Hold | None:
        try:
            opened = await self.ledger.hold(
                an_app(app, *LIMITS[app]), provider="p", model=app, request_id="r", bound=bound
            )
        except GrantExceeded:
            return None
        opened._settled = True  # the machine settles it
        return opened.hold

    @rule(target=holds, wanted=st.lists(st.tuples(apps, bounds), min_size=1, max_size=6))
    def hold(self, wanted: list[tuple[str, int]]) -> Any:
        """Several at once: they are decided in the order in which they came."""

        async def together() -> list[Hold | None]:
            return await asyncio.gather(*(self.take(*one) for one in wanted))

        self.day = max(self.day, day_of(self.clock.now))
        taken = []
        for (app, bound), hold in zip(wanted, self.run(together()), strict=True):
            assert (hold is not None) == self.fits(app, bound)
            if hold is not None:
                self.held[hold.id] = hold, self.day
                taken.append(hold)
        return multiple(*taken)

    @rule(
        settled=st.lists(
            st.tuples(consumes(holds), st.integers(0, 100), st.booleans()), min_size=1, max_size=4
        )
    )
    def settle(self, settled: list[tuple[Hold, int, bool]]) -> None:
        async def together() -> None:
            work = []
            for hold, percent, twice in settled:
                opened = OpenHold(self.ledger, hold)
                billed = hold.bound * percent // 100
                work.append(opened.settle(billed, "billed", labels={"rules": billed}))
                if twice:
                    opened.settle_later(hold.bound, "bound")  # the bill comes after it
            await asyncio.gather(*work)
            for hold, _, twice in settled:
                if twice:
                    OpenHold(self.ledger, hold).settle_later(hold.bound, "estimated")  # too late
            await self.flush()

        self.run(together())
        for hold, percent, _ in settled:
            found = self.held.pop(hold.id, None)
            if found is not None:
                self.entries[hold.id] = *found, hold.bound * percent // 100
            elif hold.id in self.at_bound:
                self.at_bound.discard(hold.id)
                self.entries[hold.id] = *self.entries[hold.id][:2], hold.bound * percent // 100

    async def flush(self) -> None:
        await self.store.remove_handle("file", "", "")

    @rule(app=apps, bound=bounds, turns=st.integers(0, 3))
    def abort(self, app: str, bound: int, turns: int) -> None:
        """A call that is cancelled while its hold is written holds nothing."""

        async def cancelled() -> Hold | None:
            task = asyncio.create_task(self.take(app, bound))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.flush()
            await self.flush()
            return None if task.cancelled() else task.result()

        if turns:
            self.day = max(self.day, day_of(self.clock.now))
        fits = self.fits(app, bound)
        before = len(self.entries)
        hold = self.run(cancelled())
        if hold is not None:
            assert fits
            self.held[hold.id] = hold, self.day
        assert len(self.entries) == before

    @rule(days=st.sampled_from([0.25, 0.5, 1, 16, -0.5, -1, -40]))
    def move_clock(self, days: float) -> None:
        self.clock.now += days * DAY

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        if killed:
            self.kill()
        else:
            self.run(self.store.close())
        self.open(recovered=killed or isinstance(self.store, SqliteStore))

    def kill(self) -> None:
        assert isinstance(self.place, Path)
        target = Path(tempfile.mkdtemp(dir=self.root)) / "killed"
        copy = copy_killed(self.place, target)
        self.run(self.store.close())
        self.place = copy

    # ── What holds ───────────────────────────────────────────────────────────────────────────────

    def fits(self, app: str, bound: int) -> bool:
        per_day, per_month = LIMITS[app]
        charged = self.charged()
        return (per_day is None or charged[app, self.day] + bound <= per_day) and (
            per_month is None or charged[app, self.day[:7]] + bound <= per_month
        )

    def charged(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for hold, day in self.held.values():
            found[hold.app, day] += hold.bound
            found[hold.app, day[:7]] += hold.bound
        for hold, day, billed in self.entries.values():
            found[hold.app, day] += billed
            found[hold.app, day[:7]] += billed
        return found

    @invariant()
    def spend_is_that_of_the_model(self) -> None:
        charged = self.charged()
        day = max(self.day, day_of(self.clock.now))
        for app, (per_day, per_month) in LIMITS.items():
            spent = self.run(self.ledger.spent(app))
            held = sum(hold.bound for hold, _ in self.held.values() if hold.app == app)
            assert (spent.day, spent.held) == (day, held)
            assert per_day is None or charged[app, day] <= per_day
            assert per_month is None or charged[app, day[:7]] <= per_month
        billed: Counter[str] = Counter()
        for hold, _, amount in self.entries.values():
            billed[hold.app] += amount
        rows = self.run(self.store.spend(["app"]))
        assert {row.app: row.billed for row in rows if row.billed} == +billed

    def teardown(self) -> None:
        self.run(self.store.close())
        assert problems_of(self.place, NOON + 10_000 * DAY) == ()
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.__exit__(None, None, None)


class PostgresMachine(OnPostgres, LedgerMachine):
    """The same on PostgreSQL: a kill leaves an epoch that the next start takes over."""


def test_a_ledger_in_sqlite_is_that_of_the_model() -> None:
    run_state_machine_as_test(
        LedgerMachine, settings=settings(max_examples=15, stateful_step_count=15)
    )


@pytest.mark.soak
def test_a_ledger_in_postgresql_is_that_of_the_model(postgres_server: PostgresServer) -> None:
    PostgresMachine.server = postgres_server
    run_state_machine_as_test(
        PostgresMachine, settings=settings(max_examples=4, stateful_step_count=15)
    )
