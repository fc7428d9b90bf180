"""What it costs to continue a conversation by its id, in a session for each request.

    python bench/conversations.py [--megabytes N] [--turns N]

Each request makes a new session with its whole history, whose messages are new objects, and sends
a turn to a provider that answers at once. "no id" is that alone; the others also load the
conversation from a store, compare the prompt with the last one, and save what was added; "new
process" does so with a new client; "changed" has another system prompt at every turn, so that the
stored bytes are read to name the byte.

"prefix index" is what it costs to find and remember the earlier call of a request that another
program sent, once it is split: with more messages, and with more remembered calls. "unseen" is a
conversation whose every byte is new to the index; the calls that are counted as remembered are of
other conversations with the same system prompt.

CPU time in milliseconds, the median. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from anaphora import AsyncClient, Message, wire
from anaphora.cache import PrefixIndex
from anaphora.values import from_json, to_json
from anaphora.wire.cutting import cut

WORDS = [f"word{number * 7919 % 10007}" for number in range(2000)]
CONFIG = {
    "providers": {
        "claude": {
            "wire": "anthropic",
            "model": "claude-sonnet-5-5",
            "key": {"env": "KEY"},
            "base_url": "http://provider.invalid",
        }
    }
}


def prose(size: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=size // 9))[:size]


class Answer:
    """A whole answer of a provider."""

    def __init__(self, number: int) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        usage = {"input_tokens": 180, "cache_read_input_tokens": 500_000, "output_tokens": 170}
        usage["cache_creation_input_tokens"] = 0
        content = [{"type": "text", "text": prose(800, number)}]
        reply: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "content": content,
        }
        reply |= {"model": "claude-sonnet-5-5", "stop_reason": "end_turn", "usage": usage}
        self._data = json.dumps(reply).encode()

    async def read(self) -> bytes:
        return self._data

    async def close(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class Provider:
    """A transport without a network."""

    def __init__(self) -> None:
        self._count = 0

    async def send(self, _: Any) -> Answer:
        self._count += 1
        return Answer(self._count)

    async def close(self) -> None:
        pass


class Counted(dict[str, bytes]):
    """A store that counts the bytes it is given and asked for."""

    written = read = 0

    def __setitem__(self, key: str, value: bytes) -> None:
        self.written += len(value)
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        self.read += len(value or b"")
        return value


def new_client(store: Any) -> AsyncClient:
    return AsyncClient.from_config(
        CONFIG, environ={"KEY": "any"}, transport=Provider(), conversations=store
    )


async def measure(
    rows: list[bytes],
    turns: int,
    *,
    name: str | None,
    store: Counted | None = None,
    fresh: bool = False,
    system: Callable[[int], str] = lambda _: "You are terse.",
) -> dict[str, float]:
    rows, times = list(rows), []
    client = new_client(store)
    for turn in range(turns + 1):
        if fresh:
            client = new_client(store)
        messages = [from_json(row, Message) for row in rows]
        if store is not None and turn == 1:
            store.written = store.read = 0  # the first turn stores everything
        began = time.process_time()
        chat = client.session(
            "claude",
            id=name,
            system=system(turn),
            messages=messages,
            save=lambda message: rows.append(to_json(message)),
            on_prefix_break="off",
        )
        response = await chat.send(prose(1000, turn))
        times.append((time.process_time() - began) * 1000)
        assert not [each for each in response.notices if "conversation" in each.code]
    result = {"ms": statistics.median(times[1:]), "first_ms": times[0]}
    if store is not None:
        result |= {"written": store.written / turns, "read": store.read / turns}
        result |= {"stored": sum(map(len, store.values())), "values": len(store)}
    return result


def split(talk: int, messages: int) -> Any:
    """A request of 20 tools, a system prompt and messages of 1,000 characters."""
    tools = [
        {"name": f"tool_{number}", "description": prose(400, number), "input_schema": {}}
        for number in range(20)
    ]
    listed = [
        {
            "role": "assistant" if number % 2 else "user",
            "content": [{"type": "text", "text": prose(1000, talk * 10_007 + number)}],
        }
        for number in range(messages)
    ]
    body = {"model": "claude-sonnet-4-5", "tools": tools, "system": prose(3000, -1)}
    return cut(wire.get("anthropic"), json.dumps(body | {"messages": listed}).encode())


def measure_index(messages: int, remembered: int = 10, rounds: int = 15) -> dict[str, float]:
    """The next turn of a conversation, and a conversation that is not known."""
    index: PrefixIndex[int] = PrefixIndex()
    for number in range(remembered):
        index.add(split(number, 1), number)
    times: dict[str, list[float]] = {"grown": [], "unseen": []}
    for number in range(rounds):
        talk = remembered + 2 * number
        index.add(split(talk, messages - 2), -1)
        for name, rendered in (
            ("grown", split(talk, messages)),
            ("unseen", split(talk + 1, messages)),
        ):
            began = time.process_time()
            found = index.add(rendered, number)
            times[name].append((time.process_time() - began) * 1000)
            assert found is not None
            assert found.continues == (name == "grown")
    return {name: statistics.median(taken) for name, taken in times.items()}


def report_index() -> dict[str, float]:
    by_length = {messages: measure_index(messages) for messages in (42, 168, 672)}
    by_calls = {remembered: measure_index(42, remembered) for remembered in (10, 100, 1000)}
    print(f"{'prefix index':<28}{'ms':>12}{'unseen ms':>12}")
    rows = [(f"{messages} messages", case) for messages, case in by_length.items()]
    rows += [(f"42 messages, {calls:,} calls", case) for calls, case in by_calls.items()]
    for name, case in rows:
        print(f"{name:<28}{case['grown']:>12.3f}{case['unseen']:>12.3f}")
    first = by_length[42]["grown"]
    return {
        "prefix_index_ms_at_42": round(first, 3),
        "prefix_index_unseen_ms_at_42": round(by_length[42]["unseen"], 3),
        "prefix_index_growth_with_length": round(by_length[672]["grown"] / first, 2),
        "prefix_index_growth_with_calls": round(by_calls[1000]["grown"] / by_calls[10]["grown"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of conversations with an id.")
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    pairs = int(options.megabytes * 1_000_000 / 2000)
    rows = []
    for number in range(pairs):
        rows.append(to_json(Message.user(prose(1000, number), id=f"u{number}")))
        rows.append(to_json(Message.assistant(prose(1000, -number), id=f"a{number}")))

    def run(**how: Any) -> dict[str, float]:
        return asyncio.run(measure(rows, options.turns, **how))

    cases = {
        "no id": run(name=None),
        "in process": run(name="u"),
        "mapping": run(name="u", store=Counted()),
        "new process": run(name="u", store=Counted(), fresh=True),
        "changed": run(name="u", store=Counted(), fresh=True, system=lambda turn: f"It is {turn}."),
    }
    columns = ("ms", "first_ms", "read", "written", "stored", "values")
    print(f"{'':<12}" + "".join(f"{column:>12}" for column in columns))
    for name, case in cases.items():
        shown = (f"{case[each]:>12,.1f}" if each in case else " " * 12 for each in columns)
        print(f"{name:<12}" + "".join(shown))
    index = report_index()
    plain = cases["no id"]["ms"]
    print(
        json.dumps(
            {
                **{
                    f"{name.replace(' ', '_')}_ms": round(case["ms"], 2)
                    for name, case in cases.items()
                },
                "added_share": round(cases["mapping"]["ms"] / plain - 1, 3),
                "read_bytes": round(cases["mapping"]["read"]),
                "written_bytes": round(cases["mapping"]["written"]),
                "stored_bytes": round(cases["mapping"]["stored"]),
                **index,
            }
        )
    )


if __name__ == "__main__":
    main()
