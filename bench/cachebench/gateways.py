"""What gateways cost: requests a second that a core carries, the added first byte, memory.

All pass the same requests on to the same upstream, which answers at once: the turns of 100
conversations at a time, of 1 KB and of 40 KB on average, over 8 and over 64 connections. Rounds
alternate between the gateways; figures are medians of rounds. LiteLLM's Rust path exists for
Anthropic's Messages alone, so it and the daemon are also measured there.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _bytecode import compiled
from _gateways import GATEWAYS, missing, version
from _lent import CLAUDE, KEY, MESSAGES_PATH, MODEL, PATH, create_home, raw_requests
from _load import request_at
from _served import Child, child
from proxy import Asking
from strangers.environment import Unavailable

from .progress import Progress

PROGRAM = "_lent.py"
#: Kilobytes of a request on average, and its messages.
SIZES = {1: 1, 40: 42}
CONNECTIONS = (8, 64)
LIVE = 100
#: Requests of a round, and rounds. The slow ones get a part of the requests.
REQUESTS, ROUNDS, ASKED = 1000, 3, 100
QUICK_REQUESTS, QUICK_ROUNDS, QUICK_ASKED = 200, 1, 20
SLOW = {"litellm": 10, "litellm_rust": 10, "portkey": 2}
#: The first turn of a conversation that the load does not reach.
_FIRST = 90_000_000

TITLES = {
    "bare": "aiohttp pass-through",
    "daemon": "Anaphora's daemon",
    "daemon_messages": "Anaphora's daemon, Messages",
    "portkey": "Portkey gateway",
    "litellm": "LiteLLM proxy",
    "litellm_rust": "LiteLLM proxy, `rust: true`, Messages",
    "sglang": "SGLang model gateway",
    "bifrost": "Bifrost",
}
_OURS = {
    "auth": "token of each app, hashed",
    "limits": "model, rates, streams, dollars a day and month, held before the call",
    "cache": "planned and judged",
    "audit": "hash-chained log, ledger",
}
_NOTHING = {"auth": "none", "limits": "none", "cache": "none", "audit": "none"}
_LITELLM = {
    "auth": "one master key (keys of apps need its database)",
    "limits": "none (need its database)",
    "cache": "none",
    "audit": "none (needs its database)",
}
#: What each does for a request in the setup that is measured.
DOES = {
    "bare": _NOTHING,
    "daemon": _OURS,
    "daemon_messages": _OURS,
    "portkey": {**_NOTHING, "auth": "none: passes the caller's key on"},
    "litellm": _LITELLM,
    "litellm_rust": _LITELLM,
    "sglang": {**_NOTHING, "auth": "none: passes the caller's key on"},
    "bifrost": {**_NOTHING, "auth": "none", "audit": "its log of requests is off"},
}


class Lane:
    """A gateway, and the requests that it gets."""

    def __init__(
        self, name: str, server: Child, headers: dict[str, str], path: str, model: str
    ) -> None:
        self.name = name
        self.server = server
        self._options: Any = {"path": path, "model": model}
        self._headers = headers
        self._sent = 0
        self.loads: dict[tuple[int, int], list[dict[str, Any]]] = {
            (size, count): [] for size in SIZES for count in CONNECTIONS
        }
        self.first_bytes: dict[int, list[float]] = {size: [] for size in SIZES}
        self.stream_error = ""
        self._askings: dict[int, Asking] = {}

    def _requests(self, size: int, *, stream: bool = False) -> list[bytes]:
        words: Any = {"messages": SIZES[size], "size": size * 1000, "stream": stream}
        return raw_requests(self._headers, **words, **self._options)

    def load(self, size: int, connections: int, total: int) -> dict[str, Any]:
        total = max(connections, total // SLOW.get(self.name, 1))
        result = self.server.load(self._requests(size), connections, total, self._sent, LIVE)
        if result["statuses"] != {"200": total}:
            raise Unavailable(f"not all requests succeeded: {result['statuses']}")
        self._sent += total
        # CPU is counted in hundredths of a second.
        cpu = max(result["server_cpu"], 0.01)
        return {**result, "per_core": total / cpu, "rate": total / result["seconds"]}

    def response_headers(self) -> dict[str, str]:
        """Of one request, in lower case."""
        head, _, body = request_at(self._requests(1), _FIRST - 1, 1).partition(b"\r\n\r\n")
        request, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", request.split()[1], body, headers)
            response = connection.getresponse()
            response.read()
            return {name.lower(): value for name, value in response.getheaders()}

    def first_byte(self, size: int, number: int) -> None:
        """The time to the first byte of a stream, of one new conversation after the other."""
        if self.stream_error:
            return
        if size not in self._askings:
            self._askings[size] = Asking(self.server.port)
        request = request_at(self._requests(size, stream=True), _FIRST + number, 1)
        try:
            self.first_bytes[size].append(self._askings[size].first_byte(request))
        except OSError as problem:
            self.stream_error = f"streams fail: {problem}"

    def result(self, direct: Lane) -> dict[str, Any]:
        sizes: dict[str, Any] = {}
        for size in SIZES:
            added = None
            if not self.stream_error:
                pairs = zip(self.first_bytes[size], direct.first_bytes[size], strict=True)
                added = round(statistics.median(own - base for own, base in pairs), 3)
            sizes[str(size)] = {"first_byte_ms": added}
            for count in CONNECTIONS:
                found = self.loads[size, count]
                sizes[str(size)][str(count)] = {
                    name: _rounded(statistics.median(each[name] for each in found))
                    for name in ("per_core", "rate", "p50_ms", "p99_ms")
                }
        result = {"sizes": sizes, "memory_mb": round(self.server.memory_mb, 1)}
        return {**result, "stream_error": self.stream_error} if self.stream_error else result


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


@contextlib.contextmanager
def daemon(upstream: Child, *options: str) -> Iterator[tuple[Child, dict[str, str]]]:
    """The daemon with everything on, and the headers of its app."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        token = create_home(home, upstream.port)
        with child("daemon", PROGRAM, str(home), *options) as server:
            yield server, {"authorization": f"Bearer {token}"}


def _lanes(stack: contextlib.ExitStack, upstream: Child, skipped: dict[str, str]) -> list[Lane]:
    key = {"authorization": f"Bearer {KEY}"}
    to = str(upstream.port)
    lanes = [Lane("bare", stack.enter_context(child("bare", PROGRAM, to)), key, PATH, MODEL)]
    server, headers = stack.enter_context(daemon(upstream))
    lanes.append(Lane("daemon", server, headers, PATH, MODEL))
    # Processes of their own: memory counts what the path needs.
    other, of_other = stack.enter_context(daemon(upstream))
    of_other |= {"anthropic-version": "2023-06-01"}
    lanes.append(Lane("daemon_messages", other, of_other, MESSAGES_PATH, CLAUDE))
    for name, gateway in GATEWAYS.items():
        if reason := missing(name):
            skipped[name] = reason
            continue
        try:
            process = stack.enter_context(gateway.start(upstream.port))
        except (Unavailable, SystemExit) as problem:
            skipped[name] = str(problem)
            continue
        headers = gateway.headers(upstream.port)
        lanes.append(Lane(name, process, headers, gateway.path, gateway.model))
    return lanes


def _warm(lanes: list[Lane], total: int, skipped: dict[str, str]) -> list[Lane]:
    """Those that answer; a first load is not counted."""
    ready = []
    for lane in lanes:
        try:
            for size in SIZES:
                lane.load(size, CONNECTIONS[0], total // 4)
            if lane.name == "litellm_rust" and "x-litellm-rust" not in lane.response_headers():
                raise Unavailable(
                    "its responses lack x-litellm-rust: the Rust core did not serve them"
                )
        except Unavailable as problem:
            skipped[lane.name] = str(problem)
            continue
        ready.append(lane)
    return ready


def run(progress: Progress, quick: bool) -> dict[str, Any]:
    compiled()
    requests = QUICK_REQUESTS if quick else REQUESTS
    rounds = QUICK_ROUNDS if quick else ROUNDS
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(child("upstream", PROGRAM))
        progress.note("starting the gateways")
        lanes = _warm(_lanes(stack, upstream, skipped), requests, skipped)
        for name, reason in skipped.items():
            progress.note(f"without {TITLES[name]}: {reason}")
        progress.total(rounds * len(SIZES) * len(CONNECTIONS) + len(SIZES))
        for _ in range(rounds):
            for size in SIZES:
                for connections in CONNECTIONS:
                    for lane in lanes:
                        found = lane.load(size, connections, requests)
                        lane.loads[size, connections].append(found)
                    progress.step(f"{size} KB, {connections} connections")
                    lanes.append(lanes.pop(0))
        direct = {
            path: Lane("direct", upstream, {"authorization": f"Bearer {KEY}"}, path, model)
            for path, model in ((PATH, MODEL), (MESSAGES_PATH, CLAUDE))
        }
        for size in SIZES:
            for number in range(QUICK_ASKED if quick else ASKED):
                for lane in (*direct.values(), *lanes):
                    lane.first_byte(size, number)
                lanes.append(lanes.pop(0))
            progress.step(f"{size} KB, first byte")
        found = {
            lane.name: {
                "title": TITLES[lane.name],
                "does": DOES[lane.name],
                **lane.result(direct[_path(lane.name)]),
            }
            for lane in sorted(lanes, key=lambda each: list(TITLES).index(each.name))
        }
    versions = {GATEWAYS[name].package: version(name) for name in found if name in GATEWAYS}
    return {
        "gateways": found,
        "skipped_gateways": {TITLES[name]: reason for name, reason in skipped.items()},
        "requests": requests,
        "rounds": rounds,
        "versions": versions,
    }


def _path(name: str) -> str:
    if name in GATEWAYS:
        return GATEWAYS[name].path
    return MESSAGES_PATH if name == "daemon_messages" else PATH


def headline(found: dict[str, Any]) -> dict[str, Any]:
    """Requests a second that a core carries, of 40 KB at 64 connections."""
    return {
        f"{name}_per_core": each["sizes"]["40"]["64"]["per_core"]
        for name, each in found["gateways"].items()
    }
