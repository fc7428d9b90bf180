"""CASES D: look-back, history, thinking, images. Each test is named after the thread it comes from.

Requests are compared as they were sent, on every wire where the case can occur.
"""

from __future__ import annotations

import asyncio
import copy
from decimal import Decimal
from typing import Any

import pytest
from support.emulated_client import LONG, connected
from support.planted import GUIDE, PLACES, PNG, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.plan import AppMemory, Planner
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.cache.verdict import Verdict, preflight
from anaphora.emulator.server import Emulator
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Conversation, Message, ToolCall
from anaphora.wire import anthropic
from anaphora.wording import format_usd

Json = dict[str, Any]

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = catalog.rules("anthropic", MODEL)
WIRES = ["anthropic", "openai_chat", "openai_responses", "gemini", "deepseek"]


def fan_out(tools: int) -> tuple[Rendered, Rendered]:
    """A turn, and the next after so many parallel tools."""
    system = [PromptBlock.cached_long("identity", GUIDE)]

    def render(conversation: Conversation, previous: Rendered | None = None) -> Rendered:
        ir = PromptIR.chat(conversation, system=system)
        call = Call(ir=ir, model=MODEL, params=Params(max_tokens=64))
        return anthropic.render(call, PROFILE, previous)

    conversation = Conversation([Message.user("Look everywhere.")])
    before = render(conversation)
    calls = [ToolCall(f"t{at}", "look", f'{{"place": {at}}}') for at in range(tools)]
    results = [Message.tool(f"t{at}", f"nothing in {at}") for at in range(tools)]
    return before, render(conversation.append(Message.assistant(*calls), *results), before)


def test_claude_code_63930_a_write_that_parallel_tools_push_away_is_marked_again() -> None:
    """Under both published ways of counting: the simulator reads all that was written."""
    before, after = fan_out(40)
    for unit in ("blocks", "tool_runs"):
        planner, cache = Planner(AppMemory(RULES)), Simulator(RULES, lookback_unit=unit)
        first = planner.plan(before, at=0.0)
        wrote = cache.call(RenderedPrompt(before, first), at=0.0)
        planner.sent(before, first, at=0.0)
        second = planner.plan(after, at=30.0)
        result = cache.call(RenderedPrompt(after, second), at=30.0)
        assert result.read == sum(wrote.written.values()) > 0


def test_claude_code_63930_without_that_marker_preflight_reports_it() -> None:
    place = PLACES["anthropic"]
    after = grown(spec())
    after["messages"][-1] = ("user", [f"result {at}" for at in range(40)])
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    (notice,) = preflight(one, two, RULES)
    assert notice.code == "lookback_exceeded"
    assert "42 blocks before the next marker, and the look-back is 20" in notice.message
    assert verdict_of(place, one, two).cause == "lookback_exceeded"


@each_row("name", WIRES)
def test_claude_code_43657_a_resume_that_puts_text_elsewhere_is_named_as_a_move(name: str) -> None:
    """A reminder moves from the first message to the last."""
    place = PLACES[name]
    before = spec()
    before["messages"][0] = ("user", ["<reminder>Be kind.</reminder>", "What is in the file?"])
    after = copy.deepcopy(before)
    after["messages"][0] = ("user", ["What is in the file?"])
    after["messages"][-1] = ("user", ["<reminder>Be kind.</reminder>", "Which colour is it?"])
    result = verdict_of(place, split(place, body(place, before)), split(place, body(place, after)))
    assert result.change is not None
    assert result.change.kind == "message_moved"
    assert "a message moved" in result.sentence


@each_row("name", WIRES)
def test_claude_code_76606_a_hook_that_puts_text_in_between_is_named(name: str) -> None:
    place = PLACES[name]
    after = grown(spec())
    after["messages"][2] = ("user", ["hook: all tests pass", *after["messages"][2][1]])
    result = verdict_of(place, split(place, body(place, spec())), split(place, body(place, after)))
    assert result.change is not None
    assert result.change.kind == "message_added"
    assert "hook" in result.change.after


# ── Pruning ──────────────────────────────────────────────────────────────────────────────────────


def pruned(name: str) -> tuple[Rendered, Rendered]:
    """An old result is replaced by a note: the prompt shrinks, and all behind it is new."""
    place = PLACES[name]
    before = spec()
    before["messages"][0] = ("user", ["Here is the file: " + "line after line, " * 400])
    before["messages"][1] = ("assistant", ["I have read all of it. " * 200])
    after = grown(before)
    after["messages"][0] = ("user", ["[an old file was here]"])
    return split(place, body(place, before)), split(place, body(place, after))


@pytest.mark.parametrize("name", WIRES)
def test_opencode_32515_the_verdict_shows_what_a_pruning_costs(name: str) -> None:
    place = PLACES[name]
    one, two = pruned(name)
    assert two.size < one.size
    result = verdict_of(place, one, two, read=None)
    assert result.cause == "history_edited"
    assert result.change is not None
    assert result.change.kind == "text_edited"
    # Removed messages are not paid for again; those behind them are.
    assert 0 < result.lost <= Counts(two).total


@pytest.mark.breaks_prefix(reason="it compacts its history")
def test_eve_175_a_session_compacts_rarely_since_each_compaction_costs_a_write(
    emu: Emulator,
) -> None:
    """`compact_at` leaves half of the limit to grow into: the bill is lower than with a compaction at
    every turn, though the prompts are longer. The verdict after `compact` shows what it cost."""

    async def bill(every_turn: bool) -> tuple[Decimal, list[Verdict]]:
        paid, compacted = Decimal(0), list[Verdict]()
        emu.reset()
        async with connected(emu, ("anthropic",)) as emulated:
            limit = None if every_turn else 14_000
            chat = emulated.client.session("anthropic", system=LONG, compact_at=limit)
            for turn in range(22):
                response = await chat.send(f"{turn}? " + "I have been there before. " * 100)
                assert response.cost_usd is not None
                paid += response.cost_usd
                verdict = response.record.verdict
                assert verdict is not None
                if verdict.cause == "compaction":
                    compacted.append(verdict)
                if every_turn and turn > 4:
                    chat.compact(3_000)
        return paid, compacted

    often, at_every_turn = asyncio.run(bill(every_turn=True))
    rarely, compactions = asyncio.run(bill(every_turn=False))
    assert 0 < len(compactions) <= 3 < len(at_every_turn)
    assert rarely < often
    for verdict in (*at_every_turn, *compactions):
        assert verdict.cost_usd is not None
        loss = f"{verdict.lost:,} tokens were billed again: {format_usd(verdict.cost_usd)}"
        assert verdict.lost > 0
        assert loss in str(verdict)


def test_deepseek_reasonix_8210_a_pruning_at_every_turn_costs_many_times_what_it_saves() -> None:
    """Ten turns, with an old message cut at each, against leaving the history alone."""
    rules = catalog.rules("deepseek", "deepseek-v4-pro")
    place = PLACES["deepseek"]

    def paid(prune: bool) -> float:
        cache, conversation, total = Simulator(rules), spec(), 0.0
        conversation["messages"] = [("user", ["story " * 4000])]
        for turn in range(10):
            conversation["messages"] += [
                ("assistant", [f"part {turn}. " * 400]),
                ("user", ["go on"]),
            ]
            if prune:
                conversation["messages"][0] = ("user", ["story " * (4000 - 300 * (turn + 1))])
            rendered = split(place, body(place, conversation))
            outcome = cache.call(RenderedPrompt(rendered, Plan()), at=turn * 30.0)
            total += outcome.uncached + outcome.read * rules.read_price.value
        return total

    assert paid(prune=True) > 2 * paid(prune=False)


# ── Images ───────────────────────────────────────────────────────────────────────────────────────


@each_row("name", WIRES)
def test_claude_code_86075_evicting_an_image_is_predicted_before_sending(name: str) -> None:
    place = PLACES[name]
    after = grown(spec())
    after["messages"][2] = ("user", ["And in the picture?"])
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    (notice,) = preflight(one, two)
    assert notice.code == "prefix_breaks"
    assert notice.message.startswith("an image was removed")
    assert notice.tokens


@each_row("name", WIRES)
def test_claude_code_90363_reattaching_an_image_is_predicted_before_sending(name: str) -> None:
    place = PLACES[name]
    before = spec()
    before["messages"][2] = ("user", ["And in the picture?"])
    after = grown(spec())
    one, two = split(place, body(place, before)), split(place, body(place, after))
    (notice,) = preflight(one, two)
    assert notice.message.startswith("an image was added")


def test_qwen_code_11627_the_first_image_of_a_conversation_voids_its_messages() -> None:
    """No byte of the beginning changes, but by Anthropic's rule it is lost."""
    place = PLACES["anthropic"]
    before = spec()
    before["messages"] = [("user", ["one"]), ("assistant", ["two"]), ("user", ["three"])]
    after = copy.deepcopy(before)
    after["messages"] += [("assistant", ["four"]), ("user", ["look", {"image": PNG}])]
    one, two = split(place, body(place, before)), split(place, body(place, after))
    assert [notice.code for notice in preflight(one, two, RULES)] == ["images_changed"]
    # Without such a rule there is no notice.
    assert preflight(one, two, catalog.rules("openai", "gpt-5")) == ()


@each_row("name", WIRES)
def test_codex_32613_an_image_in_another_encoding_is_a_change_at_its_place(name: str) -> None:
    place = PLACES[name]
    after = grown(spec())
    after["messages"][2] = ("user", ["And in the picture?", {"image": PNG[::-1]}])
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    result = verdict_of(place, one, two, read=None)
    assert result.change is not None
    assert result.change.label.startswith("conversation")
    assert two.chunk(two.at_offset(result.change.offset)).kind.value == "image"
