"""A stream whose start says when it was begun tells that from its first chunk on."""

from __future__ import annotations

import re

import pytest

from anaphora import wire
from anaphora.values import (
    Event,
    Message,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyStart,
    Text,
    TextDelta,
)

AT = 1_790_000_000.25
SAID = {
    "openai_chat": (rb'"created":([^,]+),', b"1790000000"),
    "openai_responses": (rb'"created_at":([^,]+),', b"1790000000"),
}


def written(name: str, created: float | None) -> bytes:
    """Everything but the last event, which has what the reply's extras say."""
    text = Text("Hello there")
    reply = Reply(
        id="r", model="m", message=Message(role="assistant", parts=(text,)), stop_reason="end"
    )
    reported: list[Event] = [
        ReplyStart("r", "m", created),
        PartStart(0, "text"),
        TextDelta(0, "Hello"),
        TextDelta(0, " there"),
        PartEnd(0, text),
    ]
    writer = wire.get(name).writer()
    data = b"".join([writer.write(event) for event in reported])
    writer.write(ReplyEnd(reply))
    return data


@pytest.mark.parametrize("name", SAID)
def test_every_chunk_has_the_date_of_the_start(name: str) -> None:
    pattern, date = SAID[name]
    found = re.findall(pattern, written(name, AT))
    assert len(found) >= 2
    assert set(found) == {date}


@pytest.mark.parametrize("name", SAID)
def test_stream_without_date(name: str) -> None:
    pattern, _ = SAID[name]
    assert set(re.findall(pattern, written(name, None))) <= {b"0", b'"1970-01-01T00:00:00Z"'}


def test_chat_stream_has_date_in_last_chunk() -> None:
    writer = wire.get("openai_chat").writer()
    writer.write(ReplyStart("r", "m", AT))
    reply = Reply(id="r", model="m", message=Message(role="assistant", parts=()), stop_reason="end")
    assert b'"created":1790000000,' in writer.write(ReplyEnd(reply))
