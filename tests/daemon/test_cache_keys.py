"""A conversation has one `prompt_cache_key` from its first call on, whichever process serves it.

At the emulator requests with different keys share nothing: a call whose key has changed reads
nothing, while a client without a daemon reads all of the prompt before.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemon import GRANT, KEY, NO_TLS, create_home, started_daemon
from support.delegation import app_of, delegating
from support.event_loops import in_event_loop
from support.honest_apps import SYSTEM, Chat
from support.nodes import running_nodes
from support.waiting import PATIENCE

from anaphora.emulator.server import Emulator

TURNS = 4
WIRES = ["openai", "responses"]
APPS = [("one",), ("one", "two")]
STORING = {**GRANT, "llm": {**GRANT["llm"], "allow": ["stored_responses"]}}


@contextlib.contextmanager
def direct(emu: Emulator) -> Iterator[httpx.Client]:
    """A client that calls the provider itself."""
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=emu.url, headers=headers, timeout=PATIENCE, verify=NO_TLS) as client:
        yield client


def reads_without_a_daemon(emu: Emulator, wire: str, names: Sequence[str]) -> list[int]:
    emu.reset()
    chats = [Chat("one", wire, name) for name in names]
    with direct(emu) as client:
        found = [chat.ask(client).read for _ in range(TURNS) for chat in chats]
    emu.reset()
    return found


@pytest.mark.parametrize("apps", APPS)
@pytest.mark.parametrize("wire", WIRES)
def test_conversation_reads_what_it_reads_without_a_daemon(
    wire: str, apps: tuple[str, ...], emu: Emulator, tmp_path: Path
) -> None:
    expected = reads_without_a_daemon(emu, wire, ["only"])
    assert expected[0] == 0
    assert min(expected[1:]) > 3000
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(apps, GRANT))
    chat = Chat("one", wire, "only")
    with started_daemon(tmp_path / "home", tokens) as daemon, daemon.client("one") as client:
        assert [chat.ask(client).read for _ in range(TURNS)] == expected


@pytest.mark.parametrize("apps", APPS)
@pytest.mark.long
def test_key_outlives_the_process(apps: tuple[str, ...], emu: Emulator, tmp_path: Path) -> None:
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(apps, GRANT))
    chat, reads = Chat("one", "openai", "only"), list[int]()
    for _ in range(TURNS):
        with started_daemon(tmp_path / "home", tokens) as daemon, daemon.client("one") as client:
            reads.append(chat.ask(client).read)
    assert reads[0] == 0
    assert all(after > max(3000, before) for before, after in itertools.pairwise(reads))


@pytest.mark.parametrize("apps", APPS)
@pytest.mark.long
def test_each_conversation_of_a_crowd_keeps_its_key(
    apps: tuple[str, ...], emu: Emulator, tmp_path: Path
) -> None:
    """Those that began when one key had too many calls a minute have one each."""
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(apps, GRANT))
    chats, reads = [Chat("one", "openai", str(number)) for number in range(20)], list[list[int]]()
    with started_daemon(tmp_path / "home", tokens) as daemon, daemon.client("one") as client:
        for _ in range(TURNS):
            reads.append([chat.ask(client).read for chat in chats])
    for before, after in itertools.pairwise(reads):
        assert all(later > max(3000, earlier) for earlier, later in zip(before, after, strict=True))
    # Only so many share one key.
    assert sum(read == 0 for read in reads[0]) == 1 + 5


def test_key_is_the_same_on_all_nodes(emu: Emulator, tmp_path: Path, database_url: str) -> None:
    """While one key serves all conversations."""
    chats = [Chat("demo", "openai", str(number)) for number in range(6)]
    reads: list[list[int]] = []
    with running_nodes(tmp_path, emu, database_url) as nodes:
        for turn in range(TURNS):
            with nodes[turn % 2].client() as client:
                reads.append([chat.ask(client).read for chat in chats])
    for before, after in itertools.pairwise(reads):
        assert all(later > max(3000, earlier) for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("apps", APPS)
def test_stored_conversation_keeps_its_key(
    apps: tuple[str, ...], restarts: bool, emu: Emulator, tmp_path: Path
) -> None:
    """Continued by `previous_response_id`, so that the body has a part of the prompt only."""
    tokens = create_home(tmp_path / "home", emu, extensions=dict.fromkeys(apps, STORING))
    reads, previous = [], None
    with contextlib.ExitStack() as stack:
        for turn in range(3):
            if restarts or not turn:
                stack.close()
                daemon = stack.enter_context(started_daemon(tmp_path / "home", tokens))
                client = stack.enter_context(daemon.client("one"))
            body: dict[str, Any] = {
                "model": "gpt-5.2", "instructions": SYSTEM, "store": True,
                "input": f"question {turn} " + "more " * 200, "max_output_tokens": 64,
                "previous_response_id": previous,
            }  # fmt: skip
            answer = client.post("/v1/responses", json=body).raise_for_status().json()
            previous = answer["id"]
            reads.append(answer["usage"]["input_tokens_details"]["cached_tokens"])
    assert reads[0] == 0
    assert reads[2] > reads[1] > 3000


@in_event_loop
async def test_first_call_has_the_planners_key(emu: Emulator, tmp_path: Path) -> None:
    """That of all conversations with the same beginning; an app's own key is kept, and salted where
    other apps use the account."""
    one, two = (app_of(name, providers=["openai_chat"]) for name in ("one", "two"))
    system = {"role": "system", "content": SYSTEM}

    async def key(question: str, **fields: Any) -> str:
        messages = [system, {"role": "user", "content": question}]
        body = {"model": "gpt-5.2", "messages": messages, **fields}
        call = daemon.request("openai_chat", body, app=one)
        await daemon.service.complete(call)
        found: str = daemon.sent[-1]["prompt_cache_key"]
        return found

    async with delegating(emu, tmp_path, ["openai_chat"]) as daemon:
        daemon.service.use_grants([one.grant])
        assert await key("Hello?") == await key("And now?")
        assert await key("Hello?", prompt_cache_key="mine") == "mine"
        daemon.service.use_grants([one.grant, two.grant])
        assert await key("Hello?") == await key("And now?")
        salted = await key("Hello?", prompt_cache_key="mine")
        assert salted == await key("Hello?", prompt_cache_key="mine") != "mine"
