"""Load from a process of its own: many connections, one thread, and as little work for each answer
as tells where it ends. A client that costs more than the server would measure itself.

    python bench/_load.py PORT[,PORT...] FILE CONNECTIONS REQUESTS [FIRST [LIVE [OWN]]]

Connections go to the ports in turn. FILE is a JSON list of raw requests, sent over and over.
Requests with a place for the number of a conversation are the turns of one; then many go on at the
same time (LIVE, or 100), those from request FIRST on. With OWN 1, each connection has its own
conversations; then LIVE is a multiple of CONNECTIONS. Prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import sys
import time
from collections import Counter

_SIZE = b"content-length:"
_LAST_CHUNK = b"0\r\n\r\n"
#: Where the number of the conversation goes.
_CONVERSATION = b"@" * 8
#: Conversations that go on at the same time.
_LIVE = 100


def request_at(requests: list[bytes], number: int, live: int = _LIVE) -> bytes:
    """One of the requests; where they are turns, that of the conversation whose turn it is, of so
    many that are live."""
    if _CONVERSATION not in requests[0]:
        return requests[number % len(requests)]
    rounds, place = divmod(number, live)
    done, turn = divmod(rounds, len(requests))
    return requests[turn].replace(_CONVERSATION, b"%08d" % (done * live + place))


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got = b""
        self.asked = 0.0
        self.number = 0

    def ask(self, request: bytes) -> None:
        self.asked = time.perf_counter()
        self.socket.sendall(request)

    def is_complete(self) -> bool:
        """Whether the whole answer is here."""
        head, blank, body = self.got.partition(b"\r\n\r\n")
        if not blank:
            return False
        lower = head.lower()
        at = lower.find(_SIZE)
        if at < 0:
            return body.endswith(_LAST_CHUNK)
        return len(body) >= int(lower[at + len(_SIZE) :].split(b"\r\n", 1)[0])


def load(
    ports: list[int],
    requests: list[bytes],
    connections: int,
    total: int,
    first: int = 0,
    live: int = _LIVE,
    own: int = 0,
) -> dict[str, object]:
    """Each connection asks, waits for the whole answer, and asks again."""
    times: list[float] = []
    selector = selectors.DefaultSelector()
    statuses: Counter[str] = Counter()
    sent = done = received = 0
    begin, cpu = time.perf_counter(), time.process_time()
    for at in range(min(connections, total)):
        # Each asks when it is open: a daemon keeps few connections that have not shown a token.
        connection = Connection(ports[at % len(ports)])
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.number = at
        connection.ask(request_at(requests, first + sent, live))
        sent += 1
    while done < total:
        for key, _ in selector.select():
            connection = key.data
            piece = connection.socket.recv(262_144)
            if not piece:
                raise SystemExit(f"the server hung up: {connection.got[:200]!r}")
            connection.got += piece
            if not connection.is_complete():
                continue
            times.append(time.perf_counter() - connection.asked)
            statuses[connection.got[9:12].decode()] += 1
            received += len(connection.got)
            connection.got = b""
            done += 1
            if sent < total:
                connection.number = connection.number + connections if own else sent
                connection.ask(request_at(requests, first + connection.number, live))
                sent += 1
    ended = time.perf_counter()
    times.sort()
    return {
        "p50_ms": times[len(times) // 2] * 1e3,
        "p99_ms": times[len(times) * 99 // 100] * 1e3,
        "seconds": ended - begin,
        "ended": ended,
        "client_cpu": time.process_time() - cpu,
        "requests": done,
        "received": received,
        "statuses": dict(statuses),
        "client_rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        raw = [text.encode() for text in json.load(file)]
    ports = [int(port) for port in sys.argv[1].split(",")]
    print(json.dumps(load(ports, raw, *map(int, sys.argv[3:]))))
