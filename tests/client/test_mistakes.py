"""What a newcomer writes by mistake: the error names what was written, before anything is sent."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import warnings
from typing import Any

import pytest
from support.emulated_client import KEY, connected, settings
from support.tables import each_row

from anaphora import AsyncClient, Message, Params, Tool, ToolCall, ToolResult, emulator
from anaphora.client.session import Session
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest, NotFound, Transport
from anaphora.prompt import Call, PromptIR, Reasoning, ToolChoice
from anaphora.values import Image, Url


def find(city: str) -> str:
    """Finds a city."""
    return city


async def later() -> str:
    return "Monday"


class Later:
    def text(self) -> object:
        return later()


NAN = float("nan")
SCHEMA: Any = {"type": "object"}
ASKED = [Message.user("Hi"), Message.assistant(ToolCall("c1", "find", "{}"))]

#: Parameters that every way of sending takes.
PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": 9}, "temperature: must be between 0 and 2, got 9"),
    "cold": ({"temperature": -0.1}, "temperature: must be between 0 and 2, got -0.1"),
    "NaN": ({"temperature": NAN}, "temperature: must be between 0 and 2, got nan"),
    "words": ({"temperature": "hot"}, "temperature: must be a number, not 'hot'"),
    "anthropic": ({"temperature": 1.5}, "temperature: must be between 0 and 1 at anthropic"),
    "top_p": ({"top_p": 1.1}, "top_p: must be between 0 and 1, got 1.1"),
    "top_k": ({"top_k": -1}, "top_k: must be 0 or more, got -1"),
    "no tokens": ({"max_tokens": 0}, "max_tokens: must be 1 or more, got 0"),
    "tokens below 0": ({"max_tokens": -5}, "max_tokens: must be 1 or more, got -5"),
    "half a token": ({"max_tokens": 5.5}, "max_tokens: must be a whole number, not 5.5"),
    "tokens in words": ({"max_tokens": "many"}, "max_tokens: must be a whole number, not 'many'"),
    "replies": ({"n": 0}, "n: must be 1 or more, got 0"),
    "penalty": ({"presence_penalty": 3}, "presence_penalty: must be between -2 and 2, got 3"),
    "seed": ({"seed": 1.5}, "seed: must be a whole number, not 1.5"),
    "user": ({"user": 5}, "user: must be a text, not 5"),
    "store": ({"store": "yes"}, "store: must be True or False, not 'yes'"),
    "stop": ({"stop": [""]}, "stop: must not be an empty text"),
    "effort": ({"reasoning": "hihg"}, "reasoning: must be an effort (none, minimal, low"),
    "budget": ({"reasoning": 2048}, "not 2048; write Reasoning(budget_tokens=2048)"),
    "yes": ({"reasoning": True}, "or a Reasoning, not True"),
    "choice": ({"tool_choice": "requierd"}, "not 'requierd'; did you mean 'required'?"),
    "no such tool": ({"tool_choice": "search"}, "one of auto, none, required, any, not 'search'"),
    "timeout": ({"timeout": -1}, "timeout: must be ≥ 0, got -1"),
    "seconds": ({"timeout": "5s"}, "timeout: must be a number of seconds, not '5s'"),
}
WAYS: dict[str, Any] = {
    "complete": lambda client, options: client.complete("Hi", "anthropic", **options),
    "session": lambda client, options: client.session("anthropic", **options).send("Hi"),
    "send": lambda client, options: client.session("anthropic").send("Hi", **options),
    "run": lambda client, options: client.session("anthropic").run("Hi", **options),
    "preview": lambda client, options: client.session("anthropic").preview("Hi", **options),
}


def mistaken(emu: Emulator, act: Any, message: str) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:

            async def attempt() -> None:
                result = act(emulated.client)
                if hasattr(result, "__await__"):
                    await result

            with pytest.raises(InvalidRequest) as caught:
                await attempt()
            assert message in str(caught.value)
            assert emulated.transport.sent == []

    asyncio.run(main())


@each_row("way", WAYS)
@each_row("mistake", PARAMETERS)
def test_parameter_is_named(emu: Emulator, way: str, mistake: str) -> None:
    options, message = PARAMETERS[mistake]
    mistaken(emu, lambda client: WAYS[way](client, options), message)


@pytest.mark.parametrize("value", [9, -1, NAN])
def test_parameters_in_values_are_named(emu: Emulator, value: float) -> None:
    params = Params(temperature=value)
    call = Call(ir=PromptIR.chat([Message.user("Hi")]), model="claude-sonnet-4-5", params=params)
    mistaken(emu, lambda client: client.complete(call, "anthropic"), "temperature: must be between")
    mistaken(emu, lambda client: client.session("anthropic", params=params), "temperature: must be")


EMPTY = "providers refuse a message without content"
CONTENTS: dict[str, tuple[Any, str]] = {
    "no text": ("", f"content: is empty; {EMPTY}"),
    "blanks": (" \n", f"content: is blank; {EMPTY}"),
    "no messages": ([], f"content: is empty; {EMPTY}"),
    "no texts": (["", " "], f"content: is empty; {EMPTY}"),
    "a message without text": (Message.user(""), f"content: is empty; {EMPTY}"),
    "a dictionary without text": ({"role": "user", "content": ""}, f"content: is empty; {EMPTY}"),
    "a wrong field": ({"role": "user", "contents": "Hi"}, "message.contents: unknown field"),
    "a number": (5, "content: must be a text, a part, a message or a dict, not int"),
    "a path": ([Image], "content[0]: must be a text"),
}


@each_row("way", ["complete", "send", "run", "preview"])
@each_row("mistake", CONTENTS)
def test_content_is_named(emu: Emulator, way: str, mistake: str) -> None:
    content, message = CONTENTS[mistake]

    def act(client: Any) -> Any:
        if way == "complete":
            return client.complete(content, "anthropic")
        return getattr(client.session("anthropic"), way)(content)

    mistaken(emu, act, message)


OTHERS: dict[str, tuple[Any, str]] = {
    "nothing to complete": (lambda c: c.complete(None, "anthropic"), "content: is missing"),
    "only a system message": (
        lambda c: c.complete([{"role": "system", "content": "Be terse."}], "anthropic"),
        "content: there is no message besides the system prompt",
    ),
    "nothing to send": (
        lambda c: c.session("anthropic").send(),
        "content: there is nothing to send yet; give a text",
    ),
    "nothing to run": (
        lambda c: c.session("anthropic").run(),
        "content: there is nothing to send yet; give a text",
    ),
    "a text behind a tool call": (
        lambda c: c.session("anthropic", messages=ASKED).send("And?"),
        "content: the tool call 'find' (c1) has no result yet; send ToolResult('c1', …) first",
    ),
    "another result": (
        lambda c: c.session("anthropic", messages=ASKED).send(ToolResult("c2", "x")),
        "content: the tool call 'find' (c1) has no result yet",
    ),
    "a preview behind a tool call": (
        lambda c: c.session("anthropic", messages=ASKED).preview("And?"),
        "content: the tool call 'find' (c1) has no result yet",
    ),
    "a run behind a tool call": (
        lambda c: c.session("anthropic", messages=ASKED).run("And?"),
        "content: the tool call 'find' (c1) has no result yet",
    ),
    "messages without a result": (
        lambda c: c.complete([*ASKED, Message.user("And?")], "anthropic"),
        "content: the tool call 'find' (c1) has no result yet",
    ),
    "messages that end with a call": (
        lambda c: c.complete(ASKED, "anthropic"),
        "content: the tool call 'find' (c1) has no result yet",
    ),
    "an async state": (
        lambda c: c.session("anthropic", state=later),
        "state: an async function cannot be called here",
    ),
    "a number as state": (
        lambda c: c.session("anthropic", state=5),
        "state: must be a text or a function that returns one, not int",
    ),
    "a state that returns a number": (
        lambda c: c.session("anthropic", state=lambda: 5).send("Hi"),
        "state: the function must return a text, and returned int",
    ),
    "a state that returns a coroutine": (
        lambda c: c.session("anthropic", state=Later().text).send("Hi"),
        "state: the function must return a text, and returned coroutine",
    ),
    "a state that is assigned": (
        lambda c: setattr(c.session("anthropic"), "state", later),
        "state: an async function cannot be called here",
    ),
    "a cost below 0": (
        lambda c: c.session("anthropic").run("Hi", max_cost_usd=-1),
        "max_cost_usd: must be an amount in dollars, 0 or more, not -1",
    ),
    "turns as a flag": (
        lambda c: c.session("anthropic").run("Hi", max_turns=True),
        "max_turns: must be an int ≥ 1, not True",
    ),
    "parallel in words": (
        lambda c: c.session("anthropic").run("Hi", parallel="no"),
        "parallel: must be True or False, not 'no'",
    ),
    "diagnose in words": (
        lambda c: c.session("anthropic", diagnose="yes"),
        "diagnose: must be True or False, not 'yes'",
    ),
    "parameters as a dictionary": (
        lambda c: c.complete("Hi", "anthropic", params={"max_tokens": 5}),
        "params: must be Params, not dict; write params=Params(…), or the keywords themselves",
    ),
    "extras without a wire": (
        lambda c: c.complete("Hi", "anthropic", extras={"top_a": 1}),
        "extras.top_a: must be a dict of fields or their JSON text",
    ),
    "extras of a misspelled wire": (
        lambda c: c.complete("Hi", "anthropic", extras={"antropic": {"top_a": 1}}),
        "extras.antropic: there is no such wire; did you mean anthropic?",
    ),
    "extras as a text": (
        lambda c: c.session("anthropic", extras="{}"),
        'extras: must be a dict: {"anthropic": {"field": …}}, not str',
    ),
    "extras that are no object": (
        lambda c: c.session("anthropic", extras={"anthropic": "[]"}),
        "extras.anthropic: must be a JSON object",
    ),
    "the misspelled name of a tool": (
        lambda c: c.complete("Hi", "anthropic", tools=[find], tool_choice="fnid"),
        "tool_choice: must be a ToolChoice, or one of auto, none, required, any, find, not 'fnid';"
        " did you mean 'find'?",
    ),
    "a tool without a list": (
        lambda c: c.complete("Hi", "anthropic", tools=find),
        "tools: must be a list of functions and Tools, or a ToolRegistry, not function; write"
        " tools=[find]",
    ),
    "messages by name": (
        lambda c: c.complete(model="claude-sonnet-5-5", messages=[{"role": "user"}], seed=1),
        "messages: pass it as the first argument: client.complete([{'role': 'user', 'content': …}],"
        " model='claude-sonnet-5-5', seed=…)",
    ),
    "messages after the model": (
        lambda c: c.complete("claude-sonnet-5-5", messages=[{"role": "user"}]),
        "messages: pass it as the first argument: client.complete([{'role': 'user', 'content': …}],"
        " model='claude-sonnet-5-5')",
    ),
    "a prompt by name": (
        lambda c: c.complete(prompt="Hi", model="claude-opus-5-5"),
        "prompt: pass it as the first argument: client.complete('…', model='claude-opus-5-5')",
    ),
    "a request body": (
        lambda c: c.complete({"model": "claude-opus-5-5", "max_tokens": 9, "messages": []}),
        "messages: pass it as the first argument: client.complete([{'role': 'user', 'content': …}],"
        " model='claude-opus-5-5', max_tokens=…)",
    ),
    "messages to stream": (
        lambda c: c.stream(messages=[{"role": "user"}], model="claude-opus-5-5"),
        "messages: pass it as the first argument: client.complete([{'role': 'user', 'content': …}],"
        " model='claude-opus-5-5')",
    ),
    "no prompts": (
        lambda c: c.map(model="claude-opus-5-5"),
        "prompts: is missing; write client.map([…], model=…)",
    ),
    "the model before the content": (
        lambda c: c.complete("claude-sonnet-5-5", "Hi"),
        "content: the content comes first: client.complete(…, model='claude-sonnet-5-5')",
    ),
    "a schema that is no text": (
        lambda c: c.complete("Hi", "anthropic", tools=[Tool("find", schema=SCHEMA)]),
        "Tool.schema: must be a str, not dict; write json.dumps(…), or give the whole tool as a"
        " dict with an input_schema",
    ),
    "a dictionary that is no tool": (
        lambda c: c.complete("Hi", "anthropic", tools=[{"nmae": "find"}]),
        "tools[0]: must be a function, a Tool or a ToolRegistry, or a dict",
    ),
}


@each_row("mistake", OTHERS)
def test_mistake_is_named(emu: Emulator, mistake: str) -> None:
    act, message = OTHERS[mistake]
    mistaken(emu, act, message)


SHORT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "effort": ({"reasoning": "high"}, {"reasoning": Reasoning(effort="high")}),
    "thinking": (
        {"reasoning": {"type": "enabled", "budget_tokens": 2048}},
        {"reasoning": Reasoning(mode="enabled", budget_tokens=2048)},
    ),
    "any": ({"tool_choice": "any"}, {"tool_choice": ToolChoice("required")}),
    "required": ({"tool_choice": "required"}, {"tool_choice": ToolChoice("required")}),
    "none": ({"tool_choice": "none"}, {"tool_choice": ToolChoice("none")}),
    "a tool": ({"tool_choice": "find"}, {"tool_choice": ToolChoice("tool", "find")}),
    "OpenAI's form": (
        {"tool_choice": {"type": "function", "function": {"name": "find"}}},
        {"tool_choice": ToolChoice("tool", "find")},
    ),
    "Anthropic's form": (
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tool_choice": ToolChoice("required", parallel=False)},
    ),
    "a stop": ({"stop": "END"}, {"stop": ["END"]}),
    "extras": (
        {"extras": {"anthropic": {"service_tier": "auto"}}},
        {"extras": {"anthropic": '{"service_tier":"auto"}'}},
    ),
    "OpenAI's tool": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"tools": [{"name": "f", "input_schema": {}}]},
    ),
    "the Responses API's tool": (
        {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
        {"tools": [{"name": "f", "input_schema": {}}]},
    ),
}


#: `extras` and `tools` are no arguments of a turn.
SHORT_WAYS = [
    (way, case)
    for case, (options, _) in SHORT.items()
    for way in ("complete", "session", "send")
    if way != "send" or not options.keys() & {"extras", "tools"}
]


@pytest.mark.parametrize("way, case", SHORT_WAYS)
def test_short_form_is_the_long_one(emu: Emulator, way: str, case: str) -> None:
    async def body(options: dict[str, Any]) -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            client: Any = emulated.client
            common = {"tools": [find], "max_tokens": 4096}
            if way == "complete":
                await client.complete("Hi", "anthropic", **{**common, **options})
            elif way == "session":
                await client.session("anthropic", **{**common, **options}).send("Hi")
            else:
                await client.session("anthropic", **common).send("Hi", **options)
            return json.loads(emulated.transport.bodies[-1])

    short, long = SHORT[case]
    assert asyncio.run(body(short)) == asyncio.run(body(long))


def test_results_continue_a_conversation(emu: Emulator) -> None:
    """A result, then a text; and a result that was appended."""

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat: Session = emulated.client.session("anthropic", messages=ASKED)
            assert (await chat.send([ToolResult("c1", "x"), "And?"])).text
            chat = emulated.client.session("anthropic", messages=ASKED)
            chat.append(Message.tool("c1", "x"))
            assert (await chat.send("And?")).text
            dicts: list[Any] = [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c1", "name": "find", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}],
                },
            ]
            assert (await emulated.client.complete(dicts, "anthropic")).text
            assert (await emulated.client.session("anthropic", messages=dicts).send()).text

    asyncio.run(main())


def test_image_needs_no_text(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            image = Image(Url("https://example.com/a.png"))
            assert (await emulated.client.complete(image, "anthropic")).text
            assert (await emulated.client.complete(["", image], "anthropic")).text

    asyncio.run(main())


# ── The async client, used like others ───────────────────────────────────────────────────────────

WORDS = [
    ("result", "await it, or iterate over it; only calls of Client, without async, have result()"),
    ("content", "await it, or iterate over it, and read text of the response"),
    ("cost", "and read cost_usd of the response"),
    ("usage", "and read usage of the response"),
    ("nonsense", "a Turn has no 'nonsense'"),
]


def test_right_word_for_an_attribute_that_there_is_not(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            for turn in (
                emulated.client.complete("Hi", "anthropic"),
                emulated.client.session("anthropic").send("Hi"),
            ):
                for name, message in WORDS:
                    with pytest.raises(AttributeError, match=re.escape(message)):
                        getattr(turn, name)
                response = await turn
                for name, right in (("content", "text"), ("cost", "cost_usd")):
                    with pytest.raises(AttributeError, match=f"no '{name}'; write {right}"):
                        getattr(response, name)
                assert not hasattr(response, "nonsense")
            with pytest.raises(TypeError, match="`async with`"), emulated.client:
                pass

    asyncio.run(main())


def test_client_that_was_not_closed_names_its_line(
    emu: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        config = {"providers": settings(emu.url, ["anthropic"])}
        client = AsyncClient.from_config(config, environ={"KEY": KEY})
        await client.complete("Hi", "anthropic")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    line = main.__code__.co_firstlineno + 2
    message = f"AsyncClient made at {__file__}:{line} was not closed: write `async with`"
    assert any(str(each.message).startswith(message) for each in caught)
    assert any(record.getMessage().startswith(message) for record in caplog.records)


def test_answer_of_the_emulator_says_so(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            response = await emulated.client.complete("Hi", "anthropic")
            assert response.record.emulated
            assert ", emulated, end: " in repr(response)

    asyncio.run(main())


def test_model_at_the_address_of_another_maker_names_the_missing_key() -> None:
    async def main(url: str) -> None:
        environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1"}
        async with AsyncClient.from_env(environ) as client:
            with pytest.raises(NotFound) as caught:
                await client.complete("Hi", model="claude-sonnet-5-5")
            assert caught.value.provider == "openai"
            assert str(caught.value).startswith("openai: The model `claude-sonnet-5-5` does not")
            hint = (
                "claude-sonnet-5-5 is a model of anthropic, which has no key: set ANTHROPIC_API_KEY"
            )
            assert str(caught.value).endswith(hint)
            with pytest.raises(NotFound) as caught:
                await client.complete("Hi", model="gpt-no")
            assert "which has no key" not in str(caught.value)

    with emulator.running(EmulatorOptions()) as emu:
        asyncio.run(main(emu.url))


def test_error_of_a_connection_names_the_provider() -> None:
    async def main() -> None:
        closed = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
        async with AsyncClient.from_env(closed) as client:
            with pytest.raises(Transport, match=r"\Aanthropic: ") as caught:
                await client.complete("Hi", model="claude-sonnet-5-5", timeout=5)
            assert caught.value.provider == "anthropic"

    asyncio.run(main())
