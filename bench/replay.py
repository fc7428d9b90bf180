"""What replaying costs: calls a second beside vcrpy, and opening a folder beside hashing its files.

    python bench/replay.py [--rounds 5] [--calls 200] [--fixtures 20000]

vcrpy runs in its best case: the fastest of requests, httpx and aiohttp, one cassette with the same
exchanges in the order they are asked for, matched by method and URI only, already loaded. Ours
looks requests up by their whole body. Opening a folder is compared with reading and hashing its
files in the order of the index. CPU time; ratios are measured in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from blake3 import blake3

from anaphora.client.config import Timeouts
from anaphora.client.config.secrets import SecretHeaders
from anaphora.client.transport import HttpRequest
from anaphora.client.transport.over_aiohttp import AiohttpTransport
from anaphora.replay import FixtureStore, Recorder
from anaphora.replay.fixture import Fixture, FixturePiece
from anaphora.replay.integrity import read_file

HEADERS = {"content-type": "application/json", "x-api-key": "bench-key-0123456789"}


def body(number: int) -> bytes:
    """A request of about 4 KB."""
    return json.dumps(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1024,
            "system": "You are precise. " * 150,
            "messages": [{"role": "user", "content": f"Question {number}: " + "why? " * 200}],
        }
    ).encode()


def answer(number: int) -> bytes:
    """A response of about 1 KB."""
    return json.dumps(
        {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [{"type": "text", "text": f"Answer {number}. " + "Because. " * 80}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 900, "output_tokens": 170},
        }
    ).encode()


class _Provider(BaseHTTPRequestHandler):
    """Answers each question; only while the recordings are made."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = int(sent["messages"][0]["content"].split(":")[0].removeprefix("Question "))
        data = answer(number)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


# ── Calls a second ───────────────────────────────────────────────────────────────────────────────


async def _ours(url: str, folder: Path, calls: int) -> float:
    """Seconds of all calls, recorded in an earlier call of this function."""
    transport = Recorder(folder).over(AiohttpTransport())
    requests = [
        HttpRequest(
            method="POST",
            url=f"{url}/v1/messages",
            headers=SecretHeaders(HEADERS),
            body=body(number),
            timeouts=Timeouts(),
            max_response_bytes=1 << 20,
            provider="anthropic",
        )
        for number in range(calls)
    ]
    answers = []
    begin = time.process_time()
    for request in requests:
        response = await transport.send(request)
        answers.append(await response.read())
        await response.close()
    taken = time.process_time() - begin
    _check(answers)
    await transport.close()
    return taken


def _cassette(path: Path) -> Any:
    import vcr  # type: ignore[import-untyped]

    return vcr.VCR(record_mode="once", match_on=["method", "uri"]).use_cassette(str(path))


def _with_requests(url: str, path: Path, calls: int) -> float:
    import requests

    answers, bodies = [], [body(number) for number in range(calls)]
    with _cassette(path), requests.Session() as session:
        begin = time.process_time()
        for data in bodies:
            found = session.post(f"{url}/v1/messages", data=data, headers=HEADERS)
            answers.append(found.content)
        taken = time.process_time() - begin
    _check(answers)
    return taken


def _with_httpx(url: str, path: Path, calls: int) -> float:
    import httpx

    answers, bodies = [], [body(number) for number in range(calls)]
    with _cassette(path), httpx.Client() as session:
        begin = time.process_time()
        for data in bodies:
            found = session.post(f"{url}/v1/messages", content=data, headers=HEADERS)
            answers.append(found.content)
        taken = time.process_time() - begin
    _check(answers)
    return taken


async def _with_aiohttp(url: str, path: Path, calls: int) -> float:
    import aiohttp

    answers, bodies = [], [body(number) for number in range(calls)]
    with _cassette(path):
        async with aiohttp.ClientSession() as session:
            begin = time.process_time()
            for data in bodies:
                async with session.post(f"{url}/v1/messages", data=data, headers=HEADERS) as found:
                    answers.append(await found.read())
            taken = time.process_time() - begin
    _check(answers)
    return taken


def _check(answers: list[bytes]) -> None:
    assert answers == [answer(number) for number in range(len(answers))]


def _run(action: Callable[[str, Path, int], Awaitable[float]]) -> Callable[[str, Path, int], float]:
    async def main(url: str, path: Path, calls: int) -> float:
        return await action(url, path, calls)

    return lambda url, path, calls: asyncio.run(main(url, path, calls))


def replaying(folder: Path, rounds: int, calls: int) -> float:
    """How many times as many calls a second as vcrpy."""
    sides = {
        "anaphora": _run(_ours),
        "vcrpy, requests": _with_requests,
        "vcrpy, httpx": _with_httpx,
        "vcrpy, aiohttp": _run(_with_aiohttp),
    }
    provider = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    Thread(target=provider.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{provider.server_address[1]}"
    for name, side in sides.items():
        side(url, folder / name, calls)  # records
    provider.shutdown()
    provider.server_close()
    times = {name: [] for name in sides}  # type: dict[str, list[float]]
    for _ in range(rounds):
        for name, side in sides.items():
            times[name].append(side(url, folder / name, calls))
    print(f"\n{calls} replayed calls, median of {rounds} rounds")
    rates = {name: calls / statistics.median(each) for name, each in times.items()}
    for name, rate in rates.items():
        print(f"  {name:20}{rate:>10,.0f} calls/s")
    ours = times.pop("anaphora")
    ratios = [min(each) / mine for mine, *each in zip(ours, *times.values(), strict=True)]
    return float(statistics.median(ratios))


# ── Opening ──────────────────────────────────────────────────────────────────────────────────────


def _fixtures(count: int) -> Iterator[Fixture]:
    for number in range(count):
        yield Fixture(
            key=blake3(b"%d" % number).hexdigest(),
            provider="anthropic",
            model="claude-sonnet-4-5",
            path="/v1/messages",
            request=body(number),
            headers=(("content-type", "application/json"),),
            pieces=(FixturePiece(0.5, answer(number)),),
        )


def opening(folder: Path, rounds: int, count: int) -> float:
    """How many times as long as hashing the files."""
    FixtureStore.open(folder, create=True, sync=False).add_all(_fixtures(count))
    paths = [str(folder / entry.path) for entry in FixtureStore.open(folder).entries]
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        for path in paths:
            blake3(read_file(path)).hexdigest()
        middle = time.process_time()
        opened = FixtureStore.open(folder)
        end = time.process_time()
        assert len(opened) == count
        times.append((middle - begin, end - middle))
    hashing, open_ = (statistics.median(each) for each in zip(*times, strict=True))
    print(f"\n{count:,} fixtures, median of {rounds} rounds")
    print(f"  {'hashing the files':20}{hashing * 1000:>10,.0f} ms")
    print(f"  {'opening the folder':20}{open_ * 1000:>10,.0f} ms")
    return statistics.median(after / before for before, after in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--fixtures", type=int, default=20_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faster = replaying(folder, options.rounds, options.calls)
        slower = opening(folder / "many", options.rounds, options.fixtures)
    print(json.dumps({"vs_vcrpy": round(faster, 1), "open_vs_hashing": round(slower, 2)}))


if __name__ == "__main__":
    main()
