"""What the proxy costs with verdicts on, beside a bare pass-through of the same libraries.

    python bench/proxy.py [--rounds 5] [--requests 800] [--asked 400] [--long-rounds 3]

Throughput: 32 connections from a process of their own, four wires, streams and single answers
mixed, agents' requests of about 8 KB; the upstream answers at once with what the emulator once
answered. Rounds alternate between the bare pass-through and the proxy, so that whatever else the
machine does falls on both, and the medians of their ratios are reported. Verdicts wait for a pause
of the relay, and a round begins when the last one's are done.

- `vs_bare`: requests a second until the last one is answered, while verdicts may still wait.
- `vs_bare_sustained`: requests a second until the last one has its verdict.
- `vs_bare_sustained_400kb`: the same for the turns of 100 conversations of 400 KB that go on at the
  same time, on the chat wire.
- `vs_bare_compared`: requests a second until also the costs with Anaphora's markers are known: they
  are compared when the sums are read. This is what the proxy keeps up with for hours.

First byte: one connection, a stream asked for again and again, directly and through each server in
turn; `first_byte_ms` is what the proxy adds to the median, `bare_first_byte_ms` what the bare
pass-through adds.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import statistics
import time
from typing import Any

from _bytecode import compiled
from _lent import TURNS, raw_requests
from _proxied import COMPARED, JUDGED
from _requests import mixed
from _served import Child, child

CONNECTIONS = 32
PROGRAM = "_proxied.py"
#: Conversations that go on at the same time, and their size, on average over their turns.
LIVE, MESSAGES, BYTES = 100, 42, 400_000
_END = b"0\r\n\r\n"


def loaded(
    server: Child, requests: list[bytes], total: int, *, watched: bool = False, first: int = 0
) -> dict[str, Any]:
    """The load, and the seconds until the last answer, until the last verdict, and until their
    costs are compared."""
    before, cpu = asked(server.port, JUDGED) if watched else 0, server.cpu
    result = server.load(requests, CONNECTIONS, total, first, LIVE)
    if result["statuses"] != {"200": total}:
        raise SystemExit(f"not everything was answered: {result['statuses']}")
    until = {}
    for name, path in (("sustained", JUDGED), ("compared", COMPARED)):
        until[name] = result["seconds"]
        if watched:
            asked(server.port, path, before + total)
            # Both processes read the same clock.
            until[name] += time.perf_counter() - result["ended"]
    return {**result, **until, "server_cpu": server.cpu - cpu}


def asked(port: int, path: str, wanted: int = 0) -> int:
    """How many calls have a verdict, when they are as many as wanted."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", f"{path}?{wanted}")
        return int(connection.getresponse().read())
    finally:
        connection.close()


def long_conversations(rounds: int) -> float | None:
    """Requests a second until the last verdict, against the bare pass-through. The upstream answers
    as one that has the conversations in its cache."""
    requests = raw_requests({"authorization": "Bearer k"}, messages=MESSAGES, size=BYTES)
    total, ratios = LIVE * TURNS, []
    with contextlib.ExitStack() as stack:
        to = str(stack.enter_context(child("upstream", "_lent.py")).port)
        bare, proxy = (stack.enter_context(child(kind, PROGRAM, to)) for kind in ("bare", "proxy"))
        for number in range(rounds):
            # New conversations, all of whose turns are sent in a round.
            fixed = loaded(bare, requests, total, first=number * total)
            ours = loaded(proxy, requests, total, watched=True, first=number * total)
            line("bare 400 KB", fixed)
            line("proxy 400 KB", ours)
            ratios.append(fixed["seconds"] / ours["sustained"])
    return round(statistics.median(ratios), 3) if ratios else None


def line(name: str, result: dict[str, Any]) -> None:
    count = result["requests"]
    print(
        f"{name:12} {count:6} requests {count / result['seconds']:8.0f} a second"
        f" {count / result['sustained']:8.0f} with verdicts"
        f" {count / result['compared']:8.0f} with costs"
        f"   its CPU {result['server_cpu'] / count * 1e3:6.3f} ms each"
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
            piece = self._socket.recv(262_144)
            if not piece:
                raise ConnectionError(f"the server hung up: {received[:200]!r}")
            received += piece
            if not first and received.partition(b"\r\n\r\n")[2]:
                if received[9:12] != b"200":
                    raise ConnectionError(f"status {received[9:12].decode()}")
                first = time.perf_counter() - started
        return first * 1e3


def first_bytes(ports: dict[str, int], asked: int) -> dict[str, float]:
    """The median for each server, asked in turn, each of them first as often as the others; each
    request is another one."""
    streams = [request for request in mixed(4 * asked) if b'"stream": true' in request][:asked]
    askings = {name: Asking(port) for name, port in ports.items()}
    times: dict[str, list[float]] = {name: [] for name in ports}
    order = list(askings)
    for request in streams:
        for name in order:
            times[name].append(askings[name].first_byte(request))
        order.append(order.pop(0))  # each as often after each other
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are reported")
    parser.add_argument("--requests", type=int, default=800, help="of a round")
    parser.add_argument("--asked", type=int, default=400, help="streams for the first byte")
    parser.add_argument("--long-rounds", type=int, default=3, help="with 400 KB; 0: none")
    chosen = parser.parse_args()
    compiled()
    requests = mixed(800)
    ratios, sustained, compared, unwatched_ratios = [], [], [], []
    with child("upstream", PROGRAM) as upstream:
        to = str(upstream.port)
        with (
            child("bare", PROGRAM, to) as bare,
            child("proxy", PROGRAM, to) as proxy,
            child("unwatched", PROGRAM, to) as unwatched,
        ):
            for server in (bare, proxy, unwatched):
                loaded(server, requests, 300, watched=server is proxy)
            for _ in range(chosen.rounds):
                fixed = loaded(bare, requests, chosen.requests)
                ours = loaded(proxy, requests, chosen.requests, watched=True)
                silent = loaded(unwatched, requests, chosen.requests)
                line("bare", fixed)
                line("proxy", ours)
                line("no verdicts", silent)
                ratios.append(fixed["seconds"] / ours["seconds"])
                sustained.append(fixed["seconds"] / ours["sustained"])
                compared.append(fixed["seconds"] / ours["compared"])
                unwatched_ratios.append(fixed["seconds"] / silent["seconds"])
            ports = {"direct": upstream.port, "bare": bare.port, "proxy": proxy.port}
            firsts = first_bytes(ports, chosen.asked)
    long = long_conversations(chosen.long_rounds)
    for name, milliseconds in firsts.items():
        print(f"{name:12} first byte after {milliseconds:6.3f} ms")
    print(
        f"the proxy {statistics.median(ratios):.2f} of the bare pass-through until the last answer,"
        f" {statistics.median(sustained):.2f} until the last verdict,"
        f" {statistics.median(compared):.2f} until all costs are compared"
    )
    print(f"without verdicts {statistics.median(unwatched_ratios):.2f} of the bare pass-through")
    result = {
        "vs_bare": round(statistics.median(ratios), 3),
        "vs_bare_sustained": round(statistics.median(sustained), 3),
        "vs_bare_sustained_400kb": long,
        "vs_bare_compared": round(statistics.median(compared), 3),
        "first_byte_ms": round(firsts["proxy"] - firsts["direct"], 3),
        "bare_first_byte_ms": round(firsts["bare"] - firsts["direct"], 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
