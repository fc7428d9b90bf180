"""Each fault of the emulator, each wire, in one piece and as a stream: what the caller gets, how often
it was sent, and that the conversation goes on afterwards as if nothing had been.

Faults in `DELIVERED` break a stream after its first text: such a call is never sent again.
"""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from support.emulated_client import MODELS, WIRES, Connected, connected
from support.raw_server import RawServer, raw_server, reset
from support.waiting import until

from anaphora import errors
from anaphora import wire as wires
from anaphora.client.session import Session
from anaphora.emulator.fault_effects import KINDS
from anaphora.emulator.replies.text import stream_events
from anaphora.emulator.server import Emulator
from anaphora.values import (
    Event,
    Message,
    Reply,
    ReplyEnd,
    ReplyStart,
    TextDelta,
    Usage,
    UsageUpdate,
)

pytestmark = pytest.mark.usefixtures("more_faults")

MINUTE = 60.0
#: Two attempts with small waits.
BRISK: dict[str, Any] = {
    "retry": {"max_attempts": 2, "first_wait": 0.001},
    "timeouts": {"first_byte": 10.0, "idle": 10.0, "total": 20.0},
    "breaker": {"failures": 100},
}
#: No patience with what hangs.
HASTY: dict[str, Any] = BRISK | {"timeouts": {"first_byte": 0.1, "total": 20.0}}


class Seen(msgspec.Struct, frozen=True):
    """The caller's error for a fault, and the number of attempts."""

    error: type[errors.AnaphoraError] | None = None
    attempts: int = 1
    status: int | None = 200
    phase: str | None = None


FINE = Seen()
LIMITED = Seen(errors.RateLimited, 2, 429)
LATE = Seen(errors.Transport, 2, None, "first_byte")
TORN = Seen(errors.Transport, 2, 200, "body")
TORN_HEARD = Seen(errors.Transport, 1, 200, "body")
FAILED = Seen(errors.Overloaded, 2, 500)
UNREADABLE = Seen(errors.Parse, 1, 200)

#: A wait that is longer than the call may take is not begun.
TOO_LONG = "rate-limit-date; seconds=100"

#: Fault -> an answer in one piece, a stream. The same on every wire.
FAULTS: dict[str, tuple[Seen, Seen]] = {
    "rate-limit; seconds=0.01": (LIMITED, LIMITED),
    "rate-limit-seconds; seconds=0.01": (LIMITED, LIMITED),
    "rate-limit-ms; seconds=0.01": (LIMITED, LIMITED),
    TOO_LONG: (Seen(errors.RateLimited, 1, 429),) * 2,
    "rate-limit-bare": (LIMITED, LIMITED),
    "spend-cap": (Seen(errors.QuotaExhausted, 1, 429),) * 2,
    "500": (FAILED, FAILED),
    "529": (Seen(errors.Overloaded, 2, 529),) * 2,
    "ok-error": (Seen(errors.Overloaded, 2, 200),) * 2,
    "timeout": (LATE, LATE),
    "slow-first-byte; seconds=3": (LATE, LATE),
    "slow-first-byte; seconds=0.01": (FINE, FINE),
    "slow-drip; seconds=0.001": (FINE, FINE),
    "reset": (TORN, TORN),
    "reset; after=4": (TORN, TORN_HEARD),
    "cut": (TORN, TORN_HEARD),
    "cut; after=0": (TORN, TORN),
    "stream-error": (FAILED, Seen(errors.Overloaded, 1, 200)),
    "stream-error; after=0": (FAILED, Seen(errors.Overloaded, 2, 200)),
    "context-overflow": (Seen(errors.ContextOverflow, 1, 400),) * 2,
    "context-overflow; after=4": (
        Seen(errors.ContextOverflow, 1, 400),
        Seen(errors.ContextOverflow, 1, 200),
    ),
    "broken-json": (UNREADABLE, UNREADABLE),
    "broken-utf8": (UNREADABLE, UNREADABLE),
    "wrong-content-type": (FINE, FINE),
    "wrong-form": (FINE, FINE),
    "duplicate-events": (FINE, FINE),
    "unknown-events": (FINE, FINE),
}
#: Faults that break a stream after the caller got an event.
DELIVERED = {
    "reset; after=4",
    "cut",
    "stream-error",
    "context-overflow; after=4",
    "broken-json",
    "broken-utf8",
}
#: Wires that say when an answer is complete.
ENDING = ("anthropic", "openai_chat", "openai_responses", "ollama")
#: Wires whose last event may be missing, and that event: a stop reason comes before it.
LAST_EVENTS = {
    "anthropic": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "openai_chat": b"data: [DONE]\n\n",
    "gemini": b"",
}
#: Text that comes twice is text, unless the wire numbers its events or tells all of it at the end.
TWICE = {"anthropic", "openai_chat", "gemini", "ollama"}


def test_every_fault_is_covered() -> None:
    assert {fault.partition(";")[0] for fault in FAULTS} == set(KINDS)  # with `more_faults`


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_the_collector() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unclosed resource fails the module
        gc.collect()


async def ask(chat: Session, text: str, *, stream: bool, **options: Any) -> list[Event]:
    """One turn, and its events."""
    if not stream:
        await chat.send(text, **options)
        return []
    async with chat.send(text, **options) as turn:
        return [event async for event in turn]


async def failing(
    chat: Session, text: str, *, stream: bool, **options: Any
) -> tuple[errors.AnaphoraError | None, list[Event]]:
    events: list[Event] = []
    try:
        if stream:
            async for event in chat.send(text, **options):
                events.append(event)  # noqa: PERF401 - events before a failure count
        else:
            await chat.send(text, **options)
    except errors.AnaphoraError as problem:
        return problem, events
    return None, events


@pytest.fixture(scope="module")
def plain(running_emulator: Emulator) -> dict[str, str]:
    """The text of each wire's answer without a fault."""

    async def main() -> dict[str, str]:
        async with connected(running_emulator, WIRES, **BRISK) as emulated:
            sessions = {wire: emulated.client.session(wire) for wire in WIRES}
            return {wire: (await chat.send("Hello there")).text for wire, chat in sessions.items()}

    return asyncio.run(main())


def of_fault(fault: str) -> Iterator[Any]:
    """The wires of a fault; what is late takes long, and is the same on each of them."""
    for wire in WIRES:
        late = FAULTS[fault][0] is LATE and wire not in ("anthropic", "openai_chat")
        yield pytest.param(fault, wire, marks=[pytest.mark.soak] if late else [])


@pytest.mark.parametrize("fault, wire", [case for fault in FAULTS for case in of_fault(fault)])
@pytest.mark.long
def test_fault(emu: Emulator, plain: dict[str, str], fault: str, wire: str) -> None:
    late = FAULTS[fault][0] is LATE

    async def main(stream: bool) -> None:
        async with connected(emu, [wire], **(HASTY if late else BRISK)) as emulated:
            chat = emulated.client.session(wire)
            emulated.transport.faults = [fault]
            problem, events = await failing(chat, "Hello there", stream=stream)
            seen = FAULTS[fault][stream]
            check(emu, emulated, chat, seen, problem)
            if problem is None:
                assert chat.last is not None
                twice = fault == "duplicate-events" and stream and wire in TWICE
                assert (chat.last.text == plain[wire]) is not twice
            elif stream:
                assert bool(events) is (fault in DELIVERED)
                check_partial(problem, events)
            if fault == TOO_LONG:
                with pytest.raises(errors.Throttled):  # no request is sent before that time
                    await ask(chat, "And now?", stream=stream)
                assert len(emu.requests()) == 1
            elif not late:  # on a busy machine the next answer could be late as well
                await check_next_turn(emulated, chat, stream)

    asyncio.run(main(stream=False))
    emu.reset()
    asyncio.run(main(stream=True))


def check(
    emu: Emulator,
    emulated: Connected,
    chat: Session,
    seen: Seen,
    problem: errors.AnaphoraError | None,
) -> None:
    """The error, the attempts, the one record, and the number of requests."""
    (record,) = emulated.records
    assert type(problem) is (seen.error or type(None))
    assert record.error == (seen.error and seen.error.__name__)
    tries = record.attempts
    assert len(tries) == len(emulated.transport.sent) == seen.attempts
    if seen is not LATE:  # a busy emulator may read such a request after the client gave it up
        assert len(emu.requests()) == seen.attempts
    assert {attempt.status for attempt in tries} == {seen.status}
    assert {attempt.error for attempt in tries} == {record.error}
    assert all(attempt.wait is not None for attempt in tries[:-1])
    assert tries[-1].wait is None
    if problem is None:
        assert len(chat.messages) == 2
        return
    assert problem.attempts == tries
    assert getattr(problem, "phase", None) == seen.phase
    assert chat.messages == ()
    assert chat.last is None


def check_partial(problem: errors.AnaphoraError, events: list[Event]) -> None:
    """The error holds the delivered events, and the start was delivered once."""
    assert sum(isinstance(event, ReplyStart) for event in events) == bool(events)
    assert not any(isinstance(event, ReplyEnd) for event in events)
    if events:
        joined = "".join(event.delta for event in events if isinstance(event, TextDelta))
        assert problem.partial.text == joined


async def check_next_turn(emulated: Connected, chat: Session, stream: bool) -> None:
    """After a failure the conversation is as it was, and the next turn is answered at once."""
    before, sent = len(chat.messages), len(emulated.transport.sent)
    emulated.transport.faults = []
    problem, _ = await failing(chat, "And now?", stream=stream)
    assert problem is None
    assert len(chat.messages) == before + 2
    assert len(emulated.transport.sent) == sent + 1
    assert emulated.transport.in_use == 0


# ── Sending again ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["rate-limit-ms; seconds=0.02", "529", "reset", "cut; after=0"])
def test_second_attempt_succeeds(emu: Emulator, fault: str, wire: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire)
            emulated.transport.faults = [fault, None]
            events = await ask(chat, "Hello", stream=stream)
            assert chat.last is not None
            first, second = chat.last.attempts
            assert first.error is not None
            assert second.error is None
            assert first.wait is not None
            assert second.at >= first.at + first.seconds + first.wait - 0.002
            assert len(emu.requests()) == 2
            assert emulated.transport.bodies[0] == emulated.transport.bodies[1]
            if stream:
                assert sum(isinstance(event, ReplyStart) for event in events) == 1
                assert isinstance(events[-1], ReplyEnd)

    asyncio.run(main())


@pytest.mark.parametrize(
    "fault, wait", [("rate-limit", 0.05), ("rate-limit-seconds", 0.05), ("rate-limit-ms", 0.05)]
)
@pytest.mark.parametrize("wire", WIRES)
def test_wait_is_the_retry_after(emu: Emulator, wire: str, fault: str, wait: float) -> None:
    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            emulated.transport.faults = [f"{fault}; seconds={wait}", None]
            answered = await emulated.client.complete("Hello", wire)
            first, second = answered.attempts
            assert first.wait == pytest.approx(wait)
            assert second.at - first.at >= wait

    asyncio.run(main())


def test_retry_after_date_is_used(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["openai_chat"], **BRISK) as emulated:
            emulated.transport.faults = ["rate-limit-date; seconds=0.1", None]
            answered = await emulated.client.complete("Hello", "openai_chat")
            first, second = answered.attempts
            # Dates have whole seconds, and the emulator rounds them up.
            assert first.wait is not None
            assert 0 < first.wait <= 1.2
            assert second.at >= first.at + first.wait

    asyncio.run(main())


def test_max_attempts_counts_all_attempts(emu: Emulator) -> None:
    async def main() -> None:
        for most in (1, 2, 4):
            emu.reset()
            retry = {"max_attempts": most, "first_wait": 0.001}
            async with connected(emu, ["anthropic"], **(BRISK | {"retry": retry})) as emulated:
                emulated.transport.faults = ["529"]
                with pytest.raises(errors.Overloaded) as caught:
                    await emulated.client.complete("Hello", "anthropic")
                assert len(caught.value.attempts) == len(emu.requests()) == most

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_events_without_content_of_a_failed_attempt_are_dropped(emu: Emulator, wire: str) -> None:
    """A stream that breaks before any content has only sent its id and usage."""

    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire)
            emulated.transport.faults = ["cut; after=1", None]
            problem, events = await failing(chat, "Hello", stream=True)
            starts = [event for event in events if isinstance(event, ReplyStart)]
            assert len(starts) == 1
            if problem is None:  # the first event of Gemini has content
                assert chat.last is not None
                assert len(chat.last.attempts) == 2
                assert starts[0].id == chat.last.reply.id

    asyncio.run(main())


# ── Budgets ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_timeout_before_the_response(emu: Emulator, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK) as emulated:
            chat = emulated.client.session("anthropic")
            emulated.transport.faults = ["timeout"]
            problem, _ = await failing(chat, "Hello", stream=stream, timeout=0.5)
            assert isinstance(problem, errors.Timeout)
            assert problem.timeout_ms == 500
            assert [attempt.error for attempt in problem.attempts] == ["Timeout"]
            await check_next_turn(emulated, chat, stream)

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_timeout_in_the_middle_of_a_stream(emu: Emulator, wire: str) -> None:
    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire)
            await chat.send("Warm")
            before = chat.messages
            emulated.transport.faults = ["slow-drip; seconds=0.1"]
            problem, events = await failing(chat, "Hello", stream=True, timeout=0.25)
            # (On a busy machine the time may be up before the first event.)
            assert isinstance(problem, errors.Timeout)
            assert len(problem.attempts) == 1
            check_partial(problem, events)
            assert chat.messages == before
            await check_next_turn(emulated, chat, stream=True)

    asyncio.run(main())


@pytest.mark.long
def test_caller_is_not_interrupted_between_two_events(emu: Emulator) -> None:
    """Only waiting for the provider is on the budget: this one is over when the answer is there."""

    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK) as emulated:
            chat = emulated.client.session("anthropic")
            count = 0
            async for _ in chat.send("Hello", timeout=3.0):
                if not count:
                    await asyncio.sleep(3.1)
                count += 1
            assert chat.last is not None
            assert count > 3

    asyncio.run(main())


def test_all_attempts_share_one_timeout(emu: Emulator) -> None:
    async def main() -> None:
        settings: dict[str, Any] = HASTY | {"retry": {"max_attempts": 50, "first_wait": 0.001}}
        async with connected(emu, ["anthropic"], **settings) as emulated:
            emulated.transport.faults = ["timeout"]  # at least a tenth of a second each
            with pytest.raises((errors.Timeout, errors.Transport)) as caught:
                await emulated.client.complete("Hello", "anthropic", timeout=1.5)
            assert 2 <= len(caught.value.attempts) <= 15
            assert len(emulated.transport.sent) == len(caught.value.attempts)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
@pytest.mark.long
def test_timeout_in_the_queue(emu: Emulator, stream: bool) -> None:
    """Waiting for our own limits is a different error from a slow provider, and nothing is sent."""

    async def main() -> None:
        waits: list[float] = []
        limited: dict[str, Any] = BRISK | {"limits": {"concurrency": 1}}
        async with connected(emu, ["anthropic"], on_wait=waits.append, **limited) as emulated:
            emulated.transport.faults = ["timeout", None]
            first = asyncio.create_task(emulated.client.complete("First", "anthropic"))
            await until(lambda: emulated.transport.sent)
            chat = emulated.client.session("anthropic")
            problem, _ = await failing(chat, "Second", stream=stream, timeout=1.0)
            assert isinstance(problem, errors.Throttled)
            assert [attempt.error for attempt in problem.attempts] == ["Throttled"]
            assert waits == [0.0]
            assert len(emulated.transport.sent) == 1
            await cancel(first)
            await check_next_turn(emulated, chat, stream)

    asyncio.run(main())


# ── Cancelled calls ──────────────────────────────────────────────────────────────────────────────


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled(chat: Session, *, stream: bool, when: Callable[[], object]) -> None:
    """A turn that is cancelled once the condition holds."""
    task = asyncio.create_task(ask(chat, "Hello", stream=stream))
    await until(when)
    await asyncio.sleep(0.02)  # as far as the call gets without another byte
    await cancel(task)


CANCELLED = {
    "timeout": ["CancelledError"],  # before the headers
    "slow-drip; seconds=0.05": ["CancelledError"],  # in the middle of the answer
    "rate-limit-ms; seconds=5": ["RateLimited"],  # while waiting to send again
}


@pytest.mark.parametrize(
    "fault, wire, stream",
    [
        pytest.param(
            fault, wire, stream, marks=[pytest.mark.soak] if (number + at) % 2 == stream else []
        )
        for number, fault in enumerate(CANCELLED)
        for at, wire in enumerate(WIRES)
        for stream in (False, True)
    ],
)
def test_cancelled_call(emu: Emulator, fault: str, wire: str, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire)
            emulated.transport.faults = [fault]
            transport = emulated.transport
            await cancelled(
                chat,
                stream=stream,
                when=lambda: (
                    transport.sent
                    if fault == "timeout"
                    else transport.received and ("drip" in fault or not transport.in_use)
                ),
            )
            (record,) = emulated.records
            assert record.error == "CancelledError"
            assert [attempt.error for attempt in record.attempts] == CANCELLED[fault]
            assert emulated.transport.in_use == 0
            assert chat.messages == ()
            if "rate" in fault:
                return  # the gate keeps the next call waiting just as long
            await check_next_turn(emulated, chat, stream)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_call_cancelled_in_the_queue(emu: Emulator, stream: bool) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK, limits={"concurrency": 1}) as emulated:
            emulated.transport.faults = ["timeout", None]
            first = asyncio.create_task(emulated.client.complete("First", "anthropic"))
            await until(lambda: emulated.transport.sent)
            chat = emulated.client.session("anthropic")
            await cancelled(chat, stream=stream, when=lambda: True)
            assert len(emulated.transport.sent) == 1
            await cancel(first)
            await check_next_turn(emulated, chat, stream)

    asyncio.run(main())


@pytest.mark.parametrize("wire", WIRES)
def test_abandoned_stream(emu: Emulator, wire: str) -> None:
    """`break` needs no ceremony: the next turn may follow at once."""

    async def main() -> None:
        async with connected(emu, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire)
            emulated.transport.faults = ["slow-drip; seconds=0.01"]
            async for event in chat.send("Hello"):
                if isinstance(event, TextDelta):
                    break
            await check_next_turn(emulated, chat, stream=False)
            left, answered = emulated.records
            assert left.error == "GeneratorExit"
            assert answered.error is None
            assert len(chat.messages) == 2

    asyncio.run(main())


def test_stream_left_at_its_last_event_is_complete(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK) as emulated:
            chat = emulated.client.session("anthropic")
            async for event in chat.send("Hello"):
                if isinstance(event, ReplyEnd):
                    break
            assert len(chat.messages) == 2
            await check_next_turn(emulated, chat, stream=True)
            assert [record.error for record in emulated.records] == [None, None]

    asyncio.run(main())


def test_concurrent_turns_are_rejected(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK) as emulated:
            chat = emulated.client.session("anthropic")
            emulated.transport.faults = ["slow-first-byte; seconds=0.1", None]
            first = asyncio.create_task(ask(chat, "Hello", stream=False))
            await until(lambda: emulated.transport.sent)
            with pytest.raises(errors.InvalidRequest, match="fork"):
                await chat.send("Me too")
            await first
            assert len(chat.messages) == 2
            await chat.send("Now")

    asyncio.run(main())


# ── A provider that fails, and another ───────────────────────────────────────────────────────────


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Puts the clock of the breakers forward."""
    ahead = 0.0

    def put_forward(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr("anaphora.client.attempts.monotonic", lambda: time.monotonic() + ahead)
    return put_forward


def test_breaker_opens_and_allows_a_probe(emu: Emulator, later: Callable[[float], None]) -> None:
    async def main() -> None:
        settings: dict[str, Any] = {
            "retry": {"max_attempts": 1},
            "breaker": {"failures": 2, "open_for": MINUTE, "within": 10 * MINUTE},
        }
        async with connected(emu, ["anthropic"], **settings) as emulated:
            chat = emulated.client.session("anthropic")
            emulated.transport.faults = ["529"]
            for _ in range(2):
                problem, _ = await failing(chat, "Hello", stream=False)
                assert isinstance(problem, errors.Overloaded)
            for stream in (False, True):
                problem, _ = await failing(chat, "Hello", stream=stream)
                assert isinstance(problem, errors.Unavailable)
                assert 0 < problem.wait <= MINUTE
                assert [attempt.error for attempt in problem.attempts] == ["Unavailable"]
            assert len(emulated.transport.sent) == 2
            later(MINUTE)
            problem, _ = await failing(chat, "Hello", stream=False)  # the probe, and it fails
            assert isinstance(problem, errors.Overloaded)
            problem, _ = await failing(chat, "Hello", stream=False)
            assert isinstance(problem, errors.Unavailable)
            later(MINUTE)
            emulated.transport.faults = ["slow-first-byte; seconds=1.5", None]
            probe = asyncio.create_task(ask(chat, "Hello", stream=False))
            await until(lambda: len(emulated.transport.sent) == 4)
            others = [emulated.client.session("anthropic") for _ in range(2)]
            for other in others:  # each is rejected and takes no slot
                problem, _ = await failing(other, "Hello", stream=False)
                assert isinstance(problem, errors.Unavailable)
            await probe
            await others[0].send("Hello")
            assert len(emulated.transport.sent) == 5

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_cancelled_probe_releases_its_slot(
    emu: Emulator, stream: bool, later: Callable[[float], None]
) -> None:
    async def main() -> None:
        settings: dict[str, Any] = BRISK | {
            "retry": {"max_attempts": 1},
            "breaker": {"failures": 1, "open_for": MINUTE},
        }
        async with connected(emu, ["anthropic"], **settings) as emulated:
            chat = emulated.client.session("anthropic")
            emulated.transport.faults = ["529", "timeout", None]
            await failing(chat, "Hello", stream=False)
            later(MINUTE)
            await cancelled(chat, stream=stream, when=lambda: len(emulated.transport.sent) == 2)
            await check_next_turn(emulated, chat, stream)

    asyncio.run(main())


def test_invalid_request_is_no_provider_failure(
    emu: Emulator, later: Callable[[float], None]
) -> None:
    """An exception of the app's function is raised, and the probe's slot is free again."""

    async def main() -> None:
        settings: dict[str, Any] = {
            "retry": {"max_attempts": 1},
            "breaker": {"failures": 1, "open_for": MINUTE},
        }
        async with connected(emu, ["anthropic"], **settings) as emulated:
            chat = emulated.client.session("anthropic")
            emulated.transport.faults = ["529", None]
            await failing(chat, "Hello", stream=False)
            later(MINUTE)

            def broken() -> str:
                raise LookupError("no state")

            chat.state = broken
            for stream in (False, True):
                with pytest.raises(LookupError):
                    await ask(chat, "Hello", stream=stream)
            chat.state = None
            await check_next_turn(emulated, chat, stream=False)

    asyncio.run(main())


ROUTES = {
    "main": [{"provider": "anthropic"}, {"provider": "openai_responses"}, {"provider": "gemini"}]
}


@pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])
def test_fallback_renders_the_conversation_in_its_format(emu: Emulator, stream: bool) -> None:
    """It renders the messages again instead of the other provider's request."""
    names = ("anthropic", "openai_responses", "gemini")

    async def main() -> None:
        retry = {"max_attempts": 1}
        async with connected(emu, names, routes=ROUTES, **(BRISK | {"retry": retry})) as emulated:
            chat = emulated.client.session("main", system="Be terse. " * 900)
            await ask(chat, "One", stream=stream)
            assert chat.provider == "anthropic"
            cached = chat.last
            assert cached is not None
            emulated.transport.faults = ["529", "529", None]
            await ask(chat, "Two", stream=stream)
            assert chat.provider == "gemini"
            moved = chat.last
            assert moved is not None
            assert [attempt.provider for attempt in moved.attempts] == list(names)
            (notice,) = [notice for notice in moved.notices if notice.code == "moved"]
            assert notice.tokens == cached.usage.written_total
            assert "anthropic" in notice.message
            assert "gemini" in notice.message
            # The same request as a session that started on the last hop.
            alone = emulated.client.session(
                "gemini", system="Be terse. " * 900, messages=chat.messages[:2]
            )
            await ask(alone, "Two", stream=stream)
            assert emulated.transport.bodies[-2] == emulated.transport.bodies[-1]
            # It stays where it is now cached, without a moving notice.
            await ask(chat, "Three", stream=stream)
            assert chat.provider == "gemini"
            assert chat.last is not None
            assert chat.last.verdict is not None
            assert chat.last.verdict.result == "hit"
            assert not [notice for notice in chat.last.notices if notice.code == "moved"]

    asyncio.run(main())


def test_first_error_is_raised_when_every_hop_fails(emu: Emulator) -> None:
    async def main() -> None:
        names = ("anthropic", "openai_responses", "gemini")
        async with connected(emu, names, routes=ROUTES, **BRISK) as emulated:
            emulated.transport.faults = ["529", "529", "spend-cap", "reset", "reset"]
            chat = emulated.client.session("main")
            problem, _ = await failing(chat, "Hello", stream=False)
            assert isinstance(problem, errors.Overloaded)
            assert [(tried.provider, tried.error) for tried in problem.attempts] == [
                ("anthropic", "Overloaded"),
                ("anthropic", "Overloaded"),
                ("openai_responses", "QuotaExhausted"),
                ("gemini", "Transport"),
                ("gemini", "Transport"),
            ]
            await check_next_turn(emulated, chat, stream=True)

    asyncio.run(main())


def test_no_fallback_after_the_first_event(emu: Emulator) -> None:
    async def main() -> None:
        names = ("anthropic", "openai_responses", "gemini")
        async with connected(emu, names, routes=ROUTES, **BRISK) as emulated:
            emulated.transport.faults = ["cut", None]
            chat = emulated.client.session("main")
            problem, events = await failing(chat, "Hello", stream=True)
            assert isinstance(problem, errors.Transport)
            check_partial(problem, events)
            assert len(emulated.transport.sent) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "wire, then",
    [
        *((wire, "reset") for wire in ENDING),
        ("anthropic", "silence"),
        *(pytest.param(wire, "silence", marks=pytest.mark.soak) for wire in ENDING[1:]),
        *((wire, "reset before the last event") for wire in LAST_EVENTS),
        ("openai_chat", "timeout before the last event"),
    ],
)
def test_complete_reply_survives_a_broken_connection(wire: str, then: str) -> None:
    """The end of an answer comes before the end of its body, where the wire has a word for it; a
    stop reason is one."""
    reply = Reply(
        id="r1",
        model=MODELS[wire],
        message=Message.assistant("Complete reply."),
        stop_reason="end",
        usage=Usage(uncached=5, read=0, output=3),
    )
    writer = wires.get(wire).writer()
    body = b"".join(writer.write(event) for event in stream_events(reply, 0.0))
    if then.endswith("last event"):
        assert body.endswith(LAST_EVENTS[wire])
        body = body.removesuffix(LAST_EVENTS[wire])
    timeout = 1.0 if then.startswith("timeout") else 60.0
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def handler(
        server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.read(reader)
        writer.write(head + b"%x\r\n%b\r\n" % (len(body), body))
        await writer.drain()
        if then.startswith("reset"):
            await asyncio.sleep(0.02)  # a reset may overtake data in flight
            reset(writer)
        else:
            await reader.read()

    async def main() -> None:
        async with raw_server(handler) as server, connected(server, [wire], **BRISK) as emulated:
            chat = emulated.client.session(wire, timeout=timeout)
            events = await ask(chat, "Hello", stream=True)
            assert isinstance(events[-1], ReplyEnd)
            assert chat.last is not None
            assert chat.last.text == "Complete reply."
            assert [attempt.error for attempt in chat.last.attempts] == [None]
            assert [record.error for record in emulated.records] == [None]
            assert len(server.requests) == 1
            await server.closed()

    asyncio.run(main())


def test_usage_updates_come_in_order(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"], **BRISK) as emulated:
            events = await ask(emulated.client.session("anthropic"), "Hello", stream=True)
            kinds = [type(event) for event in events]
            assert kinds[0] is ReplyStart
            assert kinds[1] is UsageUpdate
            assert kinds[-1] is ReplyEnd

    asyncio.run(main())


def test_retries_of_a_call_share_an_idempotency_key(emu: Emulator) -> None:
    async def main() -> None:
        header, retry = "Idempotency-Key", {"first_wait": 0.001}
        async with connected(
            emu, ["anthropic"], idempotency_header=header, retry=retry
        ) as emulated:
            emulated.transport.faults = ["529", None]
            chat = emulated.client.session("anthropic")
            await chat.send("One?")
            emulated.transport.faults = []
            await chat.send("Two?")
            keys = [outgoing.headers[header] for outgoing in emulated.transport.sent]
            assert keys[0] == keys[1] != keys[2]
            assert not any(
                key.encode() in body for key in keys for body in emulated.transport.bodies
            )

    asyncio.run(main())
