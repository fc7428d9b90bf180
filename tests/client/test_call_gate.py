"""Calls that tasks make one by one and concurrently: what they share is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.emulated_client import LONG, connected
from support.waiting import PATIENCE, until

from anaphora import emulator
from anaphora.client.fan_out.gate import CallGate, _Released
from anaphora.client.oneshot import CallWatch
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.journal import CallRecord
from anaphora.emulator.server import Emulator
from anaphora.errors import Upstream
from anaphora.values import Message

PROVIDERS = ("anthropic", "openai_responses", "gemini")


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    with emulator.running(EmulatorOptions(batch_seconds=0)) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(emu: Emulator) -> None:
    emu.reset()


def billed(emu: Emulator) -> list[dict[str, Any]]:
    calls = [entry for entry in reversed(emu.requests()) if "read" in entry]
    return [call | {"written": sum(call["written"].values())} for call in calls]


def whole_prompts(emu: Emulator) -> int:
    """Calls that paid for the shared beginning: wrote it, or had it computed."""
    return sum(max(entry["written"], entry["uncached"]) > 1000 for entry in billed(emu))


@pytest.mark.parametrize("name", PROVIDERS)
def test_twenty_concurrent_calls_write_the_prefix_at_most_twice(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            gate, at_once = CallGate(emulated.client, visibility_delay=0), asyncio.Semaphore(10)

            async def one(number: int) -> str:
                async with at_once:
                    response = await gate.complete(f"What is {number}?", system=LONG, max_tokens=16)
                return response.text

            texts = await asyncio.gather(*(one(number) for number in range(20)))
            assert len(texts) == 20

    asyncio.run(main())
    assert len(billed(emu)) == 20
    assert whole_prompts(emu) <= 2


def test_a_call_that_comes_while_the_prefix_is_written_waits_for_it(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            first = [asyncio.create_task(gate.complete(f"{i}?", system=LONG)) for i in range(2)]
            await until(lambda: emulated.transport.sent, "the first call is sent")
            late = await gate.complete("late?", system=LONG)
            assert (late.usage.read or 0) > 1000
            await asyncio.gather(*first)

    asyncio.run(main())
    assert whole_prompts(emu) == 1


@pytest.mark.parametrize(
    "name", ["anthropic", *(pytest.param(name, marks=pytest.mark.soak) for name in PROVIDERS[1:])]
)
def test_calls_that_come_slowly_one_after_another_write_the_prefix_at_most_twice(name: str) -> None:
    """Each is sent before the next comes, and none has ended."""
    options = EmulatorOptions(latency=Latency(first=1.0))
    with emulator.running(options) as slow:

        async def main() -> None:
            async with connected(slow, [name]) as emulated:
                gate, tasks = CallGate(emulated.client, visibility_delay=0), list[Any]()
                for number in range(8):
                    call = gate.complete(f"What is {number}?", system=LONG, max_tokens=16)
                    tasks.append(asyncio.create_task(call))
                    await asyncio.sleep(0.05)
                await asyncio.gather(*tasks)

        asyncio.run(main())
        assert len(billed(slow)) == 8
        assert whole_prompts(slow) <= 2


def test_the_next_turns_of_conversations_cache_their_own_history(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)

            async def talk(number: int) -> None:
                messages = [Message.user(f"Tell me about {number}. " * 300)]
                for _ in range(3):
                    response = await gate.complete(messages, system=LONG)
                    messages += [response.reply.message, Message.user("Go on. " * 100)]
                assert (response.usage.read or 0) > 1.3 * 3000

            await asyncio.gather(*(talk(number) for number in range(3)))

    asyncio.run(main())


def test_calls_that_were_sent_although_the_prefix_is_not_read_say_so(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallRecord, "begin", lambda self, now: None)
    monkeypatch.setattr(CallRecord, "end", lambda self, now: None)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            first = [asyncio.create_task(gate.complete(f"{i}?", system=LONG)) for i in range(8)]
            await until(lambda: emulated.transport.sent, "the first call is sent")
            late = await gate.complete("late?", system=LONG)
            after = await gate.complete("after?", system=LONG)
            responses = await asyncio.gather(*first)
            codes = [[notice.code for notice in each.notices] for each in (*responses, late)]
            # The first call and three probes knew nothing of it.
            assert codes == [[]] * 4 + [["prefix_not_read"]] * 5
            assert "the other 4 calls of the group were sent anyway" in str(late.notices[0])
            assert not after.notices

    asyncio.run(main())


def test_a_failed_first_call_is_that_callers_error_alone(emu: Emulator) -> None:
    async def main() -> list[Any]:
        async with connected(emu, ["anthropic"], retry={"max_attempts": 1}) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            emulated.transport.faults = ["400", None]
            calls = [gate.complete(f"{i}?", system=LONG) for i in range(5)]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    results = asyncio.run(main())
    assert [isinstance(each, Upstream) for each in results].count(True) == 1
    assert whole_prompts(emu) == 1


def test_a_cancelled_first_call_lets_the_others_go(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            tasks = [asyncio.create_task(gate.complete(f"{i}?", system=LONG)) for i in range(5)]
            await asyncio.sleep(0)
            tasks[0].cancel()  # before anything is sent
            await until(lambda: emulated.transport.sent, "the first call is sent")
            tasks[1].cancel()  # the first that was sent
            results = await asyncio.gather(*tasks, return_exceptions=True)
            cancelled = [isinstance(each, asyncio.CancelledError) for each in results]
            assert cancelled == [True, True, False, False, False]

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_call_that_is_cancelled_when_it_may_be_sent_lets_the_others_go(
    emu: Emulator, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task has not run since it was cancelled, or since it was released."""
    tasks: list[asyncio.Task[Any]] = []
    send = _Released.send

    def cancelled(self: _Released, index: int, watch: CallWatch | None = None) -> Any:
        if index == 0 and moment == "before":
            tasks[0].cancel()
        sent = send(self, index, watch)
        if index == 0 and moment == "after":
            tasks[0].cancel()
        return sent

    monkeypatch.setattr(_Released, "send", cancelled)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            for number in range(5):
                call = gate.complete(f"{number}?", system=LONG)
                tasks.append(asyncio.create_task(call))
            done, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
            for each in waiting:
                each.cancel()
            assert done == set(tasks)
            assert [each.cancelled() for each in tasks] == [True, False, False, False, False]

    asyncio.run(main())
    assert whole_prompts(emu) == 1


@pytest.mark.parametrize("late", [False, True], ids=["with it", "after it"])
@pytest.mark.long
def test_a_call_waits_for_another_no_longer_than_its_own_timeout(emu: Emulator, late: bool) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client, visibility_delay=0)
            emulated.transport.faults = ["timeout", None]
            calls = [gate.complete(f"{i}?", system=LONG) for i in range(2)]
            hanging = [asyncio.create_task(call) for call in calls]
            await until(lambda: not late or emulated.transport.sent, "the first call is sent")
            await asyncio.sleep(0)
            response = await asyncio.wait_for(
                gate.complete("impatient?", system=LONG, timeout=3.0), PATIENCE
            )
            assert response.text
            assert not hanging[0].done()
            for each in hanging:
                each.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(main())


def test_short_and_single_prompts_are_sent_at_once(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            gate = CallGate(emulated.client)
            responses = await asyncio.gather(*(gate.complete(f"{i}?") for i in range(3)))
            assert all(each.usage.written_total in (None, 0) for each in responses)
            alone = await gate.complete("alone?", system=LONG)
            assert alone.usage.written_total in (None, 0)  # nothing says that it is read again

    asyncio.run(main())
