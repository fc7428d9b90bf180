"""llama.cpp's own server, and what sessions read of its slots.

    python bench/engines.py

Twenty turns of each kind on each wire: the share of the input that the server read, by its own
count. Then the same 12,000 tokens twice: how long until the first words. Needs `xllamacpp` and
`gguf` (`make setup`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from anaphora.client.client import AsyncClient
from anaphora.client.response import Response
from anaphora.client.session import Session
from anaphora.tools import ToolRegistry

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.llama_model import TEMPLATE
from support.llama_server import MODEL, cold_and_warm, missing_package, running

WIRES = ("anthropic", "openai_chat", "openai_responses")
TURNS = 20
SYSTEM = "You are a careful assistant, and you say one word at a time. " * 10
OWN = TEMPLATE.read_text(encoding="utf-8")
LOOPING = OWN.replace("{%- if tools and last.role != 'tool' -%}", "{%- if tools -%}")

Open = Callable[..., Session]
Workload = Callable[[Open], Awaitable[list[Response]]]


def tools() -> ToolRegistry:
    registry = ToolRegistry()

    @registry.tool
    def look(city: str, days: int) -> str:
        """Look at the weather of a place."""
        return f"{city} will have rain, {days} days of it."

    return registry


async def words(opened: Open) -> list[Response]:
    chat = opened()
    return [await chat.send(f"Question {turn}?") for turn in range(TURNS)]


async def loop(opened: Open) -> list[Response]:
    return list((await opened(tools=tools()).run("Go on.", max_turns=TURNS)).responses)


async def mixed(opened: Open) -> list[Response]:
    chat = opened(tools=tools())
    runs = [await chat.run(f"Question {turn}?") for turn in range(TURNS // 2)]
    return [answered for ran in runs for answered in ran.responses]


async def stated(opened: Open) -> list[Response]:
    hours = itertools.count(10)
    chat = opened(state=lambda: f"It is {next(hours)} o'clock.")
    return [await chat.send(f"Question {turn}?") for turn in range(TURNS)]


async def in_turn(opened: Open) -> list[Response]:
    chats = [opened(system=f"{name * 3} is who you are. " * 30) for name in "ABCD"]
    rounds = range(TURNS // len(chats))
    return [await chat.send(f"Question {turn}?") for turn in rounds for chat in chats]


WORKLOADS: tuple[tuple[str, Workload, int, str], ...] = (
    ("answers in words", words, 1, OWN),
    ("a tool loop", loop, 1, LOOPING),
    ("tools and answers in turn", mixed, 1, OWN),
    ("a state at the end of each call", stated, 1, OWN),
    ("four conversations in turn, 4 slots", in_turn, 4, OWN),
    ("four conversations in turn, 1 slot", in_turn, 1, OWN),
)


async def run_workload(
    conversation: Workload, wire: str, slots: int, template: str
) -> list[Response]:
    """One server for each, so that nothing is left from another."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), slots=slots, template=template) as address,
    ):
        provider = {"dialect": f"llamacpp/{wire}", "base_url": address, "model": MODEL}
        async with AsyncClient.from_config(
            {"providers": {"llama": provider}}, environ={}
        ) as client:

            def opened(**how: object) -> Session:
                options = {"system": SYSTEM, "max_tokens": 200, **how}
                return client.session("llama", **options)  # type: ignore[arg-type]

            return await conversation(opened)


def main() -> None:
    if (missing := missing_package()) is not None:
        sys.exit(f"{missing}: `make setup` installs it")
    found: dict[str, float] = {}
    print(f"| {TURNS} turns | read |")
    print("| --- | --- |")
    for title, conversation, slots, template in WORKLOADS:
        answers = {w: asyncio.run(run_workload(conversation, w, slots, template)) for w in WIRES}
        every = [answered.usage for one in answers.values() for answered in one]
        share = sum(u.read or 0 for u in every) / sum(u.input or 0 for u in every)
        found[title] = round(share, 3)
        print(f"| {title} | {share:.0%} |")
    measured = asyncio.run(cold_and_warm())
    read, total = measured.cached, measured.tokens
    print(f"\n{read:,} of {total:,} tokens read, {measured.predicted:,} predicted")
    print(f"first words after {measured.cold:.2f} s cold, {measured.warm:.2f} s warm")
    ratio = round(measured.cold / measured.warm, 1)
    print(json.dumps({"read": found, "turns": TURNS, "cold_vs_warm": ratio}))


if __name__ == "__main__":
    main()
