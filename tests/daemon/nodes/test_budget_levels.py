"""Groups and budgets of three nodes on one PostgreSQL: no level is exceeded at any commit, and a node
that dies leaves no wrong sum."""

from __future__ import annotations

import asyncio
import random

import msgspec
from support.event_loops import in_event_loop
from support.ledgers import NOON, Clock, PostgresPlace, abandon, an_app, opened, problems_of, rows

from anaphora.daemon.access.grants import GroupLimits
from anaphora.daemon.money.ledger import Ledger
from anaphora.daemon.store import TokenRow
from anaphora.daemon.store.postgres import PostgresStore
from anaphora.daemon.values import App
from anaphora.errors import GrantExceeded
from anaphora.postgres.connection import connect

PER_DAY, GROUP_PER_DAY, BUDGET = 2_000, 2_600, 700
_LIMITS = GroupLimits(nano_usd_per_day=GROUP_PER_DAY)

#: Records each balance that exceeds its limit, in the transaction that wrote it.
_WATCH = f"""
CREATE TABLE anaphora.exceeded (app text, charged bigint);
CREATE FUNCTION anaphora.watch_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO anaphora.exceeded SELECT NEW.app, NEW.spent + NEW.held
    WHERE NEW.spent + NEW.held > CASE
        WHEN NEW.app LIKE 'group:%' THEN {GROUP_PER_DAY}
        WHEN NEW.app LIKE 'budget:%' THEN {BUDGET} ELSE {PER_DAY} END;
    RETURN NULL;
END $$;
CREATE TRIGGER watch_balances AFTER INSERT OR UPDATE ON anaphora.balances
    FOR EACH ROW EXECUTE FUNCTION anaphora.watch_balance();
"""


def app(id: str, *budgets: tuple[str, int]) -> App:
    found = an_app(id, PER_DAY)
    return msgspec.structs.replace(
        found,
        grant=msgspec.structs.replace(found.grant, group="team", group_limits=_LIMITS),
        budgets=tuple(name for name, _ in budgets),
        budget_limits=tuple(limit for _, limit in budgets),
    )


def token(id: str, parent: str, amount: int) -> TokenRow:
    return TokenRow(
        id=id, app="one", digest=id.encode(), created=NOON, expires=NOON + 3600, parent=parent,
        nano_usd=amount,
    )  # fmt: skip


CALLERS = (
    app("one"),
    app("two"),
    app("one", ("task", BUDGET)),
    app("one", ("task", BUDGET), ("inner", BUDGET)),
)


async def call(ledger: Ledger, caller: App, bound: int, billed: int) -> bool:
    try:
        hold = await ledger.hold(caller, provider="p", model="m", request_id="r", bound=bound)
    except GrantExceeded:
        return False
    await asyncio.sleep(0)
    await hold.settle(billed, "billed")
    return True


async def load(ledger: Ledger, draw: random.Random) -> int:
    """Calls until so many were refused that all limits are near."""
    refused = 0
    while refused < 20:
        bound = draw.randrange(1, 60)
        refused += not await call(ledger, draw.choice(CALLERS), bound, draw.randrange(bound + 1))
    return refused


@in_event_loop
async def test_no_level_is_exceeded_by_three_nodes(postgres_place: PostgresPlace) -> None:
    connection = await connect(postgres_place.address)
    await connection.execute(_WATCH)
    await connection.close()
    clock = Clock()
    async with (
        opened(postgres_place, clock, node="a") as first,
        opened(postgres_place, clock, node="b") as second,
    ):
        third_place = msgspec.structs.replace(postgres_place, folder=postgres_place.folder / "c")
        third_place.folder.mkdir()
        async with opened(third_place, clock, node="c") as third:
            nodes = (first, second, third)
            await first.store.add_token(token("task", "root", BUDGET))
            await second.store.add_token(token("inner", "task", BUDGET))

            left = await third.hold(CALLERS[3], provider="p", model="m", request_id="r", bound=50)
            left._settled = True

            await asyncio.gather(
                *(load(node, random.Random(n)) for n, node in enumerate(nodes * 3))
            )
            # The third node dies with its open call.
            assert isinstance(third.store, PostgresStore)
            abandon(third.store)
            await asyncio.sleep(0)
            async with opened(third_place, clock, node="c") as third:
                budgets = {one.token.id: one for one in await third.store.budgets()}
                assert {one.held for one in budgets.values()} == {0}
                assert budgets["task"].spent >= budgets["inner"].spent >= 50
                group = (await third.store.spent_by_group(NOON))["team"]
                assert group.held == 0
                assert group.today > GROUP_PER_DAY - 120
    exceeded = "SELECT app, charged FROM exceeded"
    assert await asyncio.to_thread(rows, postgres_place, exceeded) == []
    assert await asyncio.to_thread(problems_of, postgres_place) == ()
