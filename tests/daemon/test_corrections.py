"""Corrections of what calls cost: booked on the day of the call, in both stores."""

from __future__ import annotations

import asyncio

import pytest
from support.event_loops import in_event_loop
from support.ledgers import (
    DAY,
    NOON,
    Clock,
    StorePlace,
    an_app,
    opened,
    problems_of,
    prune_place,
    rows,
)

from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import LARGEST_AMOUNT, Entry, EntryQuery, Settled
from anaphora.errors import GrantExceeded, InvalidRequest
from anaphora.values import Usage

TODAY = "2027-01-15"


async def charge(
    ledger: Ledger,
    billed: int,
    kind: Settled = "billed",
    *,
    app: str = "shop",
    model: str = "m",
    request: str = "r",
    **labels: int,
) -> str:
    """The id of an entry."""
    hold = await ledger.hold(an_app(app), provider="p", model=model, request_id=request, bound=1000)
    await hold.settle(billed, kind, usage=Usage(uncached=10, output=2), labels=labels, saved=7)
    return hold.hold.id


async def amounts(ledger: Ledger) -> tuple[int, int, int, int]:
    """Calls, what was billed, and the parts that are estimated and corrected."""
    [row] = await ledger.store.spend([])
    return row.calls, row.billed, row.estimated, row.corrected


async def entries(ledger: Ledger, **query: object) -> list[Entry]:
    return await ledger.store.entries(EntryQuery(**query))  # type: ignore[arg-type]


@in_event_loop
async def test_a_correction_adds_the_difference_and_a_later_one_replaces_it(
    place: StorePlace,
) -> None:
    async with opened(place, clock := Clock()) as ledger:
        entry = await charge(ledger, 700, rules=350, history=100)
        clock.now += DAY
        first = await ledger.store.correct(entry, 70, "invoice")
        assert (first.before, first.after, first.booked, first.day) == (700, 70, True, TODAY)
        assert await amounts(ledger) == (1, 70, 0, -630)
        second = await ledger.store.correct(entry, 900, "second invoice")
        assert (second.before, second.after) == (70, 900)
        assert await amounts(ledger) == (1, 900, 0, 200)
        found = await entries(ledger)
        assert [(one.id, one.kind, one.billed) for one in found] == [
            (f"{entry}.0002", "correction", 830),
            (f"{entry}.0001", "correction", -630),
            (entry, "billed", 700),
        ]
        assert {one.day for one in found} == {TODAY}
        assert [one.reason for one in found] == ["second invoice", "invoice", ""]
        # The parts of the labels follow.
        by_label = {row.label: row.billed for row in await ledger.store.spend(["label"])}
        assert by_label == {"rules": 450, "history": 128, "": 322}
        [by_model] = await ledger.store.spend(["model"])
        assert (by_model.model, by_model.calls, by_model.billed, by_model.input) == (
            "m", 1, 900, 10,
        )  # fmt: skip
    assert problems_of(place, NOON + DAY) == ()


@in_event_loop
async def test_the_same_correction_again_books_nothing(place: StorePlace) -> None:
    async with opened(place) as ledger:
        entry = await charge(ledger, 700)
        first = await ledger.store.correct(entry, 70, "invoice")
        again = await ledger.store.correct(entry, 70, "invoice")
        assert (again.booked, again.id) == (False, first.id)
        assert len(await entries(ledger)) == 2
        other = await ledger.store.correct(entry, 70, "and confirmed by mail")
        assert (other.booked, other.before, other.after) == (True, 70, 70)
    assert problems_of(place) == ()


@pytest.mark.parametrize("kind", ["estimated", "bound", "disputed"])
@in_event_loop
async def test_a_correction_confirms_what_was_estimated(place: StorePlace, kind: Settled) -> None:
    async with opened(place) as ledger:
        await charge(ledger, 30, "estimated")
        entry = await charge(ledger, 1000, kind)
        assert await amounts(ledger) == (2, 1030, 1030, 0)
        await ledger.store.correct(entry, 5, "invoice")
        assert await amounts(ledger) == (2, 35, 30, -995)
        await ledger.store.correct(entry, 8, "invoice 2")
        assert await amounts(ledger) == (2, 38, 30, -992)
    assert problems_of(place) == ()


@in_event_loop
async def test_a_correction_counts_for_the_limits_at_once(place: StorePlace) -> None:
    async with opened(place, clock := Clock()) as ledger:
        entry = await charge(ledger, 1000, "disputed")
        app = an_app(per_day=1500, per_month=2500)

        async def fits() -> bool:
            try:
                hold = await ledger.hold(app, provider="p", model="m", request_id="r", bound=1000)
            except GrantExceeded:
                return False
            await hold.settle(0, "free")
            return True

        assert not await fits()
        await ledger.store.correct(entry, 0, "nothing was billed")
        assert await fits()
        await ledger.store.correct(entry, 501, "billed after all")
        assert not await fits()
        # The month of the entry counts, on whatever day it is corrected.
        clock.now += DAY
        assert await fits()
        await ledger.store.correct(entry, 1501, "more")
        assert not await fits()
        spent = await ledger.spent("shop")
        assert (spent.today, spent.month) == (0, 1501)


@in_event_loop
async def test_two_corrections_at_once_end_in_one_of_the_amounts(place: StorePlace) -> None:
    async with opened(place) as ledger, opened(place, node="other") as other:
        entry = await charge(ledger, 700)
        done = await asyncio.gather(
            *(
                (ledger, other)[amount % 2].store.correct(entry, amount, f"invoice {amount}")
                for amount in range(100, 112)
            )
        )
        calls, billed, _, corrected = await amounts(ledger)
        assert (calls, billed) == (1, billed)
        assert billed in range(100, 112)
        assert corrected == billed - 700
        assert sorted(one.after for one in done) == [*range(100, 112)]
        assert len({one.id for one in done}) == 12
        assert (await ledger.spent("shop")).today == billed
    assert problems_of(place) == ()


@in_event_loop
async def test_a_late_bill_does_not_change_what_was_corrected(place: StorePlace) -> None:
    async with opened(place) as ledger:
        late = await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=1000)
        await late.settle(1000, "bound")
        await ledger.store.correct(late.hold.id, 300, "invoice")
        await late.settle(120, "billed", usage=Usage(uncached=5, output=1), model="answered")
        assert await amounts(ledger) == (1, 300, 0, -700)
        [row] = await ledger.store.spend(["model"])
        assert row.model == "m"
    assert problems_of(place) == ()


@in_event_loop
async def test_a_corrected_call_is_not_taken_for_one_without_an_audit_row(
    place: StorePlace,
) -> None:
    """A correction has a row of its own: recovery after a kill would write another for the call."""
    async with opened(place) as ledger:
        await ledger.store.begin_audit(1)
        entry = await charge(ledger, 700)
        assert rows(place, "SELECT hold FROM unaudited") == [(entry,)]
        await ledger.store.correct(entry, 80, "before the row of the call is durable")
        assert rows(place, "SELECT hold FROM unaudited") == [(entry,)]
        ledger.audited(["r"])
        await ledger.spent("shop")
        await ledger.store.correct(entry, 70, "and after it")
        assert rows(place, "SELECT hold FROM unaudited") == []


@in_event_loop
async def test_what_cannot_be_corrected_is_named(place: StorePlace) -> None:
    async with opened(place) as ledger:
        entry = await charge(ledger, 700)
        running = await ledger.hold(an_app(), provider="p", model="m", request_id="r", bound=9)
        correct = ledger.store.correct
        with pytest.raises(InvalidRequest, match="there is no entry nothing"):
            await correct("nothing", 1, "why")
        with pytest.raises(InvalidRequest, match="is still open"):
            await correct(running.hold.id, 1, "why")
        for amount in (-1, LARGEST_AMOUNT + 1):
            with pytest.raises(InvalidRequest, match="nano-dollars"):
                await correct(entry, amount, "why")
        done = await correct(entry, LARGEST_AMOUNT, "why")
        with pytest.raises(InvalidRequest, match=f"correct the entry {entry}"):
            await correct(done.id, 1, "why")
        running.release()
        assert (await amounts(ledger))[1] == LARGEST_AMOUNT
    assert problems_of(place) == ()


@in_event_loop
async def test_entries_are_listed_by_app_and_time_in_pages(place: StorePlace) -> None:
    async with opened(place, clock := Clock()) as ledger:
        for number in range(6):
            await charge(ledger, number, app=("shop", "blog")[number % 2], request=f"r{number}")
            clock.now += 60
        corrected = (await entries(ledger, app="shop"))[0]
        assert corrected.request_id == "r4"
        await ledger.store.correct(corrected.id, 9, "invoice")
        assert [one.billed for one in await entries(ledger, app="shop")] == [5, 4, 2, 0]
        assert [one.billed for one in await entries(ledger, since=NOON + 240)] == [5, 5, 4]
        assert [one.billed for one in await entries(ledger, corrections=True)] == [5]
        page = await entries(ledger, limit=2)
        assert [one.billed for one in page] == [5, 5, 4]  # one more: there are more
        rest = await entries(ledger, limit=9, before=page[1].id)
        assert [one.billed for one in rest] == [4, 3, 2, 1, 0]


@in_event_loop
async def test_corrections_are_pruned_with_their_entries(place: StorePlace) -> None:
    async with opened(place, clock := Clock()) as ledger:
        old = await charge(ledger, 700)
        await ledger.store.correct(old, 70, "invoice")
        clock.now += 60 * DAY
        new = await charge(ledger, 500)
        await ledger.store.correct(new, 50, "invoice")
    assert prune_place(place, 30, NOON + 60 * DAY).entries == 2
    async with opened(place, clock) as ledger:
        assert (await amounts(ledger))[1] == 120
        with pytest.raises(InvalidRequest, match="entries that were pruned cannot be corrected"):
            await ledger.store.correct(old, 1, "too late")
        assert [row.corrected for row in await ledger.store.spend(["day"])] == [-630, -450]
    assert problems_of(place, NOON + 60 * DAY) == ()
    assert len(rows(place, "SELECT 1 FROM entries")) == 2
