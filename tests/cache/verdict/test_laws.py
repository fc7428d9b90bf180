"""Properties of the verdict: growth is never a break, a break is found at its byte, and no input
makes it fail."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planted import PLACES, body, spec, split, verdict_of
from support.tables import each_row

from anaphora.cache.prefix_difference import first_difference
from anaphora.cache.verdict import SentCall, find_change, preflight
from anaphora.cache.verdict.json_blocks import UNREADABLE, block_of, cut_block, volatile_change
from anaphora.tokens import Counts

Json = dict[str, Any]

WIRES = ["anthropic", "openai_chat", "openai_responses", "gemini", "deepseek", "minimax"]

#: Texts that JSON, and so a request, can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)
TURNS = st.lists(TEXTS, max_size=4)


@given(st.sampled_from(WIRES), TURNS)
def test_growth_is_never_a_break(name: str, turns: list[str]) -> None:
    place = PLACES[name]
    before = spec()
    after: Json = copy.deepcopy(before)
    for at, text in enumerate(turns):
        after["messages"].append(("user" if at % 2 else "assistant", [text]))
    one, two = split(place, body(place, before)), split(place, body(place, after))
    assert first_difference(one, two, len(one)) is None
    assert preflight(one, two) == ()
    found = verdict_of(place, one, two, read=Counts(one).total)
    assert (found.result, found.broke, found.lost) == ("hit", False, 0)


@given(st.sampled_from(WIRES), st.integers(0, 4), TEXTS)
def test_an_edit_is_found_at_its_byte(name: str, at: int, text: str) -> None:
    place = PLACES[name]
    after = spec()
    role, parts = after["messages"][at]
    if parts[0] == text:
        return
    after["messages"][at] = (role, [text, *parts[1:]])
    one, two = split(place, body(place, spec())), split(place, body(place, after))
    change = find_change(SentCall(rendered=one), SentCall(rendered=two))
    assert change is not None
    offset = change.offset
    assert one.data()[:offset] == two.data()[:offset]
    assert one.data()[offset : offset + 1] != two.data()[offset : offset + 1]
    assert change.section == "messages"
    # What was read as far as the rules allow it was lost by the change, and nothing else.
    found = verdict_of(place, one, two, read=None)
    assert found.result == "hit" or found.cause in ("history_edited", "marker_on_volatile")
    assert all(cause.kind != "provider_side" for cause in found.causes)
    # What was not read although the rules allow it was not lost by the change.
    found = verdict_of(place, one, two)
    assert ("provider_side" in found.losses) == bool(found.predicted)
    assert found.losses.get("provider_side", 0) <= (found.predicted or 0)
    assert sum(found.losses.values()) == found.lost <= Counts(two).total


@each_row("name", WIRES)
def test_every_chunk_of_every_wire_is_json_again(name: str) -> None:
    place = PLACES[name]
    for chunk in split(place, body(place, spec())):
        block = block_of(chunk)
        assert block.value is not UNREADABLE
        assert block.whole is not UNREADABLE


@given(st.binary())
def test_any_bytes_can_be_cut_into_a_block(data: bytes) -> None:
    block = cut_block(data)
    assert isinstance(block.raw, bytes)
    block.value, block.whole  # noqa: B018  (they raise nothing)


@given(st.text(), st.text())
def test_a_volatile_change_is_one_both_ways(one: str, two: str) -> None:
    assert (volatile_change(one, two) is None) == (volatile_change(two, one) is None)
    assert volatile_change(one, one) is None


@pytest.mark.parametrize("filler", ["", "word " * 400, "a-" * 20_000, "1,2 " * 5_000])
def test_a_volatile_change_is_found_in_a_long_text(filler: str) -> None:
    before, after = (f"{filler} on {day} at noon, {filler}" for day in ("2026-01-02", "2026-01-03"))
    assert volatile_change(before, after) == "date"
    assert volatile_change(before, after.replace("noon", "dawn")) is None


def test_a_long_text_that_changed_at_both_ends_is_not_searched() -> None:
    filler = "a-" * 200_000
    assert volatile_change(f"1 {filler} 1", f"2 {filler} 2") is None
