"""A store in PostgreSQL when something fails: the server, the connection, a node, or the journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from support.event_loops import in_event_loop
from support.ledgers import NOON, Clock, PostgresPlace, abandon, an_app, opened, problems_of, rows
from support.servers import PostgresServer
from support.waiting import PATIENCE, until

from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import HandleRow, Hold, Settlement, SpendLimits
from anaphora.daemon.store.operations import HoldRequest
from anaphora.daemon.store.postgres import PostgresStore, epoch
from anaphora.daemon.store.postgres.epoch import Epoch, Keeper
from anaphora.daemon.store.postgres.journal import SettlementJournal
from anaphora.daemon.store.postgres.statements import settle_open_holds, write
from anaphora.errors import GrantExceeded, InvalidConfig, StoreUnavailable
from anaphora.postgres.connection import connect
from anaphora.postgres.lane import Lane

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
ENTRIES = "SELECT billed, kind FROM entries ORDER BY at, id"


async def hold(ledger: Ledger, bound: int = 100, app: str = "shop") -> OpenHold:
    return await ledger.hold(an_app(app), provider="p", model="m", request_id="r", bound=bound)


def store_of(ledger: Ledger) -> PostgresStore:
    assert isinstance(ledger.store, PostgresStore)
    return ledger.store


@asynccontextmanager
async def node(
    place: PostgresPlace, name: str, *, beat: float = 3600.0, silent: float = 0.3
) -> AsyncIterator[Ledger]:
    """A node that beats once, so that others find it silent; with a shorter `beat`, one that finds
    others."""
    clock = Clock()
    store = await PostgresStore.open(
        place.address, node=name, version="1", journal=place.folder / f"{name}.journal",
        clock=clock, beat=beat, silent=silent,
    )  # fmt: skip
    try:
        ledger = Ledger(store, clock)
        await ledger.recover()
        yield ledger
    finally:
        await store.close()


# ── PostgreSQL is gone ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["stopped", "killed"])
@in_event_loop
@pytest.mark.long
async def test_without_postgresql_no_hold_and_settlements_wait(
    postgres_place: PostgresPlace, postgres_server: PostgresServer, how: str
) -> None:
    async with opened(postgres_place) as ledger:
        store = store_of(ledger)
        awaited, later = await hold(ledger), await hold(ledger)
        await asyncio.to_thread(postgres_server.stop if how == "stopped" else postgres_server.kill)
        with pytest.raises(StoreUnavailable, match="the store cannot be written: ") as refused:
            await hold(ledger)
        assert (refused.value.status, refused.value.retryable) == (503, True)
        await awaited.settle(30, "billed")  # the answer does not wait for PostgreSQL
        later.settle_later(40, "billed")
        handle = HandleRow(kind="response", id="r1", app="shop", provider="p", created=NOON)
        await store.add_handle(handle)
        await until(lambda: store.waiting >= 3, "all of it waits")  # and what released a hold
        assert store.problem is not None
        journal = postgres_place.journal
        kept = [one.billed for one in SettlementJournal(journal).read() if one.kind == "billed"]
        assert kept == [30, 40]
        assert journal.stat().st_mode & 0o777 == 0o600
        with pytest.raises(StoreUnavailable):
            await ledger.spent("shop")

        await asyncio.to_thread(postgres_server.start)
        await until(lambda: not store.waiting and store.problem is None, "written")
        spent = await ledger.spent("shop")
        assert (spent.today, spent.held) == (70, 0)
        assert await store.handle("response", "r1", "shop") == handle
        assert journal.read_bytes() == b""
        await (await hold(ledger)).settle(1, "billed")
    assert problems_of(postgres_place) == ()


@in_event_loop
async def test_a_settlement_of_a_node_that_ended_without_postgresql_is_in_its_journal(
    postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    async with opened(postgres_place) as ledger:
        settled, lost = await hold(ledger, 100), await hold(ledger, 200)
        await asyncio.to_thread(postgres_server.kill)
        await settled.settle(30, "billed", labels={"rules": 5})
        abandon(store_of(ledger))
        await asyncio.to_thread(postgres_server.start)
        async with opened(postgres_place) as after:
            assert rows(postgres_place, ENTRIES) == [(30, "billed"), (200, "bound")]
            assert (await after.spent("shop")).held == 0
            await OpenHold(after, lost.hold).settle(150, "billed")
        assert rows(postgres_place, ENTRIES) == [(30, "billed"), (150, "billed")]
        assert problems_of(postgres_place) == ()
        settled._settled = lost._settled = True


@in_event_loop
async def test_a_journal_that_was_cut_off_loses_its_last_line_only(
    postgres_place: PostgresPlace, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_place) as ledger:
        holds = [await hold(ledger) for _ in range(3)]
        journal = SettlementJournal(postgres_place.journal)
        journal.append(
            [Settlement(hold=one.hold.id, billed=7, kind="billed", at=NOON) for one in holds[:2]]
        )
        journal.close()
        with postgres_place.journal.open("ab") as file:
            file.write(b'{"hold":"1')
        again = SettlementJournal(postgres_place.journal)
        again.append([Settlement(hold=holds[2].hold.id, billed=8, kind="billed", at=NOON)])
        again.close()
        abandon(store_of(ledger))
        async with opened(postgres_place):
            assert sorted(rows(postgres_place, ENTRIES)) == [
                (7, "billed"),
                (7, "billed"),
                (8, "billed"),
            ]
        for one in holds:
            one._settled = True
    assert "1 line cannot be read" in caplog.text
    assert postgres_place.journal.with_name("settlements.journal.damaged").exists()


@in_event_loop
async def test_a_journal_that_cannot_be_written_is_reported(
    postgres_place: PostgresPlace, postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(postgres_place) as ledger:
        one = await hold(ledger)
        postgres_place.journal.mkdir()
        await asyncio.to_thread(postgres_server.stop)
        await one.settle(30, "billed")
        assert "settlements.journal cannot be written: Is a directory" in caplog.text
        await asyncio.to_thread(postgres_server.start)
        await until(lambda: not store_of(ledger).waiting, "written")
        assert (await ledger.spent("shop")).today == 30
        postgres_place.journal.rmdir()


@in_event_loop
async def test_a_server_that_does_not_answer_fails_holds_and_leaves_none_behind(
    postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    async with opened(postgres_place) as ledger:
        open_one = await hold(ledger, 50)
        postgres_server.pause()
        began = time.monotonic()
        outcomes = await asyncio.gather(*(hold(ledger) for _ in range(5)), return_exceptions=True)
        assert [type(one) for one in outcomes] == [StoreUnavailable] * 5
        first = time.monotonic() - began
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no answer"):
            await hold(ledger)
        assert time.monotonic() - began < first  # it is known by now
        await open_one.settle(20, "billed")
        assert len(SettlementJournal(postgres_place.journal).read()) == 1
        began = time.monotonic()
        for _ in range(3):  # nor does who looks for a handle wait for it
            with pytest.raises(StoreUnavailable, match="no answer"):
                await store_of(ledger).handle("response", "r1", "shop")
        assert time.monotonic() - began < first
        postgres_server.resume()
        await until(lambda: store_of(ledger).problem is None, "it answers again")
        assert await store_of(ledger).handles("response", "shop") == []
        await until(
            lambda: rows(postgres_place, "SELECT count(*) FROM holds") == [(0,)], "released"
        )
        spent = await ledger.spent("shop")
        assert (spent.today, spent.held) == (20, 0)
    assert problems_of(postgres_place) == ()


@in_event_loop
async def test_a_settlement_during_a_slow_statement_is_written_without_another(
    postgres_place: PostgresPlace,
) -> None:
    async with opened(postgres_place) as ledger:
        first, second = await hold(ledger), await hold(ledger)
        connection = await connect(postgres_place.address)
        async with connection.transaction():
            await connection.execute("LOCK TABLE balances IN EXCLUSIVE MODE")
            first.settle_later(10, "billed")
            await until(lambda: rows(postgres_place, WAITING) == [(1,)], "the statement waits")
            second.settle_later(20, "billed")
            await until(lambda: store_of(ledger).problem is not None, "it is slow")
        await connection.close()
        await until(lambda: rows(postgres_place, "SELECT 1 FROM entries") == [(1,), (1,)], "both")


@in_event_loop
async def test_more_operations_than_a_batch_has_room_for_are_all_written(
    postgres_place: PostgresPlace,
) -> None:
    async with opened(postgres_place) as ledger:
        settlements = [
            Settlement(hold=f"none {number}", billed=1, kind="billed", at=NOON)
            for number in range(5_000)
        ]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(store_of(ledger).settle, settlements))


@in_event_loop
async def test_a_hold_of_a_connection_that_was_lost_is_released(
    postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    """The statement waits for a lock while its connection ends: it may still be under way."""
    async with opened(postgres_place) as ledger:
        await (await hold(ledger)).settle(0, "free")
        lock = await store_of(ledger)._reports.fetchval("SELECT 1")
        assert lock == 1
        async with store_of(ledger)._reports.connection() as other, other.transaction():
            await other.execute("SELECT * FROM balances FOR UPDATE")
            waiting = asyncio.create_task(hold(ledger))
            await until(
                lambda: rows(postgres_place, "SELECT 1 FROM pg_locks WHERE NOT granted"), "it waits"
            )
            store_of(ledger)._writer._lane.drop()
            with pytest.raises(StoreUnavailable):
                await waiting
        await until(
            lambda: store_of(ledger).problem is None and not store_of(ledger).waiting, "recovered"
        )
        await until(
            lambda: rows(postgres_place, "SELECT count(*) FROM holds") == [(0,)], "released"
        )
        assert (await ledger.spent("shop")).held == 0
    assert problems_of(postgres_place) == ()


@in_event_loop
async def test_connections_that_an_administrator_ends_are_opened_again(
    postgres_place: PostgresPlace, postgres_server: PostgresServer
) -> None:
    async with opened(postgres_place) as ledger:
        one = await hold(ledger)
        rows(
            postgres_place,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        await one.settle(5, "billed")
        await until(lambda: not store_of(ledger).waiting, "written")
        assert (await ledger.spent("shop")).today == 5
        await (await hold(ledger)).settle(6, "billed")
    assert rows(postgres_place, ENTRIES) == [(5, "billed"), (6, "billed")]


# ── Nodes that are declared dead ────────────────────────────────────────────────────────────────


@in_event_loop
async def test_a_silent_node_is_swept_and_its_late_settlements_correct_the_bound(
    postgres_place: PostgresPlace,
) -> None:
    fenced = []
    async with node(postgres_place, "a") as silent, node(postgres_place, "b", beat=0.05) as other:
        before = store_of(silent).node_id
        store_of(silent).on_fenced.append(lambda: fenced.append(store_of(silent).node_id))
        late, never = await hold(silent, 100), await hold(silent, 200)
        await until(
            lambda: rows(postgres_place, ENTRIES) == [(100, "bound"), (200, "bound")], "swept"
        )
        assert fenced == []
        assert (await other.spent("shop")).today == 300
        await late.settle(30, "billed")
        assert (await other.spent("shop")).today == 230
        # It goes on under a new id.
        assert fenced == [store_of(silent).node_id]
        assert store_of(silent).node_id > before
        await (await hold(silent, 10)).settle(10, "billed")
        assert rows(postgres_place, ENTRIES)[:2] == [(30, "billed"), (200, "bound")]
        assert rows(postgres_place, "SELECT id, state FROM nodes ORDER BY id")[0] == (
            before,
            "dead",
        )
        never._settled = True
    assert problems_of(postgres_place) == ()


@in_event_loop
async def test_a_node_that_was_taken_for_dead_cannot_hold_under_its_old_id(
    postgres_place: PostgresPlace,
) -> None:
    async with node(postgres_place, "a") as zombie, node(postgres_place, "b") as other:
        before = store_of(zombie).node_id
        one = await hold(zombie)
        await store_of(other)._nodes._sweep(before)
        two = await hold(zombie)
        assert rows(postgres_place, "SELECT node FROM holds") == [(store_of(zombie).node_id,)]
        assert store_of(zombie).node_id != before
        await one.settle(1, "billed")
        await two.settle(2, "billed")
    assert rows(postgres_place, ENTRIES) == [(1, "billed"), (2, "billed")]


@in_event_loop
async def test_an_idle_node_notices_that_it_was_taken_for_dead(
    postgres_place: PostgresPlace,
) -> None:
    async with (
        node(postgres_place, "a", beat=0.05, silent=3600.0) as idle,
        node(postgres_place, "b", silent=3600.0) as other,
    ):
        before = store_of(idle).node_id
        await store_of(other)._nodes._sweep(before)
        await until(lambda: store_of(idle).node_id != before, "a new id")
        alive = rows(postgres_place, "SELECT id FROM nodes WHERE state = 'alive' AND name = 'a'")
        assert alive == [(store_of(idle).node_id,)]


@in_event_loop
async def test_beats_carry_the_report_of_a_node(postgres_place: PostgresPlace) -> None:
    async with node(postgres_place, "a", beat=0.05) as ledger:
        store_of(ledger).report = lambda: {"load": 7}
        await until(
            lambda: rows(postgres_place, "SELECT report::text FROM beats") == [('{"load": 7}',)],
            "reported",
        )
        store_of(ledger).report = lambda: 1 // 0  # type: ignore[assignment,return-value]
        await until(
            lambda: rows(postgres_place, "SELECT report::text FROM beats") == [("{}",)], "empty"
        )
        store_of(ledger).report = lambda: {"load": 8}
        await until(lambda: rows(postgres_place, "SELECT report::text FROM beats") != [("{}",)], "")
        # One that PostgreSQL refuses does not cost the beat: other nodes would take over.
        store_of(ledger).report = lambda: {"problem": "\0"}
        await until(
            lambda: rows(postgres_place, "SELECT report::text FROM beats") == [("{}",)], "empty"
        )


@pytest.mark.soak
@in_event_loop
async def test_a_name_that_is_in_use_is_refused(postgres_place: PostgresPlace) -> None:
    async with node(postgres_place, "a", beat=0.05, silent=2.0):
        with pytest.raises(InvalidConfig, match="a node named 'a' is running already; give each"):
            async with node(postgres_place, "a", beat=0.05, silent=2.0):
                pass


@in_event_loop
async def test_a_limit_holds_over_nodes_on_one_hot_grant(postgres_place: PostgresPlace) -> None:
    app = an_app(per_day=10_000, per_month=12_000)
    ledgers = [node(postgres_place, name) for name in "abc"]
    async with ledgers[0] as one, ledgers[1] as two, ledgers[2] as three:

        async def call(ledger: Ledger, number: int) -> int:
            try:
                taken = await ledger.hold(app, provider="p", model="m", request_id="r", bound=100)
            except GrantExceeded:
                return 0
            if number % 3:
                await taken.settle(90, "billed")
                return 90
            taken.release()
            return 0

        amounts = await asyncio.gather(
            *(call(ledger, n) for n in range(200) for ledger in (one, two, three))
        )
        spent = await one.spent("shop")
        assert spent.today == sum(amounts) <= 10_000
    assert problems_of(postgres_place) == ()


# ── Locks ────────────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_a_batch_that_waits_for_rows_of_a_new_app_locks_none_of_the_others(
    postgres_place: PostgresPlace,
) -> None:
    """Otherwise two batches could wait for each other, at the beginning of a month or with new apps:
    PostgreSQL takes a second to notice, and callers get the error that the store does not answer."""

    def request(id: str, app: str) -> HoldRequest:
        taken = Hold(id=id, app=app, provider="p", model="m", request_id="r", at=NOON, bound=1)
        return HoldRequest(taken, SpendLimits())

    first, second = [await connect(postgres_place.address) for _ in range(2)]
    async with node(postgres_place, "a") as ledger:
        await (await hold(ledger, app="old")).settle(1, "billed")
        epoch = store_of(ledger)._epoch
        assert epoch is not None
        own = epoch.id, epoch.lane
        async with first.transaction():
            await write(first, *own, [], [request("1", "new")])
            both = [request("2", "new"), request("3", "old")]
            waiting = asyncio.create_task(write(second, *own, [], both))
            while not await first.fetchval(WAITING):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await write(first, *own, [], [request("4", "old")])
        assert await waiting == {}
    first.terminate()
    second.terminate()


@in_event_loop
async def test_two_nodes_bill_one_entry_at_once(postgres_place: PostgresPlace) -> None:
    """The model of an entry changes under the same locks as its amount."""
    new_sums = (
        "INSERT INTO sums SELECT day, app, provider, 'other', 0, 0, 0, 0, 0, 0, 0, 0 FROM sums"
    )
    async with (
        node(postgres_place, "a", silent=3600.0) as ledger,
        node(postgres_place, "b", silent=3600.0) as other,
    ):
        late = await hold(ledger)
        await late.settle(100, "bound")
        blocking = await connect(postgres_place.address, name="test")
        try:
            await blocking.execute("BEGIN")
            await blocking.execute(new_sums)
            moving = asyncio.create_task(late.settle(40, "billed", model="other"))
            await until(lambda: rows(postgres_place, WAITING) == [(1,)], "the model waits")
            billed = asyncio.create_task(OpenHold(other, late.hold).settle(40, "billed"))
            await until(lambda: rows(postgres_place, WAITING) == [(2,)], "the bill waits")
            await blocking.execute("ROLLBACK")
            await asyncio.gather(moving, billed)
        finally:
            blocking.terminate()
        assert problems_of(postgres_place) == ()
        spent = [
            (row.model, row.billed) for row in await ledger.store.spend(["model"]) if row.billed
        ]
        assert spent == [("other", 40)]


@in_event_loop
@pytest.mark.long
async def test_a_node_that_stops_while_it_sweeps_holds_up_no_other(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has locked the balances of the dead node's apps, and sends nothing more."""
    monkeypatch.setattr("anaphora.postgres.lane.IDLE_SECONDS", 0.3)
    stopped = asyncio.Event()

    async def settle(*given: Any) -> NoReturn:
        await settle_open_holds(*given)
        stopped.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with node(postgres_place, "dead") as dead, node(postgres_place, "other") as other:
        one = await hold(dead)
        store = store_of(dead)
        async with node(postgres_place, "sweeper", silent=0.01) as sweeper:
            keeper = store_of(sweeper)._keeper
            assert keeper is not None
            monkeypatch.setattr(epoch, "settle_open_holds", settle)
            sweep = asyncio.create_task(keeper._sweep(store.node_id))
            await asyncio.wait_for(stopped.wait(), PATIENCE)
            for _ in range(100):
                try:
                    await (await hold(other)).settle(1, "billed")
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.1)
            else:
                raise AssertionError("the other node holds nothing for the app")
            sweep.cancel()
            with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
                await sweep
        await one.settle(7, "billed")
    assert sorted(rows(postgres_place, ENTRIES)) == [(1, "billed"), (7, "billed")]


@in_event_loop
async def test_a_node_ends_where_a_lost_connection_hides_that_it_should(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating = asyncio.Event()

    async def beat(_: Keeper) -> None:
        beating.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise StoreUnavailable("the transaction cannot be ended: the connection is closed")

    monkeypatch.setattr(Keeper, "beat", beat)
    async with asyncio.timeout(PATIENCE), node(postgres_place, "a"):
        await beating.wait()


@in_event_loop
async def test_a_node_that_beats_again_is_not_taken_for_dead(postgres_place: PostgresPlace) -> None:
    """Another one found it silent, and was stopped itself before it took over."""
    async with (
        node(postgres_place, "a", beat=0.05, silent=30) as one,
        node(postgres_place, "b", silent=30) as other,
    ):
        own, keeper = store_of(one).node_id, store_of(other)._keeper
        assert keeper is not None
        open_one = await hold(one)
        assert (await keeper._sweep(own, silent=30)).count == 0
        assert rows(postgres_place, "SELECT count(*) FROM holds") == [(1,)]
        await open_one.settle(5, "billed")
        assert store_of(one).node_id == own


# ── Names of nodes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.soak
@in_event_loop
async def test_a_slow_look_for_an_earlier_node_does_not_find_it_running(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, and PostgreSQL has not noticed: the start waits until it is silent."""
    async with node(postgres_place, "a", silent=0.5) as ledger:
        store = store_of(ledger)
        keeper = Keeper(
            store._reads,
            Epoch("a", "1"),
            beat=0.1,
            silent=0.5,
            check=lambda: None,
            clock=store.clock_check,
        )
        fetch = Lane.fetch

        async def slow(lane: Lane, sql: str, *values: object) -> list[object]:
            found = await fetch(lane, sql, *values)
            await asyncio.sleep(0.4)
            return found

        monkeypatch.setattr(Lane, "fetch", slow)
        await asyncio.wait_for(keeper.wait_for_earlier("a"), PATIENCE)
