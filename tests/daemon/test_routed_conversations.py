"""A conversation may be continued on any node: it is planned, predicted and judged as on one node."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.routed_calls import Nodes, RoutedCall
from support.servers import RedisServer, run_in_thread
from support.shared_memory import MemoryState

from anaphora.daemon.shared_state import SavedRecord, SharedState
from anaphora.daemon.shared_state.redis import PREFIX, RedisState
from anaphora.daemon.shared_state.redis_connection import TIMEOUT, RedisAddress, RedisConnection

EARLIER = msgspec.json.decode(
    Path(__file__).parent.with_name("support").joinpath("stored_conversations.json").read_bytes()
)
CANARY = "canary-text-7d1f"
START = 1_800_000_000.0
LONG = " ".join(f"word{number}" for number in range(2500))
WIRES = {
    "anthropic": ("claude-sonnet-4-5", "/v1/messages"),
    "openai_chat": ("gpt-4.1", "/v1/chat/completions"),
    "openai_responses": ("gpt-5.6", "/v1/responses"),
}


class Turn(msgspec.Struct, frozen=True):
    """How a conversation goes on."""

    pause: int
    node: int
    words: int = 5
    kind: str = "continue"
    """`continue`, `branch` off the call before, `system`: another day in the system prompt,
    `state`: a block at the end that the next call drops."""


class Dialogue:
    """The bodies of one conversation."""

    def __init__(self, wire: str, name: str) -> None:
        self._wire = wire
        self.model, self.path = WIRES[wire]
        self._name = name
        self._date = 1
        self._messages = [("user", f"{name}: begin")]
        self._before = list(self._messages)

    def next(self, turn: Turn, number: int) -> bytes:
        text = f"{self._name} {number} " + "text " * turn.words
        added = [("assistant", f"answer {text}"), ("user", f"question {text}")]
        if number:
            match turn.kind:
                case "branch":
                    self._messages = [*self._before, *added]
                case _:
                    self._before = list(self._messages)
                    self._messages = [*self._messages, *added]
        if turn.kind == "system":
            self._date += 1
        state = [("user", f"state {text}")] if turn.kind == "state" else []
        return self._body([*self._messages, *state])

    def _body(self, messages: list[tuple[str, str]]) -> bytes:
        system = f"Day {self._date}. {CANARY} {LONG}"
        body: dict[str, Any] = {"model": self.model, "max_tokens": 20}
        if self._wire == "anthropic":
            body["system"] = [{"type": "text", "text": system}]
            body["messages"] = _grouped(messages)
        elif self._wire == "openai_responses":
            body = {"model": self.model, "instructions": system, "max_output_tokens": 20}
            body["input"] = [{"role": role, "content": text} for role, text in messages]
        else:
            everything = [("system", system), *messages]
            body["messages"] = [{"role": role, "content": text} for role, text in everything]
        return msgspec.json.encode(body)


def _grouped(messages: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Anthropic's messages alternate: neighbours of one role are blocks of one message."""
    grouped: list[dict[str, Any]] = []
    for role, text in messages:
        block = {"type": "text", "text": text}
        if grouped and grouped[-1]["role"] == role:
            grouped[-1]["content"].append(block)
        else:
            grouped.append({"role": role, "content": [block]})
    return grouped


async def run(
    nodes: Nodes, wire: str, turns: list[Turn], *, only: int | None = None, conversations: int = 1
) -> list[RoutedCall]:
    """The calls of conversations in turn, each on the node of its turn."""
    dialogues = [Dialogue(wire, f"talk {number}") for number in range(conversations)]
    at, results = START, []
    for number, turn in enumerate(turns):
        dialogue = dialogues[number % conversations]
        at += turn.pause
        body = dialogue.next(turn, number // conversations)
        node = turn.node if only is None else only
        results.append(await nodes.call(node, dialogue.path, body, at))
        await settled(nodes)
    return results


async def settled(nodes: Nodes) -> None:
    """What was saved has arrived: the next call comes later than that."""
    for state in nodes.states:
        if state is not None:
            await state.get("anything")


async def compared(
    open_state: Callable[[], SharedState], wire: str, turns: list[Turn], conversations: int = 1
) -> list[tuple[RoutedCall, RoutedCall]]:
    """Each call on one node, and on three."""
    model = WIRES[wire][0]
    alone = await run(Nodes([None], model, wire), wire, turns, only=0, conversations=conversations)
    states = [open_state() for _ in range(3)]
    for state in states:
        await state.start()
    try:
        nodes = Nodes(states, model, wire)
        spread = await run(nodes, wire, turns, conversations=conversations)
    finally:
        for state in states:
            await state.close()
    return list(zip(alone, spread, strict=True))


def check(one: RoutedCall, many: RoutedCall) -> None:
    """The same plan, bill and verdict. Of a change that another node saw before, the block is
    known, and its earlier text is not."""
    assert many.plan == one.plan
    assert many.usage == one.usage
    assert many.turn == one.turn
    was, now = one.verdict, many.verdict
    # A node knows only its own earlier calls, so that a remedy counts fewer.
    assert now.remedy is None or was.remedy is None or now.remedy.kind == was.remedy.kind
    was, now = replace(was, remedy=None), replace(now, remedy=None)
    if now.change is None or now.change.kind != "block_changed":
        assert now == was
        return
    assert was.change is not None
    assert (now.result, now.left, now.billed) == (was.result, was.left, was.billed)
    # Where the text is not known, tokens are estimated for whole blocks, and rounded there.
    assert abs((now.lost or 0) - (was.lost or 0)) <= 1
    assert (now.change.chunk, now.change.section) == (was.change.chunk, was.change.section)
    assert now.change.before in ("not known on this node", "no longer kept")
    # Whether a change happens by itself follows from its text.
    known = ["changed" if each.kind == "marker_on_volatile" else each.kind for each in was.causes]
    assert [each.kind for each in now.causes] == known


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.long), "redis"])
def open_state(request: pytest.FixtureRequest) -> Callable[[], SharedState]:
    if request.param == "memory":
        return _OneMemory().open
    request.getfixturevalue("redis_url")
    return _OneRedis(request.getfixturevalue("redis_server")).open


def redis_state(server: RedisServer) -> SharedState:
    """With time for replies on a busy machine."""
    return RedisState(RedisAddress.parse(server.url), nodes=lambda: 3, timeout=10.0)


class _OneMemory:
    """One state for all nodes of an example."""

    def __init__(self) -> None:
        self._opened = 0
        self._state = MemoryState()

    def open(self) -> SharedState:
        if self._opened % 3 == 0:
            self._state = MemoryState()
        self._opened += 1
        return self._state


class _OneRedis:
    """One server for all nodes of an example, empty at first."""

    def __init__(self, server: RedisServer) -> None:
        self._opened = 0
        self._server = server

    def open(self) -> SharedState:
        if self._opened % 3 == 0:
            self._server.flush()
        self._opened += 1
        return redis_state(self._server)


PAUSES = st.sampled_from([1, 5, 40, 200, 290, 310, 1200, 2000, 4000])
GROWING = st.builds(
    Turn,
    pause=PAUSES,
    node=st.integers(0, 2),
    words=st.sampled_from([1, 30, 900]),
    kind=st.sampled_from(["continue"] * 4 + ["state", "system"]),
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(wire=st.sampled_from(sorted(WIRES)), turns=st.lists(GROWING, min_size=2, max_size=12))
def test_conversation_is_planned_and_judged_as_on_one_node(
    open_state: Callable[[], SharedState], wire: str, turns: list[Turn]
) -> None:
    for one, many in asyncio.run(compared(open_state, wire, turns)):
        check(one, many)


def test_conversations_that_begin_alike_are_planned_as_on_one_node(
    open_state: Callable[[], SharedState],
) -> None:
    draw = random.Random(7)
    turns = [Turn(pause=draw.choice([2, 30, 400]), node=draw.randrange(3)) for _ in range(24)]
    for one, many in asyncio.run(compared(open_state, "anthropic", turns, conversations=4)):
        assert many.plan == one.plan
        assert many.verdict.result == one.verdict.result


def test_branch_is_judged_by_the_call_that_it_branches_from(
    open_state: Callable[[], SharedState],
) -> None:
    turns = [Turn(9, 0), Turn(9, 0), Turn(9, 1, kind="branch"), Turn(9, 2), Turn(9, 0)]
    pairs = asyncio.run(compared(open_state, "anthropic", turns))
    for one, many in pairs:
        check(one, many)
    assert pairs[2][1].verdict.left == pairs[1][1].verdict.left


def test_crowded_cache_key_is_split_by_the_calls_of_all_nodes(
    open_state: Callable[[], SharedState],
) -> None:
    """Conversations with one beginning get keys of their own once one key has too many calls,
    on whichever nodes; each keeps its key, and no two share one."""
    draw = random.Random(3)
    turns = [Turn(pause=draw.choice([1, 5]), node=draw.randrange(3)) for _ in range(60)]
    pairs = asyncio.run(compared(open_state, "openai_chat", turns, conversations=20))
    one, many = ([pair[side].plan.key or "" for pair in pairs[20:]] for side in (0, 1))
    assert many[:20] == many[20:]
    assert [("-" in key) for key in many] == [("-" in key) for key in one]
    own = [key for key in many[:20] if "-" in key]
    assert len(set(own)) == len(own) > 0


def calls_with(line: Any, **values: Any) -> Any:
    """A record with other values in its calls."""
    calls = [[*each[:3], each[3] | values] for each in line[2]]
    return [*line[:2], calls, *line[3:]]


def planner_with(line: Any, **values: Any) -> Any:
    return [*line[:4], line[4] and line[4] | values, *line[5:]]


USES = [0, 0, [[], None, 0]]

#: What may be in a record that is none of ours.
SPOILT: list[Callable[[Any], Any]] = [
    lambda _: b"no record",
    lambda _: [],
    lambda line: [*line[:2], [], *line[3:]],
    lambda line: calls_with(line, runs=[["messages", "conversation", 9999]]),
    lambda line: calls_with(line, cacheable=9999),
    lambda line: calls_with(line, marks=[{"chunk": 99, "ttl": "5m", "splice": None}]),
    lambda line: calls_with(line, bills=[[7, 7], [6, 6]]),
    lambda line: [*line[:3], b"", *line[4:]],
    lambda line: [*line[:4], [1, 2, 3], *line[5:]],
    # The planner's state with a number, times, a key and uses of other types.
    lambda line: planner_with(line, number="x"),
    lambda line: planner_with(line, gaps=[[], "x", 1]),
    lambda line: planner_with(line, written=[0, None, "x"]),
    lambda line: planner_with(line, cache_key=7),
    lambda line: planner_with(line, all=["", *USES[1:]]),
    lambda line: calls_with(line, usage={"uncached": "x"}),
]
VERSION = b"anaphora calls 2\n"


async def spoil(server: RedisServer, change: Callable[[Any], Any]) -> None:
    """Changes all records."""
    address = RedisAddress.parse(server.url)
    connection = await RedisConnection.connect(address, lambda *_: None, 10.0)
    records = await connection.send("KEYS", PREFIX + "c:*")
    assert records
    for name in records:
        data = await connection.send("HGET", name, "d")
        line = msgspec.msgpack.decode(data.removeprefix(VERSION))
        spoilt = VERSION + msgspec.msgpack.encode(change(line))
        await connection.send("HSET", name, "d", spoilt)
    connection.close()


def test_record_of_an_earlier_commit_counts_as_not_known() -> None:
    """Nodes of both versions run during an upgrade; the record was written by f17e2632."""
    written = {name: value for name, value in EARLIER["node"].items() if name != "names"}
    record_id, version, data, digests = (b64decode(each) for each in written.values())
    state, before = MemoryState(), SavedRecord(record_id, version, data)
    names = [b64decode(each) for each in EARLIER["node"]["names"]]
    state.save(before, b"", names, lambda first: digests[first * 16 :], 0)

    async def calls() -> list[RoutedCall]:
        nodes = Nodes([state] * 3, WIRES["anthropic"][0], "anthropic")
        turns = [Turn(10, number % 3) for number in range(6)]
        return await run(nodes, "anthropic", turns)

    results = asyncio.run(calls())
    assert [each.turn for each in results] == [1, 2, 3, 4, 5, 6]
    assert [each.verdict.result for each in results] == ["first", "miss", *["hit"] * 4]


class TestRedis:
    """Losing what is shared costs cache hits, and nothing else."""

    def nodes(self, server: RedisServer, *, waits: bool = True) -> Nodes:
        timeout = 10.0 if waits else TIMEOUT
        address = RedisAddress.parse(server.url)
        states = [RedisState(address, nodes=lambda: 3, timeout=timeout) for _ in range(3)]
        return Nodes(states, WIRES["anthropic"][0], "anthropic")

    async def talk(
        self, nodes: Nodes, between: Callable[[int], None], *, calls: int = 6
    ) -> list[RoutedCall]:
        dialogue, results = Dialogue("anthropic", "talk"), []
        for state in nodes.states:
            assert state is not None
            await state.start()
        try:
            for number in range(calls):
                between(number)
                body = dialogue.next(Turn(0, 0), number)
                results.append(
                    await nodes.call(number % 3, dialogue.path, body, START + 10 * number)
                )
                await settled(nodes)
        finally:
            for state in nodes.states:
                assert state is not None
                await state.close()
        return results

    def test_flush_costs_cache_hits_only(self, redis_url: str, redis_server: RedisServer) -> None:
        def between(number: int) -> None:
            if number == 2:
                redis_server.flush()

        results = asyncio.run(self.talk(self.nodes(redis_server), between))
        assert [each.verdict.result for each in results[-2:]] == ["hit", "hit"]

    @pytest.mark.parametrize("lose", ["kill", "pause"])
    def test_call_is_made_while_redis_is_gone(
        self, redis_url: str, redis_server: RedisServer, lose: str
    ) -> None:
        def between(number: int) -> None:
            if number == 2:
                getattr(redis_server, lose)()

        results = asyncio.run(self.talk(self.nodes(redis_server, waits=False), between))
        assert len(results) == 6
        # Node 0 knows the conversation by its own call before.
        assert results[3].turn == 2

    @pytest.mark.parametrize("spoilt", SPOILT)
    def test_record_that_another_program_wrote_is_ignored(
        self, redis_url: str, redis_server: RedisServer, spoilt: Callable[[Any], Any]
    ) -> None:
        def between(number: int) -> None:
            if number == 3:
                run_in_thread(spoil(redis_server, spoilt))

        results = asyncio.run(self.talk(self.nodes(redis_server), between))
        assert len(results) == 6
        assert results[-1].verdict.result in ("hit", "partial")

    def test_no_text_of_a_prompt_and_little_of_a_conversation_is_in_redis(
        self, redis_url: str, redis_server: RedisServer
    ) -> None:
        asyncio.run(self.talk(self.nodes(redis_server), lambda _: None))
        stored = asyncio.run(everything(redis_server))
        assert len(stored) > 5
        for text in (CANARY.encode(), b"word7", b"question", b"talk"):
            assert text not in b"".join(stored)
        assert sum(map(len, stored)) < 3000

    def test_what_a_conversation_takes_does_not_grow_with_its_calls(
        self, redis_url: str, redis_server: RedisServer
    ) -> None:
        """But for 16 bytes a block: names of calls before the last two are removed."""
        asyncio.run(self.talk(self.nodes(redis_server), lambda _: None, calls=4))
        few = asyncio.run(everything(redis_server))
        redis_server.flush()
        asyncio.run(self.talk(self.nodes(redis_server), lambda _: None, calls=16))
        many = asyncio.run(everything(redis_server))
        assert len(many) == len(few)
        assert sum(map(len, many)) < sum(map(len, few)) + 12 * 2 * 16 + 200


async def everything(server: RedisServer) -> list[bytes]:
    """All names and values in a server."""
    address = RedisAddress.parse(server.url)
    connection = await RedisConnection.connect(address, lambda *_: None, 10.0)
    found = []
    for name in await connection.send("KEYS", "*"):
        kind = await connection.send("TYPE", name)
        value = await connection.send(*_READING[kind](name))
        found.append(b"".join([name, *_flat(value)]))
    connection.close()
    return found


_READING: dict[bytes, Callable[[bytes], tuple[str | bytes | int, ...]]] = {
    b"string": lambda name: ("GET", name),
    b"hash": lambda name: ("HGETALL", name),
    b"zset": lambda name: ("ZRANGE", name, 0, -1),
    b"stream": lambda name: ("XRANGE", name, "-", "+"),
}


def _flat(value: Any) -> list[bytes]:
    if isinstance(value, list):
        return [each for item in value for each in _flat(item)]
    return [value] if isinstance(value, bytes) else []
