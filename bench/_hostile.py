"""Attacks on a daemon, and the app beside them, for `daemon.py --hostile`.

    python bench/_hostile.py failing PORT                 an upstream whose errors have 20 MB
    python bench/_hostile.py attack PORT FILE SECONDS     prints the bytes that it sent, as JSON

The attacks run together in a process of their own: 8 connections send bodies of 29 MB without the
capability, 4 calls are answered by errors of 20 MB, 50 bodies of 30 MB go slowly to `/rpc`, and
3,000 sockets send nothing. Whatever is closed or answered begins again.

A second scenario is beside it: a granted app sends bodies of many small JSON values, each below the
size from which a body counts as large, over 12 connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from _lent import BYTES, CONVERSATION, KEY, MESSAGES, MODEL, PATH, raw_request, raw_requests
from _load import Connection, request_at
from _served import HERE, Child, child

MEGA = 1_000_000
LARGE, SLOW, ERROR = 29 * MEGA, 30 * MEGA, 20 * MEGA
LARGE_SENDERS, FAILING_CALLS, SLOW_SENDERS, IDLE = 8, 4, 50, 3_000
#: Bytes that a slow sender sends, and the seconds until it sends more: 30 MB take a minute.
_SLOW_PIECE, _SLOW_SECONDS = 50_000, 0.1
#: Addresses that idle sockets come from, and those that are opened again in a second.
_ADDRESSES, _OPENED_A_SECOND = 100, 500
_PIECE = b"x" * 262_144
#: Bytes that a daemon takes of an error.
_READ_OF_ERROR = 262_144
#: Seconds between two calls of the app beside them, and between two looks at its health.
_CALL_SECONDS, _HEALTH_SECONDS = 0.05, 0.05
_MEMORY_SECONDS = 0.2
_TIMEOUT = 30.0
APPS = ("bystander", "ordinary", "nothing", "slow", "failing")
#: Bodies of small values: their connections, and their size below that of a large body.
VALUE_SENDERS, VALUE_BYTES = 12, 250_000
#: How often the app is measured beside them and alone, and the seconds before.
VALUE_TURNS, _WARMING_SECONDS = 6, 2.0


# ── The attacks ──────────────────────────────────────────────────────────────────────────────────


class Attack:
    def __init__(self, port: int, tokens: dict[str, str]) -> None:
        self._port = port
        self._tokens = tokens
        self.sent = 0
        """Bytes of bodies that the daemon took, from here and from its provider."""
        self.answers: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        attacks: list[tuple[int, Callable[[int], Any]]] = [
            (LARGE_SENDERS, lambda _: self._send("nothing", PATH, LARGE, len(_PIECE), 0.0)),
            (SLOW_SENDERS, lambda _: self._send("slow", "/rpc", SLOW, _SLOW_PIECE, _SLOW_SECONDS)),
            (FAILING_CALLS, lambda _: self._fail()),
            (IDLE, self._idle),
        ]
        tasks = [
            asyncio.create_task(self._again(begin, number))
            for count, begin in attacks
            for number in range(count)
        ]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _again(self, begin: Callable[[int], Any], number: int) -> None:
        while True:
            try:
                await begin(number)
            except OSError:
                await asyncio.sleep(0.2)

    def _head(self, app: str, path: str, size: int) -> bytes:
        lines = (
            f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json",
            f"authorization: Bearer {self._tokens[app]}", f"content-length: {size}", "", "",
        )  # fmt: skip
        return "\r\n".join(lines).encode()

    async def _send(self, app: str, path: str, size: int, piece: int, pause: float) -> None:
        """One body, which goes on after the answer, until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        answer = asyncio.create_task(reader.read(65_536))
        try:
            writer.write(self._head(app, path, size) + b'{"messages":"')
            left = size - 13
            while left > 0:
                writer.write(_PIECE[: min(piece, left)])
                self.sent += min(piece, left)
                left -= piece
                await writer.drain()
                if pause:
                    await asyncio.sleep(pause)
                    if answer.done():
                        break
            self._note(app, await asyncio.wait_for(asyncio.shield(answer), _TIMEOUT))
        finally:
            writer.transport.abort()
            answer.cancel()
            await asyncio.wait([answer])
            if not answer.cancelled() and answer.exception() is not None:
                self._note(app, b"")

    async def _fail(self) -> None:
        """A call that its provider answers with a long error."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
            writer.write(self._head("failing", PATH, len(body)) + body.encode())
            self._note("failing", await reader.read(65_536))
            self.sent += _READ_OF_ERROR
        finally:
            writer.transport.abort()

    async def _idle(self, number: int) -> None:
        await asyncio.sleep(number / _OPENED_A_SECOND)
        address = f"127.0.1.{1 + number % _ADDRESSES}"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(address, 0)
        )
        try:
            await reader.read(1)
        finally:
            writer.transport.abort()
        await asyncio.sleep(IDLE / _OPENED_A_SECOND)

    def _note(self, app: str, answer: bytes) -> None:
        name = f"{app} {answer[9:12].decode('latin-1') or 'closed'}"
        self.answers[name] = self.answers.get(name, 0) + 1


def attack(port: int, file: str, seconds: float) -> None:
    attack = Attack(port, json.loads(Path(file).read_text()))
    asyncio.run(attack.run(seconds))
    print(json.dumps({"sent": attack.sent, "answers": attack.answers}))


def fail_always(port: int) -> None:
    """An upstream for which every request is too much."""
    begin = b'{"error":{"message":"' + b"no " * (ERROR // 3)
    head = f"HTTP/1.1 500 x\r\ncontent-length: {len(begin)}\r\nconnection: close\r\n\r\n"

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(head.encode() + begin)

    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


# ── What is measured ─────────────────────────────────────────────────────────────────────────────


class Watched:
    """The health and the memory of a daemon, and the calls of an app, while others call."""

    def __init__(
        self, daemon: Child, token: str, *, messages: int = MESSAGES, size: int = BYTES
    ) -> None:
        self._daemon = daemon
        self._requests = raw_requests(
            {"authorization": f"Bearer {token}"}, messages=messages, size=size
        )
        self.health: list[float] = []
        self.calls: list[float] = []
        self.failed: list[str] = []
        self.memory = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._ended.clear()
        works = (self._ask_health, self._call, self._read_memory)
        threads = [threading.Thread(target=each, daemon=True) for each in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _ask_health(self) -> None:
        while not self._ended.wait(_HEALTH_SECONDS):
            asked = time.perf_counter()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._daemon.port, timeout=10)
                connection.request("GET", "/healthz")
                if connection.getresponse().read() != b'{"status":"ok"}':
                    self.failed.append("healthz")
                connection.close()
            except OSError as problem:
                self.failed.append(f"healthz: {problem}")
            self.health.append(time.perf_counter() - asked)

    def _call(self) -> None:
        number = 0
        connection = Connection(self._daemon.port)
        while not self._ended.wait(_CALL_SECONDS):
            try:
                connection.ask(request_at(self._requests, number, 1))
                while not connection.is_complete():
                    if not (piece := connection.socket.recv(262_144)):
                        raise ConnectionError("closed")
                    connection.got += piece
                if connection.got[9:12] != b"200":
                    self.failed.append(f"call: {connection.got[9:12].decode()}")
            except OSError as problem:
                self.failed.append(f"call: {problem}")
                connection = Connection(self._daemon.port)
                continue
            self.calls.append(time.perf_counter() - connection.asked)
            connection.got = b""
            number += 1

    def _read_memory(self) -> None:
        while not self._ended.wait(_MEMORY_SECONDS):
            self.memory = max(self.memory, sum(map(_pss, _family(self._daemon.process.pid))))


def _family(pid: int) -> Iterator[int]:
    """A process and those that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for each in (task / "children").read_text().split():
                yield from _family(int(each))


def _pss(pid: int) -> float:
    """Megabytes, of which shared pages count in part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / MEGA
    return 0.0


def p99_ms(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100] * 1e3


class Ordinary:
    """Calls of 40 KB of a granted app, so many a second as a daemon takes at most."""

    def __init__(self, daemon: Child, token: str, bytes_a_second: float) -> None:
        self._port = daemon.port
        self._requests = raw_requests({"authorization": f"Bearer {token}"})
        self._pause = LARGE_SENDERS * BYTES / bytes_a_second
        self.sent = 0
        self._ended = threading.Event()

    def run(self, seconds: float) -> None:
        threads = [
            threading.Thread(target=self._call, args=(10_000_000 * (number + 1),))
            for number in range(LARGE_SENDERS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._ended.set()
        for thread in threads:
            thread.join()

    def _call(self, number: int) -> None:
        connection, due = Connection(self._port), time.monotonic()
        while not self._ended.is_set():
            due = max(due + self._pause, time.monotonic() - 1.0)
            self._ended.wait(max(0.0, due - time.monotonic()))
            request = request_at(self._requests, number, 1)
            connection.ask(request)
            while not connection.is_complete():
                connection.got += connection.socket.recv(262_144)
            connection.got = b""
            self.sent += len(request)
            number += 1


def small_values(token: str) -> list[bytes]:
    """Bodies of tools, messages and blocks, as many as fit. They differ in the number of the
    request, so that nothing of one is known from another."""

    def filled(name: str, each: Any, **fields: Any) -> bytes:
        element = json.dumps(each, separators=(",", ":"))
        count = VALUE_BYTES // (len(element) + 4)
        listed = [json.loads(element.replace("#", f"{at:04}")) for at in range(count)]
        first = {"role": "user", "content": f"Hi {CONVERSATION}"}
        body = {"model": MODEL, "max_tokens": 16, "messages": [first], **fields}
        if name == "blocks":
            body["messages"].append({"role": "user", "content": listed})
        else:
            body[name] = body.get(name, []) + listed
        data = json.dumps(body, separators=(",", ":")).encode()
        return raw_request({"authorization": f"Bearer {token}"}, data, PATH)

    function = {"name": CONVERSATION[:4] + "#"}
    return [
        filled("tools", {"type": "function", "function": function}),
        filled("messages", {"role": "user", "content": "#"}),
        filled("blocks", {"type": "text", "text": "#"}),
    ]


# ── The run ──────────────────────────────────────────────────────────────────────────────────────


def hostile_home(folder: Path, upstream_port: int, failing_port: int) -> dict[str, str]:
    """A home with an app for each part, and their tokens."""
    from anaphora.cli.serve import create_token
    from anaphora.daemon.home import Home, init

    def provider(port: int) -> dict[str, Any]:
        return {
            "wire": "openai_chat",
            "base_url": f"http://127.0.0.1:{port}",
            "model": MODEL,
            "key": {"secret": "PROVIDER_KEY"},
            "retry": {"max_attempts": 1},
            "breaker": {"failures": 1_000_000},
        }

    providers = {"openai": provider(upstream_port), "failing": provider(failing_port)}
    grants: dict[str, Any] = {
        app: {
            "capabilities_grant": ["llm_complete", "llm_stream"],
            "llm": {
                "providers": ["failing" if app == "failing" else "openai"],
                "models": [MODEL],
                "max_tokens": 4096,
                "tools": ["*"],
                "usd_per_day": 100_000_000,
            },
        }
        for app in APPS
    }
    grants["nothing"] = {}
    folder.mkdir(mode=0o700)
    llm = {"providers": providers, "daemon": {"log_file": "daemon.log"}}
    (folder / "llm.yaml").write_text(json.dumps(llm))
    (folder / "extensions.yaml").write_text(json.dumps(grants))
    init(folder)
    secret = folder / "secrets" / "PROVIDER_KEY.txt"
    secret.touch(mode=0o600)
    secret.write_text(KEY + "\n")

    async def tokens() -> dict[str, str]:
        home = Home.open(folder)
        return {app: (await create_token(home, app)).reveal() for app in APPS}

    return asyncio.run(tokens())


def raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def measure(seconds: float) -> dict[str, Any]:
    """The app beside the attacks, and beside as many bytes a second of ordinary calls."""
    raise_file_limit()
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(child("upstream", "_lent.py"))
        failing = stack.enter_context(child("failing", "_hostile.py"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = hostile_home(folder / "home", upstream.port, failing.port)
        (folder / "tokens.json").write_text(json.dumps(tokens))
        with child("daemon", "_lent.py", str(folder / "home")) as daemon:
            attacked = Watched(daemon, tokens["bystander"])
            words = ("attack", str(daemon.port), str(folder / "tokens.json"), str(seconds))
            with attacked.running():
                process = Popen([sys.executable, str(HERE / "_hostile.py"), *words], stdout=PIPE)
                result = json.loads(process.communicate()[0])
        rate = result["sent"] / seconds
        _show("attacked", attacked, rate)
        print(f"answers to the attacks: {result['answers']}", flush=True)
        with child("daemon", "_lent.py", str(folder / "home")) as daemon:
            beside = Watched(daemon, tokens["bystander"])
            ordinary = Ordinary(daemon, tokens["ordinary"], rate)
            with beside.running():
                ordinary.run(seconds)
        _show("beside ordinary calls", beside, ordinary.sent / seconds)
    return {
        "healthz_p99_ms": round(p99_ms(attacked.health), 1),
        "bystander_p99_ratio": round(p99_ms(attacked.calls) / p99_ms(beside.calls), 2),
        "rss_peak_mb": round(attacked.memory, 1),
        "bystander_p99_ms": [round(p99_ms(each.calls), 1) for each in (attacked, beside)],
        "megabytes_a_second": [round(rate / MEGA, 1), round(ordinary.sent / seconds / MEGA, 1)],
        "failed": len(attacked.failed) + len(beside.failed),
        "seconds": seconds,
    }


def measure_small_values(seconds: float) -> dict[str, Any]:
    """An app with calls of 1 KB beside one that sends small values, and alone: of one daemon, in
    turns, so that whatever else the machine does falls on both."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(child("upstream", "_lent.py"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = hostile_home(folder / "home", upstream.port, upstream.port)
        file = folder / "values.json"
        file.write_text(json.dumps([each.decode() for each in small_values(tokens["ordinary"])]))
        daemon = stack.enter_context(child("daemon", "_lent.py", str(folder / "home")))
        both = [Watched(daemon, tokens["bystander"], messages=1, size=1_000) for _ in range(2)]
        with Watched(daemon, tokens["bystander"], messages=1, size=1_000).running():
            time.sleep(_WARMING_SECONDS)
        for turn in range(VALUE_TURNS):
            first = turn * 1_000_000
            words = (VALUE_SENDERS, 10**9, first, VALUE_SENDERS)
            command = [sys.executable, str(HERE / "_load.py"), str(daemon.port), str(file)]
            for watched, attacks in zip(both, (True, False), strict=True):
                load = Popen([*command, *map(str, words)]) if attacks else None
                try:
                    with watched.running():
                        time.sleep(seconds / VALUE_TURNS)
                finally:
                    if load is not None:
                        load.kill()
                        load.wait()
    attacked, alone = both
    _show("beside small values", attacked, 0.0)
    _show("alone", alone, 0.0)
    return {
        "small_values_bystander_p99_ratio": round(p99_ms(attacked.calls) / p99_ms(alone.calls), 2),
        "small_values_healthz_p99_ms": round(p99_ms(attacked.health), 1),
        "small_values_bystander_p99_ms": [round(p99_ms(each.calls), 1) for each in both],
        "small_values_failed": len(attacked.failed) + len(alone.failed),
    }


def _show(name: str, watched: Watched, rate: float) -> None:
    print(
        f"{name:22} {rate / MEGA:7.1f} MB a second   health p99 {p99_ms(watched.health):7.1f} ms"
        f"   call p50 {sorted(watched.calls)[len(watched.calls) // 2] * 1e3:6.1f} ms"
        f"   p99 {p99_ms(watched.calls):7.1f} ms   {watched.memory:6.1f} MB"
        f"   {len(watched.calls)} calls, failed: {sorted(set(watched.failed))}",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1] == "failing":
        fail_always(int(sys.argv[2]))
    else:
        raise_file_limit()
        attack(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
