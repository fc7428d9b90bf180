"""What reading costs: streams beside the official SDKs, requests beside `json.loads`; and signing.

    python bench/wire.py [--rounds 7]
    python bench/wire.py --requests --before ../main    turns, beside another tree

CPU time, ratios measured in one run; of several forms or cuts the worst one counts. Ours reads the
same bytes as the SDKs, as a transport would hand them over.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from _wire_bedrock import compared
from _wire_requests import requests
from _wire_streams import EVENTS, streams

from anaphora import wire
from anaphora.client.config.secrets import SecretHeaders
from anaphora.client.credentials.aws import AwsCredentials
from anaphora.client.credentials.refreshing import Fetched
from anaphora.client.credentials.sigv4 import AwsKeys
from anaphora.values import ReplyEnd


def large(pieces: list[bytes], size: int = 65536) -> list[bytes]:
    """The same bytes in large reads."""
    whole = b"".join(pieces)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def ours(name: str, pieces: list[bytes]) -> None:
    reader = wire.get(name).reader()
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.close()
    assert isinstance(events[-1], ReplyEnd)
    assert len(events) > EVENTS


def cpu(action: Callable[[], object], repeat: int = 1) -> float:
    begin = time.process_time()
    for _ in range(repeat):
        action()
    return (time.process_time() - begin) / repeat


def beside(
    mine: Callable[[], object], theirs: Callable[[], object], rounds: int, often: tuple[int, int]
) -> tuple[float, float, float]:
    """Seconds of both, and theirs over mine: medians of rounds that take turns, so that whatever
    else the machine does falls on both."""
    mine()
    theirs()
    times = [(cpu(mine, often[0]), cpu(theirs, often[1])) for _ in range(rounds)]
    one, other = (statistics.median(each) for each in zip(*times, strict=True))
    return one, other, statistics.median(b / a for a, b in times)


def reading_streams(rounds: int) -> dict[str, float | None]:
    """How many times the CPU an SDK takes, by the SDK; None if it is not installed."""
    ratios: dict[str, float | None] = {}
    for name, rival, pieces, theirs in streams():
        worst = float("inf")
        for cut, cut_pieces in (("per event", pieces), ("large reads", large(pieces))):
            read = functools.partial(ours, name, cut_pieces)
            mine, sdk, ratio = beside(read, theirs(cut_pieces), rounds, (5, 1))
            worst = min(worst, ratio)
            print(
                f"{name:12} {EVENTS} events, {cut:12} {mine * 1e3:8.2f} ms"
                f"   SDK {sdk * 1e3:8.2f} ms   {ratio:6.1f} times"
            )
        ratios[f"stream_vs_{rival}_sdk"] = round(worst, 1)

    def compare(cut: str, pieces: list[bytes], theirs: Callable[[], None]) -> float:
        read = functools.partial(ours, "bedrock", pieces)
        mine, sdk, ratio = beside(read, theirs, rounds, (5, 1))
        print(
            f"{'bedrock':12} {EVENTS} events, {cut:12} {mine * 1e3:8.2f} ms"
            f"   botocore {sdk * 1e3:8.2f} ms   {ratio:6.1f} times"
        )
        return ratio

    ratios["stream_vs_botocore"] = compared(compare)
    return ratios


def with_unknown_fields(body: bytes) -> bytes:
    """The same request with one unknown field in each message."""
    request = json.loads(body)
    for name in ("messages", "input", "contents"):
        for message in request.get(name, ()):
            message["x_unknown"] = {"a": 1}
    return json.dumps(request).encode()


def parsing_requests(rounds: int, change: Callable[[bytes], bytes] = bytes) -> float:
    """How many times the CPU of `json.loads` it takes, on the slowest wire."""
    slowest = 0.0
    names = set()
    for name, form, request in requests():
        names.add(name)
        body = change(request)
        read = functools.partial(json.loads, body)
        loads, parse, ratio = beside(
            read, functools.partial(wire.get(name).parse, body), rounds, (50, 50)
        )
        slowest = max(slowest, ratio)
        print(
            f"{name:16} {form:12} parse of {len(body) / 1e3:.0f} KB {parse * 1e6:8.0f} µs"
            f"   json.loads {loads * 1e6:8.0f} µs   {ratio:6.2f}"
        )
    assert names == set(wire.WIRES), "a wire without a request here"
    return slowest


def signing(rounds: int, often: int = 500) -> float:
    """Microseconds to sign a request of 20 kB with temporary keys, without the hash of its body."""
    keys = AwsKeys("AKIDEXAMPLE", "s" * 40, "t" * 900)
    signs = AwsCredentials(lambda: Fetched(keys, None), "us-east-1", "bedrock")
    url = "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-5/converse"
    headers = SecretHeaders({"content-type": "application/json", "accept": "*/*"})
    body = b"x" * 20_000

    async def sign() -> None:
        for _ in range(often):
            await signs.headers("POST", url, headers, body)

    def hashing() -> None:
        for _ in range(often):
            sha256(body).hexdigest()

    runner = asyncio.Runner()
    with runner:
        mine, hashed, _ = beside(lambda: runner.run(sign()), hashing, rounds, (1, 1))
    print(f"signing: {mine / often * 1e6:.1f} µs, SHA-256 {hashed / often * 1e6:.1f} µs of it")
    return (mine - hashed) / often * 1e6


# ── Requests of a conversation ────────────────────────────────────────────────────────────────────

SIZES = (40, 400, 570)


class Turns:
    """A process that reads and sends the requests of a conversation with the code of one tree."""

    def __init__(self, tree: Path) -> None:
        script = Path(__file__).with_name("_wire_turns.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
        )

    def __call__(self, name: str, size: int, cold: bool) -> float:
        """CPU seconds of a turn, the fastest of some."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, size * 1000, cold]), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def turns(rounds: int, before: Path) -> dict[str, float]:
    """The CPU of a turn here over that of the tree before, medians of rounds that take turns: of a
    known conversation, and cold; each on the slowest wire."""
    mine, theirs = Turns(Path(__file__).parent.parent), Turns(before)
    ratios: dict[str, float] = {}
    for cold in (False, True):
        for size in SIZES:
            for name in wire.WIRES:
                times = [(mine(name, size, cold), theirs(name, size, cold)) for _ in range(rounds)]
                one, other = (statistics.median(each) for each in zip(*times, strict=True))
                ratio = statistics.median(a / b for a, b in times)
                kind = f"{'cold' if cold else 'turn'}_{size}kb"
                ratios[kind] = max(ratios.get(kind, 0), round(ratio, 2))
                print(
                    f"{name:16} {kind:10} {one * 1e3:8.2f} ms   before {other * 1e3:8.2f} ms"
                    f"   {ratio:6.2f}"
                )
    mine.close()
    theirs.close()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="repetitions; medians are reported")
    parser.add_argument("--requests", action="store_true", help="only turns, beside another tree")
    parser.add_argument("--before", type=Path, help="the other tree, with --requests")
    given = parser.parse_args()
    rounds = given.rounds
    if given.requests:
        if given.before is None:
            parser.error("--requests compares with another tree: give its folder with --before")
        print(json.dumps(turns(rounds, given.before)))
        return
    warnings.simplefilter("ignore")

    ratios = reading_streams(rounds)
    ratios["parse_vs_json_loads"] = round(parsing_requests(rounds), 3)
    print("one unknown field in each message:")
    unknown = parsing_requests(rounds, with_unknown_fields)
    ratios["parse_unknown_vs_json_loads"] = round(unknown, 3)
    ratios["sign_us_beyond_sha256"] = round(signing(rounds), 1)
    print()
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
