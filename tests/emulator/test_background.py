"""OpenAI's background responses, and compaction, through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from anaphora.emulator.server import Emulator

ASK: Any = {"model": "gpt-5.6", "input": "Hello"}


@pytest.fixture
def gpt(emu: Emulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{emu.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_background_response_takes_time(emu: Emulator, gpt: openai.OpenAI) -> None:
    alone = gpt.responses.create(**ASK)
    made = gpt.responses.create(**ASK, background=True)
    assert (made.status, made.background, made.output_text, made.usage) == (
        "queued",
        True,
        "",
        None,
    )
    emu.advance(0.5)
    assert gpt.responses.retrieve(made.id).status == "in_progress"
    emu.advance(1)
    done = gpt.responses.retrieve(made.id)
    assert (done.status, done.output_text) == ("completed", alone.output_text)
    assert done.usage is not None
    after = gpt.responses.create(model="gpt-5.6", input="And?", previous_response_id=done.id)
    assert after.usage is not None
    assert after.usage.input_tokens > done.usage.input_tokens


def test_background_response_is_cancelled(emu: Emulator, gpt: openai.OpenAI) -> None:
    made = gpt.responses.create(**ASK, background=True)
    assert gpt.responses.cancel(made.id).status == "cancelled"
    emu.advance(10)
    assert gpt.responses.retrieve(made.id).status == "cancelled"
    done = gpt.responses.create(**ASK, background=True)
    emu.advance(10)
    assert gpt.responses.cancel(done.id).status == "completed"
    alone = gpt.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        gpt.responses.cancel(alone.id)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.cancel("resp_nope")


def test_background_stream_continues_where_it_was_left(gpt: openai.OpenAI) -> None:
    events = list(gpt.responses.create(**ASK, background=True, stream=True))
    created: Any = events[0]
    again = gpt.responses.retrieve(created.response.id, stream=True, starting_after=3)
    rest = list(again)
    assert [event.sequence_number for event in rest] == [event.sequence_number for event in events][
        4:
    ]
    assert rest[-1].type == "response.completed"


def test_background_response_is_streamed_later(emu: Emulator, gpt: openai.OpenAI) -> None:
    made = gpt.responses.create(**ASK, background=True)
    emu.advance(10)
    events = list(gpt.responses.retrieve(made.id, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    alone = gpt.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="background"):
        gpt.responses.retrieve(alone.id, stream=True)


def test_background_response_must_be_stored(gpt: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="store") as raised:
        gpt.responses.create(**ASK, background=True, store=False)
    assert raised.value.param == "background"


def test_compaction_stands_for_the_conversation(emu: Emulator, gpt: openai.OpenAI) -> None:
    first = gpt.responses.create(**ASK)
    output: Any = first.output
    turns: Any = [
        {"role": "user", "content": "Hello"},
        *output,
        {"role": "user", "content": "And?"},
    ]
    raw = gpt.responses.with_raw_response.compact(model="gpt-5.6", input=turns)
    compacted = raw.parse()
    assert compacted.object == "response.compaction"
    kinds: Any = [item.type for item in compacted.output]
    assert kinds[-1] == "compaction"
    assert len(kinds) == 3
    assert compacted.usage.input_tokens > 0
    assert emu.requests()[0]["operation"] == "compact"
    chained = gpt.responses.compact(model="gpt-5.6", previous_response_id=first.id)
    assert [item.type for item in chained.output][-1] == "compaction"
    items = json.loads(raw.content)["output"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Hello"}]
    assert gpt.responses.create(
        model="gpt-5.6", input=[*items, {"role": "user", "content": "So?"}]
    ).output_text
