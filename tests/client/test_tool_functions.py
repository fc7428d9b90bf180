"""Functions are tools: in a list, beside finished tools and registries, run by `run`."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pydantic
import pytest
from support.emulated_client import connected

from anaphora import Client, Tool, ToolRegistry
from anaphora.emulator.server import Emulator
from anaphora.values import ProviderTool

LOG: list[str] = []


def step(number: int = 0) -> str:
    """Takes a step."""
    LOG.append("step")
    return "done"


async def step_later(number: int = 0) -> str:
    """Takes a step, later."""
    await asyncio.sleep(0)
    LOG.append("step_later")
    return "done"


class Walker:
    def walk(self, number: int = 0) -> str:
        """Walks."""
        LOG.append("walk")
        return "done"


def go(log: list[str], number: int = 0) -> str:
    """Goes."""
    log.append("go")
    return "done"


def registry() -> ToolRegistry:
    made = ToolRegistry()
    made.add(step, name="registered")
    return made


FUNCTIONS: dict[str, Any] = {
    "step": step,
    "step_later": step_later,
    "walk": Walker().walk,
    "go": functools.partial(go, LOG),
}
SEARCH = ProviderTool(
    "anthropic", "web_search", '{"type":"web_search_20250305","name":"web_search"}'
)


def names(body: bytes) -> list[str]:
    return [tool["name"] for tool in json.loads(body)["tools"]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_run_calls_functions(emu: Emulator, name: str) -> None:
    LOG.clear()

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            chat = emulated.client.session("anthropic", tools=[FUNCTIONS[name]])
            run = await chat.run("Go on")
            assert run.stop_reason == "done"
            assert [name] == names(emulated.transport.sent[0].body) == LOG

    asyncio.run(main())


def test_mixed_list_is_sent_in_order_of_names(emu: Emulator) -> None:
    tools: list[Any] = [step_later, SEARCH, registry(), Tool(name="finished"), step]

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            client, sent = emulated.client, emulated.transport.sent
            wanted = ["finished", "registered", "step", "step_later", "web_search"]
            await client.complete("Hello", "anthropic", tools=tools)
            assert names(sent[-1].body) == wanted
            chat = client.session("anthropic", tools=tools)
            await chat.send("Hello")
            assert names(sent[-1].body) == wanted
            assert chat.tools is not None
            assert [tool.name for tool in chat.tools.tools()] == wanted[:-1]

    asyncio.run(main())


def test_single_call_runs_no_function(emu: Emulator) -> None:
    LOG.clear()

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            response = await emulated.client.complete("Go on", "anthropic", tools=[step])
            assert [call.name for call in response.tool_calls] == ["step"]
            assert LOG == []

    asyncio.run(main())


def test_registry_given_as_such_stays_live(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            tools = registry()
            chat = emulated.client.session("anthropic", tools=tools)
            assert chat.tools is tools
            tools.add(step)
            await chat.send("Hello")
            assert names(emulated.transport.sent[-1].body) == ["registered", "step"]

    asyncio.run(main())


def test_synchronous_run_calls_functions(emu: Emulator) -> None:
    LOG.clear()
    config = {
        "wire": "anthropic",
        "base_url": emu.url,
        "key": {"env": "K"},
        "model": "claude-sonnet-4-5",
    }
    with Client.from_config({"providers": {"main": config}}, environ={"K": "k"}) as client:
        run = client.session("main", tools=[step]).run("Go on").result()
        assert (run.stop_reason, LOG) == ("done", ["step"])


class Street(pydantic.BaseModel):
    name: str
    number: int = pydantic.Field(ge=1, le=9)


def test_pydantic_models_are_arguments_and_results(emu: Emulator) -> None:
    taken: list[Street] = []

    def walk_along(street: Street) -> Street:
        """Walks along a street."""
        taken.append(street)
        return street

    with Client.from_env({"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emu.url}) as client:
        chat = client.session(model="claude-sonnet-5-5", tools=[walk_along])
        result = chat.run("Walk.").result()
        assert (result.stop_reason, result.tool_errors) == ("done", ())
        (given,) = chat.messages[2].parts
    (street,) = taken
    assert street.model_dump_json() in str(given)
