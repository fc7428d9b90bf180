"""What a turn costs late in a conversation, beside an early one, apart from the bytes sent.

    python bench/_client_growth.py WIRE TURNS SESSIONS

The transport answers from memory and sends nothing: what is measured is all that a session does
itself. That includes one copy of the body, as it is handed to the transport; what it takes to copy
so many bytes is measured by itself and left out.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from _client_answers import ANSWERS
from _client_ours import client, message, session
from _client_workload import PATHS, prose, script

#: Turns before and after one that are looked at with it.
REACH = 5
EARLY = 10


class Memory:
    """A transport that has the answer ready."""

    def __init__(self, data: bytes) -> None:
        self.status = 200
        self.headers = {"content-type": "application/json"}
        self._data = data
        self.size = 0

    async def send(self, outgoing: Any) -> Memory:
        self.size = len(outgoing.body)
        return self

    async def read(self) -> bytes:
        return self._data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data

    async def close(self) -> None:
        pass


async def conversation(wire: str, turns: int) -> tuple[list[float], list[int]]:
    """CPU of every turn, and the bytes it would have sent."""
    memory = Memory(ANSWERS[PATHS[wire]])
    chat = session(client(wire, "http://127.0.0.1:1", transport=memory), wire, 2)
    await chat.send(message(script()[2]))
    spent, sizes = [], []
    for at in range(turns):
        text = prose(760, at)
        begin = time.process_time()
        await chat.send(text)
        spent.append(time.process_time() - begin)
        sizes.append(memory.size)
    return spent, sizes


def copying(size: int) -> float:
    """CPU of one copy of so many bytes, which is what a body costs that lies there as a slice."""
    log, times = bytearray(size), []
    for _ in range(21):
        begin = time.process_time()
        b"".join([b"{", memoryview(log), b"}"])
        times.append(time.process_time() - begin)
    return statistics.median(times)


def around(figures: list[float], turn: int) -> float:
    return statistics.median(figures[turn - REACH : turn + REACH + 1])


def main(wire: str, turns: int, sessions: int) -> None:
    early, late = [], []
    for _ in range(sessions):
        spent, sizes = asyncio.run(conversation(wire, turns + REACH + 1))
        early.append(around(spent, EARLY) - copying(sizes[EARLY]))
        late.append(around(spent, turns) - copying(sizes[turns]))
    result = {
        "early": statistics.median(early) * 1e6,
        "late": statistics.median(late) * 1e6,
        "growth": statistics.median(b / a for a, b in zip(early, late, strict=True)),
        "bytes": sizes[turns],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
