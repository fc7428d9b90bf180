"""Kills a recording process at random moments, and checks the folder that it leaves."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

from blake3 import blake3

from anaphora.replay.integrity import check_folder
from anaphora.replay.signing import SigningKey
from anaphora.replay.store import FixtureStore

#: For each round on standard input: starts recorders, which add and remove fixtures, kills them, and
#: writes what they wrote: a line for each fixture that is on the disk. Each recorder is a process
#: of its own; they are forked, since most of a start is the imports.
_KILLER = """
import json, os, signal, sys, time
from support.recordings import small_fixture
from anaphora.replay.signing import SigningKey
from anaphora.replay.store import FixtureStore

def record(folder, worker, key, output):
    def say(text):
        os.write(output, text.encode())
    sign = SigningKey.read(key) if key else None
    store = FixtureStore.open(folder, create=True, sign=sign)
    count = 0
    while True:
        added = store.add_all(
            small_fixture(worker, f"{worker} {count} {number} " + "x" * 200 * (count % 40))
            for number in range(1 + count % 3)
        )
        say("".join(f"{one.key} {one.raw_hash}\\n" for one in added))
        count += 1
        if count % 10 == 0:
            own = [entry for entry in store.entries if entry.key == added[0].key]
            gone = [store.fixture(entry.path) for entry in own[:2]]
            say("".join(f"-{one.key} {one.raw_hash}\\n" for one in gone))
            store.remove([entry.path for entry in own[:2]])

def start(folder, worker, key):
    input, output = os.pipe()
    child = os.fork()
    if not child:
        try:
            record(folder, worker, key, output)
        finally:
            os._exit(1)
    os.close(output)
    return child, input

for line in sys.stdin:
    folder, workers, key, delay = json.loads(line)
    running = [start(folder, worker, key) for worker in workers]
    printed = [os.read(input, 1 << 20) for _, input in running]
    time.sleep(delay)
    for child, _ in running:
        os.kill(child, signal.SIGKILL)
    for number, (child, input) in enumerate(running):
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        while data := os.read(input, 1 << 20):
            printed[number] += data
        os.close(input)
    print(json.dumps([data.decode() for data in printed]), flush=True)
"""


def kill_recorders(folder: Path, kills: int, *, workers: int, signed: bool, seed: int) -> int:
    """Start recorders in the folder and kill them, again and again; check the folder after each.
    The number of fixtures that are left."""
    chance = random.Random(seed)
    key = SigningKey.generate(folder.parent / f"{folder.name}.key") if signed else None
    kept: set[str] = set()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", _KILLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for round in range(kills):
            names = [f"{round}-{worker}" for worker in range(workers)]
            secret = "" if key is None else str(key.path)
            task = [str(folder), names, secret, chance.uniform(0, 0.05)]
            killer.stdin.write(json.dumps(task) + "\n")
            killer.stdin.flush()
            for printed in json.loads(killer.stdout.readline()):
                _apply(kept, printed)
            _check(folder, kept, key)
    assert killer.returncode == 0
    return len(kept)


def _apply(kept: set[str], lines: str) -> None:
    """What the recorder reported is on the disk; what it was about to remove may be there or not."""
    for line in lines.splitlines():
        if line.startswith("-"):
            kept.discard(line.removeprefix("-"))
        elif len(line) == 129:  # the last line may be cut off
            kept.add(line)


def _check(folder: Path, kept: set[str], key: SigningKey | None) -> None:
    public = None if key is None else key.public
    index = tomllib.loads((folder / "INDEX.toml").read_text())
    for row in index["fixture"]:
        assert blake3((folder / row["path"]).read_bytes()).hexdigest() == row["blake3"]
    assert not check_folder(folder, deep=True).problems
    store = FixtureStore.open(folder, signed_by=public)
    found = [store.fixture(entry.path) for entry in store.entries]
    assert kept <= {f"{one.key} {one.raw_hash}" for one in found}
    assert (folder / "INDEX.toml").stat().st_mode & 0o777 == 0o600


def leftovers(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name.startswith("."))
