"""Observers give way to the relay, and lose nothing by it."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.raw_http import exchange, request_bytes
from support.socket_upstream import CallList, UpstreamConnection, answering, socket_upstream
from support.waiting import PATIENCE

from anaphora.proxy import observing
from anaphora.proxy.server import running
from anaphora.serving import server
from anaphora.serving.server import tuned_interpreter
from anaphora.traffic.calls import RelayedCall

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_observers_wait_while_the_relay_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_BUSY", -1.0)  # always
    monkeypatch.setattr(observing, "_PATIENT_SECONDS", 1e9)
    seen = CallList()
    with (
        socket_upstream(answering(OK)) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        for _ in range(5):
            exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
        assert seen.calls == []
    assert len(seen.calls) == 5, "they get every call before the proxy ends"


@pytest.mark.parametrize("name", ["_PATIENT_SECONDS", "_PATIENT_BYTES"])
def test_observers_do_not_wait_for_ever(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "_BUSY", -1.0)
    monkeypatch.setattr(observing, "_PATIENT_SECONDS", 1e9)
    monkeypatch.setattr(observing, name, 0)
    seen = CallList()
    with (
        socket_upstream(answering(OK)) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
        assert seen.wait()


def test_new_calls_wait_where_too_much_waits_for_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: an observer that is much slower than the programs slows them down."""
    monkeypatch.setattr(observing, "_WAITING_BYTES", 1000)
    goes_on, answered = threading.Event(), threading.Event()

    class Slow:
        def call_ended(self, call: RelayedCall) -> None:
            assert goes_on.wait(PATIENCE)

    with (
        socket_upstream(answering(OK)) as upstream,
        running([upstream.route()], observers=[Slow()]) as proxy,
    ):
        exchange(proxy.port, request_bytes("POST", "/up/first", b"x" * 2000))

        def ask() -> None:
            exchange(proxy.port, request_bytes("POST", "/up/second", b"{}"))
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert not answered.wait(0.2)
        assert len(upstream.requests) == 1
        goes_on.set()
        assert answered.wait(PATIENCE)
        asking.join()
        assert len(upstream.requests) == 2


class Together(CallList):
    """Keeps the numbers of calls that it gets together, and waits at the first call."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.prepared: list[list[int]] = []
        self.goes_on = threading.Event()
        self._fails = fails

    def prepare(self, calls: Sequence[RelayedCall]) -> None:
        assert self.calls[-1].number < calls[0].number
        self.prepared.append([call.number for call in calls])
        if self._fails:
            raise RuntimeError("broken")

    def call_ended(self, call: RelayedCall) -> None:
        super().call_ended(call)
        assert self.goes_on.wait(PATIENCE)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("limits", "together"),
    [
        ({}, [[2, 3, 4, 5, 6, 7, 8]]),
        ({"_MOST_TOGETHER": 3}, [[2, 3, 4], [5, 6, 7]]),
        ({"_BYTES_TOGETHER": 1000}, [[2, 3], [4, 5], [6, 7]]),
    ],
)
def test_calls_that_wait_are_prepared_together(
    limits: dict[str, int], together: list[list[int]], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(observing, name, value)
    seen = Together(fails=fails)
    with (
        socket_upstream(answering(OK)) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        for _ in range(8):
            exchange(proxy.port, request_bytes("POST", "/up/v1", b"x" * 600))
            seen.wait()
        seen.goes_on.set()
    assert [call.number for call in seen.calls] == list(range(1, 9))
    assert seen.prepared == together, "one call alone need not be prepared"


def test_many_calls_do_not_wait_when_no_call_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pieces have just passed."""
    monkeypatch.setattr(observing, "_MOST_TOGETHER", 2)
    monkeypatch.setattr(observing, "_BUSY", 1e-300)
    monkeypatch.setattr(observing, "_LAST_SECONDS", 1e9)
    monkeypatch.setattr(observing, "_PATIENT_SECONDS", 1e9)
    goes_on, asked, seen = threading.Event(), threading.Event(), CallList()

    def answer(connection: UpstreamConnection) -> None:
        while request := connection.read_request():
            if b"/open" in request:
                asked.set()
                assert goes_on.wait(PATIENCE)
            connection.send(OK)

    with (
        socket_upstream(answer) as upstream,
        running([upstream.route()], observers=[seen]) as proxy,
    ):
        ask = request_bytes("POST", "/up/open", b"{}")
        asking = threading.Thread(target=exchange, args=(proxy.port, ask))
        asking.start()
        assert asked.wait(PATIENCE)
        exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
        assert seen.calls == []
        goes_on.set()
        asking.join()
        seen.wait()
    assert len(seen.calls) == 2


def test_nothing_is_kept_without_observers(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[RelayedCall] = []
    monkeypatch.setattr(observing.ObserverThread, "add", lambda self, call: kept.append(call))
    with socket_upstream(answering(OK)) as upstream, running([upstream.route()]) as proxy:
        exchange(proxy.port, request_bytes("POST", "/up/v1", b"{}"))
    (call,) = kept
    assert (call.request_body, call.pieces) == (None, None)


@pytest.fixture
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as tests/conftest.py does


@pytest.mark.usefixtures("unfrozen")
def test_the_interpreter_is_set_up_only_in_a_process_of_the_proxys_own() -> None:
    interval = sys.getswitchinterval()
    with socket_upstream(answering(OK)) as upstream:
        with running([upstream.route()]):
            assert (gc.get_freeze_count(), sys.getswitchinterval()) == (0, interval)
        with running([upstream.route()], own_process=True):
            assert gc.get_freeze_count()
            assert sys.getswitchinterval() < interval
            with running([upstream.route()], own_process=True):
                pass
            assert gc.get_freeze_count()
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == (0, interval)


@pytest.mark.parametrize(
    ("before", "during"), [((700, 10, 10), 50_000), ((70_000, 5, 5), 70_000), ((0, 10, 10), 0)]
)
def test_the_collector_runs_less_often_never_more(
    before: tuple[int, int, int], during: int
) -> None:
    """Zero turns it off."""
    usual = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with tuned_interpreter():
            assert gc.get_threshold()[0] == during
        assert gc.get_threshold()[0] == before[0]
    finally:
        gc.set_threshold(*usual)


def test_threads_switch_as_suits_the_server() -> None:
    """Sooner for Granian's thread beside the event loop's; never later than before."""
    usual = sys.getswitchinterval()
    with tuned_interpreter("granian"):
        soon = sys.getswitchinterval()
    with tuned_interpreter("asyncio"):
        default = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        with tuned_interpreter("asyncio"):
            assert sys.getswitchinterval() < 0.0002
    finally:
        sys.setswitchinterval(usual)
    assert soon < default == pytest.approx(usual)


def test_freed_memory_is_given_back_while_a_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library keeps freed blocks between others that are in use; bodies leave many."""
    monkeypatch.setattr(server, "_TRIM_SECONDS", 0.05)
    bodies = [bytes(60_000) for _ in range(1000)]
    kept = bodies[::10]
    del bodies
    before = resident_bytes()
    end = time.monotonic() + PATIENCE
    with tuned_interpreter():
        while (freed := before - resident_bytes()) < 30_000_000 and time.monotonic() < end:
            time.sleep(0.02)
    assert freed >= 30_000_000, f"{len(kept)} of 1,000 bodies are still in use"


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
