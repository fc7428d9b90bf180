"""`ColdCheck`: cold requests of a program are stopped before they are sent, with real SDKs, on the
emulator and a clock that the test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest
from support.emulated_client import AT_ONCE
from support.sdk_programs import AWS, GUIDE, PROGRAMS, Claude, History, status_of

from anaphora import emulator
from anaphora.cache.cold import PASS_SECONDS
from anaphora.emulator import EmulatorOptions
from anaphora.emulator.server import Emulator
from anaphora.proxy.cold_guard import ColdCalls, ColdCheck, ColdRequest
from anaphora.proxy.routes import NetworkUpstream, default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.proxy.signing import RequestSigner
from anaphora.traffic.calls import RelayedCall, UpstreamRequest
from anaphora.traffic.judging import Judge

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

CENT = Decimal("0.002")
OPTIONS = EmulatorOptions(latency=AT_ONCE)


class Clock:
    def __init__(self) -> None:
        self.ahead, self._real = 0.0, time.time

    def __call__(self) -> float:
        return self._real() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr("time.time", moved)
    return moved


@pytest.fixture(scope="module")
def _emulator() -> Iterator[Emulator]:
    with emulator.running(OPTIONS) as emu:
        yield emu


@pytest.fixture
def emu(_emulator: Emulator) -> Emulator:
    _emulator.reset()
    return _emulator


class Attempts:
    """Counts the requests of the program."""

    def __init__(self) -> None:
        self.calls: list[RelayedCall] = []

    def call_ended(self, call: RelayedCall) -> None:
        self.calls.append(call)


class Guarded:
    """A proxy with the guard."""

    def __init__(self, proxy: Proxy, attempts: Attempts, judge: Judge, warnings: list[str]) -> None:
        self.proxy, self._attempts, self.judge, self.warnings = proxy, attempts, judge, warnings
        self.seen: list[RelayedCall] = []

    def outcomes(self) -> list[str]:
        """Of the calls since the last time."""
        assert self.proxy.settle(10.0)
        self.seen, self._attempts.calls = self._attempts.calls, []
        return [call.outcome for call in self.seen]


@contextmanager
def guarded(
    emu: Emulator, mode: Any = "refuse", above: Decimal = CENT, **options: Any
) -> Iterator[Guarded]:
    judge, attempts, warnings = Judge(), Attempts(), list[str]()
    check = ColdCheck(judge, mode, above_usd=above, report=warnings.append, **options)
    urls = {"anthropic": emu.url, "openai": f"{emu.url}/v1", "google": emu.url, "bedrock": emu.url}
    network = NetworkUpstream(signer=RequestSigner(AWS))
    with running(
        default_routes(urls, region="us-east-1"),
        observers=[judge, check, attempts],
        upstream=network,
    ) as proxy:
        yield Guarded(proxy, attempts, judge, warnings)


every = pytest.mark.parametrize("name", PROGRAMS)
either = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
LONG_AGO = 30 * 86_400.0


@every
@either
@pytest.mark.long
def test_cold_call_gets_one_refusal_and_passes_again(
    emu: Emulator, clock: Clock, name: str, stream: bool
) -> None:
    with guarded(emu) as run:
        program = PROGRAMS[name](run.proxy, {})
        history: History = [("user", "Rome? ")]
        with pytest.raises(program.Refused, match="no earlier call is known") as refused:
            program.ask(history, stream=stream)
        assert status_of(refused.value) == 402
        assert run.outcomes() == ["refused"], "the SDK does not try again"
        history.append(("assistant", program.ask(history, stream=stream)))
        history.append(("user", "And Oslo?"))
        clock.ahead += 30
        history.append(("assistant", program.ask(history, stream=stream)))
        assert run.outcomes() == ["complete", "complete"], "warm"

        clock.ahead += LONG_AGO
        history.append(("user", "And Bern?"))
        with pytest.raises(program.Refused, match=r"has expired: the last call was 720\.0 h ago"):
            program.ask(history, stream=stream)
        assert run.outcomes() == ["refused"]
        clock.ahead += PASS_SECONDS - 60
        # A person writes more: it is the same turn.
        history[-1] = ("user", "And Bern? Please go on.")
        program.ask(history, stream=stream)
        history[-1] = ("user", "And Bern?")
        program.ask(history, stream=stream)
        assert run.outcomes() == ["complete", "complete"]

        clock.ahead += LONG_AGO
        with pytest.raises(program.Refused):
            program.ask(history, stream=stream)
        clock.ahead += PASS_SECONDS + 60
        with pytest.raises(program.Refused):  # too late
            program.ask(history, stream=stream)
        assert run.outcomes() == ["refused", "refused"]


@every
def test_header_lets_cold_calls_pass_and_stays_here(emu: Emulator, clock: Clock, name: str) -> None:
    with guarded(emu) as run:
        program = PROGRAMS[name](run.proxy, {"anaphora-cold": "allow"})
        program.ask([("user", "Rome?")])
        clock.ahead += LONG_AGO
        program.ask([("user", "Rome?"), ("assistant", "Yes."), ("user", "Oslo?")])
        assert run.outcomes() == ["complete", "complete"]
        assert not any("anaphora-cold" in dict(call.request_headers) for call in run.seen)


@every
def test_calls_below_the_limit_pass(emu: Emulator, clock: Clock, name: str) -> None:
    with guarded(emu, above=Decimal(1)) as run:
        program = PROGRAMS[name](run.proxy, {})
        program.ask([("user", "Rome?")])
        clock.ahead += LONG_AGO
        program.ask([("user", "Rome?")])
        assert run.outcomes() == ["complete", "complete"]
        assert not run.warnings


# ── Asking and warning ───────────────────────────────────────────────────────────────────────────


def test_a_person_is_asked_one_question_at_a_time(emu: Emulator, clock: Clock) -> None:
    asked, at_once, most = list[str](), list[int](), 0

    def ask(text: str, ended: threading.Event) -> bool | None:
        at_once.append(1)
        nonlocal most
        most = max(most, len(at_once))
        asked.append(text)
        ended.wait(0.2)
        at_once.pop()
        return len(asked) > 1

    with guarded(emu, "ask", ask=ask) as run:
        program = Claude(run.proxy, {})
        with pytest.raises(anthropic.APIStatusError, match="the answer was no"):
            program.ask([("user", "Rome?")])
        run_at_once(lambda: program.ask([("user", "Rome?")]), 3)
        assert run.outcomes() == ["refused", *["complete"] * 3]
    assert most == 1
    assert len(asked) == 2, "the answer holds for the same request"
    assert asked[0].startswith("claude-sonnet-5-5: the ")
    assert "Instead, compact the conversation, start a new one, or use a smaller model" in asked[0]


def test_without_an_answer_the_next_one_passes(emu: Emulator, clock: Clock) -> None:
    with guarded(emu, "ask", ask=lambda _text, _ended: None) as run:
        program = Claude(run.proxy, {})
        with pytest.raises(anthropic.APIStatusError, match="Send it again within 10 minutes"):
            program.ask([("user", "Rome?")])
        assert program.ask([("user", "Rome?")])


def test_requests_beside_a_refused_one_do_not_pass(
    emu: Emulator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sent before the refusal. All are refused; later ones pass."""
    find, found, all_here = ColdCalls.find, list[UpstreamRequest](), threading.Event()

    def finding(calls: ColdCalls, request: UpstreamRequest) -> ColdRequest | None:
        found.append(request)
        if len(found) == 4:
            all_here.set()
        return find(calls, request)

    def ask(_text: str, _ended: threading.Event) -> bool | None:
        assert all_here.wait(60)
        return None

    monkeypatch.setattr(ColdCalls, "find", finding)
    with guarded(emu, "ask", ask=ask) as run:
        program, statuses = Claude(run.proxy, {}), list[int]()

        def send() -> None:
            try:
                program.ask([("user", "Rome?")])
            except anthropic.APIStatusError as refused:
                statuses.append(refused.status_code)

        run_at_once(send, 4)
        assert statuses == [402] * 4
        assert program.ask([("user", "Rome?")])
        assert run.outcomes() == [*["refused"] * 4, "complete"]


def run_at_once(act: Any, count: int) -> None:
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_question_ends_when_the_program_stops_waiting(emu: Emulator, clock: Clock) -> None:
    ended = threading.Event()

    def ask(text: str, over: threading.Event) -> bool | None:
        if over.wait(60):
            ended.set()
        return None

    with guarded(emu, "ask", ask=ask) as run:
        url = run.proxy.url_of("anthropic")
        client = anthropic.Anthropic(base_url=url, api_key="any", timeout=0.5, max_retries=0)
        with pytest.raises(anthropic.APITimeoutError):
            client.messages.create(
                model="claude-sonnet-5-5",
                max_tokens=9,
                system=GUIDE,
                messages=[{"role": "user", "content": "Rome?"}],
            )
        assert ended.wait(30)
        assert run.outcomes() == ["cancelled"]


def test_warning_is_reported_and_the_call_is_sent(emu: Emulator, clock: Clock) -> None:
    with guarded(emu, "warn") as run:
        program = Claude(run.proxy, {})
        program.ask([("user", "Rome?")])
        program.ask([("user", "Rome?")])
        assert run.outcomes() == ["complete", "complete"]
        (warning,) = run.warnings
    assert warning.startswith("claude-sonnet-5-5: the ")
    assert "more than from the cache" in warning


# ── What counts as sent ──────────────────────────────────────────────────────────────────────────


def test_failed_call_has_cached_nothing(emu: Emulator, clock: Clock) -> None:
    with guarded(emu) as run:
        failing = Claude(run.proxy, {"anaphora-cold": "allow", "x-emulator-fault": "overloaded"})
        failing._client = failing._client.with_options(max_retries=0)
        with pytest.raises(anthropic.APIStatusError):
            failing.ask([("user", "Rome?")])
        assert run.outcomes() == ["complete"]
        with pytest.raises(anthropic.APIStatusError, match="no earlier call is known"):
            Claude(run.proxy, {}).ask([("user", "Rome?")])


def test_branch_that_another_call_keeps_alive_is_warm(emu: Emulator, clock: Clock) -> None:
    with guarded(emu) as run:
        program = Claude(run.proxy, {"anaphora-cold": "allow"})
        begun: History = [("user", "Rome? " * 400)]
        begun.append(("assistant", program.ask(begun)))
        for question in ("Oslo?", "Bern?", "Lyon?"):
            clock.ahead += 200
            Claude(run.proxy, {}).ask([*begun, ("user", question)])
        assert run.outcomes() == ["complete"] * 4
        clock.ahead += 400
        with pytest.raises(anthropic.APIStatusError, match="has expired"):
            Claude(run.proxy, {}).ask([*begun, ("user", "Nice?")])


def test_requests_that_cannot_be_read_pass(emu: Emulator) -> None:
    with guarded(emu) as run:
        client = openai.OpenAI(base_url=run.proxy.url_of("openai"), api_key="any")
        messages: Any = "Rome? " * 100_000
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="gpt-5.2", messages=messages)
        assert run.outcomes() == ["complete"]


def test_accounts_are_separate(emu: Emulator) -> None:
    with guarded(emu) as run:
        for key in ("one", "two"):
            program = Claude(run.proxy, {"x-api-key": key})
            with pytest.raises(anthropic.APIStatusError):
                program.ask([("user", "Rome?")])
