"""How many bytes the daemon remembers of a conversation, without its text."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest
from msgspec.structs import replace

from anaphora import catalog, wire
from anaphora.cache import hints_of
from anaphora.daemon.calls import conversations
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.daemon.endpoints.body import AppBodies, MessageFacts
from anaphora.tokens import for_model
from anaphora.traffic.planning import own_plan, read_split
from anaphora.values import Usage
from anaphora.wire.body_memory import BodyMemory
from anaphora.wire.elements import DecodedBody

MODEL, WIRE, PATH = "gpt-4o", "openai_chat", "/v1/chat/completions"
MESSAGES, CONVERSATIONS = 40, 300
#: Of a conversation of so many messages. Decision 34 aims at 10,000.
MOST_BYTES = 16_500


class Served:
    """What the daemon remembers of calls: bodies, and conversations whose text is dropped."""

    def __init__(self) -> None:
        self.kept = BodyMemory[MessageFacts](1 << 40, size_of=lambda facts: facts.size)
        self.bodies = AppBodies(self.kept)
        self.memory = CallMemory()
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
        data = json.dumps({"model": MODEL, "messages": [system, *said], "max_tokens": 300})
        body = self.bodies.read("app", WIRE, data.encode())
        self.bodies.keep(body, body.facts(refers=False))
        decoded = DecodedBody(body.members, body.elements)
        rendered = for_model(wire.get(WIRE).split(decoded, (), PATH), self._profile)
        own, hints = own_plan(rendered, self._rules, body.members), hints_of({}, body.members)
        read = read_split(rendered, body.members, hints, self._rules, "openai", None)
        scope = ("app", "openai", WIRE, MODEL)
        call = self.memory.begin(read, scope=scope, at=at, own=own)
        usage = Usage(uncached=100, read=9_000, output=20)
        call.sent = replace(call.sent, at=at, began=at, usage=usage)
        call.judge(self._rules, price=None, profile=self._profile)
        self.memory.answered(call)

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
    gc.collect()
    tracemalloc.start()
    try:
        served.serve(range(100, 100 + CONVERSATIONS))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / CONVERSATIONS < MOST_BYTES
    # What the limits of the caches count is about what is taken.
    (index,) = served.memory._indexes.values()
    counted = (index.memory + served.kept.size) / (20 + CONVERSATIONS)
    assert 0.8 < counted / (taken / CONVERSATIONS) < 1.3
    # Nothing was forgotten: each conversation goes on.
    before = served.kept.size
    served.call(100, MESSAGES + 2, 1e9 + 1)
    assert served.kept.size < before + 1_000
