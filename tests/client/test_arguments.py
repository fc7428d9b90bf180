"""Invalid arguments are rejected by field name, before anything is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.emulated_client import connected
from support.tables import each_row

from anaphora.emulator.server import Emulator
from anaphora.errors import AnaphoraError, InvalidRequest, Timeout
from anaphora.prompt import Call, Params, PromptIR, ToolChoice
from anaphora.values import Message, ReplyEnd, Tool

NAN = float("nan")
TOOL = Tool(name="find")


class Form(msgspec.Struct):
    city: str


def some_function() -> None: ...


def without_hints(city) -> None: ...  # type: ignore[no-untyped-def]


CONTENTS: dict[str, tuple[Any, str]] = {
    "a mapping": ({"content": "Hello"}, "messages[0].role"),
    "a message with a wrong field": ({"role": "user", "contents": "Hello"}, "message.contents"),
    "messages with a wrong field": (
        ["Hello", {"role": "user", "contents": "Hello"}],
        "messages[1].contents",
    ),
    "a part of no type": ([{"type": "txt", "text": "Hello"}], "content[0].type"),
    "bytes": (b"Hello", "content"),
    "a number": (5, "content"),
}
PARAMS: dict[str, tuple[dict[str, Any], str]] = {
    "a word for a choice": ({"tool_choice": "atuo"}, "tool_choice"),
    "a word for reasoning": ({"reasoning": "higher"}, "reasoning"),
    "a choice of another kind": ({"tool_choice": {"mode": "any"}}, "tool_choice.mode"),
    "an empty stop": ({"stop": ""}, "stop"),
    "a warm word": ({"temperature": "hot"}, "temperature"),
    "how it comes": ({"stream": True}, "stream"),
    "a misspelt name": ({"maxtokens": 5}, "maxtokens"),
}
TIMES: dict[str, tuple[dict[str, Any], str]] = {
    "a time in words": ({"timeout": "5"}, "timeout"),
    "a time before now": ({"timeout": -1}, "timeout"),
    "no number at all": ({"timeout": NAN}, "timeout"),
}
SESSIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown prefix-break action": ({"on_prefix_break": "error"}, "on_prefix_break"),
    "a form": ({"output": Form}, "output"),
    "a lambda": ({"tools": [lambda: 1]}, "tools[0].name"),
    "a function without hints": ({"tools": [without_hints]}, "tools[0].without_hints.city"),
    "one function twice": ({"tools": [some_function, some_function]}, "tools[1].some_function"),
    "a class for a tool": ({"tools": [Form]}, "tools[0]"),
    "a name for a tool": ({"tools": ["find"]}, "tools[0]"),
    "two tools of one name": ({"tools": [TOOL, TOOL]}, "tools[1]"),
    "a function": ({"tools": some_function}, "tools"),
    "a message without content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "a text among messages": ({"messages": ["Hello"]}, "messages[0]"),
    "one message": ({"messages": {"role": "user", "content": "Hello"}}, "messages"),
    "a text for messages": ({"messages": "Hello"}, "messages"),
    "texts for blocks": ({"system": ["Be terse."]}, "system[0]"),
    "a number for a text": ({"system": 5}, "system"),
    "a mapping for parameters": ({"params": {"max_tokens": 5}}, "params"),
    "a number for a model": ({"model": 5}, "model"),
}
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "no turn": ({"max_turns": 0}, "max_turns"),
    "turns in words": ({"max_turns": "3"}, "max_turns"),
    "dollars in words": ({"max_cost_usd": "few"}, "max_cost_usd"),
    "no number of dollars": ({"max_cost_usd": NAN}, "max_cost_usd"),
    "seconds in words": ({"max_seconds": "9"}, "max_seconds"),
    "a tool's time": ({"tool_timeout": -2}, "tool_timeout"),
}


def refused(emu: Emulator, path: str, act: Any) -> None:
    """`act` is refused with that path; nothing is sent, and the conversation stays as it was."""

    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            with pytest.raises(InvalidRequest) as caught:
                await act(emulated.client, chat)
            assert caught.value.path == path
            assert (emulated.transport.sent, chat.messages) == ([], ())

    asyncio.run(main())


@each_row("mistake", CONTENTS)
def test_invalid_content_is_named(emu: Emulator, mistake: str) -> None:
    content, path = CONTENTS[mistake]

    async def act(client: Any, chat: Any) -> None:
        await chat.send(content)

    refused(emu, path, act)


@each_row("way", ["send", "run"])
@each_row("mistake", PARAMS | TIMES)
def test_parameter_of_the_wrong_type_is_rejected(emu: Emulator, way: str, mistake: str) -> None:
    options, path = (PARAMS | TIMES)[mistake]

    async def act(client: Any, chat: Any) -> None:
        await getattr(chat, way)("Hello", **options)

    refused(emu, path, act)


@each_row("mistake", PARAMS | TIMES | SESSIONS)
def test_invalid_session_arguments_are_rejected(emu: Emulator, mistake: str) -> None:
    options, path = (PARAMS | TIMES | SESSIONS)[mistake]

    async def act(client: Any, chat: Any) -> None:
        client.session("anthropic", **options)

    refused(emu, path, act)


@each_row("mistake", RUNS)
def test_invalid_run_bounds_are_rejected(emu: Emulator, mistake: str) -> None:
    bounds, path = RUNS[mistake]

    async def act(client: Any, chat: Any) -> None:
        await chat.run("Hello", **bounds)

    refused(emu, path, act)


def test_append_rejects_other_types(emu: Emulator) -> None:
    async def act(client: Any, chat: Any) -> None:
        chat.append("Hello")

    refused(emu, "messages[0]", act)


def test_parameters_may_be_mappings(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic", system=None, stop=["END"])
            answered = await chat.send("Hello", tool_choice={"mode": "auto"})
            assert answered.text

    asyncio.run(main())


def test_unknown_price_is_reported_before_anything_is_sent(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("ollama")
            with pytest.raises(
                InvalidRequest, match=r"no price is known for qwen3:0.6b.* use max_turns"
            ):
                await chat.run("Hello", max_cost_usd=1)
            assert chat.messages == ()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_awaiting_or_iterating_decides_about_streaming(emu: Emulator, stream: bool) -> None:
    """The stream parameter is ignored: awaiting or iterating decides."""

    async def main() -> None:
        async with connected(emu) as emulated:
            call = Call(
                ir=PromptIR.chat([Message.user("Hello")]),
                model="claude-sonnet-4-5",
                params=Params(stream=stream),
            )
            answered = await emulated.client.complete(call, "anthropic")
            assert answered.text
            *_, last = [event async for event in emulated.client.stream(call, "anthropic")]
            assert isinstance(last, ReplyEnd)
            chat = emulated.client.session("anthropic", params=Params(stream=stream))
            assert (await chat.send("Hello")).text

    asyncio.run(main())


def test_preview_accepts_an_output_type(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            assert chat.preview("Where?", output=Form).size > chat.preview("Where?").size

    asyncio.run(main())


def test_call_without_time_left_is_not_sent(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:
            chat = emulated.client.session("anthropic")
            with pytest.raises(Timeout):
                await chat.send("Hello", timeout=0)
            with pytest.raises(AnaphoraError):
                async for _ in chat.send("Hello", timeout=0):
                    pass
            assert emulated.transport.sent == []

    asyncio.run(main())


def test_tool_choice_is_unchanged() -> None:
    from anaphora.client.parameters import params_of

    choice = ToolChoice("none")
    assert params_of({"tool_choice": choice, "temperature": 1})["tool_choice"] is choice
    assert repr(params_of({"temperature": 1})["temperature"]) == "1"
