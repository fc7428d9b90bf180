"""A field that has no name here, planted in every object of an answer and of each stream event: it is
in what is written again, or a notice names it."""

from __future__ import annotations

import json
from typing import Any

from support import rich, rich_answers
from support.rich import NAME
from support.rich_answers import REPLIES, STREAMS
from support.tables import Row, each_row, table

from anaphora import wire
from anaphora.values import Event, Reply, ReplyEnd

Path = tuple[str | int, ...]

#: Events that are states on the way: the last event of a Responses stream has all of the answer.
_ON_THE_WAY = ("item", "part", "response")


def is_superseded(name: str, path: Path) -> str:
    """Why what was planted there may be gone; empty when it may not."""
    event = STREAMS[name][int(path[0])]
    inside = path[1:]
    if name == "openai_responses":
        last = event["type"] == "response.completed"
        if not last and inside and inside[0] in _ON_THE_WAY:
            return "the last event has the whole answer"
        if event["type"].endswith(".done") and "item" not in event:
            return "the event is not read: the deltas before it held the same"
    if name == "gemini" and inside[:1] == ("usageMetadata",):
        return "later counts replace earlier ones"
    if name == "anthropic":
        if event["type"] == "ping":
            return "the event says nothing"
        if inside[-1:] == ("input",):
            return "a placeholder: the input comes in deltas"
    return ""


def read(name: str, events: list[Any]) -> list[Event]:
    return decoded(name, rich_answers.stream(name, events))


def decoded(name: str, data: bytes) -> list[Event]:
    reader = wire.get(name).reader()
    return [*reader.feed(data), *reader.close()]


def reply_of(events: list[Event]) -> Reply:
    assert isinstance(events[-1], ReplyEnd)
    return events[-1].reply


def is_named(reply: Reply) -> bool:
    return any(NAME in notice.message for notice in reply.notices)


PLANTINGS = ("kept", {"a": [1]})


def places(value: dict[str, Any]) -> list[Row]:
    return [
        (f"{name} {rich.written(place)} {planting}", (name, place, planting))
        for name, each in value.items()
        for place in rich.places(each)
        for planting in PLANTINGS
    ]


@table(places(REPLIES))
def test_unknown_reply_field_round_trips(name: str, place: Path, planting: Any) -> None:
    codec = wire.get(name)
    body = rich.planted(REPLIES[name], place, planting)
    again = json.loads(codec.write_reply(codec.read_reply(rich.encoded(body))))
    found = again
    for step in place:
        found = found[step]
    assert found[NAME] == planting


PLAIN = {name: reply_of(read(name, events)) for name, events in STREAMS.items()}


@table(places(STREAMS))
def test_unknown_stream_field_round_trips_or_gives_notice(
    name: str, place: Path, planting: Any
) -> None:
    events = read(name, rich.planted(STREAMS[name], place, planting))
    reply = reply_of(events)
    # Nothing else of the answer suffers from it.
    plain = PLAIN[name]
    assert (reply.text, reply.stop_reason, reply.usage.input) == (
        plain.text,
        plain.stop_reason,
        plain.usage.input,
    )
    assert [call.name for call in reply.tool_calls] == [call.name for call in plain.tool_calls]
    if is_superseded(name, place) or is_named(reply):
        return
    writer = wire.get(name).writer()
    data = b"".join(writer.write(event) for event in events)
    assert NAME.encode() in data
    again = reply_of(decoded(name, data))
    assert (again.text, again.tool_calls) == (reply.text, reply.tool_calls)


@each_row("name", STREAMS)
def test_documented_streams_give_no_notice(name: str) -> None:
    assert reply_of(read(name, STREAMS[name])).notices == ()


def test_tool_use_caller_is_in_first_event() -> None:
    """Clients read a tool use when it begins."""
    writer = wire.get("anthropic").writer()
    data = b"".join(map(writer.write, read("anthropic", STREAMS["anthropic"])))
    (start,) = [
        json.loads(line.removeprefix(b"data: "))
        for line in data.splitlines()
        if b"content_block_start" in line and b'"tool_use"' in line
    ]
    assert start["content_block"]["caller"] == {"type": "direct"}


def test_chunk_after_usage_is_read() -> None:
    extras = reply_of(read("openai_chat", STREAMS["openai_chat"])).extras or {}
    assert json.loads(extras["openai_chat"])["moderation"] == {"input": {"flagged": False}}
