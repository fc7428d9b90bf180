"""Anthropic's message threads: the emulator keeps the conversation, and bills it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from support.emulated_client import LONG

from anaphora.emulator.server import Emulator

MODEL = "claude-opus-5-5"
MARKED: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
TOOL: Any = {"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}
CREATE: Any = {"type": "create"}


@pytest.fixture
def client(emu: Emulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        yield client


def send(client: anthropic.Anthropic, text: Any, thread: Any, **more: Any) -> Any:
    return client.beta.messages.create(
        model=MODEL,
        max_tokens=64,
        messages=[{"role": "user", "content": text}],
        thread=thread,
        betas=["message-threads-2026-08-12"],
        **more,
    )


def after(reply: Any) -> Any:
    return {"type": "continue", "previous_message_id": reply.id}


def code_of(caught: pytest.ExceptionInfo[Any]) -> Any:
    return caught.value.body["error"]["details"]["error_code"]


@pytest.mark.parametrize("stream", [False, True])
def test_history_is_read_and_billed(
    client: anthropic.Anthropic, emu: Emulator, stream: bool
) -> None:
    head: Any = {"system": MARKED, "tools": [TOOL], "tool_choice": {"type": "none"}}
    first = send(client, "Hello", CREATE, **head)
    assert first.usage.cache_creation_input_tokens > 1_000
    if stream:
        ask: Any = {"messages": [{"role": "user", "content": "Go on."}], "thread": after(first)}
        with client.beta.messages.stream(
            model=MODEL, max_tokens=64, betas=["message-threads-2026-08-12"], **ask
        ) as events:
            second = events.get_final_message()
    else:
        second = send(client, "Go on.", after(first))
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens
    grown = second.usage.input_tokens - first.usage.input_tokens
    assert grown >= first.usage.output_tokens
    later, earlier = emu.requests()
    assert later["compared_with"] == earlier["number"]
    assert later["verdict"]["result"] == "hit"
    third = send(client, "Go on.", after(second))
    assert third.usage.input_tokens > second.usage.input_tokens


def test_markers_of_earlier_turns_do_not_add_up(client: anthropic.Anthropic) -> None:
    reply, thread = None, CREATE
    for _ in range(6):
        reply = send(client, MARKED, thread)
        thread = after(reply)
    assert reply is not None
    assert reply.usage.cache_read_input_tokens > 5_000


def test_reply_is_continued_once(client: anthropic.Anthropic) -> None:
    first = send(client, "Hello", CREATE)
    send(client, "One.", after(first))
    with pytest.raises(anthropic.BadRequestError) as caught:
        send(client, "Two.", after(first))
    assert code_of(caught) == "thread_already_continued"


def test_threads_expire(client: anthropic.Anthropic, emu: Emulator) -> None:
    first = send(client, "Hello", CREATE)
    emu.advance(200)
    second = send(client, "Go on.", after(first))
    emu.advance(301)
    with pytest.raises(anthropic.NotFoundError) as caught:
        send(client, "Go on.", after(second))
    assert code_of(caught) == "thread_not_found"


def test_unknown_threads_and_those_of_others_are_not_found(
    client: anthropic.Anthropic, emu: Emulator
) -> None:
    first = send(client, "Hello", CREATE)
    with anthropic.Anthropic(base_url=emu.url, api_key="other", max_retries=0) as other:
        for asked in (after(first), {"type": "continue", "previous_message_id": "msg_x"}):
            with pytest.raises(anthropic.NotFoundError) as caught:
                send(other, "Go on.", asked)
            assert code_of(caught) == "thread_not_found"
    alone = send(client, "Hello", None)
    with pytest.raises(anthropic.NotFoundError):
        send(client, "Go on.", after(alone))


def test_system_and_tools_stay(client: anthropic.Anthropic) -> None:
    first = send(client, "Hello", CREATE, system="Be brief.")
    for changed in ({"system": "Be long."}, {"tools": [TOOL]}):
        with pytest.raises(anthropic.BadRequestError, match=next(iter(changed))) as caught:
            send(client, "Go on.", after(first), **changed)
        assert code_of(caught) == "thread_fingerprint_mismatch"
    assert send(client, "Go on.", after(first), system="Be brief.").content


def test_tool_results_continue_a_thread(client: anthropic.Anthropic) -> None:
    """As the SDK's `tool_runner` sends them by itself."""

    @anthropic.beta_tool
    def find(what: str) -> str:
        """Finds.

        Args:
            what: The thing
        """
        return f"found {what}"

    ask: Any = [{"role": "user", "content": LONG}]
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=64, tools=[find], messages=ask, max_iterations=2
    )
    first, second = [reply.usage for reply in runner]
    assert second.input_tokens > first.input_tokens > 1_000
