"""Runs one contestant in its own environment: reads calls from stdin, one JSON object a line, and
answers each with its CPU time. Only the standard library, because every peer has another one.

    python harness.py MODULE PROVIDER MODEL URL

The contestant carries the history in its own message objects; a reply stays the object that the
contestant's library returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

# The folder `bench`, last: its modules shadow nothing.
sys.path.append(str(Path(__file__).resolve().parents[2]))

Json: TypeAlias = dict[str, Any]


class Contestant(Protocol):
    def begin(self) -> None:
        """Other conversations follow."""

    def message(self, message: Json) -> Any:
        """A message as the library has it; ids of tool calls are the library's own."""

    def tools(self, tools: list[Json]) -> Any: ...

    async def call(self, request: Json, tools: Any, messages: list[Any]) -> tuple[Any, list[str]]:
        """The reply as the library has it, and the ids of its tool calls."""


class Carried:
    """The conversations of a contestant."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._histories: dict[int, list[Any]] = {}
        self._replies: dict[int, Any] = {}
        self._ids: dict[tuple[int, str], str] = {}
        self._tools: dict[str, Any] = {}

    async def call(self, request: Json) -> Json:
        name, contestant = request["conversation"], self._contestant
        history = self._histories.setdefault(name, [])
        del history[request["keep"] :]
        history += [self._native(name, message) for message in request["new"]]
        tail = [self._native(name, message) for message in request["tail"]]
        key = json.dumps(request["tools"])
        if key not in self._tools:
            self._tools[key] = contestant.tools(request["tools"])
        recorded = request["reply"]
        ids = [call["id"] for call in recorded["calls"]]
        answer: Json = {}
        began = time.process_time()
        try:
            reply, own = await contestant.call(request, self._tools[key], [*history, *tail])
            if len(own) == len(ids):
                ids = own
        except Exception as problem:
            # The conversation goes on with the recorded reply.
            reply = contestant.message(recorded)
            answer["error"] = f"{type(problem).__name__}: {problem}"[:500]
        answer["cpu"] = time.process_time() - began
        self._replies[name] = reply
        for call, own_id in zip(recorded["calls"], ids, strict=True):
            self._ids[name, call["id"]] = own_id
        return answer

    def _native(self, name: int, message: Json) -> Any:
        if message.get("reply"):
            return self._replies[name]
        if message["role"] == "tool":
            results = [
                {**result, "id": self._ids.get((name, result["id"]), result["id"])}
                for result in message["results"]
            ]
            message = {**message, "results": results}
        return self._contestant.message(message)


async def main(module: str, provider: str, model: str, url: str) -> None:
    create = import_module(f"cachebench.clients.{module}").contestant
    contestant: Contestant = create(provider, model, url)
    carried = Carried(contestant)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # some libraries print to stdout
    print("{}", file=answers)
    # Reading stdin blocks the loop, on purpose: between two calls nothing is to happen here.
    for line in sys.stdin:
        request = json.loads(line)
        if address := request.get("begin"):
            if address != url:
                url, contestant = address, create(provider, model, address)
            contestant.begin()
            carried = Carried(contestant)
            answer: Json = {}
        else:
            answer = await carried.call(request)
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
