"""A real engine: llama.cpp's server, a careless prompt layout against Anaphora's session.

The same conversation both times, of an agent whose instructions are 6 KB long: careless, the time
stands at the top of the system prompt and each request is sent by hand; with Anaphora the time is
the state at the end of each call. The server is new for each layout, so that nothing is left in its
cache; it counts the tokens that it computes (prefilled) and reads. Layouts alternate.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from strangers.environment import Unavailable

from anaphora import AsyncClient
from anaphora.values import TextDelta

from .progress import Progress
from .runner import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from support.llama_server import MODEL, missing_package, running

TURNS, ROUNDS = 10, 3
QUICK_TURNS, QUICK_ROUNDS = 4, 1
MAX_TOKENS = 24
GUIDE = "".join(
    f"Rule {number}: look before you answer, answer in one word, and end it with a full stop. "
    for number in range(80)
)


class Turn(NamedTuple):
    """Seconds to the first token, and the tokens of the prompt: those computed, and all."""

    first: float
    prefilled: int
    total: int


def clock(turn: int) -> str:
    return f"It is 09:{turn:02}:07."


def question(turn: int) -> str:
    return f"Question {turn}: what do you do before you answer?"


async def careless(address: str, turns: int) -> list[Turn]:
    """The loop that one writes first: a list of messages, and the time at the top."""
    found: list[Turn] = []
    messages: list[dict[str, str]] = []
    # The server closes a connection that waited.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        for turn in range(turns):
            messages.append({"role": "user", "content": question(turn)})
            system = {"role": "system", "content": f"{clock(turn)} {GUIDE}"}
            measured, text = await _post(session, address, [system, *messages])
            messages.append({"role": "assistant", "content": text})
            found.append(measured)
    return found


async def _post(
    session: aiohttp.ClientSession, address: str, messages: list[dict[str, str]]
) -> tuple[Turn, str]:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first, text, usage = time.perf_counter(), 0.0, "", dict[str, Any]()
    async with session.post(f"{address}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event.get("choices", ()):
                piece = choice["delta"].get("content") or ""
                if piece and not first:
                    first = time.perf_counter() - started
                text += piece
            usage = event.get("usage") or usage
    total = usage["prompt_tokens"]
    read = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return Turn(first, total - read, total), text


async def ours(address: str, turns: int) -> list[Turn]:
    provider = {"dialect": "llamacpp/openai_chat", "base_url": address, "model": MODEL}
    config = {"providers": {"llama": provider}}
    found: list[Turn] = []
    async with AsyncClient.from_config(config, environ={}) as client:
        state = (clock(turn) for turn in range(turns))
        chat = client.session(
            "llama", system=GUIDE, state=lambda: next(state), max_tokens=MAX_TOKENS
        )
        for turn in range(turns):
            started, first = time.perf_counter(), 0.0
            async for event in chat.send(question(turn)):
                if not first and isinstance(event, TextDelta):
                    first = time.perf_counter() - started
            assert chat.last is not None
            usage = chat.last.usage
            total = usage.input or 0
            found.append(Turn(first, total - (usage.read or 0), total))
    return found


LAYOUTS: dict[str, Callable[[str, int], Awaitable[list[Turn]]]] = {
    "careless": careless,
    "ours": ours,
}


def _conversation(name: str, turns: int) -> list[Turn]:
    async def talk(address: str) -> list[Turn]:
        return await LAYOUTS[name](address, turns)

    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as address:
        return asyncio.run(talk(address))


def run(progress: Progress, quick: bool) -> dict[str, Any]:
    if (missing := missing_package()) is not None:
        raise Unavailable(f"{missing}; `make setup` installs it")
    from importlib.metadata import version

    turns, rounds = (QUICK_TURNS, QUICK_ROUNDS) if quick else (TURNS, ROUNDS)
    progress.total(rounds * len(LAYOUTS))
    found: dict[str, list[list[Turn]]] = {name: [] for name in LAYOUTS}
    for _ in range(rounds):
        for name in LAYOUTS:
            found[name].append(_conversation(name, turns))
            progress.step(name)
    layouts = {name: _summed(conversations) for name, conversations in found.items()}
    # Without the first turn, which finds an empty cache in both.
    ratios = [
        statistics.median(one.first for one in careless_turns[1:])
        / statistics.median(one.first for one in our_turns[1:])
        for careless_turns, our_turns in zip(found["careless"], found["ours"], strict=True)
    ]
    return {
        "layouts": layouts,
        "turns": turns,
        "rounds": rounds,
        "first_token_ratio": round(statistics.median(ratios), 1),
        "versions": {"xllamacpp": version("xllamacpp")},
    }


def _summed(conversations: list[list[Turn]]) -> dict[str, Any]:
    by_turn = list(zip(*conversations, strict=True))
    last = conversations[-1]
    return {
        "first_token_ms": [
            round(statistics.median(one.first for one in same) * 1e3, 1) for same in by_turn
        ],
        "prefilled": [one.prefilled for one in last],
        "tokens": [one.total for one in last],
        "prefilled_total": sum(one.prefilled for one in last),
        "tokens_total": sum(one.total for one in last),
        "first_token_median_ms": round(
            statistics.median(one.first for same in by_turn[1:] for one in same) * 1e3, 1
        ),
    }


def headline(found: dict[str, Any]) -> dict[str, Any]:
    layouts = found["layouts"]
    return {
        "first_token_ratio": found["first_token_ratio"],
        **{f"{name}_prefilled": each["prefilled_total"] for name, each in layouts.items()},
    }
