"""Streams of Chat, whose texts have no end, for clients that expect one part at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.daemon import TestedDaemon, running_daemon

from anaphora import emulator
from anaphora.daemon.calls.call import StreamHead, StreamPiece
from anaphora.daemon.endpoints.writing import PartOrder, StreamBody
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.replies.script import Script
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    ReplyStart,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
)

SCRIPT = 'replies: [{reply: {thinking: "Which words should it be?", text: "These words, and a few more of them behind."}}]'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestedDaemon]:
    options = EmulatorOptions(script=Script.decode(SCRIPT, "script.yaml"))
    with (
        emulator.running(options) as emu,
        running_daemon(tmp_path_factory.mktemp("daemon"), emu) as tested,
    ):
        yield tested


@pytest.mark.parametrize("model", ["qwen3:0.6b", "deepseek-v4-flash"])
def test_blocks_and_items_follow_each_other(model: str, daemon: TestedDaemon) -> None:
    body = {"model": model, "stream": True}
    asked = [{"role": "user", "content": "Hello?"}]
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    with daemon.client() as http:
        messages = http.post(
            "/v1/messages", json=body | thinking | {"max_tokens": 2048, "messages": asked}
        )
        responses = http.post("/v1/responses", json=body | {"input": asked, "store": False})
    blocks = [
        (event["type"], event["index"]) for event in _events(messages.text) if "index" in event
    ]
    begun = [at for kind, at in blocks if kind == "content_block_start"]
    assert begun == [0, 1]
    assert [at for _, at in blocks] == sorted(at for _, at in blocks)
    assert "thinking_left_out" not in messages.text
    items = [e["output_index"] for e in _events(responses.text) if "output_index" in e]
    assert items == sorted(items)
    # The text comes as it is written, not at the end.
    assert responses.text.count("response.output_text.delta") > 4


def _events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.text(max_size=3)), max_size=12))
def test_nothing_is_lost_where_texts_take_turns(deltas: list[tuple[int, str]]) -> None:
    """Each part is ended before the next begins, and holds what came in its deltas."""
    kinds: dict[int, Any] = {0: (ThinkingDelta, Thinking, "thinking"), 1: (TextDelta, Text, "text")}
    order, written = PartOrder(), list[Event]()
    begun: set[int] = set()
    for index, text in deltas:
        if index not in begun:
            begun.add(index)
            written += order.feed(PartStart(index, kinds[index][2]))
        written += order.feed(kinds[index][0](index, text))
    for index in begun:
        whole = "".join(text for at, text in deltas if at == index)
        written += order.feed(PartEnd(index, kinds[index][1](whole)))
    _check_order(written)
    for kind in (Text, Thinking):
        parts = [e.part for e in written if isinstance(e, PartEnd) and isinstance(e.part, kind)]
        index = 1 if kind is Text else 0
        assert "".join(p.text for p in parts) == "".join(t for at, t in deltas if at == index)


def _check_order(events: list[Event]) -> None:
    current, texts = None, list[str]()
    for event in events:
        if isinstance(event, PartStart):
            assert current is None
            current, texts = event.index, []
        elif isinstance(event, PartDelta):
            assert event.index == current
            texts.append(event.delta)
        elif isinstance(event, PartEnd):
            assert event.index == current
            assert isinstance(event.part, Text | Thinking)
            assert event.part.text == "".join(texts)
            current = None
    assert current is None


def test_blocks_of_anthropic_are_numbered_without_gaps() -> None:
    """Reasoning of OpenAI without a text has no block, and Anthropic's SDK counts the others."""
    hidden, seen = Thinking(""), Thinking("Which?")
    events: list[Event] = [
        ReplyStart("r", "m"),
        PartStart(0, "thinking"),
        PartEnd(0, hidden),
        PartStart(1, "text"),
        TextDelta(1, "One."),
        PartEnd(1, Text("One.")),
        PartStart(2, "thinking"),
        ThinkingDelta(2, "Which?"),
        PartEnd(2, seen),
        PartStart(3, "thinking"),
        PartStart(4, "text"),
        TextDelta(4, "Two."),
        PartEnd(4, Text("Two.")),
        PartEnd(3, hidden),
    ]
    wire = "openai_responses"
    head = StreamHead(request_id="r", provider="p", wire=wire, model="m", passes_bytes=False)
    out = StreamBody("anthropic", head)
    lines = b"".join(out.feed(StreamPiece((event,))) for event in events).splitlines()
    sent = [json.loads(line[5:]) for line in lines if line.startswith(b"data:")]
    begun = [
        (one["index"], one["content_block"]["type"])
        for one in sent
        if one["type"] == "content_block_start"
    ]
    assert begun == [(0, "text"), (1, "thinking"), (2, "text")]
    assert [one["index"] for one in sent if one["type"] == "content_block_stop"] == [0, 1, 2]
