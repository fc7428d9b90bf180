"""Between two turns: what is advised, and what `keep_warm` sends."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from decimal import Decimal
from typing import Any

import pytest
from support.emulated_client import LONG, MODELS, connected
from support.virtual_emulator import VirtualEmulator, run_virtual

from anaphora import Client, KeepWarm, errors
from anaphora.client.session import Session
from anaphora.client.transport import HttpRequest
from anaphora.emulator.server import Emulator
from anaphora.errors import InvalidRequest
from anaphora.prompt import PromptCachePlan, Reasoning

MINUTE = 60.0
FILE = "A line of a file that the user sent. " * 200


async def converse(chat: Session, pauses: list[float], name: str = "") -> None:
    await chat.send(f"{name} 0: {FILE}")
    for number, pause in enumerate(pauses, 1):
        await asyncio.sleep(pause)
        await chat.send(f"{name} {number}: {FILE}")


def refreshes(virtual: VirtualEmulator) -> int:
    return sum(record.operation == "prewarm" for record in virtual.records)


def cost(virtual: VirtualEmulator) -> Decimal:
    return sum((record.cost_usd or Decimal(0) for record in virtual.records), Decimal(0))


SHORT = PromptCachePlan(message_ttl="5m")
"""Keeps the planner from choosing an hour, which it does after some such pauses."""


def paid(
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
    *,
    end: float = 60 * MINUTE,
    cache: PromptCachePlan | None = SHORT,
    **options: Any,
) -> tuple[Decimal, int]:
    """What conversations of nine turns cost, each followed by silence, and how many refreshes there
    were."""

    async def main(virtual: VirtualEmulator) -> tuple[Decimal, int]:
        total = Decimal(0)
        for start in range(0, len(pauses), 8):
            chat = virtual.client.session("anthropic", system=LONG, cache=cache, **options)
            await converse(chat, pauses[start : start + 8], f"Conversation {start}")
            await asyncio.sleep(end)
            assert chat.cost_usd is not None
            total += chat.cost_usd
            await chat.close()
        assert total == cost(virtual)
        return total, refreshes(virtual)

    return run_virtual(monkeypatch, main)


def random_pauses(shortest: float, longest: float, count: int = 32) -> list[float]:
    generator = random.Random(3)
    return [generator.uniform(shortest, longest) for _ in range(count)]


@pytest.mark.parametrize("cache", [SHORT, None])
def test_pauses_of_four_to_nine_minutes_cost_less_than_both_other_ways(
    monkeypatch: pytest.MonkeyPatch, cache: PromptCachePlan | None
) -> None:
    pauses = random_pauses(4 * MINUTE, 9 * MINUTE)
    expired, none = paid(monkeypatch, pauses, cache=cache)
    kept, some = paid(monkeypatch, pauses, cache=cache, keep_warm="auto")
    with monkeypatch.context() as patch:
        patch.setattr("anaphora.client.session.cached_prefix.refreshes", lambda *_, **__: (1, 1.0))
        touched, many = paid(monkeypatch, pauses, cache=cache, keep_warm="auto")
    assert none == 0 < some < many
    assert kept < expired
    assert kept < touched


def test_pauses_of_an_hour_are_not_bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = random_pauses(55 * MINUTE, 65 * MINUTE)
    expired, _ = paid(monkeypatch, pauses)
    kept, sent = paid(monkeypatch, pauses, keep_warm="auto")
    assert sent == 0
    assert kept == expired


def paused(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> VirtualEmulator:
    """After pauses of seven minutes."""

    async def main(virtual: VirtualEmulator) -> VirtualEmulator:
        cache = PromptCachePlan(message_ttl="5m") if name == "anthropic" else None
        chat = virtual.client.session(name, system=LONG, cache=cache, **options)
        await converse(chat, [7 * MINUTE] * 4)
        return virtual

    return run_virtual(monkeypatch, main, name)


def test_the_next_verdict_and_a_notice_have_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    records = paused(monkeypatch, "anthropic", keep_warm="auto").records
    before, refresh, after = records[-3:]
    assert (before.operation, refresh.operation, after.operation) == ("chat", "prewarm", "chat")
    assert refresh.verdict is not None
    assert refresh.verdict.result == "hit"
    assert after.verdict is not None
    assert after.verdict.result == "hit"
    assert after.verdict.kept_warm_usd == refresh.cost_usd
    assert "Keeping the prefix alive until this call cost $0.0" in str(after.verdict)
    assert after.predicted == after.usage.read
    (notice,) = [each for each in after.notices if each.code == "kept_warm"]
    assert notice.message.startswith("1 call kept the cached prefix alive during the pause, for $")
    assert refresh.usage.output == 0


def test_wire_without_a_call_that_only_writes_gets_the_shortest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual = paused(monkeypatch, "minimax/anthropic", keep_warm="auto")
    limits = [json.loads(body)["max_tokens"] for body in virtual.transport.bodies]
    assert limits.count(1) == refreshes(virtual) > 0
    assert 0 not in limits
    assert virtual.records[-1].verdict is not None
    assert virtual.records[-1].verdict.kept_warm_usd


def test_responses_is_not_asked_for_less_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "azure/openai_responses"
    monkeypatch.setitem(MODELS, name, "gpt-5.6")

    async def main(virtual: VirtualEmulator) -> VirtualEmulator:
        chat = virtual.client.session(name, system=LONG, keep_warm="auto")
        await converse(chat, [70 * MINUTE] * 3)
        return virtual

    virtual = run_virtual(monkeypatch, main, name)
    limits = [json.loads(body).get("max_output_tokens") for body in virtual.transport.bodies]
    assert limits.count(16) == refreshes(virtual) > 0
    assert set(limits) == {None, 16}


def test_call_that_would_not_read_the_prefix_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    thinks = Reasoning(mode="enabled", budget_tokens=2048)
    virtual = paused(monkeypatch, "anthropic", keep_warm="auto", reasoning=thinks, max_tokens=4096)
    assert refreshes(virtual) == 0
    codes = [notice.code for notice in virtual.records[-1].notices]
    assert codes == ["keep_warm_impossible"]


@pytest.mark.parametrize(
    "bounds, sent",
    [(KeepWarm(max_refreshes=1), 1), (KeepWarm(max_usd=Decimal(0)), 0), (KeepWarm(), 2)],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, bounds: KeepWarm, sent: int) -> None:
    async def main(virtual: VirtualEmulator) -> tuple[int, int]:
        chat = virtual.client.session("anthropic", system=LONG, cache=SHORT, keep_warm=bounds)
        await converse(chat, [12 * MINUTE] * 3)
        before = refreshes(virtual)
        await converse(chat, [12 * MINUTE])
        return before, refreshes(virtual)

    before, after = run_virtual(monkeypatch, main)
    assert after - before == sent


def test_failed_refresh_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: HttpRequest) -> None:
        if json.loads(request.body)["max_tokens"] == 0:
            raise errors.Transport("connection refused", phase="connect")

    async def main(virtual: VirtualEmulator) -> VirtualEmulator:
        virtual.transport.refuse = refuse
        chat = virtual.client.session("anthropic", system=LONG, cache=SHORT, keep_warm="auto")
        await converse(chat, [7 * MINUTE] * 3)
        return virtual

    virtual = run_virtual(monkeypatch, main)
    last = virtual.records[-1]
    assert last.error is None
    assert [notice.code for notice in last.notices] == ["keep_warm_failed"]
    assert "connection refused" in last.notices[0].message


def test_prefix_is_kept_while_a_tool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> VirtualEmulator:
        async def search(query: str) -> str:
            """Searches for a long time."""
            await asyncio.sleep(7 * MINUTE)
            return f"nothing about {query}"

        chat = virtual.client.session(
            "anthropic", system=LONG, cache=SHORT, keep_warm="auto", tools=[search]
        )
        # The emulator's model calls the tool in every other turn.
        await chat.run(f"Search in {FILE * 4}", max_turns=3)
        await asyncio.sleep(MINUTE)
        await chat.run(f"Search in {FILE * 4}", max_turns=3)
        return virtual

    virtual = run_virtual(monkeypatch, main)
    last, refresh, after = virtual.records[-3:]
    assert (last.stop_reason, refresh.operation) == ("tool_calls", "prewarm")
    assert after.verdict is not None
    assert after.verdict.result == "hit"


def test_turn_may_begin_during_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> VirtualEmulator:
        chat = virtual.client.session("anthropic", system=LONG, cache=SHORT, keep_warm="auto")
        await converse(chat, [7 * MINUTE] * 2)
        send, entered = virtual.transport.send, asyncio.Event()

        async def slow(request: HttpRequest) -> Any:
            if json.loads(request.body)["max_tokens"] == 0:
                entered.set()
                await asyncio.sleep(5)
            return await send(request)

        monkeypatch.setattr(virtual.transport, "send", slow)
        await entered.wait()
        await chat.send("Now")
        await asyncio.sleep(10)
        return virtual

    operations = [each.operation for each in run_virtual(monkeypatch, main).records]
    assert operations[-2:] == ["chat", "prewarm"]


@pytest.mark.parametrize("end", ["close", "drop", "client"])
def test_nothing_is_sent_after_the_end(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    async def main(virtual: VirtualEmulator) -> tuple[int, int]:
        chat = virtual.client.session("anthropic", system=LONG, cache=SHORT, keep_warm="auto")
        await converse(chat, [7 * MINUTE] * 2)
        before = refreshes(virtual)
        if end == "close":
            await chat.close()
        elif end == "client":
            await virtual.client.close()
        del chat
        gc.collect()
        await asyncio.sleep(60 * MINUTE)
        return before, refreshes(virtual)

    before, after = run_virtual(monkeypatch, main)
    assert before == after > 0


def test_branch_keeps_its_own_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> tuple[int, int]:
        chat = virtual.client.session("anthropic", system=LONG, cache=SHORT, keep_warm="auto")
        await converse(chat, [7 * MINUTE] * 2)
        branch = chat.fork()
        await chat.close()
        before = refreshes(virtual)
        await converse(branch, [7 * MINUTE] * 2, "Branch")
        return before, refreshes(virtual)

    before, after = run_virtual(monkeypatch, main)
    assert after == before + 2


@pytest.mark.parametrize(
    "value, problem",
    [
        ("always", '"auto"'),
        (True, '"auto"'),
        (KeepWarm(max_usd=Decimal(-1)), "max_usd"),
        (KeepWarm(max_refreshes=1.5), "max_refreshes"),  # type: ignore[arg-type]
    ],
)
def test_wrong_values_are_named(emu: Emulator, value: Any, problem: str) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(InvalidRequest, match=f"keep_warm.*{problem}"):
                emulated.client.session("anthropic", keep_warm=value)

    asyncio.run(main())


# ── Advice ───────────────────────────────────────────────────────────────────────────────────────


def test_advice_follows_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(virtual: VirtualEmulator) -> list[list[str]]:
        found = list[list[str]]()
        for pause in (7 * MINUTE, 60 * MINUTE):
            chat = virtual.client.session("anthropic", system=LONG, cache=SHORT)
            await converse(chat, [pause] * 4)
            advice = chat.advice()
            found.append([each.kind for each in advice])
            for each in advice:
                assert each.saves_usd is not None
                assert each.saves_usd >= 0
                assert f"(saves ${each.saves_usd:.4f})" in str(each)
        return found

    short, long = run_virtual(monkeypatch, main)
    assert "keep_alive" in short
    assert "let_go" in long
    assert {"compact", "keep_history"} & set(short)


def test_sync_client_advises_before_branches_start_together(emu: Emulator) -> None:
    provider = {"wire": "anthropic", "base_url": emu.url, "model": "claude-sonnet-4-5"}
    config = {"providers": {"anthropic": {**provider, "key": {"env": "KEY"}}}}
    with Client.from_config(config, environ={"KEY": "k"}) as client:
        chat = client.session("anthropic", system=LONG, keep_warm="auto")
        assert chat.advice() == ()
        (advice,) = chat.advice(parallel=20)
        assert advice.kind == "prewarm"
        assert advice.why.startswith("20 calls start together and would each write the same")
        chat.prewarm()
        assert chat.advice(parallel=20) == () or chat.advice(parallel=20)[0].kind != "prewarm"
        with pytest.raises(InvalidRequest, match="parallel"):
            chat.advice(parallel=0)
