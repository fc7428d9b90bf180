"""The picture of the README: one conversation's tokens by turn, as usual and with Anaphora.

The conversation is the one of `anaphora demo`: an agent that fixes a bug in 20 turns. As usual, it
is written with the anthropic SDK: one marker at the end of the system prompt, tools and system
prompt never change, and the state (time, failing tests) is the last message of each request. With
Anaphora it is a session with its defaults. The emulator bills both.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from anthropic import AsyncAnthropic

from anaphora import AsyncClient, emulator
from anaphora.emulator import EmulatorOptions, Latency

from .progress import Progress
from .runner import ROOT

sys.path.insert(0, str(ROOT / "examples"))

from tour import PAUSE, STORY, Step, TourStop, Workspace, rates, script, state
from tour.play import AnaphoraAgent

STOP = TourStop("anthropic/anthropic", "claude-sonnet-5-5")
MAX_TOKENS = 1024
#: Tokens of a turn: read, written, fresh.
Turn = list[int]


class PlainAgent:
    """An agent as one writes it with the SDK, after its docs on prompt caching."""

    def __init__(self, url: str) -> None:
        self._client = AsyncAnthropic(api_key="key-usual", base_url=url, max_retries=0)
        self._workspace = Workspace()
        self._tools: list[Any] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": json.loads(tool.schema),
            }
            for tool in self._workspace.tools().tools()
        ]
        marker = {"cache_control": {"type": "ephemeral"}}
        text = f"{STORY.identity}\n{STORY.knowledge}\n{rates()}"
        self._system: list[Any] = [{"type": "text", "text": text, **marker}]
        self._messages: list[Any] = []

    async def take(self, turn: int, step: Step) -> Turn:
        if step.user:
            self._messages.append({"role": "user", "content": step.user})
        now = state(turn, self._workspace.failing(), self._workspace.edited)
        response = await self._client.messages.create(
            model=STOP.model,
            max_tokens=MAX_TOKENS,
            system=self._system,
            tools=self._tools,
            messages=[*self._messages, {"role": "user", "content": now}],
        )
        blocks = [block.model_dump(exclude_none=True) for block in response.content]
        self._messages.append({"role": "assistant", "content": blocks})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": str(getattr(self._workspace, block["name"])(**block["input"])),
            }
            for block in blocks
            if block["type"] == "tool_use"
        ]
        if results:
            self._messages.append({"role": "user", "content": results})
        usage = response.usage
        return [
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            usage.input_tokens,
        ]

    async def close(self) -> None:
        await self._client.close()


async def _played(emu: emulator.Emulator) -> tuple[list[Turn], list[Turn]]:
    url = f"{emu.url}/{STOP.provider}"
    row = {"dialect": STOP.dialect, "base_url": url, "key": {"env": "KEY"}}
    config = {"providers": {f"{STOP.dialect} anaphora": row}}
    usual, ours = list[Turn](), list[Turn]()
    plain = PlainAgent(url)
    async with AsyncClient.from_config(config, environ={"KEY": "key-ours"}) as client:
        session = AnaphoraAgent(client, STOP)
        for turn, step in enumerate(STORY.steps, 1):
            usual.append(await plain.take(turn, step))
            usage = (await session.take(turn, step)).usage
            ours.append([usage.read or 0, usage.written_total or 0, usage.uncached or 0])
            emu.advance(PAUSE)
    await plain.close()
    return usual, ours


def _dollars(emu: emulator.Emulator) -> dict[str, float]:
    """The bills by API key, of which each agent has one."""
    found: dict[str, float] = {}
    for entry in reversed(emu.requests()):
        found[entry["workspace"]] = found.get(entry["workspace"], 0.0) + float(entry["cost_usd"])
    return found


def run(progress: Progress, quick: bool) -> dict[str, Any]:  # noqa: ARG001 - it takes a second
    progress.total(1)
    with emulator.running(EmulatorOptions(script=script(), latency=Latency(first=0.0))) as emu:
        usual, ours = asyncio.run(_played(emu))
        bills = _dollars(emu)
    progress.step("one conversation, as usual and with Anaphora")
    usual_dollars, our_dollars = bills.values()
    return {
        "model": STOP.model,
        "turns": len(usual),
        "usual": usual,
        "ours": ours,
        "dollars": {"usual": round(usual_dollars, 6), "ours": round(our_dollars, 6)},
        "read_share": {"usual": _read_share(usual), "ours": _read_share(ours)},
    }


def _read_share(turns: list[Turn]) -> float:
    return round(sum(turn[0] for turn in turns) / sum(map(sum, turns)), 4)


def headline(found: dict[str, Any]) -> dict[str, Any]:
    return {"dollars": found["dollars"], "read_share": found["read_share"]}
