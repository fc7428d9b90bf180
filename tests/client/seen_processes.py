"""Run by test_seen_file.py: children that use one index at once, or as an ordinary user.

python seen_processes.py PATH many           50 children record and find the same beginning
python seen_processes.py PATH read-only      a user records, and then the file is read-only
python seen_processes.py PATH full           no file may grow
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anaphora.cache.plan import SeenUse
from anaphora.client.seen import SeenIndex

SCOPE, KEY = "anthropic", b"k" * 16
CHILDREN = 50
NOBODY = 65534


async def find(index: SeenIndex) -> list[int]:
    found = await index.find(SCOPE, {7: KEY})
    return [seen.started for seen in found.values()]


async def record(index: SeenIndex, at: float, key: bytes = KEY) -> None:
    index.record(SCOPE, [SeenUse(key=key, at=at, tokens=2000, continued=False)])
    await index.flush()


def in_child(act: Callable[[], Any]) -> Callable[[], Any]:
    """Starts it in a child; call the result for what it returned."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, json.dumps(act()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)

    def wait() -> Any:
        with os.fdopen(read, "rb") as answer:
            text = answer.read()
        assert os.waitpid(child, 0)[1] == 0, "a child failed"
        return json.loads(text)

    return wait


def many(path: Path) -> Any:
    shared = SeenIndex(path)
    asyncio.run(record(shared, time.time()))  # its thread and connection are not the children's
    begun = time.time() + 0.2

    def child(number: int) -> Callable[[], Any]:
        def act() -> Any:
            index = shared if number % 2 else SeenIndex(path)
            time.sleep(max(0.0, begun - time.time()))
            asyncio.run(record(index, time.time()))
            asyncio.run(record(index, time.time(), key=b"%16d" % number))
            return asyncio.run(find(index))

        return act

    waits = [in_child(child(number)) for number in range(CHILDREN)]
    answers = [wait() for wait in waits]
    return {"children": answers, "parent": asyncio.run(find(shared))}


def read_only(path: Path) -> Any:
    os.chown(path.parent, NOBODY, NOBODY)

    def as_user(act: Callable[[], Any]) -> Any:
        def drop() -> Any:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            return act()

        return in_child(drop)()

    def before() -> Any:
        asyncio.run(record(SeenIndex(path), time.time()))
        return oct(path.stat().st_mode)

    def after() -> Any:
        index = SeenIndex(path)
        asyncio.run(record(index, time.time()))
        return asyncio.run(find(index))

    answers = {"mode": as_user(before)}
    path.chmod(0o400)
    answers["file"] = as_user(after)
    path.parent.chmod(0o500)
    answers["folder"] = as_user(after)
    return answers


def full(path: Path) -> Any:
    index = SeenIndex(path)
    asyncio.run(record(index, time.time()))
    size = max(each.stat().st_size for each in path.parent.iterdir())
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    for number in range(200):
        asyncio.run(record(index, time.time(), key=b"%16d" % number))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return asyncio.run(find(index))


if __name__ == "__main__":
    acts = {"many": many, "read-only": read_only, "full": full}
    print(json.dumps(acts[sys.argv[2]](Path(sys.argv[1]))))
