"""`client.map`: what prompts share is paid once, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import virtual_time
from support.emulated_client import KEY, LONG, connected, settings
from support.paced_engine import PacedTransport
from support.waiting import PATIENCE, until

from anaphora import AsyncClient, Client, emulator
from anaphora.client.fan_out import FanOutProgress
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.engine import Engine
from anaphora.emulator.replies.script import Script
from anaphora.emulator.server import Emulator
from anaphora.errors import (
    BudgetExceeded,
    InvalidRequest,
    Io,
    OtherSchema,
    Overloaded,
    QuotaExhausted,
    Unauthenticated,
)
from anaphora.prompt import Call, PromptIR
from anaphora.values import Message, Reply, Text, from_json

QUESTIONS = [f"What is {number}?" for number in range(20)]
#: Providers whose prompt caches differ: markers, markers with a pre-warm, no markers.
PROVIDERS = ("anthropic", "openai_responses", "gemini")


@pytest.fixture(scope="module")
def emu() -> Iterator[Emulator]:
    options = EmulatorOptions(batch_seconds=0)
    with emulator.running(options) as running:
        yield running


@pytest.fixture(autouse=True)
def _fresh(emu: Emulator) -> None:
    emu.reset()


def generated(emu: Emulator) -> list[dict[str, Any]]:
    """The calls that were billed, the oldest first."""
    calls = [entry for entry in reversed(emu.requests()) if "read" in entry]
    return [call | {"written": sum(call["written"].values())} for call in calls]


def whole_prompts(emu: Emulator) -> int:
    """Calls that paid for the shared beginning: wrote it, or had it computed."""
    return sum(max(entry["written"], entry["uncached"]) > 1000 for entry in generated(emu))


@pytest.mark.parametrize("name", PROVIDERS)
def test_twenty_calls_write_the_prefix_once_and_cost_a_third(emu: Emulator, name: str) -> None:
    async def cost(warm: Any) -> Decimal:
        emu.reset()
        async with connected(emu, [name]) as emulated:
            result = await emulated.client.map(
                QUESTIONS, system=LONG, max_tokens=16, warm=warm, visibility_delay=0
            )
        assert [item.index for item in result.items] == list(range(20))
        assert not result.errors
        assert result.cost_usd == sum(Decimal(each["cost_usd"]) for each in generated(emu))
        return result.cost_usd

    at_once = asyncio.run(cost("off"))
    assert whole_prompts(emu) == 20
    warmed = asyncio.run(cost("auto"))
    assert whole_prompts(emu) <= 2
    assert warmed <= at_once * Decimal("0.3")


@pytest.mark.parametrize("name", ["openai_chat", "deepseek", "ollama"])
def test_every_other_provider_answers_in_order(emu: Emulator, name: str) -> None:
    async def main() -> None:
        async with connected(emu, [name]) as emulated:
            result = await emulated.client.map(QUESTIONS, system=LONG, visibility_delay=0)
        assert len(set(result.texts)) == 20
        assert len(generated(emu)) == 20

    asyncio.run(main())


def test_a_pre_warm_goes_first_where_that_is_faster_and_is_in_the_total(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["openai_responses"]) as emulated:
            result = await emulated.client.map(QUESTIONS[:5], system=LONG)
            assert [record.operation for record in emulated.records][:2] == ["prewarm", "prewarm"]
        first, probe, *rest = generated(emu)
        assert len(rest) == 5
        assert first["written"] == probe["read"] > 1000
        assert result.progress.warmup_usd == sum(
            Decimal(each["cost_usd"]) for each in (first, probe)
        )
        assert result.cost_usd == sum(Decimal(each["cost_usd"]) for each in generated(emu))
        assert result.progress.calls == 7

    asyncio.run(main())


def test_a_pre_warm_can_be_asked_for_and_falls_back_to_a_call(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            common: dict[str, Any] = {"system": LONG, "visibility_delay": 0, "warm": "prewarm"}
            await emulated.client.map(QUESTIONS[:3], **common)
            assert [each["output"] for each in generated(emu)].count(0) == 2
            emu.reset()
            # A pre-warm takes no schema.
            form = {"type": "object", "properties": {}, "additionalProperties": False}
            result = await emulated.client.map(QUESTIONS[:3], output=form, **common)
        assert [notice.code for notice in result.notices] == ["prewarm_failed"]
        assert len(generated(emu)) == 3
        assert whole_prompts(emu) == 1

    asyncio.run(main())


def test_groups_are_found_by_what_is_rendered(emu: Emulator) -> None:
    """Two documents below one system prompt: the system prompt is written once, and each document
    once."""
    documents = ["First document. " * 400, "Second document. " * 400]
    prompts: list[Any] = [
        [Message(role="user", parts=(Text(document), Text(question)))]
        for question in QUESTIONS[:5]
        for document in documents
    ]

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(prompts, system=LONG, visibility_delay=0)
            assert not result.errors

    asyncio.run(main())
    written = [each["written"] for each in generated(emu) if each["written"]]
    assert len(written) == 2
    assert written[0] > 2 * written[1]  # with the system prompt, and without
    assert all(each["uncached"] < 100 for each in generated(emu))


def test_a_long_text_with_other_questions_is_shared_where_a_cache_works_on_tokens(
    emu: Emulator,
) -> None:
    prompts = [f"{LONG}\n\n{question}" for question in QUESTIONS[:6]]

    async def main() -> None:
        async with connected(emu, ["gemini"]) as emulated:
            await emulated.client.map(prompts, visibility_delay=0)

    asyncio.run(main())
    assert whole_prompts(emu) == 1


def test_a_long_text_inside_one_block_is_named_where_blocks_are_cached(emu: Emulator) -> None:
    prompts = [f"{LONG}\n\n{question}" for question in QUESTIONS[:6]]

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(prompts, visibility_delay=0)
            (notice,) = result.notices
            assert notice.code == "shared_inside_block"
            assert notice.message.startswith("6 prompts begin with the same ")
            whole = [[LONG, question] for question in QUESTIONS[:6]]
            again = await emulated.client.map(whole, visibility_delay=0)
            assert not again.notices
            assert again.read_share > 0.8

    asyncio.run(main())


def test_the_same_prompt_may_be_asked_many_times(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(["Draw."] * 5, system=LONG, visibility_delay=0)
            assert len({item.key for item in result.items}) == 5
        assert len(generated(emu)) == 5
        assert whole_prompts(emu) == 1

    asyncio.run(main())


@pytest.mark.parametrize("count, system", [(1, LONG), (3, "Be terse."), (3, "")])
def test_nothing_waits_where_warming_saves_nothing(emu: Emulator, count: int, system: str) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            # A wait would never end.
            mapped = emulated.client.map(
                QUESTIONS[:count], system=system or None, visibility_delay=3600
            )
            result = await asyncio.wait_for(mapped, PATIENCE)
            assert not result.errors
        assert not any(each["markers"] for each in generated(emu))

    asyncio.run(main())


def test_a_prefix_that_is_cached_already_needs_no_wait(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            common: dict[str, Any] = {"system": LONG, "max_tokens": 16}
            await emulated.client.map(QUESTIONS[:3], visibility_delay=0, **common)
            mapped = emulated.client.map(QUESTIONS[3:8], visibility_delay=3600, **common)
            await asyncio.wait_for(mapped, PATIENCE)
        assert whole_prompts(emu) == 1

    asyncio.run(main())


#: The wire, the model, and when each of four calls is sent: a call takes 1 second to its first
#: byte and 6 to its end.
MOMENTS = {
    # First byte, visibility delay, first byte of the probe.
    "anthropic": ("claude-sonnet-5-5", [0, 1.05 + 2.5, 4.6, 4.6]),
    # Two pre-warms.
    "openai_responses": ("gpt-5.6", [0, 1.05, 2.1, 2.1, 2.1, 2.1]),
    # The end of the first call, and of the probe.
    "gemini": ("gemini-3.1-pro-preview", [0, 6.05, 12.1, 12.1]),
}


@pytest.mark.parametrize("wire", MOMENTS)
def test_calls_are_released_when_what_they_share_can_be_read(wire: str) -> None:
    model, moments = MOMENTS[wire]
    transport = PacedTransport(Engine(), first=1.0, whole=6.0)
    provider = {"wire": wire, "base_url": "http://emulator.invalid", "key": {"env": "KEY"}}
    config = {"providers": {"p": provider | {"model": model}}}

    async def main() -> None:
        begun = virtual_time.clock()
        async with AsyncClient.from_config(
            config, environ={"KEY": KEY}, transport=transport
        ) as client:
            result = await client.map(QUESTIONS[:4], system=LONG * 2, max_tokens=64)
        assert not result.errors
        assert [at - begun for at, _ in transport.sent] == pytest.approx(moments)

    virtual_time.run(main())


def test_calls_that_do_not_read_are_sent_after_three_probes(
    emu: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anaphora.emulator.journal import CallRecord

    monkeypatch.setattr(CallRecord, "begin", lambda self, now: None)
    monkeypatch.setattr(CallRecord, "end", lambda self, now: None)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS[:8], system=LONG, visibility_delay=0)
            assert not result.errors
            assert [notice.code for notice in result.notices] == ["prefix_not_read"]
            assert "3 calls did not read" in result.notices[0].message

    asyncio.run(main())


# ── One failed call ──────────────────────────────────────────────────────────────────────────────


def test_one_failed_call_is_one_item_with_an_error(emu: Emulator) -> None:
    async def main() -> None:
        retry = {"max_attempts": 1}
        async with connected(emu, ["anthropic"], retry=retry) as emulated:
            # The first call of the group fails, and another one writes the prefix.
            emulated.transport.faults = ["529", None]
            result = await emulated.client.map(QUESTIONS[:6], system=LONG, visibility_delay=0)
            assert [item.index for item in result.errors] == [0]
            assert isinstance(result.errors[0].error, Overloaded)
            with pytest.raises(Overloaded):
                result.texts  # noqa: B018
            assert len([item.text for item in result.items[1:]]) == 5
            assert result.progress.failed == 1

    asyncio.run(main())
    assert whole_prompts(emu) == 1


@pytest.mark.parametrize("fault", ["key", "spend-cap"])
def test_what_fails_for_every_call_is_tried_once(fault: str) -> None:
    keys = frozenset(["another"]) if fault == "key" else None
    with emulator.running(EmulatorOptions(keys=keys)) as emu:

        async def main() -> None:
            async with connected(emu, ["anthropic"]) as emulated:
                emulated.transport.faults = [None if fault == "key" else fault]
                result = await emulated.client.map(QUESTIONS, system=LONG, visibility_delay=0)
                assert len(result.errors) == 20
                kind = Unauthenticated if fault == "key" else QuotaExhausted
                assert {type(item.error) for item in result.items} == {kind}
                assert len(emulated.transport.sent) == 1

        asyncio.run(main())


def test_an_output_that_does_not_fit_costs_and_is_an_error() -> None:
    class Number(msgspec.Struct):
        value: int

    script = Script.decode(
        'replies: [{match: {text: "is 1?"}, reply: {text: "prose"}}]', "script.yaml"
    )
    with emulator.running(EmulatorOptions(script=script)) as emu:

        async def main() -> None:
            async with connected(emu, ["anthropic"]) as emulated:
                result = await emulated.client.map(
                    QUESTIONS[:3], output=Number, system=LONG, visibility_delay=0
                )
            assert [item.index for item in result.errors] == [1]
            assert result.errors[0].cost_usd
            assert isinstance(result.items[0].parsed, Number)
            assert result.cost_usd == sum(Decimal(each["cost_usd"]) for each in generated(emu))

        asyncio.run(main())


@pytest.mark.parametrize(
    "prompts, options, place, reason",
    [
        ("one prompt", {}, "prompts", "must be a list of prompts"),
        ([5], {}, "prompts[0].content", "must be a text"),
        (["ok", None], {}, "prompts[1].content", "is missing"),
        (["ok"], {"concurrency": 0}, "concurrency", "must be an int ≥ 1, not 0"),
        (["ok"], {"max_cost_usd": "much"}, "max_cost_usd", "an amount in dollars"),
        (["ok"], {"warm": "hot"}, "warm", "must be one of auto, call, prewarm, off"),
        (["ok"], {"results": 5}, "results", "must be the path of a file"),
        (["ok"], {"order": True}, "order", "did you mean `ordered`?"),
        (["ok"], {"batch": 1}, "batch", "must be True or False"),
        (["ok"], {"visibility_delay": -1}, "visibility_delay", "must be ≥ 0"),
    ],
)
def test_wrong_arguments_are_named(
    emu: Emulator, prompts: Any, options: dict[str, Any], place: str, reason: str
) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(InvalidRequest) as problem:
                emulated.client.map(prompts, **options)
        assert problem.value.path == place
        assert reason in str(problem.value)

    asyncio.run(main())


def test_a_prompt_that_cannot_be_sent_stops_the_run_before_the_first_call(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            good = Call(ir=PromptIR(), model="claude-sonnet-4-5")
            with pytest.raises(InvalidRequest, match=r"prompts\[1\]"):
                await emulated.client.map(["ok", good])
            assert not emulated.transport.sent

    asyncio.run(main())


# ── Order, concurrency, limits, budget ───────────────────────────────────────────────────────────


def test_items_come_as_they_are_answered_or_in_order() -> None:
    script = Script.decode(
        'replies: [{match: {text: "is 0?"}, reply: {text: "slow", pace: 200ms}}]', "script.yaml"
    )
    with emulator.running(EmulatorOptions(script=script)) as emu:

        async def order(**options: Any) -> list[int]:
            async with connected(emu, ["anthropic"]) as emulated:
                mapped = emulated.client.map(QUESTIONS[:4], **options)
                return [item.index async for item in mapped]

        assert asyncio.run(order(ordered=True)) == [0, 1, 2, 3]
        assert set(asyncio.run(order())) == {0, 1, 2, 3}


def test_a_loop_that_is_left_early_cancels_what_runs() -> None:
    with emulator.running(EmulatorOptions(latency=Latency(0.0, 0.05))) as emu:

        async def main() -> None:
            async with connected(emu, ["anthropic"]) as emulated:
                mapped = emulated.client.map(QUESTIONS, concurrency=1)
                async for _ in mapped:
                    break
                await asyncio.sleep(0)
            assert len(emulated.transport.sent) <= 2
            # The provider bills the call that was in flight, if one was.
            progress = mapped.progress
            assert len(emulated.transport.sent) - 1 <= progress.in_flight <= 1
            assert (progress.cost_usd > progress.billed_usd) == bool(progress.in_flight)

        asyncio.run(main())


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_calls_run_at_once_than_allowed(
    emu: Emulator, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anaphora.client.oneshot import OneShot

    running, seen = 0, 0
    send = OneShot.send

    async def counted(self: OneShot, *arguments: Any) -> Any:
        nonlocal running, seen
        running += 1
        seen = max(seen, running)
        try:
            return await send(self, *arguments)
        finally:
            running -= 1

    monkeypatch.setattr(OneShot, "send", counted)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            await emulated.client.map(QUESTIONS, system=LONG, visibility_delay=0, concurrency=most)

    asyncio.run(main())
    assert seen == most


def test_limits_of_the_configuration_delay_calls_and_lose_none(emu: Emulator) -> None:
    """Also those that cannot start within the time that a call may take."""

    async def main() -> None:
        limits = {"concurrency": 2}
        async with connected(emu, ["anthropic"], limits=limits) as emulated:
            result = await emulated.client.map(
                QUESTIONS, system=LONG, visibility_delay=0, timeout=5.0
            )
            assert not result.errors
            assert any(attempt.queued for record in emulated.records for attempt in record.attempts)

    asyncio.run(main())


def test_no_call_is_sent_that_could_exceed_the_budget(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            common: dict[str, Any] = {"system": LONG, "visibility_delay": 0, "max_tokens": 16}
            whole = await emulated.client.map(QUESTIONS, **common)
            assert whole.cost_usd is not None
            emu.reset()
            bound = whole.cost_usd / 2
            half = await emulated.client.map(QUESTIONS, max_cost_usd=bound, **common)
            assert half.cost_usd is not None
            assert half.cost_usd <= bound
            assert half.stop_reason == "cost_usd"
            assert half.progress.done
            assert {type(item.error) for item in half.errors} == {BudgetExceeded}
            assert half.progress.done == len(generated(emu)) < 20
            assert "max_cost_usd" in str(half.errors[0].error)
            nothing = await emulated.client.map(QUESTIONS, max_cost_usd=0, **common)
            assert len(nothing.errors) == 20

    asyncio.run(main())


def test_a_budget_needs_a_price(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["ollama"]) as emulated:
            mapped = emulated.client.map(["Hi"], model="own-model", max_cost_usd=1)
            with pytest.raises(InvalidRequest, match="no price is known for own-model"):
                await mapped
            assert not emulated.transport.sent

    asyncio.run(main())


def test_progress_has_spend_and_hit_share(emu: Emulator) -> None:
    seen: list[FanOutProgress] = []

    def note(progress: FanOutProgress) -> None:
        seen.append(msgspec.structs.replace(progress))

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(
                QUESTIONS, system=LONG, visibility_delay=0, on_progress=note
            )
        assert [progress.done for progress in seen] == list(range(1, 21))
        costs = [progress.billed_usd for progress in seen]
        assert costs == sorted(costs)
        assert costs[-1] == seen[-1].cost_usd == result.cost_usd
        assert result.cost_usd is not None
        # Calls in flight are about what they cost then: the others read what the first one wrote.
        assert seen[0].in_flight == 0
        assert max(progress.in_flight for progress in seen) > 1
        assert all(progress.cost_usd <= result.cost_usd * 3 / 2 for progress in seen)
        assert not seen[-1].in_flight
        assert not seen[-1].in_flight_usd
        assert 0.9 < seen[-1].read_share == result.read_share < 1

    asyncio.run(main())


def test_a_progress_function_that_fails_changes_nothing(emu: Emulator) -> None:
    def fail(_: FanOutProgress) -> None:
        raise LookupError("broken")

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS[:3], on_progress=fail)
            assert not result.errors
            assert [notice.code for notice in result.notices] == ["observer_failed"]

    asyncio.run(main())


def test_the_sync_client_maps_too(emu: Emulator) -> None:
    providers = settings(emu.url, ["anthropic"])
    with Client.from_config({"providers": providers}, environ={"KEY": KEY}) as client:
        mapped = client.map(
            (question for question in QUESTIONS[:4]), system=LONG, visibility_delay=0
        )
        result = mapped.result()
        assert mapped.result() is result
        assert len(result.texts) == mapped.progress.done == 4
        again = client.map(QUESTIONS[:4], system=LONG, visibility_delay=0, ordered=True)
        assert [item.text for item in again] == list(result.texts)
        with pytest.raises(InvalidRequest, match="already consumed"):
            list(again)


def test_a_map_that_was_never_awaited_warns(emu: Emulator) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.warns(RuntimeWarning, match=r"map\(…\) at .*test_fan_out.py:"):
                emulated.client.map(["Hi"])
            mapped = emulated.client.map(["Hi"])
            with pytest.raises(AttributeError, match="a map has no text"):
                mapped.text  # noqa: B018
            await mapped

    asyncio.run(main())


# ── Results in a file ────────────────────────────────────────────────────────────────────────────


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_results_are_private_and_a_second_run_sends_only_what_is_left(
    emu: Emulator, tmp_path: Path
) -> None:
    file = tmp_path / "answers.jsonl"

    async def run(prompts: list[str], **options: Any) -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            return await emulated.client.map(
                prompts, system=LONG, visibility_delay=0, results=file, **options
            )

    first = asyncio.run(run(QUESTIONS[:10]))
    for each in (file, tmp_path / "answers.state.jsonl"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert [line["index"] for line in lines(file)] == list(range(10))
    assert [line["text"] for line in lines(file)] == list(first.texts)
    assert KEY not in file.read_text() + (tmp_path / "answers.state.jsonl").read_text()

    # The other way round, with new prompts in front.
    second = asyncio.run(run(QUESTIONS[::-1]))
    assert len(generated(emu)) == 20
    assert second.texts[::-1][:10] == first.texts
    assert second.progress.resumed == 10
    assert [item.resumed for item in second.items] == [False] * 10 + [True] * 10
    assert second.cost_usd == sum(Decimal(each["cost_usd"]) for each in generated(emu))
    assert len(lines(file)) == 20
    old, new = first.items[0].unwrap(), second.items[19].unwrap()
    assert (new.usage, new.cost_usd, new.reply) == (old.usage, old.cost_usd, old.reply)

    asyncio.run(run(QUESTIONS[:5], temperature=0.5))  # other requests
    assert len(generated(emu)) == 25


def test_a_line_that_was_cut_off_is_made_again(emu: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"

    async def run() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS[:4], results=file)
            assert not result.errors

    asyncio.run(run())
    file.write_bytes(file.read_bytes()[:-20])
    asyncio.run(run())
    assert len(generated(emu)) == 5
    assert [line["index"] for line in lines(file)] == [0, 1, 2, 3]


def test_failed_calls_are_in_the_file_and_are_made_again(emu: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"

    async def run(fault: str | None) -> Any:
        async with connected(emu, ["anthropic"], retry={"max_attempts": 1}) as emulated:
            emulated.transport.faults = [fault, None]
            return await emulated.client.map(QUESTIONS[:3], results=file)

    asyncio.run(run("529"))
    failed = [line for line in lines(file) if "error" in line]
    assert [line["error"]["type"] for line in failed] == ["Overloaded"]
    assert not asyncio.run(run(None)).errors
    assert not [line for line in lines(file) if "error" in line]


def test_parsed_outputs_are_restored(emu: Emulator, tmp_path: Path) -> None:
    class Number(msgspec.Struct):
        value: int

    async def run() -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            return await emulated.client.map(
                QUESTIONS[:3], output=Number, results=tmp_path / "numbers.jsonl"
            )

    first, second = asyncio.run(run()), asyncio.run(run())
    assert [item.parsed for item in first.items] == [item.parsed for item in second.items]
    assert isinstance(second.items[0].parsed, Number)
    assert second.progress.calls == 0


def test_replies_that_do_not_match_are_in_the_file(emu: Emulator, tmp_path: Path) -> None:
    class Number(msgspec.Struct):
        value: int

    async def run() -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            return await emulated.client.map(
                QUESTIONS[:2], output=Number, max_tokens=1, results=tmp_path / "numbers.jsonl"
            )

    result = asyncio.run(run())
    replies = [item.error.partial for item in result.items]
    assert [reply.stop_reason for reply in replies] == ["length", "length"]
    kept = lines(tmp_path / "numbers.jsonl")
    assert [line["error"]["type"] for line in kept] == ["Parse", "Parse"]
    assert [from_json(json.dumps(line["reply"]).encode(), Reply) for line in kept] == replies
    assert [line["text"] for line in kept] == [reply.text for reply in replies]
    assert asyncio.run(run()).progress.calls == 2, "they are sent again"


def test_the_budget_holds_over_all_runs(emu: Emulator, tmp_path: Path) -> None:
    async def run(bound: Decimal | None) -> Any:
        async with connected(emu, ["anthropic"]) as emulated:
            return await emulated.client.map(
                QUESTIONS[:4], max_tokens=16, results=tmp_path / "a.jsonl", max_cost_usd=bound
            )

    spent = asyncio.run(run(None)).cost_usd
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines(tmp_path / "a.jsonl")[:3])
    )
    again = asyncio.run(run(spent * Decimal("0.75")))
    assert [item.index for item in again.errors] == [3]
    assert again.stop_reason == "cost_usd"


def test_interrupted_calls_count_in_the_next_run(emu: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            sent = emulated.transport.sent
            emulated.transport.faults = [None, None, None, "timeout"]
            mapped = emulated.client.map(QUESTIONS[:4], results=file, concurrency=1)

            async def whole() -> Any:
                return await mapped

            run = asyncio.create_task(whole())
            await until(lambda: len(sent) == 4)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            spent = mapped.progress.cost_usd
            assert spent > mapped.progress.billed_usd
            again = await emulated.client.map(QUESTIONS[:4], results=file, max_cost_usd=spent)
            assert [item.index for item in again.errors] == [3]
            assert again.cost_usd == spent
            assert len(sent) == 4

    asyncio.run(main())


def test_two_runs_do_not_write_to_one_file(emu: Emulator, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            file = tmp_path / "answers.jsonl"
            first = emulated.client.map(QUESTIONS[:5], results=file, concurrency=1)
            async with aclosing(first.__aiter__()) as items:
                async for _ in items:
                    with pytest.raises(Io, match="another run writes to it"):
                        await emulated.client.map(QUESTIONS[:5], results=file)
                    break

    asyncio.run(main())


@pytest.mark.parametrize(
    "name, text, error",
    [
        ("a.jsonl", '{"question": "mine"}\n', InvalidRequest),
        ("a.jsonl", "words\n", InvalidRequest),
        ("a.state.jsonl", '{"version": 2}\n', OtherSchema),
    ],
)
def test_other_files_are_refused_and_not_changed(
    emu: Emulator, tmp_path: Path, name: str, text: str, error: type[Exception]
) -> None:
    (tmp_path / name).write_text(text)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            with pytest.raises(error, match=name):
                await emulated.client.map(QUESTIONS[:2], results=tmp_path / "a.jsonl")
            assert not emulated.transport.sent

    asyncio.run(main())
    assert (tmp_path / name).read_text() == text


def test_a_full_disk_loses_no_answer(
    emu: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anaphora.client.fan_out import kept

    write = kept._write

    def full(file: int, data: bytes) -> None:
        if b'"reply"' in data:
            write(file, data[:10])
            raise OSError(28, "No space left on device")
        write(file, data)

    monkeypatch.setattr(kept, "_write", full)

    async def main() -> None:
        async with connected(emu, ["anthropic"]) as emulated:
            result = await emulated.client.map(QUESTIONS[:3], results=tmp_path / "a.jsonl")
        assert len(result.texts) == 3
        assert [notice.code for notice in result.notices] == ["results_failed"]

    asyncio.run(main())
    assert (tmp_path / "a.jsonl").read_text() == ""


def test_the_benchmark_ends_with_its_ratios() -> None:
    bench = [sys.executable, "bench/fanout.py", "--calls", "2,12", "--tokens", "6000"]
    run = subprocess.run(
        bench, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    ratios = json.loads(run.stdout.splitlines()[-1])
    assert ratios["dollars_vs_all_at_once"] < 0.3
    assert ratios["wall_vs_all_at_once"] < 3
    assert all(ratios[f"{name}_2_dollars"] < 1 for name in ("anthropic", "openai", "gemini"))
