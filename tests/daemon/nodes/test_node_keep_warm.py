"""`keep_warm` on several nodes: one bound a day for all, and one node for each conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from support.daemon import TestedDaemon
from support.nodes import create_node_homes, running_node, running_nodes
from support.waiting import PATIENCE, wait_until
from support.warm_daemon import MINUTE, Conversation, Provider, WarmDaemon, grant

from anaphora.daemon.money.ledger import Ledger
from anaphora.emulator.server import Emulator

DAY = 24 * 60 * MINUTE
#: Enough for a few refreshes.
USD_PER_DAY = Decimal("0.02")


class Shifted:
    """The emulator and a clock that tests advance, for several nodes."""

    def __init__(self, emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        real = time.time
        self.shift = [-real() % DAY + DAY / 2]  # noon: no test passes midnight unless it jumps
        monkeypatch.setattr("time.time", lambda: real() + self.shift[0])
        self.provider = Provider(emu)
        monkeypatch.setattr(emu.engine, "receive", self.provider.receive)

    def node(self, daemon: TestedDaemon) -> WarmDaemon:
        ledger_of(daemon).clock = time.time
        return WarmDaemon(daemon, self.provider, self.shift)


def ledger_of(daemon: TestedDaemon) -> Ledger:
    return daemon.daemon.services.calls.tools.ledger


@pytest.fixture
def shifted(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> Shifted:
    return Shifted(emu, monkeypatch)


def refreshed_usd(node: WarmDaemon) -> Decimal:
    """What all refreshes have cost, by the ledger."""
    reading = ledger_of(node.daemon).store.spend(("label",))
    found = asyncio.run_coroutine_threadsafe(reading, node.daemon.daemon._loop).result(PATIENCE)
    return Decimal(sum(row.billed for row in found if row.label == "keep_warm")) / 10**9


def until_bound(chat: Conversation) -> int:
    """Goes on until a refresh is refused; the refreshes before."""
    for _ in range(40):
        chat.warm.wait(7 * MINUTE)
        chat.send()
        if "keep_warm_bound" in [notice["code"] for notice in chat.explained()["notices"]]:
            return len(chat.warm.refreshes())
    raise AssertionError("no refresh was refused")


def test_the_bound_of_a_day_is_that_of_all_nodes(
    shifted: Shifted, tmp_path: Path, emu: Emulator, database_url: str
) -> None:
    demo = grant({"usd_per_day": float(USD_PER_DAY)})
    with running_nodes(tmp_path, emu, database_url, extensions={"demo": demo}) as nodes:
        first, second = (shifted.node(node) for node in nodes)
        chat = Conversation(first, "one")
        chat.send()
        sent = until_bound(chat)
        assert sent
        other = Conversation(second, "two")
        other.converse(7, 7, 7)
        codes = [notice["code"] for notice in other.explained()["notices"]]
        assert "keep_warm_bound" in codes
        assert len(second.refreshes()) == sent
        assert USD_PER_DAY / 2 < refreshed_usd(second) <= USD_PER_DAY


def test_the_bound_holds_after_a_restart_and_ends_with_the_day(
    shifted: Shifted, tmp_path: Path, emu: Emulator, database_url: str
) -> None:
    demo = grant({"usd_per_day": float(USD_PER_DAY)})
    (home,), tokens = create_node_homes(
        tmp_path, emu, database_url, count=1, extensions={"demo": demo}
    )
    with running_node(home, tokens) as node:
        chat = Conversation(shifted.node(node), "one")
        chat.send()
        sent = until_bound(chat)
    with running_node(home, tokens) as node:
        again = shifted.node(node)
        Conversation(again, "two").converse(7, 7, 7)
        assert len(again.refreshes()) == sent
        again.jump(DAY)
        Conversation(again, "three").converse(7, 7, 7)
        assert len(again.refreshes()) > sent


@contextmanager
def two_nodes(
    shifted: Shifted, folder: Path, emu: Emulator, database_url: str, redis_url: str
) -> Iterator[list[WarmDaemon]]:
    with running_nodes(
        folder, emu, database_url, extensions={"demo": grant()}, shared=redis_url
    ) as nodes:
        yield [shifted.node(node) for node in nodes]


def kept_bytes(node: WarmDaemon) -> int:
    refresher = node.daemon.daemon.services.calls.tools.refresher
    assert refresher is not None
    return refresher._bytes


def test_late_news_of_an_earlier_call_changes_nothing(
    shifted: Shifted, tmp_path: Path, emu: Emulator, database_url: str, redis_url: str
) -> None:
    """Otherwise no node would refresh the conversation."""
    with two_nodes(shifted, tmp_path, emu, database_url, redis_url) as (_, node):
        Conversation(node).converse(7, 7, 7)
        wait_until(lambda: kept_bytes(node) > 0)
        refresher = node.daemon.daemon.services.calls.tools.refresher
        assert refresher is not None
        (conversation,) = refresher._conversations
        news = msgspec.msgpack.encode(("continued", conversation))

        async def hear(age: float) -> None:
            refresher._hear(news, age)

        for age, is_kept in ((60.0, True), (0.0, False)):
            heard = asyncio.run_coroutine_threadsafe(hear(age), node.daemon.daemon._loop)
            heard.result(PATIENCE)
            assert (kept_bytes(node) > 0) is is_kept


def test_the_node_of_the_last_call_refreshes(
    shifted: Shifted, tmp_path: Path, emu: Emulator, database_url: str, redis_url: str
) -> None:
    with two_nodes(shifted, tmp_path, emu, database_url, redis_url) as (first, second):
        chat = Conversation(first)
        chat.converse(7, 7, 7)
        assert kept_bytes(first)
        chat.warm = second
        chat.send()
        wait_until(lambda: kept_bytes(second) > 0)
        wait_until(lambda: kept_bytes(first) == 0)
        before = len(first.refreshes())
        first.wait(7 * MINUTE)
        assert len(first.refreshes()) == before
