"""A disk that is full or read-only: no hold, so no call (SPEC D13: 503); a settlement is written
later."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.event_loops import in_event_loop
from support.ledgers import NOON, an_app, copy_killed, opened, rows
from support.waiting import until

from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import HandleRow, Hold, Settlement, SpendLimits
from anaphora.daemon.store.sqlite import SqliteStore
from anaphora.daemon.store.upkeep import check
from anaphora.errors import Io, StoreUnavailable


async def hold(ledger: Ledger, bound: int = 100) -> OpenHold:
    return await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=bound)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file can grow beyond the log of the store."""
    size = path.with_name(path.name + "-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(store: SqliteStore) -> Iterator[None]:
    store._writer.execute("PRAGMA query_only=1")
    try:
        yield
    finally:
        store._writer.execute("PRAGMA query_only=0")


@contextmanager
def unwritable(ledger: Ledger, path: Path, kind: str) -> Iterator[None]:
    assert isinstance(ledger.store, SqliteStore)
    with full_disk(path) if kind == "full" else read_only(ledger.store):
        yield


async def written(store: SqliteStore) -> None:
    await until(lambda: not store.waiting and store.problem is None, "all is written")


@pytest.mark.parametrize("kind", ["full", "read-only"])
@in_event_loop
async def test_no_hold_without_a_disk_and_settlements_wait(path: Path, kind: str) -> None:
    async with opened(path) as ledger:
        store = ledger.store
        assert isinstance(store, SqliteStore)
        awaited, later = await hold(ledger), await hold(ledger)
        with unwritable(ledger, path, kind):
            with pytest.raises(StoreUnavailable, match="the store cannot be written: ") as refused:
                await hold(ledger)
            assert (refused.value.status, refused.value.retryable) == (503, True)
            await awaited.settle(30, "billed")  # the answer does not wait for the disk
            later.settle_later(40, "billed")
            handle = HandleRow(kind="response", id="r1", app="shop", provider="p", created=NOON)
            await store.add_handle(handle)
            assert store.waiting
            assert store.problem is not None
            assert (await ledger.spent("shop")).held == 200
        await written(store)
        spent = await ledger.spent("shop")
        assert (spent.today, spent.held) == (70, 0)
        assert await store.handle("response", "r1", "shop") == handle
        await (await hold(ledger)).settle(1, "billed")
    assert check(path, now=NOON).problems == ()


@in_event_loop
async def test_a_disk_that_works_again_is_noticed_without_a_call(path: Path) -> None:
    """`/readyz` would keep calls away until there is one."""
    async with opened(path) as ledger:
        assert isinstance(ledger.store, SqliteStore)
        await (await hold(ledger)).settle(1, "billed")
        with full_disk(path), pytest.raises(StoreUnavailable):
            await hold(ledger)
        assert ledger.store.problem is not None
        await written(ledger.store)


@in_event_loop
async def test_failures_are_logged_once_until_something_was_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full may have room for the probe, and for nothing else."""

    async def failed() -> None:
        with full_disk(path), pytest.raises(StoreUnavailable):
            await hold(ledger)

    async with opened(path) as ledger:
        assert isinstance(ledger.store, SqliteStore)
        await (await hold(ledger)).settle(1, "billed")
        for _ in range(3):
            await failed()
            await written(ledger.store)  # the probe was
        assert caplog.text.count("the store cannot be written") == 1
        assert "can be written again" not in caplog.text
        await (await hold(ledger)).settle(1, "billed")
        assert caplog.text.count("the store can be written again") == 1
        await failed()
        assert caplog.text.count("the store cannot be written") == 2


@in_event_loop
async def test_a_settlement_that_was_never_written_is_found_as_an_open_hold(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(path) as ledger:
        one = await hold(ledger, 100)
        with full_disk(path):
            await one.settle(30, "billed")
            killed = copy_killed(path, tmp_path / "killed")
            await ledger.store.close()
    assert "settlements that were not written: 1" in caplog.text
    for left in (killed, path):  # after a kill, and after a stop
        async with opened(left):
            assert rows(left, "SELECT billed, kind FROM entries") == [(100, "bound")]


@in_event_loop
async def test_a_file_that_was_deleted_or_replaced_takes_no_hold(path: Path) -> None:
    async with opened(path) as ledger:
        one = await hold(ledger)
        shutil.copy(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").replace(path)
        with pytest.raises(
            StoreUnavailable, match=r"store\.sqlite was replaced or removed while the daemon ran"
        ):
            await hold(ledger)
        await one.settle(1, "billed")


@in_event_loop
async def test_one_operation_that_cannot_be_written_does_not_hold_up_others(path: Path) -> None:
    async with opened(path) as ledger:
        store, limits = ledger.store, SpendLimits()
        one = Hold(id="1", app="a", provider="p", model="m", request_id="r", bound=1, at=NOON)
        await store.hold(one, limits)
        bad = Settlement(hold="1", billed=2**70, kind="billed", at=NOON)
        two = Hold(id="2", app="a", provider="p", model="\ud800", request_id="r", bound=1, at=NOON)
        three = Hold(id="3", app="a", provider="p", model="m", request_id="r", bound=1, at=NOON)
        outcomes = await asyncio.gather(
            store.hold(one, limits), store.hold(two, limits), store.hold(three, limits),
            store.settle(bad), return_exceptions=True,
        )  # fmt: skip
        assert [type(one) for one in outcomes[:2]] == [StoreUnavailable] * 2
        assert list(outcomes[2:]) == [None, None]
        assert rows(path, "SELECT id FROM holds") == [("1",), ("3",)]


@in_event_loop
async def test_a_closed_store_takes_no_hold(path: Path) -> None:
    async with opened(path) as ledger:
        one = await hold(ledger)
        await ledger.store.close()
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            await hold(ledger)
        await one.settle(1, "billed")
        one.settle_later(1, "billed")
    async with opened(path):
        assert rows(path, "SELECT kind FROM entries") == [("bound",)]


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(Io, match=r"missing/store\.sqlite: cannot be opened: No such file"):
        SqliteStore.open(tmp_path / "missing" / "store.sqlite")
    with pytest.raises(Io, match=r"proc/store\.sqlite: cannot be opened: "):
        SqliteStore.open(Path("/proc/store.sqlite"))
    text = tmp_path / "text"
    text.write_text("no database, and long enough to be taken for one" * 20)
    with pytest.raises(Io, match="file is not a database"):
        SqliteStore.open(text)
