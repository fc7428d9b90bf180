"""SPEC D5 and D8: streamed calls of apps over HTTP, the Unix socket and stdio, through a whole
daemon."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemon import GRANT, TestedDaemon, running_daemon
from support.rpc_calls import RpcClient, request
from support.streaming_provider import StreamingProvider, streaming_provider
from support.waiting import PATIENCE

from anaphora.cli.main import main
from anaphora.client.config.secrets import Secret
from anaphora.daemon.rpc.stdio import LineBuffer, bridge
from anaphora.errors import InvalidRequest, Io, Unauthenticated


def complete(text: str, number: Any = 1, *, stream: bool = True, **params: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    more = {"stream": stream, "messages": messages, **params}
    return request("llm.complete", number, provider="chat", model="gpt-5.2", **more)


@pytest.fixture(scope="module")
def provider() -> Iterator[StreamingProvider]:
    with streaming_provider() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(
    provider: StreamingProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    chat = {
        "wire": "openai_chat",
        "base_url": provider.url,
        "key": {"secret": "PROVIDER_KEY"},
        "retry": {"max_attempts": 1},
        "breaker": {"failures": 1000},
        "timeouts": {"idle": 20},
        # Otherwise calls without stream are read on: tests/daemon/test_calls_ended_early.py.
        "on_abort": "cancel",
    }
    llm = {"providers": {"chat": chat}, "daemon": {"port": 0, "max_streams_per_app": 8}}
    grant = {**GRANT, "llm": {**GRANT["llm"], "providers": ["chat"]}}
    folder: Path = tmp_path_factory.mktemp("streaming")
    apps = {"demo": grant, "other": grant}
    with running_daemon(folder, provider, llm=llm, extensions=apps) as running:
        yield running


@pytest.fixture(params=["tcp", "socket"])
def rpc(daemon: TestedDaemon, request: pytest.FixtureRequest) -> Iterator[RpcClient]:
    with RpcClient(daemon, socket=request.param == "socket") as client:
        yield client


def deltas_of(messages: list[Any]) -> list[str]:
    """The deltas before the response, whose numbers must have no gap."""
    *notifications, _ = messages
    assert {each["method"] for each in notifications} <= {"llm.delta"}
    params = [each["params"] for each in notifications]
    assert [each["seq"] for each in params] == list(range(len(params)))
    return [each["delta"] for each in params]


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────


def test_d8_deltas_are_notifications_and_the_end_is_the_response(rpc: RpcClient) -> None:
    """D8: `llm.delta {id, seq, delta}`; joined, the deltas are the text of the result."""
    messages = list(rpc.lines(complete("count 3 9", "a")))
    first = {"id": "a", "seq": 0, "delta": "0 " + "漢" * 9}
    assert messages[0] == {"jsonrpc": "2.0", "method": "llm.delta", "params": first}
    assert messages[-1]["id"] == "a"
    result = messages[-1]["result"]
    assert "".join(deltas_of(messages)) == result["text"]
    assert (result["stop_reason"], result["usage"]["output"]) == ("end", 5)


def test_an_error_before_the_first_delta_is_a_plain_response(rpc: RpcClient) -> None:
    (response,) = rpc.lines(complete("count 3 9", max_tokens=0))
    assert response["error"]["code"] == -32602


def test_a_stream_that_breaks_ends_with_an_error(rpc: RpcClient) -> None:
    messages = list(rpc.lines(complete("break")))
    assert deltas_of(messages) == ["0 ", "1 "]
    assert messages[-1]["error"]["data"]["kind"] == "transport"


def test_streams_in_a_batch_tell_their_deltas_apart_by_id(rpc: RpcClient) -> None:
    batch = [complete("count 2 9", "a"), complete("count 3 9", "b"), request("health", "c")]
    *notifications, responses = rpc.lines(batch)
    assert [each["id"] for each in responses] == ["a", "b", "c"]
    seen = sorted((each["params"]["id"], each["params"]["seq"]) for each in notifications)
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]


def test_d8_cancel_ends_a_stream_upstream(
    daemon: TestedDaemon, rpc: RpcClient, provider: StreamingProvider
) -> None:
    """D8: over HTTP by the app and the id; another app's request of the same id goes on."""
    lines = rpc.lines(complete("hang", 7))
    assert next(lines)["params"]["delta"] == "0 "
    with RpcClient(daemon, "other") as other, RpcClient(daemon) as same:
        assert other.call("llm.cancel", id=7) == {"cancelled": False}
        assert same.call("llm.cancel", id="7") == {"cancelled": False}
        assert same.call("llm.cancel", id=7) == {"cancelled": True}
    *_, response = lines
    assert response["id"] == 7
    assert response["error"]["code"] == -32800
    assert response["error"]["data"] == {"kind": "cancelled", "retryable": False}
    provider.wait_closed()


def test_calls_of_an_app_are_limited_also_in_a_batch_and_can_be_cancelled_then(
    daemon: TestedDaemon, provider: StreamingProvider
) -> None:
    provider.forget()
    with RpcClient(daemon) as client, RpcClient(daemon, socket=True) as canceller:
        lines = client.lines([complete("hang", number) for number in range(9)])
        next(lines)
        for number in range(9):
            assert canceller.call("llm.cancel", id=number) == {"cancelled": number < 8}
        *_, responses = lines
    errors = [each["error"] for each in responses]
    assert [error["code"] for error in errors] == [-32800] * 8 + [-32006]
    assert errors[8]["data"]["limit"] == "max_streams_per_app"
    for _ in range(provider.forget()):
        provider.wait_closed()


def test_cancel_as_a_notification_ends_a_call_that_is_not_streamed(
    daemon: TestedDaemon, rpc: RpcClient, provider: StreamingProvider
) -> None:
    def cancel() -> None:
        provider.wait_asked()
        with RpcClient(daemon) as other:
            other.send({"jsonrpc": "2.0", "method": "llm.cancel", "params": {"id": "x"}})

    provider.forget()
    thread = threading.Thread(target=cancel)
    thread.start()
    assert rpc.send(complete("silence", "x", stream=False))["error"]["code"] == -32800
    thread.join()
    provider.wait_closed()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.long
def test_d7_a_timeout(rpc: RpcClient, provider: StreamingProvider, stream: bool) -> None:
    """D7: -32008, and the call at the provider is cancelled."""
    response = rpc.send(complete("silence", stream=stream, timeout_ms=1000))
    assert response["error"]["code"] == -32008
    assert response["error"]["data"] == {"kind": "timeout", "retryable": True, "timeout_ms": 1000}
    provider.wait_closed()


@pytest.mark.parametrize("order, stream", [("hang", True), ("silence", True), ("silence", False)])
@pytest.mark.parametrize("place", ["tcp", "socket"])
def test_d8_a_closed_connection_cancels_upstream(
    daemon: TestedDaemon, provider: StreamingProvider, place: str, order: str, stream: bool
) -> None:
    provider.forget()
    with _raw_request(daemon, place, complete(order, stream=stream)) as connection:
        provider.wait_asked()
        if order == "hang":
            assert b"llm.delta" in _read_until(connection, b"llm.delta")
    provider.wait_closed()


@pytest.mark.parametrize("place", ["tcp", "socket"])
@pytest.mark.long
def test_d5_a_slow_reader_slows_the_producer_and_loses_nothing(
    daemon: TestedDaemon, provider: StreamingProvider, place: str
) -> None:
    """D5: while the app does not read, the provider cannot send on; afterwards all arrives."""
    count = 1_200  # more than the buffers of all sockets hold
    provider.sent = 0
    with _raw_request(daemon, place, complete(f"count {count} 3000")) as connection:
        sent = _settled(lambda: provider.sent)
        assert 0 < sent < count
        data = _read_until(connection, b"\r\n0\r\n\r\n")
    assert data.count(b'"method":"llm.delta"') == count
    assert data.index(b'"delta":"0 ') < data.index(b'"delta":"%d ' % (count - 1))
    assert data.count(b'"result":') == 1


@contextmanager
def _raw_request(daemon: TestedDaemon, place: str, message: Any) -> Iterator[socket.socket]:
    body = json.dumps(message).encode()
    head = (
        f"POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {daemon.token()}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    address = daemon.daemon.address
    with socket.socket(socket.AF_UNIX if place == "socket" else socket.AF_INET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.settimeout(PATIENCE)
        connection.connect(
            str(daemon.socket) if place == "socket" else (address.host, address.port)
        )
        connection.sendall(head.encode() + body)
        yield connection


def _read_until(connection: socket.socket, end: bytes) -> bytes:
    data = bytearray()
    while data.find(end, len(data) - 1_000_100) < 0:
        piece = connection.recv(1_000_000)
        assert piece, bytes(data[-500:])
        data += piece
    return bytes(data)


def _settled(value: Callable[[], int]) -> int:
    """A counter that has begun, once it stands still."""
    deadline = time.monotonic() + PATIENCE
    before = 0
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = value()
        if now == before > 0:
            return now
        before = now
    raise AssertionError("the counter does not stand still")


# ── stdio ────────────────────────────────────────────────────────────────────────────────────────


class StdioClient:
    """The other ends of a bridge's pipes."""

    def __init__(self, source: int, sink: int) -> None:
        self._source: int | None = source
        self._sink: int | None = sink
        self._buffer = LineBuffer()
        self._lines: deque[bytes | None] = deque()

    def write(self, *messages: Any) -> None:
        self.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    def write_bytes(self, data: bytes) -> None:
        assert self._sink is not None
        os.write(self._sink, data)

    def read(self) -> Any:
        """The next message; None at the end."""
        assert self._source is not None
        while not self._lines:
            assert select.select([self._source], [], [], PATIENCE)[0], "nothing was written"
            data = os.read(self._source, 1_000_000)
            if not data:
                return None
            self._lines.extend(self._buffer.feed(data))
        return json.loads(self._lines.popleft() or b"")

    def end(self) -> None:
        if self._sink is not None:
            os.close(self._sink)
        self._sink = None

    def close(self) -> None:
        self.end()
        if self._source is not None:
            os.close(self._source)
        self._source = None


@pytest.fixture
def connect(daemon: TestedDaemon) -> Iterator[Callable[[], StdioClient]]:
    """Opens bridges, each in a thread of its own."""
    with ExitStack() as stack:

        def start() -> StdioClient:
            return stack.enter_context(_bridged(daemon))

        yield start


@contextmanager
def _bridged(daemon: TestedDaemon) -> Iterator[StdioClient]:
    (stdin, to_bridge), (from_bridge, stdout) = os.pipe(), os.pipe()

    def run() -> None:
        try:
            asyncio.run(
                bridge(
                    daemon.socket,
                    app="demo",
                    token=Secret(daemon.token()),
                    source=stdin,
                    sink=stdout,
                )
            )
        except BrokenPipeError:
            pass
        finally:
            os.close(stdout)

    thread = threading.Thread(target=run)
    thread.start()
    client = StdioClient(from_bridge, to_bridge)
    try:
        yield client
    finally:
        client.close()
        thread.join(PATIENCE)
        os.close(stdin)


def test_d7_stdio_takes_the_same_messages(connect: Callable[[], StdioClient]) -> None:
    """D7: a message a line; lines that are none get their errors."""
    client = connect()
    client.write(request("health", 1), [request("health", 2), 3])
    client.write_bytes(b"\n  \n{\n")
    answers = [client.read() for _ in range(3)]
    assert {"jsonrpc": "2.0", "id": 1, "result": answers[0]["result"]} in answers
    batch = next(each for each in answers if isinstance(each, list))
    assert [each["id"] for each in batch] == [2, None]
    assert -32700 in [each["error"]["code"] for each in answers if "error" in each]
    client.write({"jsonrpc": "2.0", "method": "health"})
    client.end()
    assert client.read() is None


def test_stdio_answers_out_of_order(
    connect: Callable[[], StdioClient], provider: StreamingProvider
) -> None:
    """Many requests are in flight; a slow one does not delay the others."""
    client = connect()
    client.write(complete("hang", "slow"), *(request("health", number) for number in range(20)))
    messages = [client.read() for _ in range(22)]
    assert sorted(each["id"] for each in messages if "result" in each) == list(range(20))
    client.write(request("llm.cancel", "c", id="slow"))
    ends = {each["id"]: each for each in (client.read(), client.read())}
    assert ends["c"]["result"] == {"cancelled": True}
    assert ends["slow"]["error"]["code"] == -32800
    provider.wait_closed()


def test_d8_cancel_on_stdio_is_per_connection(
    connect: Callable[[], StdioClient], provider: StreamingProvider
) -> None:
    one, two = connect(), connect()
    one.write(complete("hang", 1))
    assert one.read()["params"]["delta"] == "0 "
    two.write(request("llm.cancel", 2, id=1))
    assert two.read()["result"] == {"cancelled": False}
    one.close()
    provider.wait_closed()


def test_d5_a_slow_reader_of_stdio_slows_the_producer(
    connect: Callable[[], StdioClient], provider: StreamingProvider
) -> None:
    count = 1_200  # more than the buffers of all sockets hold
    provider.sent = 0
    client = connect()
    client.write(complete(f"count {count} 3000"))
    assert 0 < _settled(lambda: provider.sent) < count
    messages = [client.read() for _ in range(count + 1)]
    assert len(deltas_of(messages)) == count
    assert messages[-1]["result"]["stop_reason"] == "end"


def test_stdio_answers_what_runs_when_the_input_ends(connect: Callable[[], StdioClient]) -> None:
    client = connect()
    client.write(complete("count 2 9", stream=False, n=1))
    client.end()
    # The provider streams although it was not asked to.
    assert client.read()["result"]["text"].startswith("0 ")
    assert client.read() is None


def test_a_bridge_checks_daemon_token_and_app(daemon: TestedDaemon, tmp_path: Path) -> None:
    def run(**changes: Any) -> None:
        options: dict[str, Any] = {"app": "demo", "token": Secret(daemon.token())}
        where = changes.pop("socket", daemon.socket)
        asyncio.run(bridge(where, **(options | changes), source=0, sink=1))

    with pytest.raises(Io, match="anaphora serve"):
        run(socket=tmp_path / "no.sock")
    with pytest.raises(Unauthenticated):
        run(token=Secret("ana_wrong"))
    with pytest.raises(InvalidRequest, match="'demo', not of 'other'"):
        run(app="other")


def test_the_command_takes_a_token_from_a_file(
    daemon: TestedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never from an argument. Exit code 7 where the daemon does not accept it."""
    file = tmp_path / "token"
    command = ["rpc", "--stdio", "--home", str(daemon.home), "--app", "demo"]
    for text, code in (("ana_wrong", 7), ("two words", 2), ("", 2)):
        file.write_text(text)
        assert main([*command, "--token-file", str(file)]) == code
    assert main(command) == 2
    assert "ana_wrong" not in capsys.readouterr().err
    file.write_text(daemon.token() + "\n")
    ended = subprocess.run(
        [sys.executable, "-m", "anaphora", *command, "--token-file", str(file)],
        input=json.dumps(complete("count 1 9")).encode(),
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert json.loads(ended.stdout.splitlines()[-1])["result"]["stop_reason"] == "end"


def test_lines_of_any_pieces() -> None:
    lines = LineBuffer(longest=5)
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\n12345\n123456\n\nx") == [b"abc", b"12345", None, b""]
    assert lines.feed(b"y" * 10) == []
    assert lines.feed(b"z\nok\n") == [None, b"ok"]
