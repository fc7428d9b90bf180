"""Contestants, each in a process of its own, that take turns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from _bytecode import SOURCE

HERE = Path(__file__).parent

Key: TypeAlias = tuple[str, str]
"""Who calls, and on which wire."""

#: Those that live in an environment of their own.
STRANGERS = ("LiteLLM", "pydantic-ai")

#: Uncounted warm-up calls: imports that wait for them, connections, caches.
_WARM = 20


class Contestant:
    def __init__(self, who: str, wire: str, url: str, python: str, share: int) -> None:
        self.who, self.wire = who, wire
        self._share = share
        self._url = url
        # No price list from the network, nothing of ours for others.
        path = "" if who in STRANGERS else str(SOURCE)
        env = {**os.environ, "PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        self._process = subprocess.Popen(
            [python, str(HERE / "_client_worker.py"), who, wire, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=env,
        )
        self.bytes = 0.0
        """How long a request of theirs is, on average."""

    def warm(self) -> None:
        self.call(_WARM)
        self._seen()
        self.call(_WARM)
        count, size = self._seen()
        self.bytes = size / count

    def call(self, calls: int) -> float:
        """CPU of a call, in microseconds. Those that take long make fewer of them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{max(1, calls // self._share)}\n")
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.who} on {self.wire} gave up")
        return float(line)

    def end(self) -> None:
        self._process.communicate()

    def _seen(self) -> tuple[int, int]:
        with urllib.request.urlopen(f"{self._url}/seen") as answer:
            count, size = json.load(answer)
        return count, size


@contextlib.contextmanager
def contest(
    url: str, listed: list[tuple[str, str, int]], foreign: str
) -> Iterator[list[Contestant]]:
    """Started and warm. `foreign` is the interpreter of those that live elsewhere."""
    with contextlib.ExitStack() as stack:
        started = []
        for who, wire, share in listed:
            python = foreign if who in STRANGERS else sys.executable
            started.append(Contestant(who, wire, url, python, share))
            stack.callback(started[-1].end)
        for one in started:
            one.warm()
        yield started


def rounds(contestants: list[Contestant], count: int, calls: int) -> dict[Key, list[float]]:
    """CPU of a call of each, in every round."""
    found: dict[Key, list[float]] = {(one.who, one.wire): [] for one in contestants}
    for _ in range(count):
        for one in contestants:
            found[one.who, one.wire].append(one.call(calls))
    return found
