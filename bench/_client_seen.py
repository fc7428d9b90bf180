"""How long a call waits for the index of beginnings, in a full one."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from anaphora.cache.plan import SeenUse
from anaphora.client.seen import SeenIndex
from anaphora.client.seen_file import MOST_BEGINNINGS, SeenFile

#: Beginnings that a call looks up: tools and system prompt, blocks, and turns of a conversation.
_KEYS = 12
_LOOKUPS = 300
_AT_ONCE = 5_000


def lookup_seconds() -> float:
    """The median."""
    with tempfile.TemporaryDirectory() as folder:
        index = SeenIndex(Path(folder) / "seen.sqlite")
        keys = [os.urandom(32) for _ in range(MOST_BEGINNINGS)]
        _fill(index.path, keys)
        return asyncio.run(_measured(index, keys))


def _fill(path: Path, keys: list[bytes]) -> None:
    file = SeenFile(path)
    for start in range(0, len(keys), _AT_ONCE):
        file.record(
            "scope",
            [
                SeenUse(key=key, at=float(start), tokens=5_000, continued=False)
                for key in keys[start : start + _AT_ONCE]
            ],
        )
    file.close()


async def _measured(index: SeenIndex, keys: list[bytes]) -> float:
    seconds = []
    for start in range(0, _LOOKUPS * _KEYS, _KEYS):
        asked = dict(enumerate(keys[start : start + _KEYS]))
        began = time.perf_counter()
        found = await index.find("scope", asked)
        seconds.append(time.perf_counter() - began)
        assert len(found) == _KEYS
        await asyncio.sleep(0.002)  # as between two calls
    await index.flush()
    return statistics.median(seconds)
