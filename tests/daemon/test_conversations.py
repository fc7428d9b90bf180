"""Stateless callers get the planner's markers and a verdict: the daemon remembers their calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.delegation import app_of, delegating
from support.emulated_client import LONG, MODELS

from anaphora.emulator.server import Emulator
from anaphora.errors import Overloaded


def body(*words: str, system: str = LONG, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": word} for n, word in enumerate(words)]
    return {
        "model": MODELS["anthropic"],
        "max_tokens": 20,
        "system": system,
        "messages": messages,
        **fields,
    }


def markers(sent: dict[str, Any]) -> int:
    return str(sent).count("cache_control")


def test_second_turn_reads_what_the_first_wrote(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            verdicts = []
            for words in (["One?"], ["One?", "1", "Two?"], ["One?", "1", "Two?", "2", "Three?"]):
                reply = await daemon.service.complete(daemon.request("anthropic", body(*words)))
                assert reply.verdict is not None
                verdicts.append(reply.verdict.result)
            assert verdicts == ["first", "miss", "hit"]  # reuse is first seen at the second turn
            assert [markers(sent) > 0 for sent in daemon.sent] == [False, True, True]

    asyncio.run(main())


@pytest.mark.parametrize("together", [True, False])
def test_each_conversation_is_cached_that_begins_with_the_same_message(
    emu: Emulator, tmp_path: Path, together: bool
) -> None:
    """Their system prompts differ, which is no change of one conversation."""
    tools = [{"name": "look", "input_schema": {"type": "object"}}]

    async def main() -> None:
        app = app_of(tools=("look",))
        async with delegating(emu, tmp_path, ["anthropic"], app=app) as daemon:
            reads = [list[int]() for _ in range(6)]

            async def send(user: int, turn: int) -> None:
                words = ["Hi"]
                for number in range(turn):
                    words += [f"reply {user} {number}", f"question {user} {number}"]
                sent = body(*words, system=f"You help user {user}. {LONG}", tools=tools)
                reply = await daemon.service.complete(daemon.request("anthropic", sent))
                usage = reply.reply.usage
                assert turn or (usage.written_total or 0) > 1000
                reads[user].append(usage.read or 0)

            for one in range(3 if together else 6):
                for two in range(6 if together else 3):
                    await send(*((two, one) if together else (one, two)))
            assert all(not first for first, *_ in reads)
            assert all(read > 1000 for _, *later in reads for read in later)

    asyncio.run(main())


def test_changed_system_prompt_is_named(emu: Emulator, tmp_path: Path) -> None:
    """For a stream in its head, before the bill, and in the reply by the bill."""
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}

    def turn(date: str, *words: str, **fields: Any) -> dict[str, Any]:
        block = {"type": "text", "text": f"Today is {date}. {LONG}", **cached}
        return {**body(*words), "system": [block], **fields}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            await daemon.service.complete(
                daemon.request("anthropic", turn("2026-11-15", "One?", "1", "Two?"))
            )
            changed = turn("2026-11-16", "One?", "1", "Two?", "2", "Three?", stream=True)
            stream = daemon.service.stream(daemon.request("anthropic", changed))
            head = await stream.head()
            async for _ in stream:
                pass
            assert stream.reply is not None
            for verdict in (head.verdict, stream.reply.verdict):
                assert verdict is not None
                assert verdict.change is not None
                assert (verdict.result, verdict.change.kind) == ("miss", "date")

    asyncio.run(main())


def test_failed_call_is_not_compared_with(emu: Emulator, tmp_path: Path) -> None:
    retry = {"max_attempts": 1}

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"], retry=retry) as daemon:
            daemon.transport.faults = ["529", None]
            request = body("One?", "1", "Two?")
            with pytest.raises(Overloaded):
                await daemon.service.complete(daemon.request("anthropic", request))
            reply = await daemon.service.complete(daemon.request("anthropic", request))
            assert reply.verdict is not None
            assert reply.verdict.result == "first"

    asyncio.run(main())


def test_own_markers_stay_and_a_grant_may_forbid_ours(emu: Emulator, tmp_path: Path) -> None:
    own = body("One?", "1", "Two?")
    own["system"] = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    plain = app_of("plain", providers=["anthropic"], place_markers=False)

    async def main() -> None:
        async with delegating(emu, tmp_path, ["anthropic"]) as daemon:
            await daemon.service.complete(daemon.request("anthropic", own))
            request = body("One?", "1", "Two?")
            await daemon.service.complete(daemon.request("anthropic", request, app=plain))
            assert [markers(sent) for sent in daemon.sent] == [1, 0]

    asyncio.run(main())


def test_route_falls_back_and_is_named(emu: Emulator, tmp_path: Path) -> None:
    """Breakers and limits hold across calls (D6); each attempt is held and settled by itself."""
    routes = {"safe": [{"provider": "anthropic"}, {"provider": "openai_chat", "model": "gpt-5.2"}]}
    retry = {"max_attempts": 1}

    async def main() -> None:
        names = ["anthropic", "openai_chat"]
        async with delegating(emu, tmp_path, names, routes=routes, retry=retry) as daemon:
            daemon.transport.faults = ["529", None]
            call = daemon.request("anthropic", body("One?"), provider="safe")
            reply = await daemon.service.complete(call)
            assert (reply.provider, reply.wire, reply.body) == ("openai_chat", "openai_chat", None)
            assert [attempt.provider for attempt in reply.attempts] == names
            assert (await daemon.spent()).today > 0

    asyncio.run(main())


def test_busy_app_does_not_starve_another(emu: Emulator, tmp_path: Path) -> None:
    """At most one call of an app waits for a provider's limits at a time."""
    busy, calm = (app_of(name, providers=["anthropic"]) for name in ("busy", "calm"))

    async def main() -> None:
        limits = {"concurrency": 1}
        async with delegating(emu, tmp_path, ["anthropic"], limits=limits) as daemon:
            ended: list[str] = []

            async def ask(name: str, number: int) -> None:
                app = busy if name == "busy" else calm
                await daemon.service.complete(
                    daemon.request("anthropic", body(f"{name} {number}"), app=app)
                )
                ended.append(name)

            many = [asyncio.ensure_future(ask("busy", number)) for number in range(8)]
            await asyncio.sleep(0)
            await asyncio.gather(*many, ask("calm", 0))
            assert ended.index("calm") <= 2

    asyncio.run(main())
