"""Keywords are typed: mypy finds a misspelled one, and at runtime the error names the right one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mypy import api
from support.emulated_client import connected

from anaphora.client import options
from anaphora.client.client import AsyncClient
from anaphora.client.session import Session
from anaphora.client.sync import Client
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.values import Message, Tool

#: Each statement, and whether mypy finds a fault in it.
STATEMENTS = {
    'await client.complete("Hi", "a", system="Be terse.", max_tokens=5, temperature=0.5)': False,
    'await client.complete("Hi", "a", model="m", tools=[Tool(name="t")], output=dict)': False,
    'client.send("Hi", "a", params=Params(max_tokens=5), timeout=5, stop=["END"])': False,
    'client.session("a", system="Be terse.", max_tokens=5, on_prefix_break="raise")': False,
    'await chat.send("Hi", max_tokens=5, output=dict, timeout=5)': False,
    'await chat.run("Hi", max_turns=3, max_cost_usd=0.5, temperature=0)': False,
    'chat.preview("Hi", max_tokens=5)': False,
    'sync.complete("Hi", "a", system="Be terse.", max_tokens=5)': False,
    'sync.session("a", state="Today is Monday.").run("Hi", max_turns=3).result()': False,
    'AsyncClient.from_config("llm.yaml", on_wait=print, environ={})': False,
    'await client.complete([{"role": "user", "content": "Hi"}, Message.user("Hi")], "a")': False,
    'await client.complete({"role": "user", "content": [{"type": "text"}]}, "a")': False,
    'client.session("a", messages=[{"role": "user", "content": "Hi"}], tools=[print])': False,
    'chat.append({"role": "user", "content": "Hi"})': False,
    'await client.complete("Hi", "a", reasoning="high", tool_choice="any", stop="END")': False,
    'await client.complete(["Hi", Image.from_file("a.png")], "a", extras={"x": {"y": 1}})': False,
    'await client.complete("Hi", "a", sytem="Be terse.")': True,
    'await client.complete("Hi", "a", tools=5)': True,
    'client.session("a", state=5)': True,
    'await client.complete("Hi", "a", max_tokens="many")': True,
    'client.send("Hi", "a", max_token=5)': True,
    'client.stream("Hi", "a", sytem="Be terse.")': True,
    'client.session("a", sytem="Be terse.")': True,
    'client.session("a", on_prefix_break="error")': True,
    'chat.send("Hi", max_token=5)': True,
    'chat.send("Hi", system="Be terse.")': True,
    'chat.run("Hi", max_turn=5)': True,
    'chat.run("Hi", max_token=5)': True,
    'chat.preview("Hi", max_token=5)': True,
    'sync.complete("Hi", "a", sytem="Be terse.")': True,
    'sync.send("Hi", "a", sytem="Be terse.")': True,
    'sync.stream("Hi", "a", sytem="Be terse.")': True,
    'sync.session("a", sytem="Be terse.")': True,
    'sync.session("a").send("Hi", max_token=5)': True,
    'sync.session("a").run("Hi", max_turn=5)': True,
    'sync.session("a").preview("Hi", max_token=5)': True,
    'Client.from_config("llm.yaml", enviro={})': True,
    'AsyncClient.from_config("llm.yaml", watcher=[])': True,
}
HEAD = """\
from anaphora import AsyncClient, Client, Image, Message, Params, Session, Tool

async def main(client: AsyncClient, sync: Client, chat: Session) -> None:
"""


@pytest.mark.soak  # mypy reads everything that the client imports
def test_mypy_finds_misspelled_keywords(tmp_path: Path) -> None:
    file = tmp_path / "snippets.py"
    file.write_text(HEAD + "".join(f"    {statement}\n" for statement in STATEMENTS))
    limit = sys.getrecursionlimit()
    found, problems, _ = api.run(
        [str(file), "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    )
    sys.setrecursionlimit(limit)  # mypy raises it, and other tests rely on it
    assert not problems
    faulty = {int(line) for line in re.findall(r"snippets\.py:(\d+): error", found)}
    first = HEAD.count("\n") + 1
    assert {
        statement: number in faulty for number, statement in enumerate(STATEMENTS, first)
    } == STATEMENTS, found


def test_every_parameter_is_a_keyword() -> None:
    assert {*Params.__struct_fields__} - {"stream", "output"} == options.PARAM_KEYWORDS


WAYS: dict[str, Any] = {
    "complete": lambda client, chat, **wrong: client.complete("Hi", "anthropic", **wrong),
    "send": lambda client, chat, **wrong: client.send("Hi", "anthropic", **wrong),
    "stream": lambda client, chat, **wrong: client.stream("Hi", "anthropic", **wrong),
    "session": lambda client, chat, **wrong: client.session("anthropic", **wrong),
    "session.send": lambda client, chat, **wrong: chat.send("Hi", **wrong),
    "session.run": lambda client, chat, **wrong: chat.run("Hi", **wrong),
    "session.preview": lambda client, chat, **wrong: chat.preview("Hi", **wrong),
}
CALLS = ("complete", "send", "stream")
MISSPELLED = [
    *((way, "max_token", "did you mean `max_tokens`?") for way in WAYS),
    *((way, "temprature", "did you mean `temperature`?") for way in WAYS),
    *((way, "max_completion_tokens", "did you mean `max_tokens`?") for way in WAYS),
    *((way, "stop_sequences", "did you mean `stop`?") for way in WAYS),
    *((way, "tiemout", "did you mean `timeout`?") for way in WAYS),
    *((way, "stream", "iterate over the turn to stream") for way in WAYS if way not in CALLS),
    *((way, "stream", "client.send(…).text streams") for way in CALLS),
    *((way, "api_key", "keys come from the environment (ANTHROPIC_API_KEY, …)") for way in WAYS),
    *((way, "base_url", "set it in llm.yaml (base_url)") for way in WAYS),
    *((way, "max_retries", "set it in llm.yaml (retry)") for way in WAYS),
    *((way, "fallbacks", "set it in llm.yaml (routes)") for way in WAYS),
    *((way, "on_tool_error", "chat.run(…, on_tool_error=…)") for way in (*CALLS, "session")),
    *((way, "max_turns", "chat.run(…, max_turns=…)") for way in ("session", "session.send")),
    *((way, "state", "client.session(…, state=…)") for way in (*CALLS, "session.run")),
    *((way, "system", "client.session(…, system=…)") for way in ("session.send", "session.run")),
    *((way, "sytem", "did you mean `system`?") for way in (*CALLS, "session")),
    *((way, "tool", "did you mean `tools`?") for way in (*CALLS, "session")),
    *((way, "response_format", "did you mean `output`?") for way in CALLS),
    ("session", "output", "give it to send or run"),
    ("session", "mesages", "did you mean `messages`?"),
    ("session.send", "ouptut", "did you mean `output`?"),
    ("session.send", "xyz", "there are cold_above_usd, frequency_penalty, include"),
    ("session.run", "max_turn", "did you mean `max_turns`?"),
    ("session.run", "max_steps", "did you mean `max_turns`?"),
    ("session.run", "max_cost", "did you mean `max_cost_usd`?"),
]


def test_misspelled_keyword_is_named_with_the_right_one(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu) as emulated:

            async def act(way: str, name: str) -> None:
                client: Any = emulated.client
                await WAYS[way](client, client.session("anthropic"), **{name: 5})

            for way, name, advice in MISSPELLED:
                with pytest.raises(InvalidRequest) as caught:
                    await act(way, name)
                assert str(caught.value).startswith(f"{name}: unknown keyword; "), (way, name)
                assert advice in str(caught.value), (way, name)
            assert emulated.transport.sent == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "name, advice",
    [
        ("api_key", 'Client.from_env({"ANTHROPIC_API_KEY": …})'),
        ("timeout", "it belongs to a session: client.session(…, timeout=…)"),
        ("model", "it belongs to a session: client.session(…, model=…)"),
    ],
)
def test_keyword_of_a_client_is_named(name: str, advice: str) -> None:
    given: dict[str, Any] = {name: "SECRET"}
    with pytest.raises(InvalidRequest) as caught:
        Client.from_env({"OPENAI_API_KEY": "any"}, **given)
    assert str(caught.value).startswith(f"{name}: unknown keyword; ")
    assert advice in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_watchers_are_a_list() -> None:
    watchers: Any = print
    with pytest.raises(InvalidRequest, match=r"^watchers: must be a list .* watchers=\[print\]"):
        Client.from_env({"OPENAI_API_KEY": "any"}, watchers=watchers)


def test_synchronous_client_names_misspelled_keywords() -> None:
    with Client(AsyncClient({})) as client:
        for way in (*CALLS, "session"):
            with pytest.raises(InvalidRequest, match=r"^sytem: .*did you mean `system`"):
                WAYS[way](client, None, sytem="Be terse.")


def test_call_takes_system_tools_and_parameters(emu: Emulator) -> None:
    blocks = [PromptBlock(label="rules", text="Be terse.")]
    tool = Tool(name="find", description="Finds a thing.")

    async def main() -> None:
        async with connected(emu) as emulated:
            client, sent = emulated.client, emulated.transport.sent
            for system in ("Be terse.", blocks):
                response = await client.complete(
                    "Hi",
                    "deepseek",
                    system=system,
                    tools=[tool],
                    max_tokens=50,
                    temperature=0.5,
                    params=Params(top_p=0.9, temperature=1.0),
                )
                assert [one.name for one in response.reply.tool_calls] == ["find"]
                body = json.loads(sent[-1].body)
                assert b"Be terse." in sent[-1].body
                assert [one["function"]["name"] for one in body["tools"]] == ["find"]
                assert (body["temperature"], body["top_p"]) == (0.5, 0.9)

    asyncio.run(main())


def test_keywords_replace_the_parameters_of_a_call(emu: Emulator) -> None:
    ir = PromptIR.chat([Message.user("Hi")])
    call = Call(ir=ir, model="deepseek-v4-flash", params=Params(temperature=0.5, seed=1))

    async def main() -> None:
        async with connected(emu) as emulated:
            client, sent = emulated.client, emulated.transport.sent
            await client.complete(call, "deepseek", temperature=0.25)
            assert (
                json.loads(sent[-1].body)["temperature"],
                json.loads(sent[-1].body)["seed"],
            ) == (0.25, 1)
            await client.complete(call, "deepseek", params=Params(seed=2))
            assert "temperature" not in json.loads(sent[-1].body)
            assert json.loads(sent[-1].body)["seed"] == 2
            others: dict[str, Any] = {
                "system": "Be terse.",
                "tools": [Tool(name="find")],
                "extras": {"deepseek": "{}"},
            }
            for name, value in others.items():
                with pytest.raises(
                    InvalidRequest, match=rf"^{name}: a Call and {name} cannot be combined"
                ):
                    await client.complete(call, "deepseek", **{name: value})

    asyncio.run(main())


def test_session_shows_no_untyped_keywords() -> None:
    for owner in (AsyncClient, Client, Session):
        for name, member in vars(owner).items():
            function = getattr(member, "__func__", member)
            hints = getattr(function, "__annotations__", {})
            assert "Any" not in (hints.get("options"), hints.get("params")), (owner, name)
