"""What `proxy.py` puts its load on, each in a process of its own.

    python bench/_proxied.py upstream PORT
    python bench/_proxied.py bare|proxy|unwatched PORT UPSTREAM_PORT

`upstream` answers as providers do, with answers that the emulator gave. `bare` is a pass-through of
the same libraries, Granian and aiohttp, with nothing around it; `proxy` is ours with verdicts on,
`unwatched` ours without.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from _requests import WIRES, raw
from _served import serve

#: The path at which the watched proxy says how many calls it judged, when they are as many as the
#: query asks for; and the one at which it says the same when their costs are compared, too.
JUDGED, COMPARED = "/judged", "/compared"
#: Seconds between two looks at the number of verdicts.
_CHECK = 0.005
HOPS = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}


# ── The upstream ─────────────────────────────────────────────────────────────────────────────────


def recorded() -> dict[tuple[str, bool], tuple[list[tuple[bytes, bytes]], list[bytes]]]:
    """Headers and pieces of an answer by path and whether it is streamed."""
    from anaphora.emulator import EmulatorOptions, Latency
    from anaphora.emulator.engine import Engine
    from anaphora.emulator.exchange import EmulatorRequest

    engine = Engine(EmulatorOptions(latency=Latency(first=0.0)))
    answers = {}
    for write in WIRES.values():
        for stream in (False, True):
            path, headers, body = write(0, stream)
            data = raw(path, headers, body).partition(b"\r\n\r\n")[2]
            path = path.partition("?")[0]
            answer = engine.respond(
                EmulatorRequest(method="POST", path=path, headers=headers, body=data, now=1e9)
            )
            pieces = [chunk.data for chunk in answer.chunks]
            pairs = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
            if not answer.stream:
                pairs.append((b"content-length", b"%d" % len(answer.body)))
            answers[path, stream] = (pairs, pieces)
    return answers


def upstream() -> Any:
    answers = recorded()

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        body = await read(receive)
        path = scope["path"]
        stream = b'"stream": true' in body or path.endswith(":streamGenerateContent")
        headers, pieces = answers[path, stream]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1], "more_body": False})

    return handle


async def read(receive: Any) -> bytes:
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


# ── Pass-throughs ────────────────────────────────────────────────────────────────────────────────


def bare(upstream_port: int) -> Any:
    """As little as passes a request on and its response back."""
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL

    base = f"http://127.0.0.1:{upstream_port}"
    sessions: list[aiohttp.ClientSession] = []

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        if not sessions:
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            sessions.append(
                aiohttp.ClientSession(connector=connector, auto_decompress=False, timeout=timeout)
            )
        body = await read(receive)
        headers = CIMultiDict(
            (name.decode(), value.decode()) for name, value in scope["headers"] if name not in HOPS
        )
        target = f"{base}{scope['raw_path'].decode()}?{scope['query_string'].decode()}"
        async with sessions[0].request(
            scope["method"],
            URL(target.rstrip("?"), encoded=True),
            headers=headers,
            data=body,
            allow_redirects=False,
        ) as answer:
            pairs = [pair for pair in answer.raw_headers if pair[0].lower() not in HOPS]
            await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return handle


class JudgedPage:
    """Says how many calls have a verdict. It waits here, since asking again and again would take
    time from the verdicts."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge

    def serves(self, path: str) -> bool:
        return path in (JUDGED, COMPARED)

    async def answer(self, exchange: Any) -> None:
        from anaphora.serving.exchange import CompleteResponse

        wanted = int(exchange.query_string or 0)
        while self._count() < wanted:  # noqa: ASYNC110
            await asyncio.sleep(_CHECK)
        if exchange.path == COMPARED:
            self._judge.savings.result()
        await exchange.respond(CompleteResponse(200, {}, b"%d" % self._count()))

    def _count(self) -> int:
        return sum(self._judge.totals.kinds.values())


def proxy(port: int, upstream_port: int, *, watched: bool) -> None:
    from anaphora.proxy.observing import Observer
    from anaphora.proxy.routes import default_routes
    from anaphora.proxy.server import running

    observers: list[Observer] = []
    pages = None
    if watched:
        from anaphora.traffic.judging import Judge

        judge = Judge()
        observers.append(judge)
        pages = JudgedPage(judge)
    base = f"http://127.0.0.1:{upstream_port}"
    routes = default_routes({"anthropic": base, "openai": base, "google": base})
    with running(routes, observers=observers, port=port, pages=pages, own_process=True):
        threading.Event().wait()


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "upstream":
        serve(upstream(), port)
    elif kind == "bare":
        serve(bare(int(sys.argv[3])), port)
    else:
        proxy(port, int(sys.argv[3]), watched=kind == "proxy")


if __name__ == "__main__":
    main()
