"""How many bytes the daemon remembers of a conversation, without its text."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from blake3 import blake3
from msgspec.structs import replace

from anaphora import catalog
from anaphora.audit.call_rows import _MOST_STATES, BlockDigests
from anaphora.cache import hints_of
from anaphora.daemon.calls import conversations
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.rendered import ChunkLog, Kind, LogAppend
from anaphora.rendered.request_log import droppable
from anaphora.tokens import for_model
from anaphora.traffic.planning import own_plan, read_split
from anaphora.values import Usage
from anaphora.wire.known_requests import KnownRequests
from anaphora.wire.memo import MEMOS
from anaphora.wire.reading import decode_members

MODEL, WIRE, PATH = "gpt-4o", "openai_chat", "/v1/chat/completions"
MESSAGES, CONVERSATIONS = 40, 300
#: Of a conversation of so many messages. Decision 34 aims at 10,000.
MOST_BYTES = 16_500


class Served:
    """What the daemon remembers of calls: conversations whose text is dropped."""

    def __init__(self) -> None:
        self.memory = CallMemory()
        self.requests = KnownRequests(1 << 40)
        self._profile = catalog.profile("openai", MODEL)
        self._rules = catalog.rules("openai", MODEL, WIRE)

    def call(self, conversation: int, messages: int, at: float) -> None:
        said = [
            {
                "role": "assistant" if index % 2 else "user",
                "content": f"{conversation:08d}, {index}: {'The order was sent. ' * 40}",
            }
            for index in range(messages - 1)
        ]
        system = {"role": "system", "content": "You are terse. " * 60}
        self.send({"messages": [system, *said]}, at)

    def send(self, fields: dict[str, Any], at: float) -> None:
        data = json.dumps({"model": MODEL, "max_tokens": 300, **fields}).encode()
        members = decode_members(data)
        reading = self.requests.read(data, WIRE, PATH)
        rendered = for_model(droppable(reading.cut()), self._profile)
        own, hints = own_plan(rendered, self._rules, members), hints_of({}, members)
        read = read_split(rendered, members, hints, self._rules, "openai", None)
        scope = ("app", "openai", WIRE, MODEL)
        call = self.memory.begin(read, scope=scope, at=at, own=own)
        usage = Usage(uncached=100, read=9_000, output=20)
        call.sent = replace(call.sent, at=at, began=at, usage=usage)
        call.judge(self._rules, price=None, profile=self._profile)
        self.memory.answered(call)

    def forget_requests(self) -> None:
        """What is kept of requests, whose text is not dropped, has a limit of its own."""
        self.requests = KnownRequests(1 << 40)
        MEMOS[WIRE].clear()
        gc.collect()

    def serve(self, conversations: range) -> None:
        for number in conversations:
            for turn in (4, 2, 0):
                self.call(number, MESSAGES - turn, 1e9 - turn)


@pytest.mark.soak
def test_bytes_of_a_remembered_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_MOST_TEXT", 100_000)
    monkeypatch.setattr(conversations, "_MOST_MEMORY", 1 << 40)
    monkeypatch.setattr(conversations, "_MOST_MEMORIES", 1 << 40)
    served = Served()
    served.serve(range(20))
    served.forget_requests()
    tracemalloc.start()
    try:
        served.serve(range(100, 100 + CONVERSATIONS))
        served.forget_requests()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / CONVERSATIONS < MOST_BYTES
    # What the limits of the caches count is about what is taken.
    (index,) = served.memory._indexes.values()
    counted = index.memory / (20 + CONVERSATIONS)
    assert 0.8 < counted / (taken / CONVERSATIONS) < 1.5


def unique(number: int, name: str) -> dict[str, Any]:
    """A call that has nothing in common with others."""
    asked = {"role": "user", "content": f"{number}"}
    if name == "many messages":
        return {"messages": [{"role": "user", "content": f"{number} {at}"} for at in range(1_000)]}
    if name == "many tools":
        functions = [{"name": f"t{number}_{at}", "parameters": {}} for at in range(1_000)]
        tools = [{"type": "function", "function": each} for each in functions]
        return {"messages": [asked], "tools": tools}
    system = {"role": "system", "content": f"You are {number}."}
    return {"messages": [system, asked], "user": f"user {number}"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "count"), [("a user of its own", 400), ("many messages", 40), ("many tools", 40)]
)
def test_unique_calls_take_about_what_is_counted(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    """So that the limit of what is remembered is one of the memory that it takes."""
    monkeypatch.setattr(conversations, "_MOST_TEXT", 1_000)
    monkeypatch.setattr(conversations, "_MOST_MEMORY", 1 << 40)
    monkeypatch.setattr(conversations, "_MOST_MEMORIES", 1 << 40)
    served = Served()
    for number in range(100, 130):
        served.send(unique(number, name), 1e9)
    (index,) = served.memory._indexes.values()
    before = index.memory
    served.forget_requests()
    tracemalloc.start()
    try:
        for number in range(1_000, 1_000 + count):
            served.send(unique(number, name), 1e9)
        served.forget_requests()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.55 < (index.memory - before) / taken < 1.3


def test_unique_prompts_leave_few_running_hashes() -> None:
    """Each takes 2 KB. A prompt whose hash was dropped has the same digest when it grows."""
    digests, logs = BlockDigests(bytes(32)), []
    for number in range(_MOST_STATES + 50):
        addition = LogAppend()
        addition.chunk(Kind.TEXT, b"text %d" % number, None, "user")
        addition.end_message("m0")
        logs.append(ChunkLog(addition))
        digests.upto(logs[-1], 1)
    assert sum(known.state is not None for known in digests._logs.values()) == _MOST_STATES
    for number in (0, len(logs) - 1):
        grown = LogAppend(1, 1)
        grown.chunk(Kind.TEXT, b"more", None, "assistant")
        grown.end_message("m1")
        log = logs[number].append(grown)
        text = b"text %dmore" % number
        assert digests.upto(log, 2) == blake3(text, key=bytes(32)).hexdigest(length=16)
