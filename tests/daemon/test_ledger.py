"""The ledger: holds, settlements, limits, days and months, and a clock that jumps. SPEC D6: what is
spent holds across calls, and across restarts."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.event_loops import in_event_loop
from support.ledgers import (
    DAY,
    NOON,
    Clock,
    PostgresPlace,
    StorePlace,
    an_app,
    copy_killed,
    opened,
    problems_of,
    rows,
)
from support.waiting import until

from anaphora.daemon.access.grants import NANO
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store.batch_queue import BatchQueue
from anaphora.daemon.store.operations import Operation, Outcome
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.store.upkeep import check
from anaphora.daemon.values import App
from anaphora.errors import GrantExceeded, InvalidRequest
from anaphora.values import Usage


async def hold(ledger: Ledger, app: App, bound: int = 100) -> OpenHold:
    return await ledger.hold(app, provider="p", model="m", request_id="r", bound=bound)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@in_event_loop
async def test_a_hold_counts_at_its_bound_until_it_is_settled(place: StorePlace) -> None:
    async with opened(place) as ledger:
        one = await hold(ledger, an_app(), 500)
        before = await ledger.spent("shop")
        assert (before.today, before.month, before.held) == (0, 0, 500)
        await one.settle(120, "billed", usage=Usage(uncached=7, read=90, output=3))
        after = await ledger.spent("shop")
        assert (after.day, after.today, after.month, after.held) == ("2027-01-15", 120, 120, 0)
        (row,) = await ledger.store.spend([])
        assert (row.calls, row.billed, row.estimated) == (1, 120, 0)
        assert (row.input, row.read, row.output) == (97, 90, 3)
    assert problems_of(place) == ()


@in_event_loop
async def test_a_call_that_could_exceed_the_day_is_refused_until_the_next(
    place: StorePlace,
) -> None:
    app, clock = an_app(per_day=1000), Clock()
    async with opened(place, clock) as ledger:
        first = await hold(ledger, app, 600)
        with pytest.raises(GrantExceeded, match="usd_per_day does not allow") as refused:
            await hold(ledger, app, 401)
        assert (refused.value.status, refused.value.limit) == (402, "usd_per_day")
        assert refused.value.resets_at == NOON + DAY / 2
        others = [await hold(ledger, app, 400)]
        await first.settle(100, "billed")
        others.append(await hold(ledger, app, 500))
        with pytest.raises(GrantExceeded):
            await hold(ledger, app, 1)
        clock.now += DAY / 2
        await hold(ledger, app, 1000)


@in_event_loop
async def test_a_month_is_limited_too_and_says_when_the_next_begins(place: StorePlace) -> None:
    app, clock = an_app(per_day=1000, per_month=1500), Clock()
    async with opened(place, clock) as ledger:
        await (await hold(ledger, app, 1000)).settle(1000, "billed")
        clock.now += DAY
        await (await hold(ledger, app, 500)).settle(500, "billed")
        with pytest.raises(GrantExceeded) as refused:
            await hold(ledger, app, 1)
        assert refused.value.limit == "usd_per_month"
        opens = refused.value.resets_at
        assert opens == datetime.datetime(2027, 2, 1, tzinfo=datetime.UTC).timestamp()
        clock.now = opens
        await hold(ledger, app, 1000)


@in_event_loop
async def test_a_call_above_the_whole_limit_never_fits_by_itself(place: StorePlace) -> None:
    async with opened(place) as ledger:
        with pytest.raises(GrantExceeded, match="usd_per_day is less than") as refused:
            await hold(ledger, an_app(per_day=5 * NANO), 6 * NANO)
        assert refused.value.resets_at is None


@in_event_loop
async def test_apps_do_not_share_a_limit(place: StorePlace) -> None:
    async with opened(place) as ledger:
        both = [await hold(ledger, an_app(name, per_day=100), 100) for name in ("one", "two")]
        assert (await ledger.spent("one")).held == 100
        with pytest.raises(GrantExceeded):
            await hold(ledger, an_app("two", per_day=100), 1)
        del both


@in_event_loop
async def test_of_concurrent_holds_only_those_that_fit_are_taken(place: StorePlace) -> None:
    app = an_app(per_day=1000)
    async with opened(place) as ledger:
        outcomes = await asyncio.gather(
            *(hold(ledger, app, 30) for _ in range(100)), return_exceptions=True
        )
        taken = [one for one in outcomes if isinstance(one, OpenHold)]
        assert len(taken) == 33
        assert all(isinstance(one, OpenHold | GrantExceeded) for one in outcomes)
        assert (await ledger.spent("shop")).held == 990


@in_event_loop
async def test_a_limit_holds_for_two_processes_that_use_one_store(place: StorePlace) -> None:
    async with opened(place) as first, opened(place, node="other") as second:
        outcomes = await asyncio.gather(
            *(
                hold(ledger, an_app(per_day=1000), 30)
                for _ in range(50)
                for ledger in (first, second)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(one, OpenHold) for one in outcomes) == 33


@in_event_loop
async def test_the_day_of_the_hold_is_charged(place: StorePlace) -> None:
    clock = Clock()
    async with opened(place, clock) as ledger:
        late = await hold(ledger, an_app(per_day=100), 100)
        clock.now += DAY
        await late.settle(70, "billed")
        assert (await ledger.spent("shop")).today == 0
        days = {row.day: row.billed for row in await ledger.store.spend(["day"])}
        assert days == {"2027-01-15": 70}


@in_event_loop
async def test_a_settlement_counts_once(place: StorePlace) -> None:
    async with opened(place) as ledger:
        one = await hold(ledger, an_app(), 100)
        await asyncio.gather(one.settle(40, "billed"), one.settle(50, "billed"))
        await one.settle(60, "billed")
        assert (await ledger.spent("shop")).today == 40
    assert problems_of(place) == ()


@pytest.mark.parametrize("when", ["before it is sent", "during the commit", "after it"])
@in_event_loop
async def test_a_cancelled_hold_is_released(place: StorePlace, when: str) -> None:
    if when == "after it" and isinstance(place, PostgresPlace):
        pytest.skip("its writer runs in the event loop: the test below has this moment")
    async with opened(place) as ledger:
        task = asyncio.create_task(hold(ledger, an_app(per_day=100), 100))
        if when != "before it is sent":
            await asyncio.sleep(0)
        if when == "after it":
            while not rows(place, "SELECT id FROM holds"):  # without a turn of the event loop
                pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _assert_released(ledger)


@in_event_loop
async def test_a_hold_is_released_where_its_task_is_cancelled_before_it_can_return(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake = BatchQueue._wake

    def wake_and_cancel(commits: BatchQueue, results: Any) -> None:
        wake(commits, results)
        task.cancel()

    async with opened(place) as ledger:
        monkeypatch.setattr(BatchQueue, "_wake", wake_and_cancel)
        task = asyncio.create_task(hold(ledger, an_app(per_day=100), 100))
        with pytest.raises(asyncio.CancelledError):
            await task
        await _assert_released(ledger)


async def _assert_released(ledger: Ledger) -> None:
    for _ in range(2):  # the hold is committed, then its release
        await (await hold(ledger, an_app("other"))).settle(0, "free")
    assert (await ledger.spent("shop")).held == 0


@in_event_loop
async def test_holds_of_calls_that_run_together_are_written_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    write = SqliteStore._apply

    def counted(store: SqliteStore, operations: Sequence[Operation]) -> list[Outcome]:
        batches.append(len(operations))
        return write(store, operations)

    monkeypatch.setattr(SqliteStore, "_apply", counted)
    async with opened(path) as ledger:
        one = await hold(ledger, an_app())
        others = await asyncio.gather(*(hold(ledger, an_app()) for _ in range(10)))
        assert len(batches) <= 4, batches
        waiting = asyncio.create_task(hold(ledger, an_app()))
        for each in (one, *others):
            each.release()
        (await waiting).release()  # it waits for no call, since none is left
        assert (await ledger.spent("shop")).held == 0


@in_event_loop
async def test_a_hold_counts_what_another_connection_has_written(path: Path) -> None:
    async with opened(path) as ledger:
        app = an_app(per_day=100)
        await (await hold(ledger, app, 50)).settle(50, "billed")
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE balances SET spent = 95 WHERE app = 'shop'")
        with pytest.raises(GrantExceeded):
            await hold(ledger, app, 10)


@in_event_loop
async def test_a_hold_that_is_dropped_is_settled_at_its_bound(place: StorePlace) -> None:
    async with opened(place) as ledger:
        await hold(ledger, an_app(), 100)
        assert (await ledger.spent("shop")).held == 0
        assert rows(place, "SELECT billed, kind FROM entries WHERE app = 'shop'") == [
            (100, "bound")
        ]


@in_event_loop
async def test_a_settlement_that_is_not_waited_for_is_written_by_itself(place: StorePlace) -> None:
    async with opened(place) as ledger:
        (await hold(ledger, an_app(), 100)).settle_later(40, "billed")
        await until(lambda: rows(place, "SELECT billed FROM entries") == [(40,)], "it is written")
        (await hold(ledger, an_app(), 100)).settle_later(2, "billed")
        assert (await ledger.spent("shop")).today == 42


@pytest.mark.parametrize("bound", [-1, 2**53 + 1])
@in_event_loop
async def test_an_impossible_bound_is_rejected(place: StorePlace, bound: int) -> None:
    async with opened(place) as ledger:
        with pytest.raises(InvalidRequest, match="nano-dollars, got"):
            await hold(ledger, an_app(), bound)


# ── After a kill ─────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_open_holds_of_a_killed_daemon_are_settled_at_their_bound(
    path: Path, tmp_path: Path
) -> None:
    async with opened(path) as ledger:
        settled, lost = await hold(ledger, an_app(), 100), await hold(ledger, an_app(), 200)
        await settled.settle(10, "billed")
        killed = copy_killed(path, tmp_path / "killed")
        async with opened(killed) as after:
            assert rows(killed, "SELECT billed, kind FROM entries ORDER BY billed") == [
                (10, "billed"),
                (200, "bound"),
            ]
            spent = await after.spent("shop")
            assert (spent.today, spent.held) == (210, 0)
            # The daemon was declared dead, and has the bill.
            await OpenHold(after, lost.hold).settle(150, "billed", usage=Usage(uncached=5))
            await OpenHold(after, lost.hold).settle(170, "billed")
            (row,) = await after.store.spend([])
            assert (row.calls, row.billed, row.estimated, row.input) == (2, 160, 0, 5)
        assert check(killed, now=NOON).problems == ()
        await lost.settle(0, "free")


@in_event_loop
async def test_a_label_that_no_store_can_hold_does_not_lose_the_amount(place: StorePlace) -> None:
    """Names of tools come from apps."""
    async with opened(place) as ledger:
        for label in ("a\0b", "\ud800", "a?b"):
            one = await hold(ledger, an_app())
            await one.settle(30, "billed", labels={label: 3, "plain": 2})
        spent = await ledger.spent("shop")
        assert (spent.today, spent.held) == (90, 0)
        labels = {row.label: row.billed for row in await ledger.store.spend(["label"])}
        assert labels == {"": 75, "a?b": 6, "?": 3, "plain": 6}


@in_event_loop
async def test_a_bill_that_comes_late_replaces_the_bound_with_its_tokens_and_labels(
    place: StorePlace,
) -> None:
    async with opened(place) as ledger:
        one = await hold(ledger, an_app(), 100)
        usage = Usage(uncached=50, output=9)
        await one.settle(100, "bound", usage=usage, labels={"rules": 80}, saved=3)
        await one.settle(40, "estimated", usage=Usage(uncached=7), labels={"history": 5})
        (row,) = await ledger.store.spend([])
        assert (row.calls, row.billed, row.estimated, row.saved) == (1, 40, 40, 0)
        assert (row.input, row.output) == (7, 0)
        labels = {row.label: (row.calls, row.billed) for row in await ledger.store.spend(["label"])}
        assert labels == {"": (1, 35), "history": (1, 5)}
    assert problems_of(place) == ()


# ── Clocks ───────────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_a_clock_that_jumps_back_reopens_no_day(place: StorePlace) -> None:
    app, clock = an_app(per_day=100), Clock()
    async with opened(place, clock) as ledger:
        await (await hold(ledger, app)).settle(100, "billed")
        clock.now += DAY
        await (await hold(ledger, app)).settle(100, "billed")
        for jump in (DAY, 40 * DAY, 3000 * DAY):
            clock.now = NOON - jump
            with pytest.raises(GrantExceeded) as refused:
                await hold(ledger, app, 1)
            assert refused.value.resets_at == NOON + 1.5 * DAY
            assert (await ledger.spent("shop")).day == "2027-01-16"
    async with opened(place, clock) as ledger:  # nor does a restart
        with pytest.raises(GrantExceeded):
            await hold(ledger, app, 1)
        clock.now = NOON + 2 * DAY
        await (await hold(ledger, app)).settle(1, "billed")
        # Between two holds of one commit.
        moments = iter((NOON + 3 * DAY, NOON))
        ledger.clock = lambda: next(moments)
        both = await asyncio.gather(
            hold(ledger, app, 60), hold(ledger, app, 60), return_exceptions=True
        )
        assert [type(one) for one in both] == [OpenHold, GrantExceeded]
        ledger.clock = clock


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Apia"])
@in_event_loop
async def test_summer_time_moves_no_day(
    place: StorePlace, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        async with opened(place, clock := Clock()) as ledger:
            for hours in range(0, 72, 6):  # the night in which Europe changes, and the days around
                moment = datetime.datetime(2027, 3, 27, tzinfo=datetime.UTC)
                moment += datetime.timedelta(hours=hours)
                clock.now = moment.timestamp()
                one = await hold(ledger, an_app(per_day=400), 100)
                one.settle_later(100, "billed")
                assert (await ledger.spent("shop")).day == moment.date().isoformat()
            days = [(row.day, row.billed) for row in await ledger.store.spend(["day"])]
            assert days[:2] == [("2027-03-27", 400), ("2027-03-28", 400)]
    finally:
        monkeypatch.undo()
        time.tzset()


@in_event_loop
async def test_ids_of_holds_differ_between_ledgers(place: StorePlace) -> None:
    """Each has numbers of its own, and a name before them: nodes may be forks of one process, and
    hold at the same time."""
    async with opened(place) as ledger:
        ids = []
        for one in (ledger, Ledger(ledger.store, Clock())):
            held = await one.hold(an_app(), provider="p", model="m", request_id="r", bound=1)
            ids.append(held.hold.id)
            held.release()
        first, second = ids
        assert first[:12] == second[:12], "at the same time"
        assert first[-8:] == second[-8:] == "00000000"
        assert first != second
