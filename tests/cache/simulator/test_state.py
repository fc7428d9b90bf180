"""What the simulator remembers, and what it draws."""

from __future__ import annotations

import copy
import json

import pytest
from support.prompts import marked, unmarked

from anaphora import catalog, wire
from anaphora.cache.simulator import Mark, RenderedPrompt, Simulator, TokenRuns
from anaphora.cache.simulator.markers import EntryTable
from anaphora.cache.simulator.prefix_tree import PrefixTree
from anaphora.rendered import Plan
from anaphora.wire.cutting import cut

ANTHROPIC = catalog.rules("anthropic", "claude-sonnet-4-5")
OPENAI = catalog.rules("openai", "gpt-4.1")


def reads(seed: int, loss: float) -> list[bool]:
    cache = Simulator(ANTHROPIC, loss=loss, seed=seed)
    prompt = marked([("a", 2000)])
    return [bool(cache.call(prompt, at=at).read) for at in range(1000)][1:]


def test_losses_are_drawn_by_the_seed_and_nothing_else() -> None:
    assert reads(1, 0.2) == reads(1, 0.2)
    assert reads(1, 0.2) != reads(2, 0.2)
    assert all(reads(1, 0.0))
    assert not any(reads(1, 1.0))
    assert 0.15 < reads(1, 0.2).count(False) / 999 < 0.25


@pytest.mark.parametrize("rules, written", [(ANTHROPIC, {"5m": 2000}), (OPENAI, {})])
def test_lost_reads_are_billed_as_new(rules: catalog.CacheRules, written: dict[str, int]) -> None:
    cache = Simulator(rules, loss=1.0)
    prompt = marked([("a", 2000)])
    assert cache.call(prompt, at=0).spans[0].reason != "lost"  # nothing was there to lose
    outcome = cache.call(prompt, at=1)
    assert (outcome.read, outcome.written) == (0, written)
    assert outcome.spans[0].reason == "lost"


def many(calls: int) -> int:
    """How much is remembered after that many calls of short conversations, one each second."""
    cache = Simulator(ANTHROPIC)
    most = 0
    for at in range(calls):
        conversation, turn = divmod(at, 10)
        prompt = marked([(conversation, 2000), *[(turn, 10) for turn in range(turn)]])
        cache.call(prompt, at=at)
        most = max(most, len(cache))
    return most


def test_a_marker_cache_remembers_live_and_recently_expired_entries() -> None:
    """Entries of five minutes, and the dead ones for as long again; the parameters of each
    conversation's beginning, of which there are 10,000 at most."""
    assert many(20_000) <= 2000 + 700


def test_a_prefix_cache_forgets_what_was_unused_for_two_lifetimes() -> None:
    cache = Simulator(catalog.rules("mistral", "mistral-large-4"))
    for at in range(20_000):
        cache.call(unmarked([(at, 500), ("more", 100)]), at=at)
    # Two blocks a call for 600 seconds, and the parameters of 10,000 beginnings.
    assert len(cache) <= 2 * 602 + 10_000


def test_entries_are_bounded_even_when_time_stands_still() -> None:
    entries = EntryTable(most=100)
    for at in range(1000):
        entries.write(at, "1h", 0.0, 0.0)
        entries.purge(0.0)
    assert len(entries) == 100


def test_entries_in_use_survive_the_limit() -> None:
    """A shared system prompt was written first and is read by all."""
    entries = EntryTable(most=100)
    entries.write("shared", "5m", 0.0, 0.0)
    for at in range(1, 250):
        entries.refresh(entries.get("shared"), float(at))
        entries.write(at, "5m", float(at), float(at))
        entries.purge(float(at))
        assert len(entries) <= 100
    assert entries.get("shared") is not None
    assert [entries.get(at) is not None for at in (150, 151, 249)] == [False, True, True]


def test_prefixes_are_bounded_and_least_recent_ones_are_dropped() -> None:
    prefixes = PrefixTree(most=100)

    def add(name: int, at: float) -> None:
        prompt = TokenRuns.given([((name, block), 1) for block in range(10)])
        match = prefixes.match(prompt, prompt.key)
        prefixes.add(prompt, prompt.key, match, at)

    for name in range(50):
        add(name, name)
        add(0, name)
        assert len(prefixes) <= 100
    kept = TokenRuns.given([((0, block), 1) for block in range(10)])
    gone = TokenRuns.given([((1, block), 1) for block in range(10)])
    assert prefixes.match(kept, kept.key).position == 9
    assert prefixes.match(gone, gone.key).position == -1


def test_a_copied_simulator_is_independent() -> None:
    cache = Simulator(catalog.rules("anthropic", "claude-sonnet-5-5"))
    prompt = TokenRuns.given([("a", 10_000)], markers=(Mark(0, "5m"),))
    copied = copy.deepcopy(cache)
    copied.call(prompt, at=0.0)
    assert (copied.predict(prompt, at=1.0).read, cache.predict(prompt, at=1.0).read) == (10_000, 0)


def test_equal_scopes_of_other_types_are_separate() -> None:
    cache = Simulator(catalog.rules("anthropic", "claude-sonnet-5-5"))
    prompt = TokenRuns.given([("a", 10_000)], markers=(Mark(0, "5m"),))
    cache.call(prompt, at=0.0, scope=1)
    assert [cache.predict(prompt, at=1.0, scope=scope).read for scope in (1, True)] == [10_000, 0]


def test_texts_are_those_of_the_single_blocks() -> None:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("find", "read")]
    turns = [("user", "Where?"), ("assistant", "There."), ("user", "And then?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    body = {"model": "m", "max_tokens": 9, "system": "Be short.", "tools": tools}
    data = json.dumps({**body, "messages": messages}).encode()
    prompt = RenderedPrompt(cut(wire.get("anthropic"), data), Plan())
    assert len(prompt) == 6
    for begin in range(len(prompt) + 1):
        texts = [prompt.data(position) for position in range(begin, len(prompt))]
        assert prompt.texts(begin) == texts
