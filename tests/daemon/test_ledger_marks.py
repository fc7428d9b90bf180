"""Marks of the ledger: which open holds were sent, whatever their slots were used for before, and which calls
have no audit row yet."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support.event_loops import in_event_loop
from support.ledgers import Clock, StorePlace, an_app, open_store, opened, rows

from anaphora.daemon.money import sent_marks
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.money.sent_marks import EarlierMarks
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.errors import GrantExceeded


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "sent.marks"


def store_of(ledger: Ledger) -> PostgresStore:
    assert isinstance(ledger.store, PostgresStore)
    return ledger.store


async def hold(ledger: Ledger, bound: int = 10) -> OpenHold:
    return await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=bound)


@in_event_loop
async def test_each_open_hold_is_told_after_many_others(
    place: StorePlace, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_marks, "SLOTS", 8)  # each is used some forty times
    draw, store = random.Random(7), await open_store(place, Clock())
    try:
        ledger = Ledger(store, Clock())
        await ledger.recover(marks)
        is_open: dict[str, tuple[OpenHold, bool]] = {}
        for _ in range(300):
            if is_open and (len(is_open) > 5 or draw.random() < 0.5):
                one, _ = is_open.pop(draw.choice(list(is_open)))
                one.settle_later(0, "free")
                if draw.random() < 0.3:
                    await ledger.spent("shop")  # its settlement is durable
            else:
                one = await hold(ledger)
                sent = draw.random() < 0.5
                if sent:
                    one.sending()
                is_open[one.hold.id] = one, sent
            left = EarlierMarks.read(marks)
            for id, (_, was_sent) in is_open.items():
                if was_sent or id.endswith("0000"):
                    assert not left.is_unsent(id)
                else:
                    assert left.is_unsent(id)
        for one, _ in is_open.values():
            one.settle_later(0, "free")
    finally:
        await store.close()


@in_event_loop
async def test_a_slot_stays_with_a_hold_until_its_settlement_is_durable(
    place: StorePlace, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_marks, "SLOTS", 2)
    store = await open_store(place, Clock())
    try:
        ledger = Ledger(store, Clock())
        await ledger.recover(marks)
        first = await hold(ledger)
        first.sending()
        second = await hold(ledger)  # there is no slot for it: it counts as sent
        left = EarlierMarks.read(marks)
        assert not left.is_unsent(first.hold.id)
        assert not left.is_unsent(second.hold.id)
        await first.settle(1, "billed")
        third = await hold(ledger)
        assert third.hold.id[-4:] == first.hold.id[-4:]
        assert EarlierMarks.read(marks).is_unsent(third.hold.id)
        second.release()
        third.release()
    finally:
        await store.close()


@in_event_loop
async def test_holds_that_are_refused_or_cancelled_give_their_slots_back(
    place: StorePlace, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_marks, "SLOTS", 4)
    store, app = await open_store(place, Clock()), an_app(per_day=100)
    try:
        ledger = Ledger(store, Clock())
        await ledger.recover(marks)
        for number in range(20):
            asked = asyncio.create_task(
                ledger.hold(
                    app, provider="p", model="m", request_id="r", bound=1 + number % 2 * 100
                )
            )
            if number % 4 > 1:
                await asyncio.sleep(0)
                asked.cancel()
            try:
                (await asked).release()
            except (GrantExceeded, asyncio.CancelledError):
                pass
            await ledger.spent("shop")
        one = await hold(ledger)
        assert EarlierMarks.read(marks).is_unsent(one.hold.id)
        one.release()
    finally:
        await store.close()


@in_event_loop
async def test_unsent_holds_of_a_killed_ledger_are_free(tmp_path: Path, marks: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = await open_store(path, Clock())
    killed = Ledger(store, Clock())
    await killed.recover(marks)
    sent, unsent = await hold(killed, 20), await hold(killed, 30)
    sent.sending()
    for one in (sent, unsent):
        one._settled = True  # it is killed: nothing settles them
    await store.close()
    store = await open_store(path, Clock())
    found = await Ledger(store, Clock()).recover(marks)
    assert (found.count, found.amount, found.unsent) == (2, 20, 1)
    await store.close()
    async with opened(path) as again:
        assert (await again.spent("shop")).today == 20


@in_event_loop
async def test_a_row_that_is_durable_before_the_settlement_leaves_no_mark(
    place: StorePlace,
) -> None:
    async with opened(place) as ledger:
        await ledger.store.begin_audit(1)
        first, second = await hold(ledger), await hold(ledger)
        first.release()
        ledger.audited(["r"])
        await ledger.spent("shop")
        assert rows(place, "SELECT COUNT(*) FROM unaudited") == [(0,)]
        second.settle_later(5, "billed")
        await ledger.spent("shop")
        assert rows(place, "SELECT COUNT(*) FROM unaudited") == [(0,)]
        third = await hold(ledger)
        third.release()
        await ledger.spent("shop")
        assert rows(place, "SELECT COUNT(*) FROM unaudited") == [(1,)]
