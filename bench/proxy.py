"""What the proxy costs with verdicts on, beside a bare pass-through of the same libraries.

    python bench/proxy.py [--rounds 5] [--requests 800] [--asked 400]

Throughput: 32 connections from a process of their own, four wires, streams and single answers
mixed, agents' requests of about 8 KB; the upstream answers at once with what the emulator once
answered. Rounds alternate between the bare pass-through and the proxy, so that whatever else the
machine does falls on both; `vs_bare` is the median of the ratios of requests a second. Verdicts
wait for a pause of the relay: how much later they are done is in the table, and a round begins when
the last one's are.

First byte: one connection, a stream asked for again and again, directly and through the proxy in
turn; `first_byte_ms` is the difference of the medians.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from typing import Any

from _bytecode import compiled
from _requests import mixed
from _served import Child, child

CONNECTIONS = 32
PROGRAM = "_proxied.py"
#: Seconds between two looks at a server's CPU, and how many without a change mean that it waits.
_CHECK, _QUIET_CHECKS = 0.03, 4
_END = b"0\r\n\r\n"


def loaded(server: Child, requests: list[bytes], total: int) -> dict[str, Any]:
    result = server.load(requests, CONNECTIONS, total)
    if result["statuses"] != {"200": total}:
        raise SystemExit(f"not everything was answered: {result['statuses']}")
    return {**result, "after": settled(server)}


def settled(server: Child) -> float:
    """Seconds until a server has nothing more to do: verdicts wait for a pause of the relay."""
    started, before, quiet = time.perf_counter(), server.cpu, 0
    while quiet < _QUIET_CHECKS:
        time.sleep(_CHECK)
        now = server.cpu
        quiet, before = (quiet + 1 if now == before else 0), now
    return time.perf_counter() - started - _QUIET_CHECKS * _CHECK


def line(name: str, result: dict[str, Any]) -> None:
    count = result["requests"]
    print(
        f"{name:12} {count:6} requests {count / result['seconds']:8.0f} a second"
        f"   its CPU {result['server_cpu'] / count * 1e3:6.3f} ms each"
        f"   done {result['after']:5.2f} s later"
    )


class Asking:
    """One connection that asks for a stream and waits for its end."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def first_byte(self, request: bytes) -> float:
        """Milliseconds until the first byte of the body."""
        started = time.perf_counter()
        self._socket.sendall(request)
        received, first = b"", 0.0
        while not received.endswith(_END):
            received += self._socket.recv(262_144)
            if not first and received.partition(b"\r\n\r\n")[2]:
                first = time.perf_counter() - started
        return first * 1e3


def first_bytes(ports: dict[str, int], asked: int) -> dict[str, float]:
    """The median for each server, asked in turn; each request is another one."""
    streams = [request for request in mixed(4 * asked) if b'"stream": true' in request][:asked]
    askings = {name: Asking(port) for name, port in ports.items()}
    times: dict[str, list[float]] = {name: [] for name in ports}
    for request in streams:
        for name, asking in askings.items():
            times[name].append(asking.first_byte(request))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=800, help="of a round")
    parser.add_argument("--asked", type=int, default=400, help="streams for the first byte")
    chosen = parser.parse_args()
    compiled()
    requests = mixed(800)
    ratios, unwatched_ratios = [], []
    with child("upstream", PROGRAM) as upstream:
        to = str(upstream.port)
        with (
            child("bare", PROGRAM, to) as bare,
            child("proxy", PROGRAM, to) as proxy,
            child("unwatched", PROGRAM, to) as unwatched,
        ):
            for server in (bare, proxy, unwatched):
                loaded(server, requests, 300)
            for _ in range(chosen.rounds):
                fixed = loaded(bare, requests, chosen.requests)
                ours = loaded(proxy, requests, chosen.requests)
                silent = loaded(unwatched, requests, chosen.requests)
                line("bare", fixed)
                line("proxy", ours)
                line("no verdicts", silent)
                ratios.append(fixed["seconds"] / ours["seconds"])
                unwatched_ratios.append(fixed["seconds"] / silent["seconds"])
            ports = {"direct": upstream.port, "bare": bare.port, "proxy": proxy.port}
            firsts = first_bytes(ports, chosen.asked)
    for name, milliseconds in firsts.items():
        print(f"{name:12} first byte after {milliseconds:6.3f} ms")
    print(f"without verdicts {statistics.median(unwatched_ratios):.2f} of the bare pass-through")
    result = {
        "vs_bare": round(statistics.median(ratios), 3),
        "first_byte_ms": round(firsts["proxy"] - firsts["direct"], 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
