"""What the load is put on, each in a process of its own: the emulator, or a bare Granian handler.

    python bench/_served.py emulator|bare PORT

Both are one Granian server on one event loop, started alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BODY = b'{"fixed":"' + b"x" * 1000 + b'"}'


async def bare(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
    """Reads the whole request, and answers the same to all of them."""
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    b"".join(pieces)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY, "more_body": False})


def serve(handler: Any, port: int) -> None:
    """One Granian server on one event loop, with no app but the handler."""
    from granian.constants import Interfaces
    from granian.server.embed import Server

    async def run() -> None:
        server = Server(
            handler,
            address="127.0.0.1",
            port=port,
            interface=Interfaces.ASGINL,
            websockets=False,
            log_enabled=False,
            backlog=1024,
        )
        await server.serve()

    asyncio.run(run())


class Child:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096 / 1e6

    @property
    def pids(self) -> list[int]:
        """Its process and all that it started."""
        return _tree(self.process.pid)

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far, with those of all that it started."""
        return sum(map(_cpu_of, self.pids))

    @property
    def memory_mb(self) -> float:
        """Of all processes; memory that they share with others counts in part."""
        return sum(map(_memory_mb, self.pids))

    def load(
        self,
        requests: list[bytes],
        connections: int,
        total: int,
        first: int = 0,
        live: int = 100,
        *,
        own: bool = False,
    ) -> dict[str, Any]:
        """So many requests over so many connections, from another process; `live` conversations go
        on at the same time, with `own` each over one connection."""
        return load([self], requests, connections, total, first, live, own=own)


def _tree(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for below in (task / "children").read_text().split():
            found += _tree(int(below))
    return found


def _cpu_of(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


def load(
    servers: list[Child],
    requests: list[bytes],
    connections: int,
    total: int,
    first: int = 0,
    live: int = 100,
    *,
    own: bool = False,
) -> dict[str, Any]:
    """The same to several servers, which get connections in turn."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([request.decode() for request in requests], file)
        file.flush()
        ports = ",".join(str(server.port) for server in servers)
        numbers = (connections, total, first, live, int(own))
        words = [ports, file.name, *map(str, numbers)]
        before = sum(server.cpu for server in servers)
        run = subprocess.run(
            [sys.executable, str(HERE / "_load.py"), *words], stdout=subprocess.PIPE, check=True
        )
    result: dict[str, Any] = json.loads(run.stdout)
    return {**result, "server_cpu": sum(server.cpu for server in servers) - before}


@contextlib.contextmanager
def child(kind: str, program: str = "_served.py", *words: str) -> Iterator[Child]:
    """A server of some kind, by one of the programs here, at a port that is free."""
    port = free_port()
    with started([sys.executable, str(HERE / program), kind, str(port), *words], port) as server:
        yield server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def started(
    command: list[str], port: int, *, seconds: float = 60.0, **options: Any
) -> Iterator[Child]:
    """The server that a command starts, when it listens; `options` are those of `Popen`."""
    process = subprocess.Popen(command, **options)
    end = time.monotonic() + seconds
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{command[0]} does not listen at port {port}")
            time.sleep(0.02)
        yield Child(process, port)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "bare":
        serve(bare, port)
        return

    from anaphora.emulator import EmulatorOptions, Latency
    from anaphora.emulator.server import serve as serve_emulator

    # Without the wait for calls that are sent together.
    serve_emulator(EmulatorOptions(latency=Latency(first=0.0)), port=port)


if __name__ == "__main__":
    main()
