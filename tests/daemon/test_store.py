"""Tokens, handles, sums by field, versions, backups and checks of a store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.event_loops import in_event_loop
from support.ledgers import (
    DAY,
    NOON,
    Clock,
    PostgresPlace,
    StorePlace,
    an_app,
    make_store,
    opened,
    problems_of,
    prune_place,
    rows,
)

from anaphora.daemon.endpoints.stored import KeptObjects
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import (
    EntryQuery,
    HandleKind,
    HandleRow,
    SpendQuery,
    SpendRow,
    TokenRow,
    tables,
)
from anaphora.daemon.store.reading import day_of
from anaphora.daemon.store.schema import SCHEMA_VERSION
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.store.upkeep import back_up, check
from anaphora.errors import InvalidRequest, Io, OtherSchema
from anaphora.values import Usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


async def spend(ledger: Ledger, app: str, model: str, billed: int, **labels: int) -> None:
    hold = await ledger.hold(an_app(app), provider="p", model=model, request_id="r", bound=billed)
    usage = Usage(uncached=10, read=5, written={"5m": 3}, output=2)
    await hold.settle(billed, "billed", usage=usage, labels=labels, saved=7)


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_tokens_are_kept_changed_and_revoked(place: StorePlace) -> None:
    first = TokenRow(id="t1", app="shop", digest=b"\x00\xff", created=1.0)
    admin = TokenRow(id="t2", app="", digest=b"2", created=2.0, expires=9.0)
    async with opened(place) as ledger:
        for token in (first, admin):
            await ledger.store.add_token(token)
        await ledger.store.change_token("t1", expires=5.0)
        await ledger.store.change_token("t1", revoked=6.0)
    async with opened(place) as ledger:
        assert await ledger.store.tokens() == [
            TokenRow(
                id="t1", app="shop", digest=b"\x00\xff", created=1.0, expires=5.0, revoked=6.0
            ),
            admin,
        ]


@in_event_loop
async def test_no_mark_is_left_of_a_call_that_is_settled_and_audited_in_one_batch(
    place: StorePlace,
) -> None:
    async with opened(place) as ledger:
        await ledger.store.begin_audit(1)
        for number in range(3):
            hold = await ledger.hold(
                an_app("shop"), provider="p", model="m", request_id=f"r{number}", bound=6
            )
            hold.settle_later(5, "billed")
            ledger.audited([f"r{number}"])
        await ledger.store.probe()
        assert rows(place, "SELECT hold FROM unaudited") == []
        assert rows(place, "SELECT SUM(billed) FROM sums") == [(15,)]


@in_event_loop
async def test_spend_of_all_apps_is_that_of_each(place: StorePlace) -> None:
    clock = Clock()
    async with opened(place, clock) as ledger:
        await spend(ledger, "shop", "m", 30)
        clock.now += DAY
        await spend(ledger, "shop", "m", 4)
        await spend(ledger, "blog", "m", 500)
        app = an_app("late")
        hold = await ledger.hold(app, provider="p", model="m", request_id="r", bound=6)
        found = await ledger.store.spent_by_app(clock.now)
        assert found == {name: await ledger.spent(name) for name in ("shop", "blog", "late")}
        assert (found["shop"].today, found["late"].held) == (4, 6)
        hold.release()


@in_event_loop
async def test_a_handle_is_visible_to_its_app_only(place: StorePlace) -> None:
    mine = HandleRow(kind="response", id="r1", app="shop", provider="p", created=1.0)
    async with opened(place) as ledger:
        store = ledger.store
        await store.add_handle(mine)
        assert await store.handle("response", "r1", "shop") == mine
        assert await store.handle("response", "r1", "other") is None
        assert await store.handle("file", "r1", "shop") is None
        # Another app can neither take it over nor remove it.
        await store.add_handle(
            HandleRow(kind="response", id="r1", app="other", provider="p", created=2.0)
        )
        await store.remove_handle("response", "r1", "other")
        assert await store.handles("response", "other") == []
        longer = HandleRow(
            kind="response", id="r1", app="shop", provider="p", created=3.0, tokens=9
        )
        await store.add_handle(longer)
        assert await store.handles("response", "shop") == [longer]
        await store.remove_handle("response", "r1", "shop")
        assert await store.handle("response", "r1", "shop") is None


@in_event_loop
async def test_own_handles_are_found_by_their_ids(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        HandleRow(kind="item", id=f"msg_{number}", app=app, provider="p", created=float(number))
        for number, app in enumerate(["shop"] * 70 + ["other"] * 2)
    ]
    ids = [row.id for row in rows]
    async with opened(place) as ledger:
        store = ledger.store
        for row in rows:
            await store.add_handle(row)
        assert await store.own_handles("item", [], "shop") == {}
        assert await store.own_handles("file", ids, "shop") == {}
        found = await store.own_handles("item", [*ids, "unknown", "null\0byte"], "shop")
        assert found == {row.id: row for row in rows[:70]}
        # The oldest first, and few at once: calls wait for it.
        monkeypatch.setattr(tables, "_REMOVED_AT_ONCE", 60)
        await store.remove_old_handles("item", 69.0)
        assert list(await store.own_handles("item", ids, "shop")) == [row.id for row in rows[60:70]]
        await store.remove_old_handles("item", 69.0)
        assert list(await store.own_handles("item", ids, "shop")) == ["msg_69"]
        assert len(await store.own_handles("item", ids, "other")) == 2


@in_event_loop
async def test_looking_up_handles_does_not_read_those_of_others(path: Path) -> None:
    """Each new conversation looks one up, in the event loop."""
    steps: list[None] = []
    async with opened(path) as ledger:
        store = ledger.store
        assert isinstance(store, SqliteStore)
        some = [
            HandleRow(kind="item", id=f"p{number}", app="shop", provider="p", created=number)
            for number in range(2_000)
        ]
        last = HandleRow(kind="item", id="last", app="shop", provider="p", created=3_000)
        await asyncio.gather(*(store.add_handle(row) for row in (*some, last)))
        store._reader.set_progress_handler(lambda: steps.append(None), 1_000)
        assert list(await store.own_handles("item", ["last", "p7"], "shop")) == ["p7", "last"]
        assert await store.handle("item", "last", "shop") is not None
        assert not steps, "a thousand steps of SQLite or more"
        assert len(await store.handles("item", "shop")) == 2_001
        assert steps


@in_event_loop
async def test_responses_are_forgotten_after_30_days(place: StorePlace) -> None:
    """What an app has to delete itself stays."""
    row = HandleRow(kind="file", id="file_1", app="shop", provider="p", created=DAY)
    kinds: tuple[HandleKind, ...] = ("response", "item")
    async with opened(place) as ledger:
        store, kept = ledger.store, KeptObjects(ledger.store)
        await store.add_handle(row)
        for age in range(3):
            now = replace(row, created=DAY * (2 + 20.0 * age))
            await kept.add(now, [(kind, f"{kind}_{age}", 7) for kind in kinds])
        for kind in kinds:
            ids = [one.id for one in await store.handles(kind, "shop")]
            assert ids == [f"{kind}_{age}" for age in range(1, 3)]
        assert len(await store.handles("file", "shop")) == 1


@in_event_loop
async def test_a_probe_leaves_the_next_hold_one_statement(path: Path) -> None:
    store = SqliteStore.open(path)
    ledger = Ledger(store)
    try:
        await spend(ledger, "notes", "m", 100)
        await store.probe()
        ran: list[str] = []
        store._writer.set_trace_callback(ran.append)
        await ledger.hold(an_app("notes"), provider="p", model="m", request_id="r", bound=100)
        store._writer.set_trace_callback(None)
        assert not [each for each in ran if each.startswith(("BEGIN", "SELECT"))]
        assert any(each.startswith("INSERT INTO batch") for each in ran)
    finally:
        await store.close()


@in_event_loop
async def test_spend_is_booked_under_the_model_that_answered(place: StorePlace) -> None:
    """Of a hold, and of one that was settled at its bound before."""
    async with opened(place) as ledger:
        first, second = [
            await ledger.hold(an_app(), provider="p", model="asked", request_id="r", bound=90)
            for _ in range(2)
        ]
        await first.settle(50, "billed", labels={"rules": 20}, model="answered")
        await second.settle(90, "bound", model="answered")
        found = await ledger.store.spend(["model"])
        assert [(row.model, row.calls, row.billed) for row in found] == [("answered", 2, 140)]
        found = await ledger.store.spend(["model", "label"])
        assert [(row.model, row.label, row.billed) for row in found] == [
            ("answered", "", 120),
            ("answered", "rules", 20),
        ]
        await second.settle(30, "billed")
        found = await ledger.store.spend(["model"])
        assert sum(row.billed for row in found) == 80


@in_event_loop
async def test_bill_after_the_bound_is_booked_under_the_model_that_answered(
    place: StorePlace,
) -> None:
    async with opened(place) as ledger:
        hold = await ledger.hold(an_app(), provider="p", model="asked", request_id="r", bound=90)
        other = await ledger.hold(an_app(), provider="p", model="asked", request_id="r", bound=70)
        await hold.settle(90, "bound", labels={"rules": 40})
        await other.settle(60, "billed")
        await hold.settle(90, "bound", model="answered")  # no news
        rows = {row.model: row for row in await ledger.store.spend(["model"])}
        assert {name: row.billed for name, row in rows.items()} == {"asked": 150}
        await hold.settle(30, "billed", labels={"rules": 10}, model="answered")
        await hold.settle(20, "billed", model="asked")  # the first bill is final
        rows = {row.model: row for row in await ledger.store.spend(["model"]) if row.calls}
        found = {name: (row.calls, row.billed, row.estimated) for name, row in rows.items()}
        assert found == {"asked": (1, 60, 0), "answered": (1, 30, 0)}
        by_label = await ledger.store.spend(["model", "label"])
        assert {(row.model, row.label, row.billed) for row in by_label if row.billed} == {
            ("asked", "", 60),
            ("answered", "", 20),
            ("answered", "rules", 10),
        }
        assert (await ledger.spent("shop")).today == 90
    assert problems_of(place) == ()


@in_event_loop
async def test_spend_is_summed_by_any_fields(place: StorePlace) -> None:
    async with opened(place, clock := Clock()) as ledger:
        await spend(ledger, "shop", "haiku", 100, rules=60, history=30)
        await spend(ledger, "shop", "sonnet", 500, rules=200)
        clock.now += DAY
        await spend(ledger, "blog", "haiku", 40)
        store = ledger.store
        assert await store.spend(["app"]) == [
            SpendRow(app="blog", calls=1, billed=40, saved=7, input=18, read=5, written=3, output=2),
            SpendRow(app="shop", calls=2, billed=600, saved=14, input=36, read=10, written=6, output=4),
        ]  # fmt: skip
        labels = {(row.label, row.app): row.billed for row in await store.spend(["label", "app"])}
        assert labels == {
            ("rules", "shop"): 260, ("history", "shop"): 30, ("", "shop"): 310, ("", "blog"): 40,
        }  # fmt: skip
        assert [(row.day, row.model, row.billed) for row in await store.spend(["day", "model"])] == [
            ("2027-01-15", "haiku", 100), ("2027-01-15", "sonnet", 500), ("2027-01-16", "haiku", 40),
        ]  # fmt: skip
        assert [row.billed for row in await store.spend([], SpendQuery(since="2027-01-16"))] == [40]
        assert [row.billed for row in await store.spend([], SpendQuery(until="2027-01-15"))] == [
            600
        ]
        assert [row.billed for row in await store.spend([], SpendQuery(app="blog"))] == [40]
        assert await store.spend([], SpendQuery(app="unknown")) == []
        with pytest.raises(InvalidRequest, match="'apps' is none of group, app, provider, model"):
            await store.spend(["apps"])


@in_event_loop
async def test_calls_are_summed_by_the_group_that_their_app_has_now(place: StorePlace) -> None:
    """Also their labels, corrections and holds."""
    groups = {"shop": "sales", "blog": "press"}
    async with opened(place, clock := Clock()) as ledger:
        store = ledger.store

        async def sums(*by: str) -> dict[object, int]:
            rows = await store.spend(by, SpendQuery(groups=groups))
            return {tuple(getattr(row, name) for name in by): row.billed for row in rows}

        await spend(ledger, "shop", "haiku", 100, rules=60)
        clock.now += DAY
        await spend(ledger, "shop", "haiku", 20, rules=12)
        await spend(ledger, "blog", "haiku", 3)
        await spend(ledger, "alone", "haiku", 4)
        running = await ledger.hold(
            an_app("shop"), provider="p", model="haiku", request_id="open", bound=7
        )
        assert await store.held(SpendQuery(app="blog")) == 0
        assert await store.held(SpendQuery(app="shop")) == await store.held() == 7
        await running.settle(5, "billed", usage=Usage(uncached=1))
        [entry] = [one for one in await store.entries(EntryQuery()) if one.billed == 20]
        await store.correct(entry.id, 25, "the invoice says so")

        assert await sums("group") == {("",): 4, ("press",): 3, ("sales",): 130}
        assert await sums("group", "app") == {
            ("", "alone"): 4, ("press", "blog"): 3, ("sales", "shop"): 130,
        }  # fmt: skip
        assert await sums("group", "label") == {
            ("", ""): 4, ("press", ""): 3, ("sales", ""): 55, ("sales", "rules"): 75,
        }  # fmt: skip
        days = await sums("group", "day")
        assert (days["sales", "2027-01-15"], days["sales", "2027-01-16"]) == (100, 30)
        hours = await store.spend_by_hour("2027-01-16", SpendQuery(app="shop"))
        assert [(row.calls, row.billed, row.corrected) for row in hours.values()] == [(2, 30, 5)]
        groups["shop"] = "press"
        assert await sums("group") == {("",): 4, ("press",): 133}


@in_event_loop
async def test_pruning_deletes_entries_of_old_months_and_no_sum(place: StorePlace) -> None:
    """Beside the daemon, which has an open hold of such a month."""
    async with opened(place, clock := Clock(NOON - 75 * DAY)) as ledger:
        late = await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=90)
        for _ in range(26):
            await spend(ledger, "shop", "haiku", 100, rules=60)
            clock.now += 3 * DAY
        spent = await ledger.store.spend(["day", "model", "label"])
        done = prune_place(place, 40, clock.now)
        assert (done.until, done.entries) == ("2026-12-01", 10)
        assert prune_place(place, 40, clock.now).entries == 0
        assert rows(place, "SELECT min(day), count(*) FROM entries") == [("2026-12-01", 16)]
        assert await ledger.store.spend(["day", "model", "label"]) == spent
        assert problems_of(place, clock.now) == ()
        await late.settle(80, "billed")
        await spend(ledger, "shop", "haiku", 100)
        assert problems_of(place, clock.now) == ()
        assert prune_place(place, 0, clock.now).until == "2027-01-01"
        assert (await ledger.spent("shop")).month == 600
        assert problems_of(place, clock.now) == ()
        assert [row.billed for row in await ledger.store.spend([])] == [2780]


@in_event_loop
async def test_pruning_by_a_clock_that_is_ahead(place: StorePlace) -> None:
    """Where nothing was deleted, all sums are checked."""
    pruned_until = "SELECT pruned_until FROM clock"
    async with opened(place, clock := Clock(NOON)) as ledger:
        await spend(ledger, "shop", "haiku", 100)
        assert prune_place(place, 36_500, NOON).entries == 0
        assert rows(place, pruned_until) == [("",)]
        clock.now += 3_000 * DAY
        await spend(ledger, "shop", "haiku", 100)
        assert prune_place(place, 0, clock.now).entries == 1
        assert rows(place, pruned_until) == [("2035-04-01",)]
        assert problems_of(place, clock.now + 3_000 * DAY) == ()


def test_postgresql_is_pruned_by_its_own_clock(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine that the command runs on may be wrong."""
    here = time.time()
    monkeypatch.setattr(time, "time", lambda: here + 4_000 * DAY)
    assert prune_place(postgres_place, 0, None).until < day_of(here + DAY)


@in_event_loop
async def test_attempts_that_are_not_charged_are_no_calls(place: StorePlace) -> None:
    async with opened(place) as ledger:
        hold = await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=9)
        await hold.settle(0, "free")
        await spend(ledger, "shop", "m", 5)
        assert [(row.calls, row.billed) for row in await ledger.store.spend([])] == [(1, 5)]


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        (SCHEMA_VERSION + 1, OtherSchema, f"is newer than {SCHEMA_VERSION}"),
        (
            SCHEMA_VERSION - 1,
            OtherSchema,
            "keep the folder, create a new home with `anaphora init`",
        ),
    ],
)
def test_a_store_of_another_version_is_refused(
    path: Path, version: int, error: type[Exception], message: str
) -> None:
    make_store(path, version)
    for use in (SqliteStore.open, check, lambda path: back_up(path, path.parent / "copy")):
        with pytest.raises(error, match=f"schema_version {version}") as refused:
            use(path)
        assert message in str(refused.value)


def test_another_file_is_no_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE mine (one)")
    (tmp_path / "empty.db").touch()
    for name in ("other.db", "empty.db"):
        with pytest.raises(Io, match="holds no store of anaphora"):
            check(tmp_path / name)
    with pytest.raises(Io, match="missing"):
        check(tmp_path / "missing.db")


# ── Upkeep ───────────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_a_backup_of_the_running_store_is_one_state_of_it(path: Path, tmp_path: Path) -> None:
    stopped = False

    async def caller(number: int) -> None:
        while not stopped:
            await spend(ledger, f"app{number}", "m", 10, rules=5)

    async with opened(path) as ledger:
        callers = [asyncio.create_task(caller(number)) for number in range(8)]
        copies = [tmp_path / f"copy{number}" for number in range(4)]
        for copy in copies:
            await asyncio.sleep(0.01)
            await asyncio.to_thread(back_up, path, copy)
        stopped = True
        await asyncio.gather(*callers)
    for copy in copies:
        assert check(copy, now=NOON).problems == ()
        assert copy.stat().st_mode & 0o777 == 0o600
    counts = [check(copy, now=NOON).entries for copy in (*copies, path)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    async with opened(copies[-1]) as restored:
        assert rows(copies[-1], "PRAGMA journal_mode") == [("wal",)]
        assert sum(row.calls for row in await restored.store.spend([])) >= counts[-2]
    with pytest.raises(Io, match="copy0: cannot be written: File exists"):
        back_up(path, copies[0])


@in_event_loop
async def test_a_backup_that_fails_leaves_no_file(path: Path, tmp_path: Path) -> None:
    async with opened(path):
        with pytest.raises(Io, match="missing/copy: cannot be written: No such file"):
            back_up(path, tmp_path / "missing" / "copy")


@in_event_loop
async def test_check_finds_sums_that_differ_from_the_entries(path: Path) -> None:
    async with opened(path) as ledger:
        await spend(ledger, "shop", "m", 10, rules=5)
    assert check(path, now=NOON).problems == ()
    assert check(path, now=NOON - 9 * DAY).problems == (
        "the clock was at 2027-01-15 before, and is at 2027-01-06: calls are charged to 2027-01-15"
        " until then",
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE balances SET spent = 0")
        database.execute("DELETE FROM label_sums")
        database.execute(
            "INSERT INTO holds SELECT id, app, provider, model, '', day, at, 0, '' FROM entries"
        )
    assert check(path, now=NOON).problems == (
        "balances and the entries differ in 2 rows",
        "label_sums and the entries differ in 1 row",
        "both open and settled: 1 hold",
    )


def test_check_finds_a_damaged_file(path: Path) -> None:
    @in_event_loop
    async def fill() -> None:
        async with opened(path) as ledger:
            await asyncio.gather(*(spend(ledger, "shop", "m", 10) for _ in range(100)))

    fill()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 5000)
    assert "is damaged" in problem_of(path)


def problem_of(path: Path) -> str:
    try:
        return check(path, now=NOON).problems[0]
    except Io as problem:
        return str(problem)


@in_event_loop
async def test_files_of_a_store_are_readable_by_their_owner_only(path: Path) -> None:
    umask = os.umask(0o022)
    try:
        async with opened(path) as ledger:
            await spend(ledger, "shop", "m", 10)
            files = sorted(path.parent.iterdir())
            assert len(files) == 3
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    finally:
        os.umask(umask)
    assert rows(path, "SELECT COUNT(*) FROM entries") == [(1,)]
