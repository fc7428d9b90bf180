"""A failure after a response arrived does not lose it: the failure is a notice.

Every case is played through the client and a session, awaited and streamed, async and sync.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from support.emulated_client import RecordingTransport
from support.scripted_provider import scripted_provider

import anaphora
from anaphora import AsyncClient, Client, ToolRegistry, errors
from anaphora.client.config import BreakerConfig
from anaphora.client.failures import failure_notice
from anaphora.client.response import Record, Response
from anaphora.client.retry import CircuitBreaker
from anaphora.client.session import Session
from anaphora.client.session.run import RunResult
from anaphora.client.session.turns import SessionTurns
from anaphora.client.sync import SyncSession
from anaphora.emulator.server import Emulator
from anaphora.prompt import Params
from anaphora.values import Message, Reply, ReplyEnd

KEY = "sk-canary-4711"
#: In the exception that a hook raises, which may quote prompts; no notice and no log may have it.
QUOTED = "quoted-prompt-0815"


class Way(NamedTuple):
    through: str
    stream: bool
    sync: bool

    def __str__(self) -> str:
        parts = (
            self.through,
            "stream" if self.stream else "single",
            "sync" if self.sync else "async",
        )
        return "-".join(parts)


WAYS = [
    Way(through, stream, sync)
    for through in ("client", "session")
    for stream in (False, True)
    for sync in (False, True)
]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
in_a_session = pytest.mark.parametrize(
    "way", [way for way in WAYS if way.through == "session"], ids=str
)


class Played(NamedTuple):
    answers: list[Response]
    chat: Session | SyncSession | None
    records: list[Record]


def config(emu: Emulator, model: str, **provider: Any) -> dict[str, Any]:
    main = {"wire": "anthropic", "base_url": emu.url, "key": {"env": "KEY"}, "model": model}
    providers = {"main": main | provider, "spare": main | provider}
    return {"providers": providers, "routes": {"both": [{"provider": each} for each in providers]}}


def play(
    way: Way,
    emu: Emulator,
    *,
    texts: Iterable[Any] = ("Hello?",),
    model: str = "claude-sonnet-4-5",
    watchers: Iterable[Callable[[Record], None]] = (),
    save: Callable[[Message], None] | None = None,
    provider: dict[str, Any] | None = None,
    to: str = "main",
    **options: Any,
) -> Played:
    """Calls, and the last watcher's records of them."""
    records: list[Record] = []
    settings = config(emu, model, **(provider or {}))
    both: dict[str, Any] = {"environ": {"KEY": KEY}, "watchers": [*watchers, records.append]}
    answers: list[Response] = []

    def turn_of(client: Any, chat: Any, text: Any) -> Any:
        if chat is not None:
            return chat.send(text, **options)
        return client.send(text, to, **options)

    if way.sync:
        with Client.from_config(settings, **both) as client:
            chat = client.session(to, save=save) if way.through == "session" else None
            for text in texts:
                turn = turn_of(client, chat, text)
                if way.stream:
                    assert isinstance([*turn][-1], ReplyEnd)
                    answers.append(turn.response)
                else:
                    answers.append(turn.result())
        return Played(answers, chat, records)

    async def main() -> Session | None:
        async with AsyncClient.from_config(settings, **both) as client:
            chat = client.session(to, save=save) if way.through == "session" else None
            for text in texts:
                turn = turn_of(client, chat, text)
                if way.stream:
                    assert isinstance([event async for event in turn][-1], ReplyEnd)
                    assert turn.response is not None
                    answers.append(turn.response)
                else:
                    answers.append(await turn)
            return chat

    return Played(answers, asyncio.run(main()), records)


def codes(answered: Response) -> list[str]:
    return [notice.code for notice in answered.notices]


@contextmanager
def clean_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Log lines quote neither an exception's message nor a key."""
    caplog.clear()
    yield
    assert QUOTED not in caplog.text
    assert KEY not in caplog.text


def check_kept(played: Played, texts: int = 1) -> None:
    """The answers are whole, and where there is a conversation it went on with them."""
    assert len(played.answers) == texts
    assert all(answered.text for answered in played.answers)
    assert QUOTED not in repr([answered.notices for answered in played.answers])
    if played.chat is not None:
        assert played.chat.last is played.answers[-1]
        assert len(played.chat.messages) == 2 * texts
        assert played.chat.messages[-1].parts == played.answers[-1].reply.message.parts


# ── Hooks of the app ─────────────────────────────────────────────────────────────────────────────


@every_way
def test_failing_watcher_loses_nothing(
    emu: Emulator, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(record: Record) -> None:
        raise ValueError(f"{QUOTED} {KEY}")

    with clean_log(caplog):
        played = play(way, emu, texts=("One", "Two"), watchers=[breaks, breaks])
    check_kept(played, 2)
    for answered in played.answers:
        assert codes(answered) == ["observer_failed"] * 2
        message = answered.notices[0].message
        assert "ValueError" in message
        assert "test_after_response.py:" in message
        assert answered.cost_usd
    assert [record.error for record in played.records] == [None, None], "the others get the record"
    warned = [found for found in caplog.records if found.name == "anaphora"]
    assert len(warned) == 2, "once for each watcher"
    assert "Traceback" not in warned[0].getMessage()
    assert "in breaks" in warned[0].getMessage(), "the lines that led there"


@in_a_session
def test_failing_save_loses_nothing(
    emu: Emulator, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    saved: list[Message] = []
    full = True

    def save(message: Message) -> None:
        if full:
            raise OSError(28, "No space left on device")
        saved.append(message)

    class Watch:
        def __call__(self, record: Record) -> None:
            nonlocal full
            full = len(seen) != 1
            seen.append(record)

    seen: list[Record] = []
    with clean_log(caplog):
        played = play(way, emu, texts=("One", "Two", "Three"), save=save, watchers=[Watch()])
    check_kept(played, 3)
    assert [codes(answered) for answered in played.answers] == [["save_failed"]] * 2 + [[]]
    assert "OSError" in played.answers[0].notices[0].message
    assert "No space left on device" in played.answers[0].notices[0].message
    assert [code for record in played.records for code in map(_code, record.notices)] == [
        "save_failed"
    ] * 2, "watchers learn it"
    assert played.chat is not None
    assert tuple(saved) == played.chat.messages, "in order, without a gap"
    assert played.chat.cost_usd == sum(answered.cost_usd or 0 for answered in played.answers)
    failed = [found for found in caplog.records if found.levelno == logging.ERROR]
    assert len(failed) == 2
    assert "in save" in failed[0].getMessage()


def _code(notice: Any) -> str:
    return str(notice.code)


@in_a_session
def test_message_of_a_failed_save_is_not_quoted(
    emu: Emulator, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    def save(message: Message) -> None:
        raise KeyError(f"{QUOTED} {KEY}")

    with clean_log(caplog):
        played = play(way, emu, save=save)
    check_kept(played)
    assert codes(played.answers[0]) == ["save_failed"]
    assert "KeyError at " in played.answers[0].notices[0].message


@in_a_session
@pytest.mark.parametrize(
    "problem, shown",
    [
        (ConnectionError(f"cannot store {QUOTED}"), False),
        (OSError(28, "No space left on device"), True),
    ],
    ids=["of a program", "of the system"],
)
def test_oserror_is_quoted_only_if_the_system_raised_it(
    emu: Emulator, way: Way, problem: OSError, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def save(message: Message) -> None:
        raise problem

    with clean_log(caplog):
        played = play(way, emu, save=save)
    check_kept(played)
    (notice,) = (one for one in played.answers[0].notices if one.code == "save_failed")
    assert ("No space left on device" in notice.message) == shown


class Stop(BaseException):
    """Like Ctrl-C: no failure of a step."""


@in_a_session
def test_cancellation_passes_through_and_the_response_is_kept(emu: Emulator, way: Way) -> None:
    chats: list[Any] = []
    made = Session.__init__

    def save(message: Message) -> None:
        raise Stop

    def keep(self: Session, *args: Any, **kwargs: Any) -> None:
        chats.append(self)
        made(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "__init__", keep)
        with pytest.raises(Stop):
            play(way, emu, save=save)
    (chat,) = chats
    assert len(chat.messages) == 2
    assert chat.last.text
    assert chat.cost_usd == chat.last.cost_usd


class SlowToClose:
    """An answer whose connection takes long to close."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.status, self.headers, self.read = answer.status, answer.headers, answer.read

    def __aiter__(self) -> Any:
        return self._answer.__aiter__()

    async def close(self) -> None:
        await self._answer.close()
        await asyncio.sleep(60)


class SlowTransport(RecordingTransport):
    async def send(self, outgoing: Any) -> Any:
        return SlowToClose(await super().send(outgoing))


@pytest.mark.parametrize("through", ["client", "session"])
@pytest.mark.long
def test_timeout_while_a_connection_is_closed_keeps_the_response(
    emu: Emulator, through: str
) -> None:
    async def main() -> None:
        transport = SlowTransport()
        client = AsyncClient.from_config(
            config(emu, "claude-sonnet-4-5"), environ={"KEY": KEY}, transport=transport
        )
        async with client:
            if through == "client":
                answered = await client.complete("Hello?", "main", timeout=3)
            else:
                chat = client.session("main")
                answered = await chat.send("Hello?", timeout=3)
                assert len(chat.messages) == 2
                assert chat.cost_usd == answered.cost_usd
            assert answered.text
            assert "connection_failed" in codes(answered)
            assert len(transport.sent) == 1
        await transport.close()

    asyncio.run(main())


def test_append_adds_nothing_when_save_fails(emu: Emulator) -> None:
    taken: list[Message] = []
    full = True

    def save(message: Message) -> None:
        if full:
            raise OSError("full")
        taken.append(message)

    client = AsyncClient.from_config(config(emu, "claude-sonnet-4-5"), environ={"KEY": KEY})
    chat = client.session("main", save=save)
    with pytest.raises(OSError, match="full"):
        chat.append(Message.user("One"))
    assert chat.messages == ()
    full = False
    chat.append(Message.user("One"))
    assert tuple(taken) == chat.messages
    assert len(taken) == 1


# ── Prices ───────────────────────────────────────────────────────────────────────────────────────


@every_way
def test_unknown_price_is_a_notice(emu: Emulator, way: Way) -> None:
    played = play(way, emu, texts=("One", "Two"), model="claude-fable-5-2")
    check_kept(played, 2)
    for answered, record in zip(played.answers, played.records, strict=True):
        assert codes(answered) == ["price_unknown"]
        assert [notice.code for notice in record.notices] == ["price_unknown"]
        message = answered.notices[0].message
        assert "claude-fable-5-2 at main" in message
        assert "`prices` of the provider in llm.yaml" in message
        assert answered.cost_usd is None
    if played.chat is not None:
        assert played.chat.cost_usd is None


@every_way
@pytest.mark.parametrize("named", ["claude-fable-5-2", "*"])
def test_configured_price_is_used(emu: Emulator, way: Way, named: str) -> None:
    prices = {named: {"input": 0.1, "output": 3}}
    played = play(way, emu, model="claude-fable-5-2", provider={"prices": prices})
    (answered,) = played.answers
    assert codes(answered) == []
    usage = answered.usage
    assert usage.uncached is not None
    assert usage.output is not None
    billed = Decimal("0.1") * usage.uncached + 3 * usage.output
    for ttl, count in (usage.written or {}).items():
        billed += Decimal({"5m": "0.125", "1h": "0.2"}[ttl]) * count
    assert answered.cost_usd == billed / 10**6


def test_configured_price_replaces_the_shipped_one(emu: Emulator) -> None:
    free = {"prices": {"*": {"input": 0, "output": 0}}}
    played = play(WAYS[0], emu, provider=free)
    assert played.answers[0].cost_usd == 0
    named = {"prices": {"*": {"input": 5, "output": 5}, "claude-sonnet-4-5": free["prices"]["*"]}}
    assert play(WAYS[0], emu, provider=named).answers[0].cost_usd == 0
    assert play(WAYS[0], emu).answers[0].cost_usd


def test_invalid_price_row_is_rejected_before_any_call(emu: Emulator) -> None:
    with pytest.raises(errors.InvalidConfig, match=r"main.prices.m: output is missing"):
        play(WAYS[0], emu, provider={"prices": {"m": {"input": 1}}})


@every_way
def test_service_tier_without_a_price_gives_a_notice(emu: Emulator, way: Way) -> None:
    played = play_tier(way, emu, "openai_responses", "gpt-5.2", "scale")
    (answered,) = played.answers
    assert codes(answered) == ["price_unknown"]
    assert "'scale'" in answered.notices[0].message
    assert answered.cost_usd is None


@every_way
def test_omitted_service_tier_costs_the_standard_price(emu: Emulator, way: Way) -> None:
    """Anthropic has no such tier, so nothing of it is sent."""
    played = play_tier(way, emu, "anthropic", "claude-sonnet-4-5", "priority")
    (answered,) = played.answers
    assert codes(answered) == ["param_left_out"]
    assert answered.cost_usd == play(way, emu).answers[0].cost_usd


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
def test_service_tier_of_the_reply_is_the_one_that_costs(wire: str) -> None:
    """A priority call may be served as a standard one; a name without a price changes nothing."""
    costs = []
    with scripted_provider() as provider:
        settings = {"wire": wire, "base_url": provider.url, "key": {"env": "KEY"}}
        with Client.from_config({"providers": {"main": settings}}, environ={"KEY": KEY}) as client:
            for asked, served in (
                (None, "default"),
                ("priority", "priority"),
                ("priority", "default"),
                (None, "priority"),
                ("priority", "unknown"),
            ):
                provider.fields = {"service_tier": served}
                answered = client.complete("Hello?", "main", model="gpt-5.2", service_tier=asked)
                costs.append(answered.cost_usd)
    standard, dear = costs[:2]
    assert standard
    assert dear == 2 * standard
    assert costs == [standard, dear, standard, dear, dear]


def test_model_that_answered_is_the_one_that_costs() -> None:
    """A snapshot is the model that was asked for, and so is a name that is not known. A price in
    the configuration for a name that only the app knows stays."""
    price = {"input": 7, "output": 7}
    settings = {"wire": "openai_chat", "key": {"env": "KEY"}, "prices": {"mine": price}}
    costs = []
    with scripted_provider() as provider:
        settings["base_url"] = provider.url
        with Client.from_config({"providers": {"main": settings}}, environ={"KEY": KEY}) as client:
            for asked, answered in (
                ("gpt-5.2", "gpt-5.2-2025-12-11"),
                ("gpt-5.2", "unknown"),
                ("gpt-5.2", "gpt-5-mini"),
                ("mine", "gpt-5-mini"),
            ):
                provider.model = answered
                response = client.complete("Hello?", "main", model=asked)
                costs.append(response.cost_usd)
                assert (response.model, response.record.model) == (answered, asked)
    # For 10 tokens of input and 5 of output.
    assert costs == [Decimal("0.0000875")] * 2 + [Decimal("0.0000125"), Decimal("0.000105")]


def play_tier(way: Way, emu: Emulator, wire: str, model: str, tier: str) -> Played:
    if way.through == "session":
        return play(way, emu, model=model, provider={"wire": wire}, service_tier=tier)
    ir = anaphora.PromptIR.chat((Message.user("Hello?"),))
    call = anaphora.Call(ir=ir, model=model, params=Params(service_tier=tier))
    return play(way, emu, texts=(call,), model=model, provider={"wire": wire})


def test_preview_reports_an_unknown_price(emu: Emulator) -> None:
    client = AsyncClient.from_config(config(emu, "claude-fable-5-2"), environ={"KEY": KEY})
    preview = client.session("main").preview("Hello?")
    assert [notice.code for notice in preview.notices] == ["price_unknown"]
    assert preview.cost_usd is None


def test_price_follows_the_time_of_day(emu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek costs twice as much at its peak hours; a client lives longer than one of them."""
    deepseek = {"dialect": "deepseek", "base_url": f"{emu.url}/deepseek", "key": {"env": "KEY"}}
    settings = {"providers": {"main": deepseek | {"model": "deepseek-v4-flash"}}}

    async def main() -> list[Decimal | None]:
        found = []
        async with AsyncClient.from_config(settings, environ={"KEY": KEY}) as client:
            for hour, minute in ((5, 59), (6, 0), (9, 59), (10, 0)):
                at = datetime.datetime(2026, 11, 16, hour, minute, tzinfo=datetime.UTC)
                clock = SimpleNamespace(time=at.timestamp)
                monkeypatch.setattr("anaphora.client.attempts.time", clock)
                found.append((await client.complete("Hello?", "main")).cost_usd)
        return found

    usual, *peak, after = asyncio.run(main())
    assert usual
    assert after
    assert peak == [2 * usual, 2 * usual]
    assert after == usual


# ── Steps of ours ────────────────────────────────────────────────────────────────────────────────

STEPS = {
    "anaphora.client.target.Target.price": "price_failed",
    "anaphora.client.in_flight.cost_of": "price_failed",
    "anaphora.client.oneshot.saved_usd": "price_failed",
    "anaphora.client.in_flight.shares_of": "record_failed",
    "anaphora.client.in_flight.InFlight.full_record": "record_failed",
    "anaphora.client.limits.Admission.update": "limits_failed",
    "anaphora.client.limits.Admission.settle": "limits_failed",
    "anaphora.client.retry.CircuitBreaker.succeeded": "limits_failed",
    "anaphora.client.session.judgement.judge": "verdict_failed",
    "anaphora.client.session.provider_state.ProviderState.account": "verdict_failed",
    "anaphora.client.routing.SessionRoute.settle": "routing_failed",
    "anaphora.client.transport.over_aiohttp.AiohttpResponse.close": "connection_failed",
}
GUARDED = re.compile(r'guarded\(\s*"(\w+)"')
#: Steps that only one kind of call has.
_ELSEWHERE = {"oneshot": "client", "session.": "session", "routing": "session"}


CASES = [
    pytest.param(way, step, id=f"{way}-{step.removeprefix('anaphora.client.')}")
    for step in STEPS
    for way in WAYS
    if all(way.through == only for part, only in _ELSEWHERE.items() if part in step)
]


class RecoveredBreaker(CircuitBreaker):
    """A breaker that has counted a failure."""

    def __init__(self, settings: BreakerConfig) -> None:
        super().__init__(settings)
        self.failed(errors.Transport("it failed"), time.monotonic())


def test_every_guarded_step_has_words() -> None:
    """A step without them would raise where it fails, and lose the response."""
    sources = Path(anaphora.__file__).parent.rglob("*.py")
    codes = {code for file in sources for code in GUARDED.findall(file.read_text())}
    assert "price_failed" in codes
    for code in codes:
        assert "failed after the answer arrived" in failure_notice(code, ValueError()).message


@pytest.mark.parametrize(("way", "step"), CASES)
@pytest.mark.long
def test_failing_step_loses_nothing(
    emu: Emulator,
    way: Way,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{QUOTED} {KEY}")

    monkeypatch.setattr(step, fails)
    monkeypatch.setattr("anaphora.client.target.CircuitBreaker", RecoveredBreaker)
    with clean_log(caplog):
        played = play(way, emu, texts=("One", "Two"), to="both" if "routing" in step else "main")
    check_kept(played, 2)
    for answered in played.answers:
        assert set(codes(answered)) == {STEPS[step]}, answered.notices
        assert "RuntimeError at " in answered.notices[0].message
        if STEPS[step] != "price_failed":
            assert answered.cost_usd, "the money is counted"
        assert answered.usage.output
    assert len(played.records) == 2
    assert [record.error for record in played.records] == [None, None]
    if played.chat is not None and STEPS[step] != "price_failed":
        assert played.chat.cost_usd == sum(answered.cost_usd or 0 for answered in played.answers)
    assert len(emu.requests()) == 2, "nothing is sent again"
    failed = [found for found in caplog.records if found.levelno == logging.ERROR]
    assert failed
    assert "in fails" in failed[0].getMessage()


@in_a_session
def test_failure_to_add_the_reply_to_the_conversation_gives_a_notice(
    emu: Emulator, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(SessionTurns, "_continue", fails)
    played = play(way, emu)
    assert codes(played.answers[0]) == ["conversation_failed"]
    assert played.answers[0].text
    assert played.chat is not None
    assert played.chat.last is played.answers[0]


@every_way
def test_failing_log_loses_nothing(emu: Emulator, way: Way) -> None:
    class Filter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError

    def breaks(record: Record) -> None:
        raise ValueError

    logger, added = logging.getLogger("anaphora"), Filter()
    logger.addFilter(added)
    try:
        played = play(way, emu, watchers=[breaks])
    finally:
        logger.removeFilter(added)
    check_kept(played)
    assert codes(played.answers[0]) == ["observer_failed"]


# ── Structured output ────────────────────────────────────────────────────────────────────────────


class Picky(msgspec.Struct):
    """A type whose own code fails with what a decoder does not expect."""

    name: str

    def __post_init__(self) -> None:
        raise KeyError(f"{QUOTED} {self.name}")


@every_way
def test_failing_output_type_raises_with_the_reply(emu: Emulator, way: Way) -> None:
    with pytest.raises(errors.Parse, match="code of the type raised KeyError") as raised:
        play(way, emu, output=Picky)
    assert isinstance(raised.value.partial, Reply)
    assert raised.value.partial.text.startswith("{")
    assert QUOTED not in str(raised.value)
    assert len(raised.value.attempts) == 1


def test_mismatching_reply_is_in_the_conversation(emu: Emulator) -> None:
    with Client.from_config(config(emu, "claude-sonnet-4-5"), environ={"KEY": KEY}) as client:
        chat = client.session("main")
        with pytest.raises(errors.Parse):
            chat.send("Who?", output=Picky).result()
        assert len(chat.messages) == 2
        assert chat.last is not None
        assert chat.cost_usd == chat.last.cost_usd
        assert chat.cost_usd


# ── Runs ─────────────────────────────────────────────────────────────────────────────────────────


def run(
    emu: Emulator, *, stream: bool, tools: ToolRegistry, **options: Any
) -> tuple[RunResult, Session]:
    save, provider = options.pop("save", None), options.pop("provider", {})

    async def main() -> tuple[RunResult, Session]:
        settings = config(emu, **({"model": "claude-sonnet-4-5"} | provider))
        async with AsyncClient.from_config(settings, environ={"KEY": KEY}) as client:
            chat = client.session("main", tools=tools, save=save)
            running = chat.run("Find me a fare to Rome", **options)
            if stream:
                async for _ in running:
                    pass
            return await running, chat

    return asyncio.run(main())


def fares(result: Any = "89 EUR") -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool
    def find_fare(city: str) -> Any:
        """Find today's cheapest fare to a city."""
        return result

    return tools


both = pytest.mark.parametrize("stream", [False, True], ids=["single", "stream"])


@both
def test_failing_save_loses_no_tool_result(emu: Emulator, stream: bool) -> None:
    saved: list[Message] = []
    failed = 0

    def save(message: Message) -> None:
        nonlocal failed
        if message.role == "tool" and not failed:
            failed += 1
            raise KeyError(QUOTED)
        saved.append(message)

    ran, chat = run(emu, stream=stream, tools=fares(), save=save)
    assert (ran.stop_reason, ran.turns, failed) == ("done", 2, 1)
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert "89 EUR" in repr(chat.messages[2])
    assert [notice.code for notice in ran.notices] == ["save_failed"]
    assert QUOTED not in repr(ran.notices)
    assert tuple(saved) == chat.messages


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@both
def test_unprintable_tool_error_is_a_failed_result(emu: Emulator, stream: bool) -> None:
    tools = ToolRegistry()

    @tools.tool
    def find_fare(city: str) -> str:
        """Find today's cheapest fare to a city."""
        raise Mute

    ran, chat = run(emu, stream=stream, tools=tools)
    assert ran.stop_reason == "done"
    (result,) = chat.messages[2].parts
    assert (result.error, result.content) == (True, "Mute")  # type: ignore[union-attr]


@both
def test_uncheckable_cost_bound_ends_the_run_with_its_responses(
    emu: Emulator, stream: bool
) -> None:
    """The standard tier has a price, the requested one has none."""
    settings = {"wire": "openai_responses", "model": "gpt-5.2"}
    ran, _ = run(
        emu, stream=stream, tools=fares(), provider=settings, max_cost_usd=1, service_tier="scale"
    )
    assert (ran.stop_reason, ran.turns) == ("cost_usd", 1)
    assert ran.last is not None
    assert ran.last.tool_calls
    assert "max_cost_usd cannot be checked" in ran.failures[0].message


def test_save_may_append(emu: Emulator) -> None:
    """No message is saved twice."""
    saved: list[Message] = []

    def save(message: Message) -> None:
        saved.append(message)
        if len(saved) == 1:
            chat.append(Message.user("By the way"))

    client = AsyncClient.from_config(config(emu, "claude-sonnet-4-5"), environ={"KEY": KEY})
    chat = client.session("main", save=save)
    chat.append(Message.user("One"))
    assert [message.parts for message in saved] == [
        Message.user("One").parts,
        Message.user("By the way").parts,
    ]
    assert tuple(saved) == chat.messages
