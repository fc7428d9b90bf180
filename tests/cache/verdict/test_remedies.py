"""What would avoid a loss, and what it would have saved."""

from __future__ import annotations

import copy
import datetime
import gc
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
from anaphora.cache.simulator.stories import StoryPlayer
from anaphora.cache.verdict import Remedy, SentCall, Verdict, judge, with_remedy
from anaphora.cache.verdict.judgement import ComparedCall, ComparedCalls
from anaphora.cache.verdict.remedy import REMEDIES
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.usage.advice import GENERAL, REMEDY
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
    verdict = with_remedy(
        verdict, earlier, later, rules, price=price, profile=profile, past=times[:-2]
    )
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


def unmark(prompt: Json) -> None:
    prompt["marked"] = False


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
    assert (remedy.kind, remedy.ttl, remedy.fixable, remedy.calls) == ("longer_ttl", "1h", True, 4)
    assert "Cache for 60 min instead of 5 min" in str(remedy)


def test_lifetime_is_not_raised_if_it_costs_more() -> None:
    """One pause of a short conversation after a long one without: 1 h costs 0.75 of all writes."""
    prompts = story(ANTHROPIC, 2)
    short = [split(ANTHROPIC, body(ANTHROPIC, spec() | {"messages": [("user", ["Hi"])]}))]
    _, remedy = verdict_on(ANTHROPIC, [*short, *prompts], [BEGIN, BEGIN + 60, BEGIN + 90_000])
    assert remedy.kind == "nothing"
    assert not remedy.fixable


def test_provider_without_lifetimes_has_no_remedy() -> None:
    place = PLACES["openai_chat"]
    _, remedy = verdict_on(place, story(place, 2), [BEGIN, BEGIN + 2 * 86_400])
    assert remedy.kind == "nothing"
    assert remedy.ttl is None


def test_unknown_price_leaves_the_tokens() -> None:
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    one, two = changed(new_date)
    earlier, later = SentCall(rendered=one, at=BEGIN), SentCall(rendered=two, at=BEGIN + 60)
    verdict = with_remedy(judge(earlier, later, rules), earlier, later, rules, price=None)
    assert verdict.remedy is not None
    assert (verdict.remedy.kind, verdict.remedy.saving) == ("move_to_end", None)
    assert verdict.remedy.tokens > 1000


@given(
    st.lists(
        st.floats(5, 3000).filter(lambda gap: abs(gap - 300) > 15), min_size=1, max_size=12
    ).filter(lambda gaps: gaps[-1] > 300)
)
def test_saving_is_that_of_the_simulated_requests(gaps: list[float]) -> None:
    """The same calls with real requests: what they cost with 5 min and with 1 h."""
    times = [BEGIN]
    for gap in gaps:
        times.append(times[-1] + gap)
    prompts = story(ANTHROPIC, len(times))
    _, remedy = verdict_on(ANTHROPIC, prompts, times)
    rules = catalog.rules("anthropic", ANTHROPIC.model)
    price = catalog.price("anthropic", ANTHROPIC.model, NOW)
    assert price is not None

    def cost(ttl: Ttl) -> Decimal:
        simulator, total = Simulator(rules), Decimal(0)
        for prompt, at in zip(prompts, times, strict=True):
            marks = tuple(Mark(mark.chunk, ttl, mark.splice) for mark in prompt.marks)
            usage = simulator.call(RenderedPrompt(prompt, Plan(marks=marks)), at=at).usage(0)
            each = price.of(usage)
            assert each is not None
            total += each
        return total

    saving = cost("5m") - cost("1h")
    if remedy.kind == "longer_ttl":
        assert remedy.saving is not None
        assert abs(saving - remedy.saving.expected) <= abs(saving) / 10 + cost("1h") / 100
    else:
        assert saving <= cost("1h") / 50


def test_one_vocabulary() -> None:
    assert set(REMEDY.values()) <= set(REMEDIES)
    assert REMEDY.keys() == GENERAL.keys()


@pytest.mark.parametrize("excerpts", [True, False])
def test_remedy_is_part_of_the_json(excerpts: bool) -> None:
    verdict, remedy = verdict_on(ANTHROPIC, changed(new_date), [BEGIN, BEGIN + 60])
    fields = msgspec.to_builtins(verdict)["remedy"]
    assert fields["kind"] == "move_to_end"
    assert Decimal(fields["saving"]["low"]) > 0
    assert GUIDE[:20] not in str(fields)
    assert str(remedy) not in verdict.describe(excerpts=excerpts)
    assert copy.copy(verdict).remedy == remedy


def players() -> int:
    gc.collect()
    return sum(type(each) is StoryPlayer for each in gc.get_objects())


@pytest.mark.long
def test_played_calls_are_kept_for_the_latest_losses() -> None:
    """Each takes far more than a remembered call, of which there may be thousands."""
    rules = catalog.rules(ANTHROPIC.provider, ANTHROPIC.model)
    profile = catalog.profile(ANTHROPIC.provider, ANTHROPIC.model)
    calls, remedies, first = ComparedCalls(), list[str](), 0
    for number in range(300):
        prompts = story(ANTHROPIC, 2, system=[f"You help customer {number}.", GUIDE])
        for turn, prompt in enumerate(prompts):
            verdict = calls.judge(
                ComparedCall(sent=SentCall(rendered=prompt, at=BEGIN + 400 * turn)),
                f"msg_{number}_{turn}",
                scope=f"app {number}",
                rules=rules,
                price=None,
                profile=profile,
            )
        remedies.append("" if verdict.remedy is None else verdict.remedy.kind)
        first = first or players()
    assert remedies == ["longer_ttl"] * 300
    assert players() <= 256 * first
