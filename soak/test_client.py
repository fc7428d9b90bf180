"""The client's memory over 100,000 calls in one process: conversations on three wires, single calls on
five, and everything that apps do with them.

The emulator answers from another process. The first fifth fills most of what is kept up to a bound:
what each model's cache would have. From then on memory hardly grows, and in the end no task and no socket
is left. Prints the curve. With SOAK_CALLS=2000 it is quick, and only the end is looked at.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from _client_day import App, settings
from _served import child

import anaphora
from anaphora.client.response import Record

HERE = Path(__file__).parent
CALLS = int(os.environ.get("SOAK_CALLS", "100000"))
#: After so many, the prefixes that are remembered are at their bound. Beginnings, which are smaller,
#: are not: they fill until the end.
FULL = 20_000
STRETCHES = 20
#: How many use the client at the same time.
APPS = 16
#: In MB, from then on. 5.7 to 9.5 were measured. Of 5.7, live objects were 3 (beginnings, and the
#: prompts of single calls: both up to a bound, and ever more slowly). The others are memory that the
#: allocator holds free: its free lists grew by 3, and malloc_trim gave most of that back.
FLAT = 8.0


class Counted:
    """Every call has a record."""

    def __init__(self) -> None:
        self.calls = 0
        self.ends: Counter[str] = Counter()
        self.providers: Counter[str] = Counter()

    def __call__(self, record: Record) -> None:
        self.calls += 1
        self.ends[record.error or "answered"] += 1
        self.providers[record.provider] += 1


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            pass  # the one that lists them
    return found


async def soaked(url: str) -> list[tuple[int, float]]:
    """The curve: memory after so many calls."""
    curve: list[tuple[int, float]] = []
    counted = Counted()
    tasks, before = asyncio.all_tasks(), sockets()
    client = anaphora.AsyncClient.from_config(
        settings(url), environ={"KEY": "any"}, watchers=[counted]
    )
    async with client:
        apps = [App(client, number) for number in range(APPS)]
        for stretch in range(STRETCHES):
            until, begun = CALLS * (stretch + 1) // STRETCHES, time.monotonic()
            calls = counted.calls

            async def work(app: App, until: int = until) -> None:
                while counted.calls < until:
                    await app.something()

            await asyncio.gather(*map(work, apps))
            curve.append((counted.calls, rss_mb()))
            pace = (counted.calls - calls) / (time.monotonic() - begun)
            print(
                f"after {counted.calls:7} calls: {curve[-1][1]:7.1f} MB"
                f"   {sockets() - before:3} sockets   {pace:5.0f} a second",
                flush=True,
            )
        await asyncio.sleep(0.1)  # streams that were left are closed by the loop
        assert asyncio.all_tasks() == tasks
        assert sockets() - before <= 4 * APPS, "connections are used again"
    print(dict(counted.ends.most_common()), dict(counted.providers.most_common()))
    assert asyncio.all_tasks() == tasks
    assert sockets() == before
    assert counted.ends["answered"] > 0.8 * counted.calls
    assert sum(app.failed for app in apps) > 0.01 * counted.calls
    assert sum(app.cancelled for app in apps) > 0.01 * counted.calls
    return curve


def test_memory_is_flat_over_many_calls() -> None:
    with child("emulator", str(HERE / "_unlimited.py")) as emulator:
        curve = asyncio.run(soaked(f"http://127.0.0.1:{emulator.port}"))
    filled = [mb for calls, mb in curve if calls >= FULL]
    growth = filled[-1] - filled[0] if filled else 0.0
    last = curve[-1][1]
    print(json.dumps({"calls": CALLS, "rss_mb": round(last, 1), "rss_growth_mb": round(growth, 1)}))
    assert growth < FLAT, "since the prefixes are at their bound"
