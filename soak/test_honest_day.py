"""A day of two honest apps on one key: 40 conversations each, over all wires, streamed and not, many
at once, while the daemon is started anew or its nodes are stopped in turn. Each answered call is
charged what the provider billed for it, to the nano-dollar; and no app sees reads that it did not
write itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import httpx
import pytest
from msgspec import structs
from support.cluster import Cluster, Node
from support.daemon import GRANT, NO_TLS, create_home, llm_yaml
from support.honest_apps import WIRES, Answer, Bill, Chat, charges, provider_bills
from support.ledgers import memory_folder
from support.servers import PostgresServer
from support.waiting import PATIENCE

from anaphora import emulator
from anaphora.catalog import Price
from anaphora.emulator import EmulatorOptions, Latency, journal
from anaphora.emulator.journal import JournalEntry
from anaphora.emulator.server import Emulator

APPS = ("one", "two")
CONVERSATIONS = 40
ROUNDS, TURNS = 4, 3
"""Processes one after the other, and turns of each conversation in each."""
AT_ONCE = 8
#: Seconds between two rounds, by the provider's clock: entries of five minutes expire, others live.
PAUSE = 1200.0


@contextlib.contextmanager
def provider() -> Iterator[Emulator]:
    """Its clock goes ahead of the daemon's (`pause`), and DeepSeek has other prices in some hours:
    those of the daemon's time apply."""
    options = EmulatorOptions(latency=Latency(first=0.01), any_model=True, remembered=10_000)
    with emulator.running(options) as running, pytest.MonkeyPatch.context() as patch:
        price = journal._price

        def price_without_pauses(entry: JournalEntry) -> Price | None:
            return price(structs.replace(entry, at=entry.at - running.engine.offset))

        patch.setattr(journal, "_price", price_without_pauses)
        yield running


def pause(emu: Emulator) -> None:
    emu.requests()  # which finds the price of each call so far
    emu.advance(PAUSE)


def conversations(seed: int) -> list[Chat]:
    """The same of both apps: what one sends, the other has in its cache."""
    chats = [
        Chat(app, WIRES[number % len(WIRES)], str(number), stream=number % 2 == 0)
        for app in APPS
        for number in range(CONVERSATIONS)
    ]
    random.Random(seed).shuffle(chats)
    return chats


def turns(
    chats: list[Chat], client_of: Callable[[Chat], httpx.Client]
) -> list[tuple[Chat, Answer]]:
    """Some turns of all conversations, many at once."""

    def talk(chat: Chat) -> list[tuple[Chat, Answer]]:
        return [(chat, chat.ask(client_of(chat))) for _ in range(TURNS)]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [call for calls in threads.map(talk, chats) for call in calls]


@contextlib.contextmanager
def clients(urls: list[str], tokens: dict[str, str]) -> Iterator[Callable[[Chat], httpx.Client]]:
    """A client of the node that a balancer would choose by the token of an app."""
    with contextlib.ExitStack() as stack:
        made = {
            app: [
                stack.enter_context(
                    httpx.Client(
                        base_url=url,
                        headers={"authorization": f"Bearer {token}"},
                        timeout=PATIENCE,
                        verify=NO_TLS,
                    )
                )
                for url in urls
            ]
            for app, token in tokens.items()
        }
        yield lambda chat: made[chat.app][APPS.index(chat.app) % len(urls)]


def check(
    calls: list[tuple[Chat, Answer]], bills: dict[str, Bill], charged: dict[str, tuple[int, str]]
) -> None:
    wrong = [
        (chat.app, chat.wire, charged[answer.request_id], bills[answer.reply_id])
        for chat, answer in calls
        if charged[answer.request_id] != (bills[answer.reply_id].nano_usd, "billed")
    ]
    assert wrong == []
    assert len(charged) == len(calls) == len(APPS) * CONVERSATIONS * ROUNDS * TURNS
    total = sum(billed for billed, _ in charged.values())
    assert total == sum(bill.nano_usd for bill in bills.values())
    over = [
        (chat.wire, answer) for chat, answer in calls if answer.read > bills[answer.reply_id].read
    ]
    assert over == []
    read = sum(bill.read for bill in bills.values())
    seen = sum(answer.read for _, answer in calls)
    assert 0.5 * read < seen < read
    print(f"{len(calls):,} calls, {total / 1e9:.6f} dollars billed and charged; {read:,} tokens read, "
          f"{seen:,} of them shown")  # fmt: skip


def test_daemon_that_is_started_again() -> None:
    seed = time.time_ns()
    with provider() as emu, memory_folder() as folder:
        home = folder / "home"
        node, config = Node(home), llm_yaml(emu.url)
        config["daemon"]["status_port"] = node.status_port
        secrets = create_home(home, emu, extensions=dict.fromkeys(APPS, GRANT), llm=config)
        tokens = {app: secrets[app].reveal() for app in APPS}
        chats, calls = conversations(seed), list[tuple[Chat, Answer]]()
        for _ in range(ROUNDS):
            node.start()
            try:
                with clients([node.url], tokens) as client_of:
                    calls += turns(chats, client_of)
            finally:
                node.stop()
            pause(emu)
        check(calls, provider_bills(emu), charges(home))


def test_nodes_that_are_stopped_in_turn() -> None:
    """Apps go from node to node when theirs is stopped; the nodes share a store and nothing else."""
    seed = time.time_ns()
    extensions = dict.fromkeys(APPS, GRANT)
    with provider() as emu, PostgresServer() as postgres, memory_folder() as folder:
        url = postgres.create_database()
        with Cluster(folder, store=url, provider=emu.url, extensions=extensions) as cluster:
            chats, calls = conversations(seed), list[tuple[Chat, Answer]]()
            for number in range(ROUNDS):
                stopped = cluster.nodes[number % len(cluster.nodes)]
                stopped.stop()
                urls = [node.url for node in cluster.nodes if node is not stopped]
                with clients(urls, cluster.tokens) as client_of:
                    calls += turns(chats, client_of)
                cluster.start_missing()
                pause(emu)
        charged = asyncio.run(shared_charges(url))
        check(calls, provider_bills(emu), charged)


async def shared_charges(url: str) -> dict[str, tuple[int, str]]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT request_id, billed, kind FROM anaphora.entries")
    finally:
        await connection.close()
    return {id: (billed, kind) for id, billed, kind in rows}
