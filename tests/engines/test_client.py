"""The client and an independent engine: on every wire it is one conversation.

What the engine says otherwise than the providers do is in test_llama_deviations.py, byte by byte;
here is what an app sees of it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from support.llama import Llama
from support.llama_calls import WIRES
from support.llama_client import registry, with_client

from anaphora import errors
from anaphora.client.client import AsyncClient
from anaphora.client.response import Record, Response
from anaphora.values import Event, ReplyEnd, ReplyStart, ToolResult

every_wire = pytest.mark.parametrize("name", WIRES)

WORD = re.compile(r"[A-Z][a-d][e-h][i-l][m-p][q-t][u-z]\.")


async def listen(turn: Any) -> list[Any]:
    return [event async for event in turn]


@every_wire
def test_an_answer(llama: Llama, name: str) -> None:
    async def ask(client: AsyncClient) -> Response:
        return await client.complete("hi", name)

    answered = with_client(llama, ask)
    record = answered.record
    assert WORD.fullmatch(answered.text)
    assert (record.provider, record.system, record.model) == (name, "llamacpp", "tiny")
    assert [(one.status, one.error) for one in record.attempts] == [(200, None)]
    assert record.usage.output == len(answered.text) + 1
    assert len(answered.raw_hash) == 64


@every_wire
def test_a_stream_equals_a_whole_answer(llama: Llama, name: str) -> None:
    async def ask(client: AsyncClient) -> tuple[Response, list[Event], Response]:
        whole = await client.complete("hi", name)
        turn = client.send("hi", name)
        events = await listen(turn)
        assert turn.response is not None
        return whole, events, turn.response

    whole, events, streamed = with_client(llama, ask)
    assert isinstance(events[0], ReplyStart)
    assert isinstance(events[-1], ReplyEnd)
    assert streamed.text == events[-1].reply.text == whole.text
    assert streamed.usage.input == whole.usage.input
    assert (streamed.record.streamed, whole.record.streamed) == (True, False)


@every_wire
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_tool_is_called_and_its_result_is_answered(
    llama: Llama, name: str, streamed: bool
) -> None:
    """A tool_use block that starts without input, a response whose events have no numbers: the call
    arrives whole, and is run."""

    async def ask(client: AsyncClient) -> tuple[Any, list[Any]]:
        chat = client.session(name, system="You are terse.", tools=registry(), max_tokens=200)
        run = chat.run("What will the weather be?")
        if not streamed:
            return await run, []
        return None, await listen(run) + [run.result]

    ran, events = with_client(llama, ask)
    if streamed:
        ran = events.pop()
        (result,) = [event for event in events if isinstance(event, ToolResult)]
        assert re.search(r"will have rain, -?\d+ days", str(result.content))
    assert ran.stop_reason == "done"
    calling, closing = ran.responses
    (made,) = calling.reply.tool_calls
    assert set(json.loads(made.arguments)) == {"city", "days"}
    assert calling.reply.stop_reason == "tool_calls"
    assert WORD.fullmatch(closing.text)


@every_wire
def test_the_cost_of_a_self_hosted_server_is_unknown(llama: Llama, name: str) -> None:
    async def ask(client: AsyncClient) -> Any:
        chat = client.session(name)
        await chat.send("hi")
        return await chat.send("again"), chat.cost_usd

    answered, cost_usd = with_client(llama, ask)
    assert answered.usage.written is None or not answered.usage.written_total
    assert answered.cost_usd is None
    assert cost_usd is None
    assert answered.verdict.result == "hit"


# ── Deviations ───────────────────────────────────────────────────────────────────────────────────


@every_wire
def test_a_prompt_that_is_too_long_fails_once(llama: Llama, name: str) -> None:
    """On messages the error has OpenAI's shape; on every wire it is no reason to try again."""

    records: list[Record] = []

    async def ask(client: AsyncClient) -> None:
        with pytest.raises(errors.ContextOverflow):
            await client.complete("x" * 20_000, name)

    with_client(llama, ask, [records.append])
    (record,) = records
    assert record.error == "ContextOverflow"
    assert [one.status for one in record.attempts] == [400]


@every_wire
def test_an_answer_that_was_cut(llama: Llama, name: str) -> None:
    """A cut response is called completed; that it is as long as it may be is all there is to see."""

    async def ask(client: AsyncClient) -> Response:
        return await client.session(name, max_tokens=3).send("hi")

    answered = with_client(llama, ask)
    assert answered.reply.stop_reason == ("end" if name == "openai_responses" else "length")
    assert answered.usage.output == answered.record.max_tokens == 3


@every_wire
def test_half_a_character_hides_the_beginning_and_the_conversation_goes_on(
    llama: Llama, name: str
) -> None:
    """The first output is a part of a character: `message_start` and the role are missing,
    `response.created` comes several times. On messages the counts of the input went with it: they
    are unknown, not 0, and predictions use the estimate from then on."""

    async def ask(client: AsyncClient) -> Any:
        chat = client.session(name, system="You are terse. " * 20)
        await chat.send("hi")
        events = await listen(chat.send("accent"))
        first = chat.last
        return events, first, await chat.send("hi"), await chat.send("hi again")

    events, hidden, after, later = with_client(llama, ask)
    assert sum(isinstance(event, ReplyStart) for event in events) == 1
    assert hidden.text.startswith("é")
    unknown = name == "anthropic"
    assert (hidden.usage.input is None) == unknown
    assert hidden.usage.output is not None
    if unknown:
        assert after.record.predicted == pytest.approx(after.usage.read, rel=0.2)
    else:
        assert after.record.predicted == pytest.approx(after.usage.read, abs=20)
    assert later.record.predicted == pytest.approx(later.usage.read, rel=0.05)


@pytest.mark.parametrize(
    "name, supported", [("openai_chat", True), ("openai_responses", False), ("anthropic", False)]
)
def test_a_schema_is_supported_on_chat_only(llama: Llama, name: str, supported: bool) -> None:
    """Elsewhere the answer is any text, and an answer in another form than was asked for is an
    error that shows it."""

    class Weather(msgspec.Struct):
        city: str

    async def ask(client: AsyncClient) -> Any:
        return await client.session(name, max_tokens=200).send("hi", output=Weather)

    if supported:
        answered = with_client(llama, ask)
        assert WORD.fullmatch(answered.parsed.city)
        return
    with pytest.raises(errors.Parse):
        with_client(llama, ask)


def test_a_server_that_is_gone_is_an_error_with_every_attempt(llama: Llama) -> None:
    records: list[Record] = []

    async def ask(client: AsyncClient) -> None:
        with pytest.raises(errors.Transport):
            await client.complete("hi", "openai_chat", timeout=20)

    with_client(Llama("http://127.0.0.1:1", llama.log), ask, [records.append])
    (record,) = records
    assert [one.error for one in record.attempts] == ["Transport"] * 3
