"""Conversations with an id: a session for each request, in any process, behaves like one session."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_client import AT_ONCE, LONG, MODELS, WIRES
from support.kept_turns import in_one_session, in_processes, in_sessions, opened, transport_of
from support.tables import each_row

from anaphora import (
    AsyncClient,
    Client,
    Conversation,
    Message,
    PromptIR,
    RenderedContext,
    Response,
    emulator,
)
from anaphora.cache.verdict import Verdict
from anaphora.client import conversations as stores
from anaphora.client.conversations import InProcessConversations
from anaphora.client.session import Session, keeper
from anaphora.client.session.saved import FORMAT
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, PrefixBroken, Upstream
from anaphora.prompt import Segment
from anaphora.values import SegmentRole, from_json, to_json

TEXTS = [f"Question {number}: {'tell me more about it. ' * 20}" for number in range(12)]


def clock(number: int) -> str:
    """A system prompt that changes at the tenth turn."""
    return LONG if number < 9 else f"{LONG} It is 10:{number:02}:00."


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        yield processes


class Backend:
    """A web service that loads a history from its database at every request."""

    def __init__(self, client: AsyncClient, wire: str = "anthropic", **options: Any) -> None:
        self.client = client
        self.wire = wire
        self.options = {"system": LONG} | options
        self.rows: list[bytes] = []

    def session(self, name: str | None = "user-42", **options: Any) -> Session:
        keywords: dict[str, Any] = {
            "messages": [from_json(row, Message) for row in self.rows],
            "save": lambda message: self.rows.append(to_json(message)),
        }
        return self.client.session(self.wire, id=name, **keywords | self.options | options)


def codes(response: Response) -> list[str]:
    return [notice.code for notice in response.notices]


def verdict_of(response: Response) -> Verdict:
    assert response.record.verdict is not None
    return response.record.verdict


# ── The same as in one session ───────────────────────────────────────────────────────────────────


@pytest.mark.breaks_prefix(reason="a clock in the system prompt has to be named")
@pytest.mark.filterwarnings("ignore::anaphora.client.session.PrefixWarning")
@pytest.mark.parametrize(
    "wire, options",
    [
        *((wire, {}) for wire in [*WIRES, "deepseek", "minimax/anthropic"]),
        *((wire, {"state": "It is noon."}) for wire in ("anthropic", "openai_responses")),
        *(
            pytest.param(wire, {"state": "It is noon."}, marks=pytest.mark.soak)
            for wire in [*WIRES, "deepseek", "minimax/anthropic"]
            if wire not in ("anthropic", "openai_responses")
        ),
    ],
)
def test_sessions_and_processes_send_and_judge_like_one_session(
    emu: Emulator, pool: ProcessPoolExecutor, tmp_path: Path, wire: str, options: dict[str, str]
) -> None:
    one = in_one_session(emu.url, wire, TEXTS, clock, **options)
    emu.reset()
    by_session = in_sessions(emu.url, wire, TEXTS, clock, **options)
    emu.reset()
    by_process = in_processes(pool, emu.url, wire, TEXTS, clock, tmp_path, **options)
    assert by_session == one
    assert by_process == one
    # DeepSeek caches whole units, and the state, which the next call drops, ends within one.
    within_unit = wire == "deepseek" and options
    assert one[8].verdict.startswith("Partial hit: 5,248 of" if within_unit else "Hit: ")
    assert re.search(r"at character 14,\d+ of \S+ \(system\): was `.*`, now `", one[9].verdict)
    assert any(
        re.search(r"prefix_breaks: .* at character 14,\d+ of", note) for note in one[9].notices
    )


def test_prefix_is_certified_before_sending(emu: Emulator) -> None:
    """The call of another session is what the next one has to begin with."""

    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            await backend.session().send("One")
            rows = list(backend.rows)
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client, on_prefix_break="raise")
            backend.rows = list(rows)
            changed = backend.session(system=LONG.replace("point", "print", 1))
            with pytest.raises(PrefixBroken, match="the text was edited at character") as caught:
                await changed.send("Two")
            assert caught.value.label == "system"
            assert transport_of(client).sent == []
            backend.rows[0] = backend.rows[0].replace(b"One", b"Uno")
            with pytest.raises(PrefixBroken, match="the text was edited at character"):
                await backend.session().send("Two")
            backend.rows = rows
            assert str((await backend.session().send("Two")).record.verdict).startswith("Hit: ")

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::anaphora.client.session.PrefixWarning")
@pytest.mark.parametrize("wire", WIRES)
def test_edited_history_is_named_by_the_byte(emu: Emulator, wire: str) -> None:
    """The bytes of the history are read from the store only now."""

    async def run() -> None:
        store: dict[str, bytes] = {}
        rows: list[bytes] = []
        for number in range(4):
            async with opened(emu.url, wire, store) as client:
                backend = Backend(client, wire)
                backend.rows = rows
                if number == 3:
                    rows[2] = rows[2].replace(b"Question 1", b"Question 9", 1)
                response = await backend.session().send(TEXTS[number] * 4)
        change = verdict_of(response).change
        assert change is not None
        assert change.section == "messages"
        assert "Question 1" in change.before
        assert "Question 9" in change.after
        (notice,) = (each for each in response.notices if each.code == "prefix_breaks")
        assert f"at character {change.character} of {change.path}" in notice.message
        assert f"was `{change.before}`, now `{change.after}`" in notice.message

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["own", "mapping"])
def test_stored_responses_are_continued(emu: Emulator, kind: str) -> None:
    async def run() -> None:
        store = None if kind == "own" else dict[str, bytes]()
        async with opened(emu.url, "openai_responses", store) as client:
            backend = Backend(client, "openai_responses", store=True)
            for text in TEXTS[:4]:
                await backend.session().send(text)
            *_, last = transport_of(client).bodies
            assert b'"previous_response_id":"' in last
            assert b"Question 2" not in last
            backend.rows[0] = backend.rows[0].replace(b"Question 0", b"Question 9")
            # Less than a cent is lost: a notice, no warning.
            assert "prefix_breaks" in codes(await backend.session().send(TEXTS[4]))
            assert b'"previous_response_id"' not in transport_of(client).bodies[-1]

    asyncio.run(run())


@pytest.mark.parametrize("kind, deleted", [("own", 1), ("mapping", 0)])
def test_handles_are_used_by_later_sessions(emu: Emulator, kind: str, deleted: int) -> None:
    """They are deleted with a client whose conversations end with it, and by `forget`."""

    async def run() -> None:
        store = None if kind == "own" else dict[str, bytes]()
        gemini = {"model": "gemini-2.0-flash"}
        async with opened(emu.url, "gemini", store, gemini) as client:
            backend = Backend(client, "gemini", system=LONG * 3)
            for text in TEXTS[:5]:
                chat = backend.session()
                response = await chat.send(text)
                await chat.close()
            assert not codes(response)
            sent = transport_of(client).sent
            assert [each.method for each in sent if "cachedContents" in each.url] == ["POST"]
            assert b'"cachedContent":' in sent[-1].body
        assert sum(each.method == "DELETE" for each in sent) == deleted
        if store is not None:
            async with opened(emu.url, "gemini", store, gemini) as client:
                await client.session("gemini", id="user-42").forget()
                assert [each.method for each in transport_of(client).sent] == ["DELETE"]
            assert not store

    asyncio.run(run())


@pytest.mark.breaks_prefix(reason="a compaction drops the beginning of the history")
def test_history_that_was_compacted_stays_compacted(emu: Emulator) -> None:
    """The app loads all of its history at every request."""

    async def run() -> None:
        store: dict[str, bytes] = {}
        rows: list[bytes] = []
        compacted, lengths = [], []
        for text in TEXTS:
            async with opened(emu.url, "anthropic", store) as client:
                backend = Backend(client, compact_at=5600)
                backend.rows = rows
                chat = backend.session()
                response = await chat.send(text)
                compacted.append("compacted" in codes(response))
                lengths.append(len(chat.messages))
        assert len(rows) == 24
        first = compacted.index(True)
        assert lengths[first + 1] == lengths[first] + 2 < 2 * first
        assert compacted.count(True) < 4
        assert not compacted[first + 1]

    asyncio.run(run())


def test_conversation_stays_at_the_provider_that_it_moved_to(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        hops = {"routes": {"both": [{"provider": "anthropic"}, {"provider": "openai_chat"}]}}
        rows: list[bytes] = []
        used = []
        for number in range(3):
            once = {"retry": {"max_attempts": 1}}
            async with opened(emu.url, "anthropic openai_chat", store, once, **hops) as client:
                backend = Backend(client, "both")
                backend.rows = rows
                if number == 0:
                    transport_of(client).faults = ["529", None]
                response = await backend.session().send(TEXTS[number])
                used.append(response.record.provider)
        assert used == ["openai_chat"] * 3
        assert str(response.record.verdict).startswith("Hit: ")

    asyncio.run(run())


# ── Failures of the store ────────────────────────────────────────────────────────────────────────


class Failing(dict[str, bytes]):
    """A mapping whose operations fail or wait while `how` says so."""

    how = ""
    gate = threading.Event()

    def get(self, key: str, default: Any = None) -> Any:
        self._fail("get")
        return super().get(key, default)

    def __setitem__(self, key: str, value: bytes) -> None:
        self._fail("set")
        super().__setitem__(key, value)

    def _fail(self, operation: str) -> None:
        if self.how == f"{operation} raises":
            raise ConnectionError("redis at 10.0.0.1 is down")
        if self.how == f"{operation} hangs":
            self.gate.wait()


@pytest.mark.parametrize(
    "how, wanted",
    [
        ("get raises", ["conversation_not_restored", "conversation_not_saved"]),
        ("get hangs", ["conversation_not_restored", "conversation_not_saved"]),
        ("set raises", ["conversation_not_saved"]),
        ("set hangs", ["conversation_not_saved"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.long
def test_failing_store_costs_a_notice_and_no_answer(
    emu: Emulator, how: str, wanted: list[str], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "TIMEOUT", 0.5)

    async def run() -> None:
        store = Failing()
        store.gate = threading.Event()
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            await backend.session().send("One")
            before = dict(store)
            store.how = how
            turn = backend.session().send("Two")
            if stream:
                async for _ in turn:
                    pass
                response = turn.response
            else:
                response = await turn
            assert response is not None
            assert response.text
            assert codes(response) == wanted
            assert "10.0.0.1" not in str(response.notices)
            assert dict(store) == before
            store.how = ""
            store.gate.set()
            await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"garbage",
        b"anaphora conversation 0\n\x80",
        b"anaphora conversation 1\n",
        b"anaphora conversation 1\n\x80",
        b"anaphora conversation 1\n" + b"\x91" * 100_000,
        "a text",
        7,
    ],
    ids=["empty", "garbage", "older", "cut", "empty map", "deep", "text", "int"],
)
def test_value_that_cannot_be_read_starts_anew(emu: Emulator, value: Any) -> None:
    async def run() -> None:
        store: dict[str, Any] = {stores.head_key("user-42"): value}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            response = await backend.session().send("One")
            assert codes(response) == ["conversation_not_restored"]
            assert verdict_of(response).result == "first"
            response = await backend.session().send("Two")
            assert codes(response) == []
            assert verdict_of(response).result == "hit"

    asyncio.run(run())


@pytest.fixture(scope="module")
def stored() -> Iterator[tuple[Emulator, dict[str, dict[str, bytes]], dict[str, list[bytes]]]]:
    """Conversations of two turns on all wires."""
    with emulator.running(EmulatorOptions(latency=AT_ONCE)) as emu:
        values: dict[str, dict[str, bytes]] = {}
        rows: dict[str, list[bytes]] = {}

        async def run(wire: str) -> None:
            values[wire] = {}
            async with opened(emu.url, wire, values[wire]) as client:
                backend = Backend(client, wire)
                for text in TEXTS[:2]:
                    await backend.session().send(text)
                rows[wire] = backend.rows

        for wire in WIRES:
            asyncio.run(run(wire))
        yield emu, values, rows


@pytest.mark.filterwarnings("ignore::anaphora.client.session.PrefixWarning")
@settings(max_examples=60)
@given(
    wire=st.sampled_from(WIRES),
    where=st.integers(0, 100_000),
    damage=st.sampled_from(["flip", "cut", "zero", "grow"]),
    by=st.integers(1, 255),
)
def test_damaged_value_never_fails_a_call(
    stored: Any, wire: str, where: int, damage: str, by: int
) -> None:
    emu, values, rows = stored
    head = stores.head_key("user-42")
    data = bytearray(values[wire][head])
    where %= len(data)
    if damage == "flip":
        data[where] ^= by
    elif damage == "cut":
        del data[where:]
    elif damage == "zero":
        data[where : where + by] = bytes(len(data[where : where + by]))
    else:
        data[where:where] = bytes([by]) * by

    async def run() -> None:
        async with opened(emu.url, wire, values[wire] | {head: bytes(data)}) as client:
            backend = Backend(client, wire)
            backend.rows = list(rows[wire])
            response = await backend.session().send(TEXTS[2])
            assert response.text
            assert "verdict_failed" not in codes(response)
            assert "planner_failed" not in codes(response)

    asyncio.run(run())


@pytest.mark.parametrize(
    "place, value",
    [
        (("states", 0, "call", "runs", 1, 1), None),
        (("states", 0, "call", "runs", 1, 2), -1),
        (("states", 0, "call", "runs", 1, 12, 0, 1), 0),
        (("states", 0, "call", "cacheable"), 10**9),
        (("states", 0, "call", "marks", 0, "chunk"), 10**9),
        (("states", 0, "bills", 0, 0), 0),
        (("states", 0, "planner", "gaps", 1), float("inf")),
        (("states", 0, "planner", "gaps", 1), float("nan")),
        (("states", 0, "planner", "cache_key"), "a\r\nheader: b"),
        (("cost_usd",), "NaN"),
        (("compaction",), [[[1, b""]], []]),
    ],
    ids=str,
)
def test_contradictory_value_starts_anew(
    stored: Any, place: tuple[str | int, ...], value: Any
) -> None:
    emu, values, rows = stored
    head = stores.head_key("user-42")
    version, _, packed = values["anthropic"][head].partition(b"\n")
    data = msgspec.msgpack.decode(packed)
    part = data
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value

    async def run() -> None:
        store = values["anthropic"] | {head: version + b"\n" + msgspec.msgpack.encode(data)}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            backend.rows = list(rows["anthropic"])
            assert codes(await backend.session().send("Go on")) == ["conversation_not_restored"]
            assert codes(await backend.session().send("Go on")) == []

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["gone", "other bytes"])
def test_lost_bytes_of_a_changed_prompt_start_anew(emu: Emulator, lost: str) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            # Long enough, and varied enough, not to be part of the value itself.
            backend = Backend(client, system=" ".join(str(n * n) for n in range(3000)))
            await backend.session().send("One")
            (piece,) = (key for key in store if key != stores.head_key("user-42"))
            if lost == "gone":
                del store[piece]
            else:
                store[piece] = store[piece][:-1] + b"!"
            response = await backend.session(system=LONG).send("Two")
            assert codes(response) == ["conversation_not_restored"]
            assert verdict_of(response).result == "first"

    asyncio.run(run())


def test_failed_and_cancelled_turns_leave_the_store_as_it_was(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            await backend.session().send("One")
            before, rows = dict(store), list(backend.rows)
            transport_of(client).faults = ["context-overflow"]
            with pytest.raises(Upstream):
                await backend.session().send("Two")
            transport_of(client).faults = []
            async with backend.session().send("Two") as events:
                await anext(events)
            transport_of(client).faults = ["timeout"]

            async def turn() -> None:
                await backend.session().send("Two")

            task = asyncio.create_task(turn())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert store == before
            assert backend.rows == rows

    asyncio.run(run())


# ── One id in several sessions ───────────────────────────────────────────────────────────────────


def test_two_requests_at_once_leave_one_consistent_conversation(emu: Emulator) -> None:
    """A double click: both are answered, and the later one to finish is continued."""

    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            # Numbers do not compress well: the prompt is stored in pieces of its own.
            numbers = " ".join(str(n * n) for n in range(2000))
            backend = Backend(client)
            await backend.session().send(numbers)
            rows = list(backend.rows)
            one, two = backend.session(save=None), backend.session(save=None)
            done = await asyncio.gather(one.send(f"A {numbers}"), two.send(f"B {numbers}"))
            assert [codes(response) for response in done] == [[], []]
            assert all(verdict_of(response).result == "hit" for response in done)
            saved = FORMAT.decode(store[stores.head_key("user-42")])
            pieces = {stores.piece_key("user-42", name) for name in saved.pieces()}
            assert set(store) == {stores.head_key("user-42"), *pieces}
            last = one if saved.states[0].reply_id == done[0].reply.id else two
            backend.rows = [to_json(message) for message in last.messages]
            assert len(backend.rows) == len(rows) + 2
            response = await backend.session().send("Go on")
            assert codes(response) == []
            assert verdict_of(response).result == "hit"

    asyncio.run(run())


def test_fork_is_stored_under_its_own_id_or_not_at_all(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            chat = backend.session()
            await chat.send("One")
            before = dict(store)
            fork = chat.fork()
            assert fork.id is None
            assert str((await fork.send("Two")).record.verdict).startswith("Hit: ")
            assert store == before
            named = backend.session().fork(id="branch")  # not loaded yet
            assert named.id == "branch"
            assert str((await named.send("Two")).record.verdict).startswith("Hit: ")
            assert {key: store[key] for key in before} == before
            backend.rows = [to_json(message) for message in named.messages]
            branch = backend.session("branch")
            assert str((await branch.send("Three")).record.verdict).startswith("Hit: ")
            with pytest.raises(InvalidRequest, match="only a session with an id"):
                backend.session(None).fork(id="branch")

    asyncio.run(run())


def test_fork_of_a_loaded_conversation_is_compared_with_the_stored_call(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            await backend.session().send(" ".join(str(n * n) for n in range(2000)))
            before = dict(store)
            chat = backend.session()
            await chat.load()
            fork = chat.fork()
            assert fork.id is None
            assert verdict_of(await fork.send("Two")).result == "hit"
            assert store == before

    asyncio.run(run())


def test_forgotten_conversation_begins_anew(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "anthropic", store) as client:
            backend = Backend(client)
            await backend.session().send(" ".join(str(n * n) for n in range(2000)))
            assert store
            await backend.session().forget()
            assert not store
            response = await backend.session().send("Two")
            assert verdict_of(response).result == "first"

    asyncio.run(run())


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat"])
def test_preview_knows_the_stored_conversation(emu: Emulator, wire: str) -> None:
    async def run() -> None:
        async with opened(emu.url, wire) as client:
            backend = Backend(client, wire)
            await backend.session().send("One")
            assert (backend.session().preview("Two").usage.read or 0) > 1024
            changed = backend.session(system=LONG + " Hm.").preview("Two")
            assert [each.code for each in changed.notices] == ["prefix_breaks"]
        store: dict[str, bytes] = {}
        async with opened(emu.url, wire, store) as client:
            backend = Backend(client, wire)
            await backend.session().send("One")
        async with opened(emu.url, wire, store) as client:
            later = Backend(client, wire)
            later.rows = backend.rows
            chat = later.session()
            assert [each.code for each in chat.preview("Two").notices] == [
                "conversation_not_loaded"
            ]
            await chat.load()
            preview = chat.preview("Two")
            assert preview.notices == ()
            response = await chat.send("Two")
            assert preview.usage.read == response.record.predicted
            changed_chat = later.session(system=LONG + " Hm.")
            await changed_chat.load()
            notices = changed_chat.preview("Three").notices
            assert [each.code for each in notices] == ["prefix_breaks"]

    asyncio.run(run())


def test_sync_client_continues_by_id(emu: Emulator) -> None:
    async_config = {"wire": "anthropic", "base_url": emu.url, "key": {"env": "KEY"}}
    config = {"providers": {"claude": async_config | {"model": MODELS["anthropic"]}}}
    store: dict[str, bytes] = {}
    rows: list[Message] = []
    verdicts = []
    for text in TEXTS[:3]:
        with Client.from_config(config, environ={"KEY": "any"}, conversations=store) as client:
            chat = client.session("claude", id="u", system=LONG, messages=rows, save=rows.append)
            assert chat.id == "u"
            verdicts.append(str(chat.send(text).result().record.verdict)[:4])
    assert verdicts == ["Firs", "Hit:", "Hit:"]
    with Client.from_config(config, environ={"KEY": "any"}, conversations=store) as client:
        client.session("claude", id="u").forget()
    assert store == {}


# ── Stores ───────────────────────────────────────────────────────────────────────────────────────


def test_mapping_is_used_outside_of_the_event_loop_and_a_dict_inside(emu: Emulator) -> None:
    threads: set[int] = set()

    class Watched(Failing):
        def _fail(self, operation: str) -> None:
            threads.add(threading.get_ident())

    async def run() -> None:
        async with opened(emu.url, "anthropic", Watched()) as client:
            await Backend(client).session().send("One")
        assert threads
        assert threading.get_ident() not in threads

    asyncio.run(run())


class FakeRedis:
    """The methods of `redis.asyncio.Redis` that are used, with its names."""

    def __init__(self, *, decode_responses: bool = False) -> None:
        self.values: dict[str, bytes] = {}
        self.expiries: list[int] = []
        self._decodes = decode_responses

    async def get(self, name: str) -> Any:
        value = self.values.get(name)
        return value.decode(errors="replace") if value is not None and self._decodes else value

    async def set(self, name: str, value: bytes, ex: int | None = None) -> bool:
        assert ex is not None
        self.expiries.append(ex)
        self.values[name] = value
        return True

    async def delete(self, *names: str) -> int:
        return sum(self.values.pop(name, None) is not None for name in names)


def test_async_redis_client_is_a_store(emu: Emulator) -> None:
    async def run() -> None:
        redis = FakeRedis()
        async with opened(emu.url, "anthropic", redis) as client:
            backend = Backend(client)
            for text in TEXTS[:3]:
                response = await backend.session().send(text)
            assert str(response.record.verdict).startswith("Hit: ")
        assert min(redis.expiries) >= 24 * 3600
        async with opened(emu.url, "anthropic", FakeRedis(decode_responses=True)) as client:
            await Backend(client).session().send("One")
            response = await Backend(client).session().send("Two")
            (notice,) = response.notices
            assert "the store returned str instead of bytes" in notice.message

    asyncio.run(run())


def test_old_pieces_are_stored_again_before_they_expire(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = " ".join(str(n * n) for n in range(3000))

    async def written(client: AsyncClient, redis: FakeRedis) -> int:
        backend = Backend(client, system=numbers)
        await backend.session().send("One")
        redis.expiries.clear()
        await backend.session().send("Two")
        return len(redis.expiries)

    async def run() -> list[int]:
        counts = []
        for lifetime in (stores.LIFETIME, 0):
            monkeypatch.setattr(keeper, "LIFETIME", lifetime)
            redis = FakeRedis()
            async with opened(emu.url, "anthropic", redis) as client:
                counts.append(await written(client, redis))
        return counts

    assert asyncio.run(run()) == [1, 2]


def test_conversations_in_process_are_bounded() -> None:
    async def run() -> None:
        store = InProcessConversations(max_conversations=2, max_bytes=100)
        for name, size in (("a", 10), ("b", 10), ("a", 20), ("c", 10)):
            await store.set(stores.head_key(name), bytes(size), ex=1)
        assert await store.get(stores.head_key("b")) is None
        assert len(store) == 2
        await store.set(stores.piece_key("a", b"1"), bytes(60), ex=1)
        assert store.size == 90
        await store.set(stores.piece_key("c", b"2"), bytes(20), ex=1)
        assert len(store) == 1, "a conversation goes with all of its pieces"
        assert store.size == 30
        await store.delete(stores.piece_key("c", b"2"))
        await store.delete(stores.head_key("c"))
        assert (len(store), store.size) == (0, 0)

    asyncio.run(run())


@each_row("name", ["", "x" * 201, 42, b"u", "a\nb", "\ud800"])
def test_id_is_checked(emu: Emulator, name: Any) -> None:
    async def run() -> None:
        async with opened(emu.url, "anthropic") as client:
            with pytest.raises(InvalidRequest, match="id: must be a text of 1 to 200 printable"):
                client.session("anthropic", id=name)

    asyncio.run(run())


@each_row("value", [7, "redis://localhost", [], dict, InProcessConversations])
def test_store_is_checked(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="conversations: must be a mapping of str to bytes"):
        AsyncClient({}, conversations=value)


@pytest.mark.parametrize("bounds", [{"max_bytes": 0}, {"max_conversations": True}])
def test_bounds_are_checked(bounds: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be an int above 0"):
        InProcessConversations(**bounds)


def test_id_and_key_are_not_sent_or_stored(emu: Emulator) -> None:
    async def run() -> None:
        store: dict[str, bytes] = {}
        async with opened(emu.url, "openai_chat", store) as client:
            await Backend(client, "openai_chat").session("very-private-id").send("One")
            (request,) = transport_of(client).sent
            assert "very-private-id" not in f"{request.url}{request.headers}{request.body!r}"
            assert not any(b"sk-canary" in value for value in store.values())

    asyncio.run(run())


def test_growing_conversation_has_few_pieces(emu: Emulator) -> None:
    """A turn stores what it adds; pieces are joined, so that their number stays small."""

    async def run() -> None:
        redis = FakeRedis()
        sizes: list[int] = []
        async with opened(emu.url, "anthropic", redis) as client:
            backend = Backend(client, system="Brief.")
            for number in range(24):
                text = " ".join(str(each * 7919 % 10007) for each in range(500 + number))
                before = sum(map(len, redis.values.values()))
                await backend.session().send(text)
                sizes.append(sum(map(len, redis.values.values())) - before)
        assert len(redis.values) <= 8
        assert sizes[-1] < 3 * sizes[0]

    asyncio.run(run())


# ── Tools, reasoning, and prompts of the app's own ───────────────────────────────────────────────

SCRIPT = """
replies:
  - match: {text: weather}
    reply:
      thinking: I think of it.
      text: I shall look.
      tool_calls: [{name: weather, arguments: {city: Rome}}]
  - match: {result_of: weather}
    reply: {text: Sunny.}
  - match: {text: ponder}
    reply: {thinking: Let me see., text: I have seen.}
"""


def weather(city: str) -> str:
    """The weather."""
    return f"sun in {city}"


def context(number: int, history: list[Message]) -> RenderedContext:
    return RenderedContext(
        system_stable=LONG, turns=Conversation(history), state_turn=Message.user(f"It is {number}.")
    )


def documents(number: int, history: list[Message]) -> PromptIR:
    """Dynamic context in front of the history: one message stays, the other changes at times."""
    found = Message.user("always the same " * 30), Message.user(f"found for {number // 3} " * 99)
    segments = [Segment.of(SegmentRole.DYNAMIC_CONTEXT, *found)]
    if history:
        segments.append(Segment.of(SegmentRole.CONVERSATION, *history))
    return PromptIR(system_text=LONG, segments=tuple(segments))


async def run_all(
    emu: Emulator, wire: str, prompt: Any, *, kept: bool, **options: Any
) -> list[tuple[list[bytes], list[str], list[str], int]]:
    """Runs with tools: in one session, or with a new client and session for each."""
    texts = [
        f"{('go', 'ponder', 'weather')[number % 3]} {text}" for number, text in enumerate(TEXTS)
    ]
    rows: list[bytes] = []
    store: dict[str, bytes] = {}
    results = []
    async with AsyncExitStack() as stack:
        for number, text in enumerate(texts):
            if kept or not number:
                client = await stack.enter_async_context(opened(emu.url, wire, store))
                history = [from_json(row, Message) for row in rows]
                chat = client.session(
                    wire,
                    id="user-42" if kept else None,
                    tools=[weather],
                    save=lambda message: rows.append(to_json(message)),
                    prompt=prompt(number, history),
                    **options,
                )
            else:
                chat.prompt = prompt(number, [])
            before = len(transport_of(client).sent)
            run = await chat.run(text)
            verdicts = [str(response.verdict) for response in run.responses]
            noted = [notice.code for response in run.responses for notice in response.notices]
            bodies = transport_of(client).bodies[before:]
            results.append((bodies, verdicts, noted, len(chat.messages)))
    return results


def breaking(*values: Any) -> Any:
    reason = "documents change, and a compaction drops the first messages"
    return pytest.param(*values, marks=pytest.mark.breaks_prefix(reason=reason))


@pytest.mark.filterwarnings("ignore::anaphora.client.session.PrefixWarning")
@pytest.mark.parametrize(
    "wire, prompt, options",
    [
        *(breaking(wire, documents, {}) for wire in WIRES),
        breaking("openai_responses", documents, {"store": True}),
        ("anthropic", context, {}),
        breaking("anthropic", context, {"compact_at": 6000}),
        breaking("openai_chat", context, {"compact_at": 5000}),
        ("anthropic", context, {"diagnose": True}),
    ],
)
@pytest.mark.long
def test_prompts_with_tools_and_documents_continue_alike(
    wire: str, prompt: Any, options: dict[str, Any]
) -> None:
    with emulator.running(
        EmulatorOptions(latency=AT_ONCE, script=Script.decode(SCRIPT, "script.yaml"))
    ) as emu:
        one = asyncio.run(run_all(emu, wire, prompt, kept=False, **options))
        emu.reset()
        several = asyncio.run(run_all(emu, wire, prompt, kept=True, **options))
    for number, (alone, kept) in enumerate(zip(one, several, strict=True)):
        assert kept == alone, number
    if "compact_at" in options:
        assert any("compacted" in result[2] for result in one)
