"""What a tool loop of 20 turns costs on Converse: as much as on Anthropic's own wire at equal prices."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import httpx
from support.emulated_client import AT_ONCE, KEY, LONG, connected

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Script
from anaphora.emulator.server import Emulator

TURNS = 20
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "bedrock": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
PRICES = {"*": {"input": 3, "output": 15}}


def page(number: int) -> str:
    """A page of a book that the model reads from beginning to end."""
    return f"Page {number}. " + f"On page {number} somebody looks for the lost key. " * 40


def script() -> Script:
    def turn(number: int) -> dict[str, Any]:
        return {"tool_calls": [{"name": "read_page", "arguments": {"number": number}}]}

    replies = [{"match": {"text": "Read the book."}, "reply": turn(1)}]
    for number in range(1, TURNS):
        last = number == TURNS - 1
        after = {"text": "The key is under the mat."} if last else turn(number + 1)
        replies.append({"match": {"result": f"Page {number}."}, "reply": after})
    return Script.decode(json.dumps({"replies": replies}), "the script")


async def read_page(number: int) -> str:
    """Reads a page of the book."""
    return page(number)


async def paid(emu: Emulator, name: str) -> tuple[Decimal, int, list[tuple[str, bytes]]]:
    """The costs and the cached tokens of the loop, and its requests."""
    settings: dict[str, Any] = {"model": MODELS[name], "prices": PRICES}
    async with connected(emu, [name], **settings) as emulated:
        chat = emulated.client.session(name, system=LONG, tools=[read_page])
        run = await chat.run("Read the book.")
        assert run.text == "The key is under the mat."
        records = [record for record in emulated.records if record.usage is not None]
        sent = [(outgoing.url, outgoing.body) for outgoing in emulated.transport.sent]
    assert len(records) == TURNS
    read = sum(record.usage.read or 0 for record in records if record.usage is not None)
    return sum((record.cost_usd or Decimal(0) for record in records), Decimal(0)), read, sent


def without_points(value: Any) -> Any:
    if isinstance(value, list):
        return [without_points(each) for each in value if "cachePoint" not in each]
    if isinstance(value, dict):
        return {name: without_points(each) for name, each in value.items()}
    return value


def test_converse_costs_as_much_as_the_makers_own_wire() -> None:
    with emulator.running(EmulatorOptions(latency=AT_ONCE, script=script())) as emu:
        own, own_read, _ = asyncio.run(paid(emu, "anthropic"))
        cloud, read, sent = asyncio.run(paid(emu, "bedrock"))
        emu.reset()
        for url, body in sent:
            plain = without_points(json.loads(body))
            answer = httpx.post(url, json=plain, headers={"authorization": f"Bearer {KEY}"})
            assert answer.json()["usage"]["cacheReadInputTokens"] == 0
        uncached = [call["cost_usd"] for call in emu.requests()]
    assert len(uncached) == TURNS
    assert abs(cloud - own) <= own * Decimal("0.02")
    assert abs(read - own_read) <= own_read * 0.02
    assert sum(map(Decimal, uncached)) > 2 * cloud
