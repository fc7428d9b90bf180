"""Budgets of narrowed tokens, and limits of groups: in the ledger, on both stores."""

from __future__ import annotations

import msgspec
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

from anaphora.daemon.access.grants import GroupLimits
from anaphora.daemon.audit import missing_row
from anaphora.daemon.money.ledger import Ledger, OpenHold
from anaphora.daemon.store import EntryQuery, TokenRow
from anaphora.daemon.values import App
from anaphora.errors import GrantExceeded, InvalidRequest


def narrowed(app: App, *budgets: tuple[str, int]) -> App:
    return msgspec.structs.replace(
        app,
        budgets=tuple(id for id, _ in budgets),
        budget_limits=tuple(limit for _, limit in budgets),
    )


def grouped(app: App, group: str, per_day: int | None, per_month: int | None = None) -> App:
    limits = GroupLimits(nano_usd_per_day=per_day, nano_usd_per_month=per_month)
    return msgspec.structs.replace(
        app, grant=msgspec.structs.replace(app.grant, group=group, group_limits=limits)
    )


def token(id: str, *, parent: str = "root", amount: int = 100, hours: float = 1.0) -> TokenRow:
    return TokenRow(
        id=id, app="shop", digest=id.encode(), created=NOON, expires=NOON + hours * 3600,
        parent=parent, nano_usd=amount, models=("claude-*",), label=f"task {id}",
    )  # fmt: skip


async def hold(ledger: Ledger, app: App, bound: int) -> OpenHold:
    return await ledger.hold(app, provider="p", model="m", request_id="r", bound=bound)


async def refused(ledger: Ledger, app: App, bound: int) -> GrantExceeded:
    with pytest.raises(GrantExceeded) as problem:
        await hold(ledger, app, bound)
    return problem.value


@in_event_loop
async def test_narrowed_tokens_are_stored(place: StorePlace) -> None:
    async with opened(place) as ledger:
        row = token("t1")
        await ledger.store.add_token(row)
        assert await ledger.store.tokens() == [row]
        (found,) = await ledger.store.budgets("shop")
        assert (found.token, found.spent, found.held) == (row, 0, 0)
        assert await ledger.store.budgets("other") == []


@in_event_loop
async def test_every_level_of_a_call_is_checked(place: StorePlace) -> None:
    async with opened(place) as ledger:
        await ledger.store.add_token(token("outer"))
        await ledger.store.add_token(token("inner", parent="outer"))
        app = narrowed(an_app("shop", 1000), ("outer", 100), ("inner", 60))
        first = await hold(ledger, app, 30)
        await first.settle(20, "billed")
        await (await hold(ledger, app, 40)).settle(40, "billed")
        own = await refused(ledger, app, 1)
        assert (own.limit, own.resets_at) == ("budget_usd", None)
        assert "expires at 2027-01-15T13:00:00Z" in str(own)
        outer = narrowed(an_app("shop", 1000), ("outer", 100))
        await (await hold(ledger, outer, 40)).settle(40, "billed")
        sibling = narrowed(an_app("shop", 1000), ("outer", 100), ("sibling", 60))
        assert (await refused(ledger, sibling, 1)).limit == "parent_budget_usd"
        assert {one.token.id: one.spent for one in await ledger.store.budgets()} == {
            "outer": 100,
            "inner": 60,
        }
    assert problems_of(place) == ()


@in_event_loop
async def test_apps_of_a_group_share_its_limits(place: StorePlace) -> None:
    async with opened(place) as ledger:
        one, two = (grouped(an_app(id, 100), "team", 120) for id in ("one", "two"))
        first = await hold(ledger, one, 90)
        problem = await refused(ledger, two, 40)
        assert (problem.limit, problem.resets_at) == ("group_usd_per_day", NOON + DAY / 2)
        second = await hold(ledger, two, 30)
        assert (await refused(ledger, one, 20)).limit == "group_usd_per_day"
        found = await ledger.store.spent_by_group(NOON)
        assert (found["team"].held, found["team"].today) == (120, 0)
        await first.settle(40, "billed")
        second.settle_at_bound()
        found = await ledger.store.spent_by_group(NOON)
        assert (found["team"].held, found["team"].today, found["team"].month) == (0, 70, 70)
        assert set(await ledger.store.spent_by_app(NOON)) == {"one", "two"}
    assert problems_of(place) == ()


@in_event_loop
async def test_revoking_a_token_ends_those_below_it(place: StorePlace) -> None:
    async with opened(place) as ledger:
        root = TokenRow(id="root", app="shop", digest=b"root", created=NOON)
        for row in (root, token("t1"), token("t2", parent="t1")):
            await ledger.store.add_token(row)
        running = await hold(ledger, narrowed(an_app("shop", 100), ("t1", 100), ("t2", 60)), 20)
        await ledger.store.change_token("root", revoked=NOON + 1)
        revoked = {row.id: row.revoked for row in await ledger.store.tokens()}
        assert revoked == {"root": NOON + 1, "t1": NOON + 1, "t2": NOON + 1}
        await running.settle(20, "billed")
    assert problems_of(place) == ()


@pytest.mark.parametrize("parent", ["root", "t1"])
@in_event_loop
async def test_token_whose_parent_was_revoked_meanwhile_is_revoked(
    place: StorePlace, parent: str
) -> None:
    async with opened(place) as ledger:
        root = TokenRow(id="root", app="shop", digest=b"root", created=NOON)
        await ledger.store.add_token(root)
        await ledger.store.add_token(token("t1"))
        await ledger.store.change_token(parent, revoked=NOON + 1)
        await ledger.store.add_token(token("t3", parent=parent))
        assert await ledger.store.count_narrowed("shop", NOON) == 0
    assert problems_of(place) == ()


@in_event_loop
async def test_calls_after_a_move_count_in_the_new_group(place: StorePlace) -> None:
    async with opened(place) as ledger:
        before = await hold(ledger, grouped(an_app("shop"), "old", 100), 90)
        after = await hold(ledger, grouped(an_app("shop"), "new", 100), 90)
        await before.settle(70, "billed")
        await after.settle(30, "billed")
        found = await ledger.store.spent_by_group(NOON)
        assert {name: one.today for name, one in found.items()} == {"old": 70, "new": 30}
    assert problems_of(place) == ()


@in_event_loop
async def test_corrections_and_late_bills_count_on_all_levels(place: StorePlace) -> None:
    async with opened(place) as ledger:
        await ledger.store.add_token(token("t1"))
        app = narrowed(grouped(an_app("shop"), "team", 1000), ("t1", 100))
        late, corrected = await hold(ledger, app, 40), await hold(ledger, app, 40)
        late.settle_at_bound()
        await late.settle(10, "billed")
        await corrected.settle(40, "billed")
        await ledger.store.correct(corrected.hold.id, 25, "invoice")
        (found,) = await ledger.store.budgets()
        team = (await ledger.store.spent_by_group(NOON))["team"]
        assert (found.spent, team.today, team.month) == (35, 35, 35)
        (_, entry, _) = await ledger.store.entries(EntryQuery())
        assert entry.accounts == '["group:team","budget:t1"]'
    assert problems_of(place) == ()


@in_event_loop
async def test_holds_of_a_killed_daemon_are_settled_on_all_levels(place: StorePlace) -> None:
    async with opened(place) as ledger:
        await ledger.store.add_token(token("t1", amount=60))
        running = await hold(ledger, narrowed(an_app("shop", 100), ("t1", 60)), 40)
        running._settled = True  # the process ends
    async with opened(place) as ledger:
        (found,) = await ledger.store.budgets()
        assert (found.spent, found.held) == (40, 0)
        app = narrowed(an_app("shop", 100), ("t1", 60))
        assert (await refused(ledger, app, 21)).limit == "budget_usd"
    assert problems_of(place) == ()


@in_event_loop
async def test_pruning_removes_budgets_that_ended_with_their_months(place: StorePlace) -> None:
    async with opened(place, clock := Clock()) as ledger:
        await ledger.store.add_token(token("t1", amount=60))
        app = narrowed(an_app("shop", 100), ("t1", 60))
        await (await hold(ledger, app, 40)).settle(40, "billed")
        clock.now += 16.4 * DAY  # 21:36 of the month's last day
        live = msgspec.structs.replace(token("t2", amount=90), expires=clock.now + DAY)
        await ledger.store.add_token(live)
        app = narrowed(an_app("shop", 100), ("t2", 90))
        await (await hold(ledger, app, 50)).settle(50, "billed")
        clock.now += DAY / 4
    assert prune_place(place, 0, clock.now).entries == 2
    async with opened(place, clock) as ledger:
        (found,) = await ledger.store.budgets()
        assert (found.token, found.spent) == (live, 50)
        assert rows(place, "SELECT * FROM balances WHERE app = 'budget:t1'") == []
        assert (await refused(ledger, app, 41)).limit == "budget_usd"
    assert problems_of(place, clock.now) == ()


@in_event_loop
async def test_budgets_that_ended_unused_are_removed(place: StorePlace) -> None:
    """Otherwise an app could fill the store with tokens that live for a moment."""
    async with opened(place, clock := Clock()) as ledger:
        await ledger.store.add_token(token("unused", amount=10))
        await ledger.store.add_token(token("used", amount=10))
        await ledger.store.add_token(token("live", hours=9))
        app = narrowed(an_app("shop", 100), ("used", 10))
        await (await hold(ledger, app, 5)).settle(5, "billed")
        clock.now += 2 * 3600
        await ledger.store.remove_unused_budgets(clock.now)
        assert {one.token.id for one in await ledger.store.budgets()} == {"used", "live"}
    assert problems_of(place, clock.now) == ()


# ── Reports ──────────────────────────────────────────────────────────────────────────────────────


@in_event_loop
async def test_spend_is_summed_by_budget(place: StorePlace) -> None:
    """By the calling token, with the label, and the rest in a row without one."""
    app, ids = an_app("shop"), ("tok_0000000000aa", "tok_0000000000bb")
    async with opened(place) as ledger:
        for id, parent in zip(ids, ("", ids[0]), strict=True):
            await ledger.store.add_token(token(id, parent=parent, amount=10_000))
        outer = narrowed(grouped(app, "team", 1_000_000), (ids[0], 10_000))
        inner = narrowed(outer, (ids[0], 10_000), (ids[1], 10_000))
        for caller, billed in ((app, 5), (outer, 30), (inner, 200), (inner, 200)):
            await (await hold(ledger, caller, 300)).settle(billed, "billed")
        found = await ledger.store.spend(("app", "budget"))
        assert [(one.app, one.budget, one.budget_label, one.billed) for one in found] == [
            ("shop", "", "", 5),
            ("shop", ids[0], f"task {ids[0]}", 30),
            ("shop", ids[1], f"task {ids[1]}", 400),
        ]
        with pytest.raises(InvalidRequest, match="label and budget"):
            await ledger.store.spend(("label", "budget"))
        entries = await ledger.store.entries(EntryQuery())
        assert sorted((one.billed, one.budget, one.budget_label) for one in entries) == [
            (5, "", ""),
            (30, ids[0], f"task {ids[0]}"),
            *[(200, ids[1], f"task {ids[1]}")] * 2,
        ]
        await ledger.store.correct(entries[0].id, 100, "as on the invoice")
        corrected = sum(one.billed for one in await ledger.store.spend(("budget",)))
        assert corrected == sum(one.billed for one in await ledger.store.spend(()))


@in_event_loop
async def test_entries_without_an_audit_row_name_the_budget(place: StorePlace) -> None:
    id = "tok_0000000000cc"
    async with opened(place) as ledger:
        await ledger.store.begin_audit(1)
        await ledger.store.add_token(token(id, amount=1000))
        await (await hold(ledger, narrowed(an_app("shop"), (id, 1000)), 100)).settle(7, "billed")
    async with opened(place) as ledger:
        await ledger.recover()
        (found,) = await ledger.store.unaudited()
        assert (found.budget, found.budget_label) == (id, f"task {id}")
        row = missing_row("r", [found], "node", "team")
        assert (row.budget, row.budget_label, row.group) == (id, f"task {id}", "team")
