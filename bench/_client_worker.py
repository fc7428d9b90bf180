"""One contestant in a process of its own.

    python bench/_client_worker.py WHO WIRE URL

Every line on stdin is a number of calls to make, one after the other; the answer is the CPU of each
call, user and system, in microseconds. What a call needs that an app has anyway (its messages) is
made before its clock starts.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Protocol


class Asker(Protocol):
    async def ready(self) -> Callable[[], Awaitable[object]]:
        """The next call, ready to be made."""
        ...

    async def close(self) -> None: ...


WHERE = {
    "raw": "_client_raw",
    "bytes": "_client_raw",
    "one-shot": "_client_ours",
    "session": "_client_ours",
    "anthropic SDK": "_client_sdks",
    "openai SDK": "_client_sdks",
    "anthropic SDK, str": "_client_sdks",
    "openai SDK, str": "_client_sdks",
    "LiteLLM": "_client_litellm",
    "pydantic-ai": "_client_pydantic_ai",
}


async def microseconds(asker: Asker, calls: int) -> float:
    spent = 0.0
    for _ in range(calls):
        call = await asker.ready()
        begin = time.process_time()
        await call()
        spent += time.process_time() - begin
    return spent / calls * 1e6


async def main(who: str, wire: str, url: str) -> None:
    asker: Asker = import_module(WHERE[who]).asker(who, wire, url)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # some libraries print to stdout
    # Reading stdin blocks the loop, on purpose: between two rounds nothing is to happen here.
    for line in sys.stdin:
        print(await microseconds(asker, int(line)), file=results)
    await asker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
