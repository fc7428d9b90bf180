"""Calls whose connection is closed before the bill has come: the app is let go at once; where the
provider goes on and bills, the answer is read on to its usage, elsewhere the connection is cut.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

import pytest
from support.daemon import TestedDaemon
from support.ended_calls import (
    BILL,
    DIALECTS,
    HALF,
    MOST_TOKENS,
    WIRES,
    call_of,
    daemon_with_apps,
    entries,
    open_holds,
    open_stream,
    outcomes,
    raw_request,
    send_and_leave,
    upper_input,
    wait_read_on,
)
from support.held_provider import HeldProvider, held_provider
from support.waiting import wait_until


@pytest.fixture(scope="module")
def provider() -> Iterator[HeldProvider]:
    with held_provider() as running:
        yield running


@pytest.fixture(autouse=True)
def held(provider: HeldProvider) -> Iterator[None]:
    """Each test begins with a provider that holds its answers back, and leaves no answer open."""
    provider.reset()
    yield
    provider.go_on()
    wait_until(lambda: not provider.open, "an answer is still open")


@pytest.fixture(scope="module")
def daemon(
    provider: HeldProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedDaemon]:
    with daemon_with_apps(tmp_path_factory.mktemp("ended"), provider) as running:
        yield running


_numbers = itertools.count()


@pytest.fixture
def app() -> str:
    """An app that has made no call."""
    return f"app{next(_numbers)}"


@pytest.mark.parametrize("wire", WIRES)
def test_stream_is_read_on_to_its_bill(
    wire: str, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """The hold stays open until the usage has come; the app has only what it saw."""
    with open_stream(daemon, app, f"{wire}-read_on", wire):
        pass
    wait_read_on(daemon, app)
    assert open_holds(daemon, app) == 1
    assert provider.is_answering
    provider.go_on()
    assert provider.wait_ended() == "whole"
    assert entries(daemon, app) == [("billed", BILL, entries(daemon, app)[0][2], 1000, 200)]
    assert outcomes(daemon, app) == [("CancelledError", BILL)]
    wait_read_on(daemon, app, 0)
    assert len(provider.bodies) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_stream_is_cut_where_billing_stops(
    wire: str, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """Charged: the input as reported, else the most that it can be; a fifth and 64 tokens more than
    arrived."""
    with open_stream(daemon, app, f"{wire}-cancel", wire):
        pass
    assert provider.wait_ended() == "cut"
    [settled] = entries(daemon, app)
    kind, billed, bound, input, output = settled
    assert kind == "estimated"
    assert upper_input(settled) == (wire != "anthropic")
    assert math.ceil(HALF / 8 * 1.2) + 64 <= output <= MOST_TOKENS
    if wire != "gemini":  # of which models think, unseen
        assert output <= math.ceil(HALF / 2 * 1.2) + 64
    assert input * 1_000 + output * 10_000 <= billed <= bound
    assert outcomes(daemon, app) == [("CancelledError", billed)]


def test_unseen_thinking_is_charged_by_the_time(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """A model that reasons out of sight: 300 tokens a second since the request was sent."""
    with open_stream(daemon, app, "openai_chat-row", "openai_chat", "gpt-5.2"):
        time.sleep(0.5)
    assert provider.wait_ended() == "cut"
    kind, billed, bound, _, output = entries(daemon, app)[0]
    assert kind == "estimated"
    assert math.ceil(HALF / 8 * 1.2) + 64 + 150 <= output <= MOST_TOKENS
    assert billed <= bound


@pytest.mark.parametrize(
    ("at", "wire", "ended"),
    [
        ("anthropic-row", "anthropic", "cut"),
        ("openai_chat-row", "openai_chat", "cut"),
        ("openai_responses-row", "openai_responses", "cut"),
        ("gemini-row", "gemini", "whole"),
        *(
            (name, "openai_chat", "cut" if how == "stops" else "whole")
            for name, how in DIALECTS.items()
        ),
    ],
)
@pytest.mark.long
def test_catalog_says_who_stops(
    at: str, wire: str, ended: str, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    model = "" if at.endswith("-row") else "m"
    with open_stream(daemon, app, at, wire, model):
        pass
    if ended == "whole":
        wait_read_on(daemon, app)
        provider.go_on()
    assert provider.wait_ended() == ended
    assert entries(daemon, app)[0][0] == ("billed" if ended == "whole" else "estimated")


@pytest.mark.parametrize("at", ["openai_chat-row", "openai_chat-read_on"])
def test_call_without_stream_is_always_read_on(
    at: str, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """It is billed whole everywhere, also by providers that stop a stream."""
    send_and_leave(daemon, app, at, provider)
    wait_read_on(daemon, app)
    provider.go_on()
    assert provider.wait_ended() == "whole"
    assert entries(daemon, app)[0][:2] == ("billed", BILL)
    assert outcomes(daemon, app) == [("CancelledError", BILL)]


def test_call_without_stream_that_is_cut_costs_all_that_it_can(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    send_and_leave(daemon, app, "openai_chat-cancel", provider)
    assert provider.wait_ended() == "cut"
    kind, billed, bound, _, output = entries(daemon, app)[0]
    assert (kind, billed, output) == ("estimated", bound, MOST_TOKENS)


def test_call_that_waits_in_the_queue_is_free(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """Nothing was sent, and nothing is sent when its turn comes."""
    path, body = call_of("openai_chat", stream=False)
    with raw_request(daemon, app, path, body, "single"):
        provider.wait_asked()
        with raw_request(daemon, app, path, body, "single"):
            wait_until(lambda: daemon.daemon.services.slots.count == 2, "the call does not wait")
            time.sleep(0.3)  # until the daemon looks whether the client is there
        wait_until(lambda: daemon.daemon.services.slots.count == 1, "the call still waits")
        provider.go_on()
        assert provider.wait_ended() == "whole"
    assert entries(daemon, app)[0][0] == "billed"
    assert len(provider.bodies) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_no_further_attempt_is_made_without_the_app(
    stream: bool, daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """The provider fails after the app has gone: no retry."""
    body = b'{"error":{"message":"busy","type":"server_error"}}'
    head = b"HTTP/1.1 503 x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    provider.late_error = b"data: nothing\n\n" if stream else head + body
    if stream:
        with open_stream(daemon, app, "openai_chat-read_on", "openai_chat"):
            pass
    else:
        send_and_leave(daemon, app, "openai_chat-read_on", provider)
    wait_read_on(daemon, app)
    provider.go_on()
    assert provider.wait_ended() == "whole"
    kind, billed, bound, _, _ = entries(daemon, app)[0]
    assert (kind, billed) == (("estimated", bound) if stream else ("free", 0))
    assert outcomes(daemon, app) == [("CancelledError", billed)]
    assert len(provider.bodies) == 1


@pytest.mark.long
def test_read_on_ends_with_the_total_time(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """What is not answered by then is charged at its limit."""
    with open_stream(daemon, app, "short", "openai_chat"):
        pass
    assert provider.wait_ended() == "cut"
    kind, billed, bound, _, output = entries(daemon, app)[0]
    assert (kind, billed, output) == ("estimated", bound, MOST_TOKENS)


def test_reported_input_is_charged_with_the_output_limit(
    daemon: TestedDaemon, provider: HeldProvider, app: str
) -> None:
    """The connection breaks while it is read on; Anthropic has reported the input."""
    provider.late_error = b": nothing more\n\n"
    with open_stream(daemon, app, "anthropic-read_on", "anthropic"):
        pass
    wait_read_on(daemon, app)
    provider.go_on()
    kind, billed, _, input, output = entries(daemon, app)[0]
    assert (kind, input, output) == ("estimated", 1000, MOST_TOKENS)
    assert billed == 1000 * 1_000 + MOST_TOKENS * 10_000
