"""How a client's memory grows over many calls, and what holds it.

    python bench/_client_memory.py CALLS

Conversations of five turns and single calls, each with texts of its own, and another system prompt
for every tenth conversation. The transport answers from memory. The first 20,000 calls are not
counted: they fill what is kept up to a bound. The last line is a JSON object, in MB: the growth of
the process; how much of that the allocator gives back when it is asked to (malloc_trim); how much
it holds free; and the number of objects of Python that were added.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from _client_answers import ANSWERS
from _client_growth import Memory
from _client_ours import client
from _client_workload import MAX_TOKENS, MODELS, PATHS, prose

WIRE = "anthropic"
WARM = 20_000
TURNS, SINGLE = 5, 5
#: Conversations with one system prompt.
SAME = 10


class _Heap(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks used free keep".split()
    ]


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


class Growth:
    """The process at one moment, after a collection."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        gc.collect()
        self.rss = rss_mb()
        self.objects = sys.getallocatedblocks()
        self.free = 0.0
        if hasattr(libc, "mallinfo2"):  # glibc 2.33
            libc.mallinfo2.restype = _Heap
            self.free = libc.mallinfo2().free / 1e6
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        self.trimmed = rss_mb()


class Caller:
    def __init__(self) -> None:
        memory = Memory(ANSWERS[PATHS[WIRE]])
        self._client = client(WIRE, "http://127.0.0.1:1", transport=memory)
        self._text = prose(760, 1)
        self._number = 0
        self.calls = 0

    def _new(self, begin: str = "") -> str:
        self._number += 1
        return f"{begin}{self._number} {self._text}"

    async def work(self, until: int) -> None:
        while self.calls < until:
            group = self._number // (SAME * (TURNS + SINGLE))
            options: dict[str, Any] = {
                "model": MODELS[WIRE],
                "system": f"{group} {self._text * 8}",
                "max_tokens": MAX_TOKENS,
            }
            chat = self._client.session("local", **options)
            for _ in range(TURNS):
                await chat.send(self._new())
            for _ in range(SINGLE):
                await self._client.complete(self._new(), "local", **options)
            self.calls += TURNS + SINGLE


async def main(calls: int) -> None:
    caller = Caller()
    await caller.work(WARM)
    before = Growth()
    await caller.work(WARM + calls)
    after = Growth()
    result = {
        "growth": round(after.rss - before.rss, 2),
        "trimmed": round(after.trimmed - before.trimmed, 2),
        "free": round(after.free - before.free, 2),
        "objects": after.objects - before.objects,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
