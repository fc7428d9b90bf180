"""A verdict is made when it is read, and is the same whenever that is."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.emulated_client import KEY, LONG, MODELS, settings
from support.virtual_emulator import VirtualEmulator, run_virtual
from support.waiting import PATIENCE

from anaphora import AsyncClient, Call, Conversation, Message, Params, PromptIR
from anaphora.cache.plan import deferred
from anaphora.cache.plan.deferred import SentTurn, _WaitingCall
from anaphora.cache.simulator import Outcome, PromptView, Simulator
from anaphora.client.response import Record, Response
from anaphora.client.session.judgement import TurnFacts

#: What a reader makes of the responses so far, after each of them.
Reader = Callable[[list[Response]], None]

pytestmark = pytest.mark.usefixtures("new_objects_only")
#: How many calls wait to be simulated at most.
few = pytest.mark.parametrize(
    "most", [16, pytest.param(deferred.MOST_WAITING, marks=pytest.mark.soak)], indirect=True
)
every = pytest.mark.parametrize("name", sorted(MODELS))
words = "An answer to that, please, and in some more words than you need. " * 12


@pytest.fixture
def most(request: pytest.FixtureRequest) -> Iterator[int]:
    count: int = request.param
    with pytest.MonkeyPatch.context() as patch:  # a run on the virtual clock undoes the test's own
        patch.setattr(deferred, "MOST_WAITING", count)
        yield count


def judged(record: Record) -> tuple[object, ...]:
    return record.verdict, record.predicted, record.saved, record.notices


def read(responses: list[Response]) -> list[tuple[object, ...]]:
    return [judged(one.record) for one in responses]


def client_of(virtual: VirtualEmulator, name: str, **options: Any) -> AsyncClient:
    """Without watchers, which would read every record."""
    providers = settings("http://emulator.invalid", (name,))
    return AsyncClient.from_config(
        {"providers": providers}, environ={"KEY": KEY}, transport=virtual.transport, **options
    )


async def conversations(client: AsyncClient, name: str, after: Reader) -> list[Response]:
    """Turns that extend, change, cut, fork and repeat prompts, with pauses between them."""
    responses: list[Response] = []

    async def send(chat: Any, text: str, pause: float = 3.0) -> None:
        responses.append(await chat.send(f"{text} {words}"))
        after(responses)
        await asyncio.sleep(pause)

    chat = client.session(name, system=LONG, on_prefix_break="off")
    for turn in range(3):
        await send(chat, f"Turn {turn}")
    branch, other = chat.fork(), client.session(name, system=LONG, on_prefix_break="off")
    for turn in range(2):
        await send(chat, f"On {turn}")
        await send(branch, f"Branch {turn}")
        await send(other, f"Other {turn}")
        await client.complete(single(name), name)
    await send(chat, "Before a pause", 4000)
    await send(chat, "After a pause")
    first, *rest = chat.messages
    chat.conversation = Conversation((Message.user(f"Changed {words}"), *rest))
    await send(chat, "After a change")
    chat.conversation = Conversation((first, *rest[:3]))
    await send(chat, "After a cut")
    chat.conversation = Conversation((first, *rest[:1]))
    await send(chat, "Cut again")
    await send(chat, "The last")
    await chat.close()
    return responses


def single(name: str) -> Call:
    ir = PromptIR.chat([Message.user(f"Single {words}")], system=LONG)
    return Call(ir=ir, model=MODELS[name], params=Params(max_tokens=50))


def played(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    after: Reader = lambda _: None,
    script: Callable[[AsyncClient, str, Reader], Any] = conversations,
) -> list[Response]:
    async def main(virtual: VirtualEmulator) -> list[Response]:
        async with client_of(virtual, name) as client:
            responses: list[Response] = await script(client, name, after)
        return responses

    return run_virtual(monkeypatch, main, name)


def at_once(responses: list[Response]) -> None:
    assert responses[-1].record.verdict is not None


def read_in_threads(responses: list[Response]) -> list[tuple[object, ...]]:
    """Two threads read all of them, one from either end."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(read, order) for order in (responses, responses[::-1])]
        forward, backward = [run.result() for run in runs]
    assert forward == backward[::-1]
    return forward


LATE: dict[str, Callable[[list[Response]], list[tuple[object, ...]]]] = {
    "in order": read,
    "from the end": lambda responses: read(responses[::-1])[::-1],
    "in threads": read_in_threads,
    "pickled": lambda responses: read(pickle.loads(pickle.dumps(responses))),
    "copied": lambda responses: read([copy.copy(one) for one in responses]),
}


@every
@pytest.mark.breaks_prefix(reason="verdicts on changed prompts are compared")
@pytest.mark.long
def test_verdict_is_the_same_whenever_it_is_read(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = read(played(monkeypatch, name, at_once))
    assert len({str(verdict) for verdict, *_ in expected}) > 3, "they differ"
    for way, read_late in LATE.items():
        assert read_late(played(monkeypatch, name)) == expected, way

    def three_turns_later(responses: list[Response]) -> None:
        if len(responses) > 3:
            assert judged(responses[-4].record) == expected[len(responses) - 4]

    played(monkeypatch, name, three_turns_later)


async def long_conversation(client: AsyncClient, name: str, after: Reader) -> list[Response]:
    """More turns than wait to be simulated."""
    chat = client.session(name, system=LONG)
    responses: list[Response] = []
    for turn in range(deferred.MOST_WAITING + 20):
        responses.append(await chat.send(f"Turn {turn}"))
        after(responses)
        await asyncio.sleep(2)
    return responses


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "openai_responses", "deepseek"])
@few
@pytest.mark.usefixtures("most")
@pytest.mark.long
def test_verdicts_of_a_long_conversation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def keep_a_few(responses: list[Response]) -> None:
        del responses[:-5]

    expected = read(played(monkeypatch, name, at_once, long_conversation))
    assert "Hit" in str(expected[-1][0])
    assert read(played(monkeypatch, name, script=long_conversation)) == expected
    last = read(played(monkeypatch, name, keep_a_few, long_conversation))
    assert last == expected[-5:]


async def beginning_shared(client: AsyncClient, name: str, after: Reader) -> list[Response]:
    """The second conversation reads what the first one wrote."""
    chat, other = client.session(name, system=LONG), client.session(name, system=LONG)
    await chat.send("One")
    await asyncio.sleep(2)
    responses = [await other.send("Another")]
    after(responses)
    for turn in range(deferred.MOST_WAITING + 5):
        await chat.send(f"Turn {turn}")
        await asyncio.sleep(2)
    return responses


@every
@few
@pytest.mark.usefixtures("most")
@pytest.mark.long
def test_verdict_on_a_call_that_reads_what_another_conversation_wrote(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = read(played(monkeypatch, name, at_once, beginning_shared))
    assert read(played(monkeypatch, name, script=beginning_shared)) == expected


def calls_in_memory() -> int:
    """Calls that are not simulated yet, and those that a verdict holds which is not made yet."""
    gc.collect()
    return sum(isinstance(each, SentTurn | _WaitingCall) for each in gc.get_objects())


def unmade_verdicts() -> int:
    gc.collect()
    return sum(isinstance(each, TurnFacts) for each in gc.get_objects())


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@few
@pytest.mark.long
def test_unread_verdicts_hold_a_bounded_number_of_calls(
    monkeypatch: pytest.MonkeyPatch, kept: bool, most: int
) -> None:
    before = calls_in_memory()

    async def sessions(client: AsyncClient, name: str, _: Reader) -> list[Response]:
        responses: list[Response] = []
        for number in range(2 * most):
            async with client.session(name, system=f"{number} {LONG}") as chat:
                responses += [await chat.send("One"), await chat.send("Two")]
            if not kept:
                responses.clear()
        held = calls_in_memory() - before
        assert most <= held <= 2 * most + 10
        return responses

    responses = played(monkeypatch, "anthropic", script=sessions)
    assert all(one.verdict is not None for one in responses)
    assert len(responses) == (4 * most if kept else 0)
    assert calls_in_memory() == before, "nothing is held once it was read"


@every
@few
@pytest.mark.long
def test_verdicts_that_nobody_reads_let_go_of_their_prompts(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    before = unmade_verdicts()

    async def sessions(client: AsyncClient, name: str, _: Reader) -> list[Response]:
        responses: list[Response] = []
        for number in range(most):
            async with client.session(name, system=f"{number} {LONG}") as chat:
                responses += [await chat.send("One"), await chat.send("Two")]
            if number % 10 == 9:
                assert responses[-1].verdict is not None
                assert unmade_verdicts() == before, "a later one was read"
        return responses

    played(monkeypatch, name, script=sessions)


@every
@pytest.mark.parametrize("after", [read, lambda _: None], ids=["at once", "late"])
@pytest.mark.filterwarnings("ignore::anaphora.client.session.PrefixWarning")
@pytest.mark.breaks_prefix(reason="the check of the prefix must not fail either")
def test_failed_simulation_costs_one_verdict(
    monkeypatch: pytest.MonkeyPatch, name: str, after: Reader
) -> None:
    simulate, made = Simulator.call, []

    def fail_once(self: Simulator, prompt: PromptView, **options: Any) -> Outcome:
        made.append(prompt)
        if len(made) == 2:
            raise RuntimeError("broken")
        return simulate(self, prompt, **options)

    async def turns(client: AsyncClient, name: str, after: Reader) -> list[Response]:
        chat = client.session(name, system=LONG, on_prefix_break="warn")
        responses: list[Response] = []
        for text in ("One", "Two"):
            responses.append(await chat.send(text))
            after(responses)
        assert str(chat.preview("Three"))
        responses.append(await chat.fork().send("Three"))
        chat.conversation = Conversation((Message.user("Changed"), *chat.messages[1:]))
        responses.append(await chat.send("Four"))
        return responses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulator, "call", fail_once)
        responses = played(monkeypatch, name, after, turns)
        failed = [
            [notice.code for notice in one.notices].count("verdict_failed") for one in responses
        ]
    assert failed == [0, 1, 0, 0]
    assert [one.verdict is None for one in responses] == [False, True, False, False]
    assert "no verdict" in repr(responses[1])


class FormattingHandler(logging.Handler):
    """Formats a response while the verdict on another one is made."""

    def __init__(self) -> None:
        super().__init__()
        self.formats = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "app":
            self.formats.set()
            assert "no verdict" in record.getMessage()


def test_log_may_format_a_response_while_a_verdict_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    responses: list[Response] = []
    simulates, handler, root = threading.Event(), FormattingHandler(), logging.getLogger()

    async def turns(client: AsyncClient, name: str, after: Reader) -> list[Response]:
        chat = client.session(name, system=LONG)
        responses.extend([await chat.send("One"), await chat.send("Two")])
        return []

    def fail(*_: object, **__: object) -> Outcome:
        simulates.set()
        assert handler.formats.wait(PATIENCE)
        raise RuntimeError("broken")

    played(monkeypatch, "anthropic", script=turns)
    monkeypatch.setattr(Simulator, "call", fail)
    monkeypatch.setattr(root, "handlers", [handler])
    making = threading.Thread(target=lambda: responses[0].verdict, daemon=True)
    making.start()
    assert simulates.wait(PATIENCE)
    logs = threading.Thread(
        target=lambda: logging.getLogger("app").error("%r", responses[1]), daemon=True
    )
    logs.start()
    for thread in (making, logs):
        thread.join(PATIENCE)
        assert not thread.is_alive(), "they wait for each other"


def test_record_is_completed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    response = played(monkeypatch, "anthropic", script=long_conversation)[-1]
    assert response.cost_usd == response.record.cost_usd
    assert response.attempts == response.record.attempts
    assert response.verdict is response.record.verdict
    assert response.record is response.record


def test_a_response_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(client: AsyncClient, name: str, after: Reader) -> list[Response]:
        return [await client.session(name, system=LONG).send("Hello")]

    [response] = played(monkeypatch, "anthropic", script=one)
    for name in ("reply", "record", "parsed", "verdict", "text"):
        with pytest.raises(AttributeError):
            setattr(response, name, None)
        with pytest.raises(AttributeError):
            delattr(response, name)
