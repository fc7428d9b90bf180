"""Requests, replies and streams generated from botocore's service model: nothing of it is refused
or lost, and a stream gives the same reply as the whole answer."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import botocore.loaders
import botocore.model
import pytest
from support.roundtrip import RecordedExchange, rules

from anaphora import wire
from anaphora.values import Event, Image, Opaque, Part, Reply, ReplyEnd, Text, ToolCall
from anaphora.wire.eventstream import encode_event, padded

MODEL = botocore.model.ServiceModel(
    botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2")
)
SEEDS = range(8)
BATCH = 40
CODEC = wire.get("bedrock")


def value(shape: Any, random: random.Random, depth: int = 0) -> Any:
    """A value of a shape: required members, and some of the others."""
    kind, limits = shape.type_name, shape.metadata
    if getattr(shape, "is_document_type", False):
        return random.choice([{"a": 1, "b": [None, {"c": "ü"}]}, {"x": {}}, {}])
    if kind == "structure":
        names = list(shape.members)
        if getattr(shape, "is_tagged_union", False):
            names = [random.choice(names)]
        elif not depth:
            names = [name for name in names if "location" not in shape.members[name].serialization]
        chosen = [
            name
            for name in names
            if len(names) == 1
            or name in shape.required_members
            or random.random() < (0.5 if depth < 4 else 0.25)
        ]
        return {name: value(shape.members[name], random, depth + 1) for name in chosen}
    if kind == "list":
        count = max(limits.get("min", 0), random.choice([0, 1, 1, 2, 3]))
        return [value(shape.member, random, depth + 1) for _ in range(count)]
    if kind == "map":
        return {f"k{at}": value(shape.value, random, depth + 1) for at in range(2)}
    if kind == "string":
        return random.choice(shape.enum or [f"t{random.randrange(10**9)}"])
    if kind == "blob":
        return base64.b64encode(random.choice([b"abc", b"\x00\xff"])).decode()
    return {"boolean": True, "float": 0.5, "double": 0.5}.get(kind, max(limits.get("min", 1), 7))


def request(random: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = value(MODEL.operation_model("Converse").input_shape, random)
    messages = [each for each in body.get("messages", []) if each["content"]]
    for message in messages:
        if message["role"] == "system":
            message["role"] = "user"  # sent as the user's to a model that is not known to take it
    body["messages"] = messages or [{"role": "user", "content": [{"text": "hi"}]}]
    return body


def reply(random: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = value(MODEL.operation_model("Converse").output_shape, random)
    body["output"]["message"]["role"] = "assistant"
    return body


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_the_service_model_is_refused_or_lost(seed: int) -> None:
    for each in range(BATCH):
        chance = random.Random(seed * BATCH + each)
        exchange = RecordedExchange(
            id=f"{seed}-{each}",
            wire="bedrock",
            request=json.dumps(request(chance)),
            response=json.dumps(reply(chance)),
            path="/model/unknown.model-1/converse",
        )
        result = rules.check(exchange)
        assert result.good, (result, exchange)


def test_a_document_without_a_format_is_sent_unchanged() -> None:
    document = {"document": {"name": "n", "source": {"text": "long"}}}
    for content in (
        [document, {"text": "?"}],
        [{"toolResult": {"toolUseId": "t", "content": [document]}}],
    ):
        exchange = RecordedExchange(
            id="x",
            wire="bedrock",
            request=json.dumps({"messages": [{"role": "user", "content": content}]}),
            response=json.dumps(
                {
                    "output": {"message": {"role": "assistant", "content": [document]}},
                    "stopReason": "end_turn",
                    "usage": {},
                }
            ),
            path="/model/unknown.model-1/converse",
        )
        assert rules.check(exchange).good


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


class Streamed:
    """The frames of a stream, and the content of the whole answer."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.content: list[dict[str, Any]] = []
        self.frames = [frame("messageStart", {"role": "assistant"})]
        for _ in range(chance.randint(0, 4)):
            chance.choice(
                [self.text, self.call, self.thinking, self.cited, self.result, self.image]
            )()
            self.frames.append(frame("contentBlockStop", self.at()))
            self.content.append(self.block)

    def at(self) -> dict[str, Any]:
        return {"contentBlockIndex": len(self.content)}

    def start(self, start: dict[str, Any]) -> None:
        self.frames.append(frame("contentBlockStart", {**self.at(), "start": start}))

    def delta(self, delta: dict[str, Any]) -> None:
        self.frames.append(frame("contentBlockDelta", {**self.at(), "delta": delta}))

    def text(self) -> None:
        pieces = self.chance.choices(["a", "ü", "\n", "😀", ""], k=3)
        for piece in pieces:
            self.delta({"text": piece})
        self.block: dict[str, Any] = {"text": "".join(pieces)}

    def call(self) -> None:
        call = {"toolUseId": "t", "name": "n"}
        if self.chance.random() < 0.5:
            call["type"] = self.chance.choice(["server_tool_use", "tool_use"])
        self.start({"toolUse": call})
        for piece in ('{"a"', ":1}"):
            self.delta({"toolUse": {"input": piece}})
        self.block = {"toolUse": {**call, "input": {"a": 1}}}

    def thinking(self) -> None:
        signed = {"signature": "s"} if self.chance.random() < 0.5 else {}
        text = self.chance.choice(["", "think"]) if signed else "think"
        for piece in ({"text": text}, signed):
            self.delta({"reasoningContent": piece})
        self.block = {"reasoningContent": {"reasoningText": {"text": text, **signed}}}

    def cited(self) -> None:
        citation = value(MODEL.shape_for("CitationsDelta"), self.chance)
        self.delta({"text": "a"})
        self.delta({"citation": citation})
        self.block = {"citationsContent": {"content": [{"text": "a"}], "citations": [citation]}}

    def result(self) -> None:
        result = {"toolUseId": "t", "status": self.chance.choice(["success", "error"])}
        if self.chance.random() < 0.5:
            result["type"] = "nova_code_interpreter_result"
        content = [value(MODEL.shape_for("ToolResultBlockDelta"), self.chance) for _ in range(2)]
        self.start({"toolResult": result})
        for each in content:
            self.delta({"toolResult": [each]})
        self.block = {"toolResult": {**result, "content": content}}

    def image(self) -> None:
        self.start({"image": {"format": "png"}})
        for piece in self.chance.choice([[b"abcd"], [b"a", b"bcd"]]):
            data = base64.b64encode(piece).decode()
            self.delta({"image": {"source": {"bytes": data}}})
        whole = base64.b64encode(b"abcd").decode()
        self.block = {"image": {"format": "png", "source": {"bytes": whole}}}


def frame(kind: str, event: dict[str, Any]) -> bytes:
    return encode_event(kind, padded(json.dumps(event).encode()))


def read(data: bytes, chance: random.Random) -> list[Event]:
    reader, events, at = CODEC.reader(), list[Event](), 0
    while at < len(data):
        size = chance.choice([1, 5, 100, 10_000])
        events += reader.feed(data[at : at + size])
        at += size
    return events + reader.close()


def end_of(events: list[Event]) -> Reply:
    assert isinstance(events[-1], ReplyEnd), events[-1]
    return events[-1].reply


def meaning(part: Part) -> object:
    """A part, with its JSON texts decoded."""
    extras = {key: json.loads(each) for key, each in (getattr(part, "extras", None) or {}).items()}
    if isinstance(part, Opaque):
        return part.kind, json.loads(part.json)
    if isinstance(part, ToolCall):
        return part.id, part.name, json.loads(part.arguments), extras
    return (part.text, extras) if isinstance(part, Text) else part


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_gives_the_reply_of_the_whole_answer(seed: int) -> None:
    for each in range(BATCH):
        chance = random.Random(seed * BATCH + each)
        made = Streamed(chance)
        usage = value(MODEL.shape_for("TokenUsage"), chance)
        more = {"metrics": {"latencyMs": 4}, "serviceTier": {"type": "flex"}}
        ends = [
            frame("messageStop", {"stopReason": "end_turn"}),
            frame("metadata", {"usage": usage, **more}),
        ]
        chance.shuffle(ends)
        answer = {
            "output": {"message": {"role": "assistant", "content": made.content}},
            "stopReason": "end_turn",
            "usage": usage,
            **more,
        }
        expected = CODEC.read_reply(json.dumps(answer).encode())
        events = read(b"".join([*made.frames, *ends]), chance)
        writer = CODEC.writer()
        again = read(b"".join(map(writer.write, events)), chance)
        for found in (end_of(events), end_of(again)):
            parts = [meaning(part) for part in found.message.parts]
            assert parts == [meaning(part) for part in expected.message.parts], (seed, each)
            assert found.extras == expected.extras
            counts = (found.usage.input, found.usage.read, found.usage.written, found.usage.output)
            wanted = expected.usage
            assert counts == (wanted.input, wanted.read, wanted.written, wanted.output)


def test_an_image_is_streamed_in_the_events_of_the_service_model() -> None:
    made = Streamed(random.Random(0))
    made.content, made.frames = [], made.frames[:1]
    made.image()
    data = b"".join(
        [
            *made.frames,
            frame("contentBlockStop", made.at()),
            frame("messageStop", {"stopReason": "end_turn"}),
        ]
    )
    events = read(data, random.Random(0))
    (image,) = end_of(events).message.parts
    assert isinstance(image, Image)
    writer = CODEC.writer()
    written = b"".join(map(writer.write, events))
    assert b'"start":{"image":{"format":"png"}}' in written
    assert b'"delta":{"image":{"source":{"bytes":"YWJjZA=="}}}' in written
