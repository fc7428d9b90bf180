"""What the daemon costs, with everything on: tokens, grants, ledger, audit, planning and verdicts.

    python bench/daemon.py [--rounds 3] [--requests 1000] [--asked 200] [--memory 200000]
                           [--long] [--install]
    python bench/daemon.py --hostile [--seconds 60]
    python bench/daemon.py --carry [--rounds 3] [--page docs/daemon/capacity.md]

Requests of 42 messages and 40 KB on average, the turns of growing conversations on the chat wire,
100 of those at a time; from a process of their own, to an upstream that answers at once. Beside the
daemon stand a bare pass-through of the same libraries, Portkey's gateway and LiteLLM's proxy, where
they are installed (`--install` does that, below .soak). Rounds alternate between
all of them, so that whatever else the machine does falls on all; the medians of the ratios are
reported.

- `vs_bare`, `vs_portkey`, `vs_litellm`: requests a second, at 8 or 64 connections, whichever is
  lower; null where one is not installed.
- `cpu_vs_bare`, `cpu_vs_bare_1kb`, `cpu_vs_bare_400kb`, `cpu_vs_bare_400kb_1000`: the CPU of a
  call, at 40 KB, at one message of 1 KB, and at 400 KB with 100 and with 1,000 conversations that
  go on at the same time (`--long` measures those), against that of the bare pass-through.
- `rss_1000_live_400kb_mb`: the daemon's memory after the latter.
- `rss_mb`, `rss_growth_mb`: the memory of a daemon of its own after so many requests of 40 KB, of
  ever new conversations, and how much of it came after the first fifth. `rss_all_mb`: that of the
  daemon that carried all other rounds, 400 KB included.
- `first_byte_ms`: what the daemon adds to the median time to a stream's first byte, one connection.

On two idle cores this takes about 15 minutes, 10 of these for `--memory 200000` (20,000 show the
same within 5 MB), and 10 more with `--long`. What was not measured is null, with the reason in
`not_measured`.

`--hostile` attacks the daemon instead (see `_hostile.py`), and calls it as another app meanwhile.

- `healthz_p99_ms`: of `/healthz` on new connections, at most 100.
- `bystander_p99_ratio`: the other app's calls, against the same beside as many bytes a second of
  ordinary calls, at most 2.
- `rss_peak_mb`: proportional set size of all processes of the daemon, at most 400.
- `small_values_bystander_p99_ratio`: the other app's calls of 1 KB while a granted app sends bodies
  of many small JSON values, against the same calls alone, at most 3.
- `small_values_healthz_p99_ms`: of `/healthz` meanwhile, at most 100.

`--carry` prints the table of docs/daemon/capacity.md instead (see `_carry.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from _bytecode import compiled
from _carry import carry
from _gateways import GATEWAYS, install, missing
from _hostile import measure, measure_small_values
from _lent import KEY, create_home, raw_requests
from _load import request_at
from _served import Child, child
from proxy import Asking

CONNECTIONS = (8, 64)
PROGRAM = "_lent.py"
#: Gateways that are measured beside the daemon.
BESIDE = ("portkey", "litellm")
#: LiteLLM answers so few that it gets a tenth of the requests.
_SLOW = {"litellm": 10}
_PARTS = 10
#: The first turn of a conversation that the load has not reached.
_FIRST = 90_000_000


class Measured:
    """A server, and the requests that it is asked."""

    def __init__(self, name: str, server: Child, headers: dict[str, str]) -> None:
        self.name = name
        self.server = server
        self.headers = headers
        self.requests = raw_requests(headers)
        self.streams = raw_requests(headers, stream=True)
        self.sent = 0
        self.found: dict[int, list[dict[str, Any]]] = {count: [] for count in CONNECTIONS}

    def load(self, connections: int, total: int) -> dict[str, Any]:
        total //= _SLOW.get(self.name, 1)
        result = self.server.load(self.requests, connections, total, self.sent)
        if result["statuses"] != {"200": total}:
            raise SystemExit(f"{self.name}: not everything was answered: {result['statuses']}")
        self.sent += total
        return {**result, "rate": total / result["seconds"]}

    def measure(self, connections: int, total: int) -> None:
        result = self.load(connections, total)
        self.found[connections].append(result)
        print(
            f"{self.name:8} {connections:3} connections {result['rate']:8.0f} a second"
            f"   p50 {result['p50_ms']:7.2f} ms   p99 {result['p99_ms']:7.2f} ms"
            f"   its CPU {result['server_cpu'] / result['requests'] * 1e3:6.3f} ms each",
            flush=True,
        )

    def rate(self, connections: int, name: str = "rate") -> float:
        return float(statistics.median(each[name] for each in self.found[connections]))

    def against(self, other: Measured) -> float:
        """The median of the ratios of rounds, at that number of connections where it is lower."""
        ratios = [
            [one["rate"] / two["rate"] for one, two in zip(ours, theirs, strict=True)]
            for ours, theirs in zip(self.found.values(), other.found.values(), strict=True)
        ]
        return min(float(statistics.median(each)) for each in ratios)


class Size(NamedTuple):
    """Requests of one size: how many messages and bytes, and conversations at the same time."""

    messages: int
    bytes: int
    live: int


SIZES = {
    "": Size(42, 40_000, 100),
    "_1kb": Size(1, 1_000, 100),
    "_400kb": Size(42, 400_000, 100),
    "_400kb_1000": Size(42, 400_000, 1000),
}


def cpu_ratio(bare: Measured, daemon: Measured, name: str, rounds: int) -> float:
    """CPU of a call of the daemon against that of the pass-through, the median of rounds. A round
    has all turns of so many conversations."""
    size, ratios = SIZES[name], []
    for number in range(rounds):
        spent = []
        for server in (bare, daemon):
            requests = raw_requests(server.headers, messages=size.messages, size=size.bytes)
            total = size.live * len(requests)
            first = (number + 1) * 10_000 * size.live
            result = server.server.load(requests, 8, total, first, size.live)
            if result["statuses"] != {"200": total}:
                raise SystemExit(f"{server.name}: not all were answered: {result['statuses']}")
            spent.append(result["server_cpu"] / total)
        ratios.append(spent[1] / spent[0])
        print(
            f"{size.bytes // 1000:4} KB {size.live:5} conversations   bare {spent[0] * 1e3:6.3f} ms"
            f"   daemon {spent[1] * 1e3:7.3f} ms   {ratios[-1]:5.2f} times",
            flush=True,
        )
    return float(statistics.median(ratios))


def first_bytes(servers: list[Measured], asked: int) -> dict[str, float]:
    """The median for each server, asked in turn: for the turns of one new conversation after the
    other."""
    askings = [(each, Asking(each.server.port)) for each in servers]
    times: dict[str, list[float]] = {each.name: [] for each in servers}
    for number in range(asked):
        for each, asking in askings:
            times[each.name].append(asking.first_byte(request_at(each.streams, _FIRST + number, 1)))
        askings.append(askings.pop(0))  # each as often after each other
    return {name: statistics.median(found) for name, found in times.items()}


def memory(upstream: Child, total: int) -> tuple[float, float]:
    """Megabytes of a new daemon after so many requests, and those that came after the first
    fifth."""
    sizes = []
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        token = create_home(home, upstream.port)
        process = stack.enter_context(child("daemon", PROGRAM, str(home)))
        daemon = Measured("daemon", process, {"authorization": f"Bearer {token}"})
        for part in range(_PARTS):
            daemon.load(32, total // _PARTS)
            sizes.append(process.rss_mb)
            print(f"{(part + 1) * total // _PARTS:8} requests: {sizes[-1]:6.1f} MB", flush=True)
    return sizes[-1], sizes[-1] - sizes[_PARTS // 5 - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=1000, help="of a round")
    parser.add_argument("--asked", type=int, default=200, help="streams for the first byte")
    parser.add_argument("--memory", type=int, default=200_000, help="requests while memory is read")
    parser.add_argument("--long", action="store_true", help="with 1,000 conversations of 400 KB")
    parser.add_argument("--install", action="store_true", help="install the other gateways first")
    parser.add_argument("--hostile", action="store_true", help="attack the daemon instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attacks")
    parser.add_argument("--carry", action="store_true", help="what one machine carries, instead")
    parser.add_argument("--page", type=Path, help="of --carry: the page whose table is replaced")
    chosen = parser.parse_args()
    compiled()
    if chosen.carry:
        print(json.dumps(carry(chosen.rounds, chosen.page)))
        return
    if chosen.hostile:
        print(json.dumps(measure(chosen.seconds) | measure_small_values(chosen.seconds)))
        return
    if chosen.install:
        install()
    reasons = {name: reason for name in BESIDE if (reason := missing(name))}
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(child("upstream", PROGRAM))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        token = create_home(home, upstream.port)
        to, key = str(upstream.port), {"authorization": f"Bearer {KEY}"}
        direct = Measured("direct", upstream, key)
        bare = Measured("bare", stack.enter_context(child("bare", PROGRAM, to)), key)
        process = stack.enter_context(child("daemon", PROGRAM, str(home)))
        daemon = Measured("daemon", process, {"authorization": f"Bearer {token}"})
        others = [
            Measured(
                name,
                stack.enter_context(GATEWAYS[name].start(upstream.port)),
                GATEWAYS[name].headers(upstream.port),
            )
            for name in BESIDE
            if name not in reasons
        ]
        servers = [bare, daemon, *others]
        for server in servers:
            server.load(8, max(100, chosen.requests // 4))
        for _ in range(chosen.rounds):
            for connections in CONNECTIONS:
                for server in servers:
                    server.measure(connections, chosen.requests)
        chosen_sizes = [name for name in SIZES if chosen.long or SIZES[name].live == 100]
        cpu = {name: cpu_ratio(bare, daemon, name, chosen.rounds) for name in chosen_sizes}
        live_rss = process.rss_mb if chosen.long else None
        firsts = first_bytes([direct, bare, daemon], chosen.asked)
        if not chosen.long:
            reasons["cpu_vs_bare_400kb_1000"] = reasons["rss_1000_live_400kb_mb"] = "needs --long"
        rss_all = process.rss_mb
        rss, growth = memory(upstream, chosen.memory)
    for name, milliseconds in firsts.items():
        print(f"{name:8} first byte after {milliseconds:6.3f} ms")
    ratios = {each.name: round(daemon.against(each), 3) for each in (bare, *others)}
    result = {
        **{f"vs_{name}": ratios.get(name) for name in ("bare", *BESIDE)},
        **{f"cpu_vs_bare{name}": round(cpu[name], 2) if name in cpu else None for name in SIZES},
        "rss_1000_live_400kb_mb": None if live_rss is None else round(live_rss, 1),
        "rss_mb": round(rss, 1),
        "rss_growth_mb": round(growth, 1),
        "rss_all_mb": round(rss_all, 1),
        "first_byte_ms": round(firsts["daemon"] - firsts["direct"], 3),
        "bare_first_byte_ms": round(firsts["bare"] - firsts["direct"], 3),
        "requests_a_second": {str(count): round(daemon.rate(count)) for count in CONNECTIONS},
        "p99_ms": {str(count): round(daemon.rate(count, "p99_ms"), 2) for count in CONNECTIONS},
        "not_measured": reasons,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
