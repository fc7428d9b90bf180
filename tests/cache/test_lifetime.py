"""How long a cache entry lives: one table for every moment that a rule may count from, and the law
that simulator and verdict agree with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.planted import PLACES, body, grown, spec, split, verdict_of
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.sent_call import (
    expiry,
    is_alive,
    last_ttl,
    oldest_use,
    ttl_seconds,
    used_at,
    used_at_latest,
)
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.rendered import Mark, Plan

RULES = catalog.rules("anthropic", "claude-sonnet-4-5")
OPENAI = catalog.rules("openai", "gpt-4.1")


def counting_from(moment: str, assumed: bool) -> catalog.CacheRules:
    rules = replace(RULES, ttl_from=replace(RULES.ttl_from, value=moment))
    return rules if assumed else replace(rules, response_seconds=None)


#: The rule, whether the start of a response is assumed where it is unknown, when the response began
#: and ended, from when the entry lives, and from when at the latest.
USES = [
    ("request_start", False, 3.0, 20.0, 0.0, 0.0),
    ("response_start", False, 3.0, 20.0, 3.0, 3.0),
    ("response_end", False, 3.0, 20.0, 20.0, 20.0),
    ("response_start", True, None, 20.0, 8.0, 20.0),  # the row assumes 8 s
    ("response_start", True, None, 5.0, 5.0, 5.0),
    ("response_start", True, None, None, 0.0, 0.0),
    ("response_end", False, None, 20.0, 20.0, 20.0),
    ("request_start", False, None, 20.0, 0.0, 0.0),
]


@each_row("moment, assumed, began, ended, used, latest", USES)
def test_lifetime_counts_from_the_moment_of_the_rule(
    moment: str, assumed: bool, began: float | None, ended: float | None, used: float, latest: float
) -> None:
    rules = counting_from(moment, assumed)
    assert used_at(rules, 0.0, began=began, ended=ended) == used
    assert used_at_latest(rules, 0.0, began=began, ended=ended) == latest


def test_entry_is_alive_up_to_its_last_moment() -> None:
    expires = expiry(100.0, ttl_seconds(RULES, "5m"))
    assert [is_alive(expires, at) for at in (100.0, 400.0, 400.1)] == [True, True, False]


@given(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 1e6))
def test_oldest_use_is_the_other_side_of_expiry(used: float, seconds: float, at: float) -> None:
    if abs(at - used - seconds) > 1e-6:  # rounding
        assert is_alive(expiry(used, seconds), at) == (used >= oldest_use(seconds, at))


def test_last_marker_gives_the_ttl_of_all_that_was_cached() -> None:
    hour, minutes = Mark(1, "1h"), Mark(7, "5m")
    assert last_ttl(Plan(marks=(hour, minutes)), RULES) == "5m"
    assert last_ttl(Plan(marks=(hour,)), RULES) == "1h"
    assert last_ttl(Plan(), RULES) is None
    assert OPENAI.default_ttl is not None
    assert last_ttl(Plan(), OPENAI) == OPENAI.default_ttl.value


@given(st.sampled_from(["anthropic", "openai_chat", "openai_responses"]), st.floats(3, 8000))
def test_verdict_names_an_expiry_where_the_simulator_reads_nothing(name: str, gap: float) -> None:
    """Nothing but the clock is planted, and nothing was read."""
    place = PLACES[name]
    one, two = split(place, body(place, spec())), split(place, body(place, grown(spec())))
    rules = catalog.rules(place.provider, place.model, one.wire)
    simulator = Simulator(rules)
    simulator.call(RenderedPrompt(one, Plan(marks=one.marks)), at=1000.0)
    read = simulator.predict(RenderedPrompt(two, Plan(marks=two.marks)), at=1000.0 + gap).read
    found = verdict_of(place, one, two, later={"at": 1000.0 + gap})
    assert found.cause == ("provider_side" if read else "expired"), found.sentence
