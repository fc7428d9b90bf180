"""What would avoid a loss, and what it would have saved."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted import GUIDE, PLACES, Json, Place, body, grown, spec, split
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.cache.verdict import Remedy, SentCall, Verdict, judge, with_remedy
from anaphora.cache.verdict.advice import CAUSES
from anaphora.cache.verdict.judgement import ComparedCall, ComparedCalls
from anaphora.cache.verdict.remedy import REMEDIES
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Ttl

NOW = datetime.datetime(2026, 11, 14, tzinfo=datetime.UTC)
ANTHROPIC = PLACES["anthropic"]
BEGIN = 1_000_000.0


def story(place: Place, turns: int, **changes: Any) -> list[Rendered]:
    prompts = [spec() | changes]
    for _ in range(turns - 1):
        prompts.append(grown(prompts[-1]))
    return [split(place, body(place, prompt)) for prompt in prompts]


def verdict_on(
    place: Place, prompts: list[Rendered], times: list[float], **facts: Any
) -> tuple[Verdict, Remedy]:
    """On the last call; `facts` are more about it, or about the one before by `earlier_…`."""
    rules = catalog.rules(place.provider, place.model)
    price = catalog.price(place.provider, place.model, NOW)
    before = {name[8:]: value for name, value in facts.items() if name.startswith("earlier_")}
    own = {name: value for name, value in facts.items() if not name.startswith("earlier_")}
    earlier = SentCall(rendered=prompts[-2], at=times[-2], **before)
    later = SentCall(rendered=prompts[-1], at=times[-1], **own)
    profile = catalog.profile(place.provider, place.model)
    verdict = judge(earlier, later, rules, price=price, profile=profile)
    since = times[-3] if len(times) > 2 else None
    verdict = with_remedy(verdict, earlier, later, rules, price=price, profile=profile, since=since)
    assert verdict.remedy is not None
    return verdict, verdict.remedy


def changed(change: Callable[[Json], None], place: Place = ANTHROPIC) -> list[Rendered]:
    before = spec()
    after = grown(before)
    change(after)
    return [split(place, body(place, prompt)) for prompt in (before, after)]


def new_date(prompt: Json) -> None:
    prompt["system"][0] = prompt["system"][0].replace("2026-11-15", "2026-11-16")


def new_text(prompt: Json) -> None:
    prompt["system"][0] = "You are somewhat kinder today."


def reverse_tools(prompt: Json) -> None:
    prompt["tools"].reverse()


def drop_tool(prompt: Json) -> None:
    del prompt["tools"][1]


def edit_history(prompt: Json) -> None:
    prompt["messages"][1] = ("assistant", ["It holds quite another thing."])


@each_row(
    ("change", "kind", "fixable", "words"),
    [
        (new_date, "move_to_end", False, "Move the date into the newest message"),
        (new_text, "move_to_end", False, "Move text that changes into the newest message"),
        (reverse_tools, "keep_tools", True, "Send the tools in the order of the earlier call"),
        (drop_tool, "keep_tools", False, "Send the same tools in the same order"),
        (edit_history, "keep_history", False, "Change earlier messages rarely"),
    ],
)
def test_each_change_has_its_remedy(
    change: Callable[[Json], None], kind: str, fixable: bool, words: str
) -> None:
    verdict, remedy = verdict_on(ANTHROPIC, changed(change), [BEGIN, BEGIN + 60])
    assert (remedy.kind, remedy.fixable) == (kind, fixable)
    assert remedy.saving is not None
    assert verdict.cost_usd is not None
    assert remedy.saving.low <= remedy.saving.expected <= remedy.saving.high
    # It avoids this loss, and nothing else happened in the conversation.
    assert abs(remedy.saving.expected - verdict.cost_usd) <= verdict.cost_usd / 20
    assert words in str(remedy)
    assert ("watch --fix" in str(remedy)) == fixable


def test_other_causes() -> None:
    prompts = story(ANTHROPIC, 2, marked=False)
    _, remedy = verdict_on(ANTHROPIC, prompts, [BEGIN, BEGIN + 60])
    assert (remedy.kind, remedy.fixable) == ("place_markers", True)
    prompts = story(ANTHROPIC, 2)
    hosts = {"earlier_host": "Novita", "host": "Together"}
    _, remedy = verdict_on(ANTHROPIC, prompts, [BEGIN, BEGIN + 60], **hosts)
    assert (remedy.kind, remedy.fixable) == ("pin_host", True)
    assert "Stay at Novita" in str(remedy)
    _, remedy = verdict_on(ANTHROPIC, prompts, [BEGIN, BEGIN + 60], earlier_route="other")
    assert (remedy.kind, remedy.fixable) == ("pin_host", False)
    short = story(ANTHROPIC, 2, system=["Be brief."], messages=[("user", ["Hi"])])
    _, remedy = verdict_on(ANTHROPIC, short, [BEGIN, BEGIN + 60])
    assert (remedy.kind, remedy.saving) == ("nothing", None)
    assert "below the minimum" in str(remedy)


def test_hit_and_unknown_have_none() -> None:
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    one, two = story(ANTHROPIC, 2)
    earlier, later = SentCall(rendered=one, at=BEGIN), SentCall(rendered=two, at=BEGIN + 60)
    for first in (earlier, None):
        verdict = judge(first, later, rules)
        assert with_remedy(verdict, first, later, rules, price=None) is verdict


def test_pause_is_shorter_than_a_longer_lifetime() -> None:
    times = [BEGIN, BEGIN + 60, BEGIN + 120, BEGIN + 900]
    _, remedy = verdict_on(ANTHROPIC, story(ANTHROPIC, 4), times)
    assert (remedy.kind, remedy.ttl, remedy.fixable, remedy.calls) == ("longer_ttl", "1h", True, 2)
    assert "Cache for 60 min instead of 5 min" in str(remedy)


def test_lifetime_is_not_raised_if_it_costs_more() -> None:
    """One pause of a short conversation after a long one without: 1 h costs 0.75 of all writes."""
    prompts = story(ANTHROPIC, 2)
    short = [split(ANTHROPIC, body(ANTHROPIC, spec() | {"messages": [("user", ["Hi"])]}))]
    _, remedy = verdict_on(ANTHROPIC, [*short, *prompts], [BEGIN, BEGIN + 60, BEGIN + 90_000])
    assert (remedy.kind, remedy.fixable) == ("nothing", False)


def test_pause_that_no_lifetime_covers_has_no_remedy() -> None:
    place = PLACES["openai_chat"]
    _, remedy = verdict_on(place, story(place, 2), [BEGIN, BEGIN + 2 * 86_400])
    assert (remedy.kind, remedy.ttl) == ("nothing", None)
    assert str(remedy) == "Nothing to do: the pause was too long."


def test_unknown_price_leaves_the_tokens() -> None:
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    one, two = changed(new_date)
    earlier, later = SentCall(rendered=one, at=BEGIN), SentCall(rendered=two, at=BEGIN + 60)
    verdict = with_remedy(judge(earlier, later, rules), earlier, later, rules, price=None)
    assert verdict.remedy is not None
    assert (verdict.remedy.kind, verdict.remedy.saving) == ("move_to_end", None)
    assert verdict.remedy.tokens > 1000


def cost_of(prompts: list[Rendered], times: list[float], ttl: Ttl | None) -> Decimal:
    """The input of these calls as billed by the rules, with markers of this lifetime; None: without
    markers."""
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    price = catalog.price("anthropic", ANTHROPIC.model, NOW)
    assert price is not None
    simulator, total = Simulator(rules), Decimal(0)
    for prompt, at in zip(prompts, times, strict=True):
        marks: tuple[Mark, ...] = ()
        if ttl is not None:
            marks = tuple(Mark(mark.chunk, ttl, mark.splice) for mark in prompt.marks)
        usage = simulator.call(RenderedPrompt(prompt, Plan(marks=marks)), at=at).usage(0)
        each = price.of(usage)
        assert each is not None
        total += each
    return total


def promised(prompts: list[Rendered], times: list[float], kind: str) -> Decimal:
    """What a remedy would have saved in a conversation: the sum over its calls. At each it is at
    most what was lost."""
    total = Decimal(0)
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    price = catalog.price("anthropic", ANTHROPIC.model, NOW)
    sent = [SentCall(rendered=one, at=at) for one, at in zip(prompts, times, strict=True)]
    for end in range(1, len(sent)):
        earlier, later = sent[end - 1], sent[end]
        since = times[end - 2] if end > 1 else None
        verdict = judge(earlier, later, rules, price=price)
        verdict = with_remedy(verdict, earlier, later, rules, price=price, since=since)
        remedy = verdict.remedy
        if remedy is not None and remedy.kind == kind:
            assert remedy.saving is not None
            total += remedy.saving.expected
            if verdict.left:
                assert verdict.cost_usd is not None
                assert 0 < remedy.saving.expected <= verdict.cost_usd
    return total


@given(
    st.lists(
        st.floats(5, 3000).filter(lambda gap: abs(gap - 300) > 15), min_size=1, max_size=12
    ).filter(lambda gaps: gaps[-1] > 300)
)
def test_saving_is_at_most_that_of_the_simulated_requests(gaps: list[float]) -> None:
    """The same calls with real requests: what they cost with 5 min and with 1 h."""
    times = [BEGIN]
    for gap in gaps:
        times.append(times[-1] + gap)
    prompts = story(ANTHROPIC, len(times))
    saving = cost_of(prompts, times, "5m") - cost_of(prompts, times, "1h")
    sum_usd = promised(prompts, times, "longer_ttl")
    assert sum_usd <= max(saving, Decimal(0)) + cost_of(prompts, times, "1h") / 100
    if all(gap > 300 for gap in gaps):  # each pause is a loss: it is to the token
        assert abs(sum_usd - saving) <= saving / 20


@pytest.mark.parametrize("turns", [2, 3, 8])
def test_uuid_at_the_beginning_of_unmarked_prompts(turns: int) -> None:
    """Neither markers nor another place of the UUID would have saved anything alone: together they
    save most of the bill, which is what the simulator says of the same prompts."""
    shown, fixed, prompts = (
        spec() | {"marked": False, "tools": []},
        list[Rendered](),
        list[Rendered](),
    )
    for turn in range(turns):
        id = f"{turn:08x}-6d2f-4f0e-9a51-0c3e8b7d{turn:04x}"
        system = [f"{id} is this request. {GUIDE}"]
        prompts.append(split(ANTHROPIC, body(ANTHROPIC, shown | {"system": system})))
        marked = shown | {"system": [GUIDE], "marked": True}
        fixed.append(split(ANTHROPIC, body(ANTHROPIC, marked)))
        shown = grown(shown)
    times = [BEGIN + 60 * turn for turn in range(turns)]
    _, remedy = verdict_on(ANTHROPIC, prompts, times)
    assert (remedy.kind, remedy.fixable) == ("move_to_end", False)
    text = "Move the UUID into the newest message, and let Anaphora place the markers: saves $"
    assert str(remedy).startswith(text)
    bill = cost_of(prompts, times, None)
    saving, sum_usd = bill - cost_of(fixed, times, "5m"), promised(prompts, times, "move_to_end")
    assert abs(sum_usd - saving) <= bill / 50
    if turns == 8:
        assert sum_usd > bill * Decimal("0.74")


def test_second_change_ends_what_a_moved_text_would_save() -> None:
    """A UUID in the first of two system blocks, and a clock in the second."""
    calls, prompt = [], spec() | {"tools": [], "marked": False}
    for turn in range(3):
        uuid, clock = f"{turn:08x}-6d2f-4f0e-9a51-0c3e8b7d1d1c", f"It is 10:0{turn}."
        system = [f"{uuid}. {GUIDE}", f"{clock} {GUIDE}"]
        calls.append(split(ANTHROPIC, body(ANTHROPIC, prompt | {"system": system})))
        prompt = grown(prompt)
    verdict, remedy = verdict_on(ANTHROPIC, calls, [BEGIN, BEGIN + 60, BEGIN + 120])
    assert [cause.kind for cause in verdict.causes] == ["no_marker", "system_changed"]
    assert remedy.kind == "move_to_end"
    whole = Counts(calls[-1]).total
    assert 0.4 * whole < remedy.tokens < 0.6 * whole


@each_row(("gap", "earlier"), [(0.5, {"began": BEGIN + 2.0}), (4000.0, {})])
def test_what_could_not_be_read_in_time_is_not_promised(gap: float, earlier: Json) -> None:
    """Before the first response began, and after the entry would have expired."""
    prompts = changed(new_date)
    facts = {f"earlier_{name}": value for name, value in earlier.items()}
    _, remedy = verdict_on(ANTHROPIC, prompts, [BEGIN, BEGIN + gap], **facts)
    assert (remedy.kind, remedy.tokens) == ("nothing", 0)


def test_one_vocabulary() -> None:
    assert {facts.remedy for facts in CAUSES.values()} <= set(REMEDIES)


@pytest.mark.parametrize("excerpts", [True, False])
def test_remedy_is_part_of_the_json(excerpts: bool) -> None:
    verdict, remedy = verdict_on(ANTHROPIC, changed(new_date), [BEGIN, BEGIN + 60])
    fields = msgspec.to_builtins(verdict)["remedy"]
    assert fields["kind"] == "move_to_end"
    assert Decimal(fields["saving"]["low"]) > 0
    assert GUIDE[:20] not in str(fields)
    assert str(remedy) not in verdict.describe(excerpts=excerpts)
    assert copy.copy(verdict).remedy == remedy


def test_savings_add_up_over_a_conversation() -> None:
    rules = catalog.rules(ANTHROPIC.provider, ANTHROPIC.model)
    profile = catalog.profile(ANTHROPIC.provider, ANTHROPIC.model)
    price = catalog.price("anthropic", ANTHROPIC.model, NOW)
    calls, prompts = ComparedCalls(), story(ANTHROPIC, 4)
    times = [BEGIN + 400 * turn for turn in range(4)]
    for turn, prompt in enumerate(prompts):
        verdict = calls.judge(
            ComparedCall(sent=SentCall(rendered=prompt, at=times[turn])),
            f"msg_{turn}",
            scope="app",
            rules=rules,
            price=price,
            profile=profile,
        )
    assert verdict.remedy is not None
    assert verdict.remedy.saving is not None
    assert (verdict.remedy.kind, verdict.remedy.calls) == ("longer_ttl", 4)
    error = promised(prompts, times, "longer_ttl") / 100
    assert abs(verdict.remedy.saving.expected - promised(prompts, times, "longer_ttl")) <= error
    assert "over 4 calls" in str(verdict.remedy)
