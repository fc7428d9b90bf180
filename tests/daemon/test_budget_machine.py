"""Random narrowing, expiry, revocation, holds, settlements, late bills, corrections, kills, midnights
and moves between groups, against a model of all levels: no limit is ever exceeded, and all sums are
those of the entries."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
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
    Clock,
    OnPostgres,
    StorePlace,
    an_app,
    copy_killed,
    memory_folder,
    open_store,
    problems_of,
)

from anaphora.daemon.access.grants import GroupLimits
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import Hold, TokenRow
from anaphora.daemon.store.reading import day_of
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.values import App
from anaphora.errors import GrantExceeded

T = TypeVar("T")

APPS = {"shop": (300, 700), "desk": (250, None), "lab": (None, None)}
GROUPS = {"team": (400, 900), "rest": (None, 500), "": (None, None)}
#: 2027-01-30, 21:00 UTC: midnight, and the end of the month, are near.
START = 1_801_342_800.0
apps = st.sampled_from(["shop", "desk", "shop", "lab"])
tasks = st.tuples(apps, st.integers(0, 11))
"""A token of an app: its own, or one of those narrowed from it that live."""
bounds = st.sampled_from([1, 20, 50, 80, 110])


class Task(msgspec.Struct, eq=False):
    """A token: of an app (`parent` is None), or narrowed from another one."""

    id: str
    app: str
    parent: Task | None = None
    amount: int = 0
    expires: float = 0.0
    revoked: bool = False

    @property
    def chain(self) -> list[Task]:
        """The narrowed tokens whose budgets its calls count in."""
        return [] if self.parent is None else [*self.parent.chain, self]

    def is_live(self, now: float) -> bool:
        return not any(one.revoked or one.expires <= now for one in self.chain)


class Charge(msgspec.Struct, eq=False):
    """A hold or an entry."""

    hold: Hold
    task: Task
    day: str
    amount: int
    kind: str = "held"
    corrected: bool = False

    def counts_in(self, level: Task | str) -> bool:
        if isinstance(level, Task):
            return level in self.task.chain
        kind, _, name = level.partition(" ")
        return name == (self.hold.app if kind == "app" else self.hold.group)


class BudgetMachine(RuleBasedStateMachine):
    holds: Bundle[Charge] = Bundle("holds")
    entries: Bundle[Charge] = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = memory_folder()
        self.root = self.folder.__enter__()
        self.place = self.new_place()
        self.clock = Clock(START)
        self.day = ""
        self.charges: list[Charge] = []
        self.narrowed: list[Task] = []
        self.roots = {app: Task(f"root-{app}", app) for app in APPS}
        self.groups = {"shop": "team", "desk": "", "lab": "rest"}
        self.open(0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def new_place(self) -> StorePlace:
        return self.root / "store.sqlite"

    def open(self, recovered: int) -> None:
        self.store = self.run(open_store(self.place, self.clock))
        self.ledger = Ledger(self.store, self.clock)
        assert self.run(self.ledger.recover()).count == recovered
        for one in self.charges:
            if one.kind == "held":
                one.kind = "bound"

    def app(self, task: Task) -> App:
        """As the daemon authenticates it."""
        app = an_app(task.app, *APPS[task.app])
        group = self.groups[task.app]
        per_day, per_month = GROUPS[group]
        limits = GroupLimits(nano_usd_per_day=per_day, nano_usd_per_month=per_month)
        return msgspec.structs.replace(
            app,
            grant=msgspec.structs.replace(app.grant, group=group, group_limits=limits),
            budgets=tuple(one.id for one in task.chain),
            budget_limits=tuple(one.amount for one in task.chain),
        )

    # ── The model ────────────────────────────────────────────────────────────────────────────────

    def limits(self, task: Task) -> list[tuple[Task | str, str, int]]:
        """Each limit of a call now: its level, its period and its amount."""
        found: list[tuple[Task | str, str, int]] = [(one, "", one.amount) for one in task.chain]
        group = self.groups[task.app]
        for level, (per_day, per_month) in (
            (f"app {task.app}", APPS[task.app]),
            (f"group {group}", GROUPS[group]),
        ):
            found += [
                (level, period, limit)
                for period, limit in ((self.day, per_day), (self.day[:7], per_month))
                if limit is not None
            ]
        return found

    def used(self, level: Task | str, period: str) -> int:
        """Settled and held."""
        return sum(
            one.amount
            for one in self.charges
            if one.counts_in(level) and one.day.startswith(period)
        )

    def fits(self, task: Task, bound: int) -> bool:
        return all(
            self.used(level, period) + bound <= limit for level, period, limit in self.limits(task)
        )

    # ── What happens ─────────────────────────────────────────────────────────────────────────────

    @rule(
        of=tasks,
        amount=st.sampled_from([60, 100, 140, 180]),
        hours=st.sampled_from([2.5, 30.0, 60.0, 60.0]),
    )
    def narrow(self, of: tuple[str, int], amount: int, hours: float) -> None:
        parent, now = self.task(*of), self.clock.now
        if len(parent.chain) == 3:
            return
        expires = min([now + hours * 3600, *(one.expires for one in parent.chain)])
        task = Task(f"t{len(self.narrowed)}", parent.app, parent, amount, expires)
        row = TokenRow(
            id=task.id, app=task.app, digest=task.id.encode(), created=now, expires=expires,
            parent=parent.id, nano_usd=amount, label="task",
        )  # fmt: skip
        self.run(self.store.add_token(row))
        self.narrowed.append(task)

    def task(self, app: str, number: int) -> Task:
        live = [one for one in self.narrowed if one.app == app and one.is_live(self.clock.now)]
        found = [self.roots[app], *reversed(live)]
        return found[number % len(found)]

    @rule(of=tasks)
    def revoke(self, of: tuple[str, int]) -> None:
        """Of an app: its own token is revoked, with all that were narrowed from it."""
        task = self.task(*of)
        if task.parent is None:
            self.roots[task.app] = Task(f"root-{task.app}-{len(self.narrowed)}", task.app)
        task.revoked = True
        for one in self.narrowed:
            at: Task | None = one
            while at is not None:
                one.revoked = one.revoked or at.revoked
                at = at.parent
        self.run(self.store.change_token(task.id, revoked=self.clock.now))

    async def take(self, task: Task, bound: int) -> Hold | None:
        try:
            opened = await self.ledger.hold(
                self.app(task), provider="p", model=task.app, request_id="r", bound=bound
            )
        except GrantExceeded:
            return None
        opened._settled = True  # the machine settles it
        return opened.hold

    @rule(target=holds, wanted=st.lists(st.tuples(tasks, bounds), min_size=1, max_size=5))
    def hold(self, wanted: list[tuple[tuple[str, int], int]]) -> Any:
        """Several at once: they are decided in the order in which they came."""
        calls = [(self.task(*of), bound) for of, bound in wanted]

        async def together() -> list[Hold | None]:
            return await asyncio.gather(*(self.take(*one) for one in calls))

        self.day = max(self.day, day_of(self.clock.now))
        taken = []
        for (task, bound), hold in zip(calls, self.run(together()), strict=True):
            fits = self.fits(task, bound)
            assert (hold is not None) == fits, (task.id, bound)
            if hold is not None:
                for level, period, limit in self.limits(task):
                    assert self.used(level, period) + bound <= limit
                charge = Charge(hold, task, self.day, bound)
                self.charges.append(charge)
                taken.append(charge)
        return multiple(*taken)

    @property
    def corrected(self) -> bool:
        """Whether an administrator has raised a cost: then a limit may be passed already."""
        return any(one.corrected for one in self.charges)

    @rule(
        target=entries,
        settled=st.lists(
            st.tuples(consumes(holds), st.integers(0, 100), st.sampled_from(["bill", "bound"])),
            min_size=1,
            max_size=4,
        ),
    )
    def settle(self, settled: list[tuple[Charge, int, str]]) -> Any:
        async def together() -> None:
            work = []
            for charge, percent, kind in settled:
                bound = charge.hold.bound
                billed = bound if kind == "bound" else bound * percent // 100
                opened = OpenHold(self.ledger, charge.hold)
                work.append(opened.settle(billed, "bound" if kind == "bound" else "billed"))
            await asyncio.gather(*work)

        self.run(together())
        for charge, percent, kind in settled:
            if kind == "bill":
                self.bill(charge, percent)
            elif charge.kind == "held":
                charge.kind = "bound"
        return multiple(*(charge for charge, _, _ in settled))

    def bill(self, charge: Charge, percent: int) -> None:
        if charge.kind in ("held", "bound") and not charge.corrected:
            charge.kind = "billed"
            charge.amount = charge.hold.bound * percent // 100

    @rule(charge=entries, percent=st.integers(0, 100))
    def bill_late(self, charge: Charge, percent: int) -> None:
        """Only the first bill after the bound counts."""
        billed = charge.hold.bound * percent // 100
        self.run(OpenHold(self.ledger, charge.hold).settle(billed, "billed"))
        self.bill(charge, percent)

    @rule(charge=entries, amount=st.integers(0, 150))
    def correct(self, charge: Charge, amount: int) -> None:
        self.run(self.store.correct(charge.hold.id, amount, "invoice"))
        charge.amount, charge.corrected = amount, True

    @rule(hours=st.sampled_from([0.5, 2.0, 3.5, 24.0]))
    def wait(self, hours: float) -> None:
        self.clock.now += hours * 3600

    @rule(app=apps, group=st.sampled_from(sorted(GROUPS)))
    def move(self, app: str, group: str) -> None:
        self.groups[app] = group

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        held = sum(one.kind == "held" for one in self.charges)
        if killed:
            self.kill()
        else:
            self.run(self.store.close())
        self.open(held if killed or isinstance(self.store, SqliteStore) else 0)

    def kill(self) -> None:
        assert isinstance(self.place, Path)
        copy = copy_killed(self.place, Path(tempfile.mkdtemp(dir=self.root)) / "killed")
        self.run(self.store.close())
        self.place = copy

    # ── What holds ───────────────────────────────────────────────────────────────────────────────

    @invariant()
    def all_sums_are_those_of_the_model(self) -> None:
        now = self.clock.now
        day = max(self.day, day_of(now))
        budgets = {one.token.id: one for one in self.run(self.store.budgets())}
        assert budgets.keys() == {one.id for one in self.narrowed}
        for task in self.narrowed:
            own = [one for one in self.charges if one.counts_in(task)]
            found = budgets[task.id]
            assert found.spent == sum(one.amount for one in own if one.kind != "held")
            assert found.held == sum(one.amount for one in own if one.kind == "held")
            assert (found.token.revoked is not None) == task.revoked
            assert self.corrected or self.used(task, "") <= task.amount
        groups = self.run(self.store.spent_by_group(now))
        for group, (per_day, per_month) in GROUPS.items():
            level = f"group {group}"
            if per_day is None and per_month is None:
                assert group not in groups
                continue
            today, month = self.used(level, day), self.used(level, day[:7])
            if spent := groups.get(group):
                assert (spent.today + spent.held, spent.day) == (today, day)
            else:
                assert not today
                assert not month
            assert self.corrected or per_day is None or today <= per_day
            assert self.corrected or per_month is None or month <= per_month
        for app in APPS:
            own = [one for one in self.charges if one.hold.app == app]
            spent = self.run(self.ledger.spent(app))
            assert spent.held == sum(one.amount for one in own if one.kind == "held")
            assert spent.today == sum(
                one.amount for one in own if one.kind != "held" and one.day == day
            )

    def teardown(self) -> None:
        self.run(self.store.close())
        assert problems_of(self.place, START + 10_000 * DAY) == ()
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.__exit__(None, None, None)


class PostgresBudgetMachine(OnPostgres, BudgetMachine):
    """The same on PostgreSQL: a kill leaves an epoch that the next start takes over."""


def machine(kind: str, request: pytest.FixtureRequest) -> type[BudgetMachine]:
    if kind == "sqlite":
        return BudgetMachine
    PostgresBudgetMachine.server = request.getfixturevalue("postgres_server")
    return PostgresBudgetMachine


@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 12), ("postgres", 2)])
def test_no_level_is_exceeded(kind: str, examples: int, request: pytest.FixtureRequest) -> None:
    run_state_machine_as_test(
        machine(kind, request), settings=settings(max_examples=examples, stateful_step_count=30)
    )


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "examples"), [("sqlite", 300), ("postgres", 40)])
def test_no_level_is_exceeded_in_many_runs(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    run_state_machine_as_test(
        machine(kind, request), settings=settings(max_examples=examples, stateful_step_count=40)
    )
