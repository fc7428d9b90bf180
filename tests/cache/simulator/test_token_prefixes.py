"""Caches that work on tokens: how far two different blocks agree, whatever was called before."""

from __future__ import annotations

import functools
import itertools

from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog
from anaphora.cache.simulator import Simulator, TokenRuns
from anaphora.cache.simulator.view import SavedCache
from anaphora.catalog import CacheRules
from anaphora.values import TTL_SECONDS

OPENAI = catalog.rules("openai", "gpt-4.1")
TEXT = b"".join(b"%05d " % number for number in range(2_000))


@functools.cache
def token_caches() -> list[CacheRules]:
    """One row for each kind of automatic cache that works on tokens."""
    found: dict[object, CacheRules] = {}
    for provider in catalog.shipped().providers:
        for model in [*(profile.id for profile in catalog.models(provider)), "some-other-model"]:
            rules = catalog.rules(provider, model)
            if rules.caches_tokens and rules.mechanism.value != "explicit":
                kind = rules.granule_tokens.value, rules.minimum_tokens.value, rules.ttls.value
                found.setdefault((*kind, rules.isolation.value), rules)
    return list(found.values())


def prompt(*texts: bytes) -> TokenRuns:
    """A token is a byte."""
    return TokenRuns.given([(text, len(text)) for text in texts], texts=texts)


def common(one: tuple[bytes, ...], two: tuple[bytes, ...]) -> int:
    """The tokens before the first difference, by definition."""
    tokens = 0
    for mine, other in zip(one, two, strict=False):
        if mine != other:
            pairs = zip(mine, other, strict=False)
            return tokens + sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            )
        tokens += len(mine)
    return tokens


# Blocks that agree for a while, with few ends, so that prompts often share blocks too.
blocks = st.builds(
    lambda length, end: TEXT[:length] + end,
    st.sampled_from((0, 1, 63, 64, 700, 1024, 2500, 6200)),
    st.sampled_from((b"a", b"ab", b"b")),
)


@given(
    st.sampled_from(range(len(token_caches()))),
    st.lists(
        st.tuples(
            st.lists(blocks, max_size=4).map(tuple),
            st.sampled_from((0.0, 1.0, 200.0, 310.0, 4000.0, 90_000.0)),
        ),
        max_size=7,
    ),
)
def test_a_call_reads_the_longest_common_beginning_in_whole_granules(
    which: int, calls: list[tuple[tuple[bytes, ...], float]]
) -> None:
    rules = token_caches()[which]
    ttl = rules.default_ttl.value if rules.default_ttl is not None else rules.ttls.value[0]
    lifetime = TTL_SECONDS[ttl]
    tail = 1 if rules.isolation.value == "server" else 0
    granule, minimum = rules.granule_tokens.value, rules.minimum_tokens.value
    simulator, now = Simulator(rules), 0.0
    earlier: list[tuple[tuple[bytes, ...], float]] = []
    for texts, wait in calls:
        now += wait
        longest = max(
            (common(texts, other) for other, at in earlier if 0 < now - at <= lifetime), default=0
        )
        known = min(longest, max(0, sum(map(len, texts)) - tail))
        whole = (known + rules.offset) // granule * granule - rules.offset
        outcome = simulator.call(prompt(*texts), at=now)
        assert outcome.read <= longest
        assert outcome.read == (whole if whole >= minimum else 0)
        earlier.append((texts, now))


def test_units_are_read_whole() -> None:
    """DeepSeek: a unit ends with a prompt, not where two prompts begin to differ."""
    simulator = Simulator(catalog.rules("deepseek", "deepseek-v4-pro"))
    simulator.call(prompt(TEXT + b"a"), at=0)
    assert simulator.call(prompt(TEXT + b"b"), at=1).read == 0


def test_other_parameters_share_nothing_inside_a_block() -> None:
    simulator = Simulator(OPENAI)

    def keyed(end: bytes, key: bytes) -> TokenRuns:
        text = TEXT + end
        return TokenRuns.given([(text, len(text))], texts=[text], cache_params={"cache_key": key})

    simulator.call(keyed(b"a", b"one"), at=0)
    assert simulator.predict(keyed(b"b", b"two"), at=1).read == 0
    assert simulator.predict(keyed(b"b", b"one"), at=1).read == len(TEXT) // 128 * 128
    simulator.call(keyed(b"a", b"one"), at=0, scope="here")
    assert simulator.predict(keyed(b"b", b"one"), at=1, scope="there").read == 0


def test_a_call_that_is_not_readable_yet_hides_no_other() -> None:
    """The nearest neighbours have not been answered yet; one that shares less has."""
    simulator = Simulator(OPENAI)
    simulator.call(prompt(TEXT[:6000] + b"a"), at=0, began=1)
    for number in range(20):
        simulator.call(prompt(TEXT + b"%d" % number), at=10, began=99)
    assert simulator.predict(prompt(TEXT + b"x"), at=11).read == 6000 // 128 * 128
    assert simulator.predict(prompt(TEXT + b"x"), at=100).read == len(TEXT) // 128 * 128


def test_calls_that_began_together_are_readable_when_the_first_is() -> None:
    simulator = Simulator(OPENAI)
    simulator.call(prompt(TEXT, b"slow"), at=0, began=50)
    simulator.call(prompt(TEXT, b"fast"), at=0, began=2)
    assert simulator.predict(prompt(TEXT, b"new"), at=10).read == len(TEXT) // 128 * 128


def test_what_is_still_used_outlives_what_is_not() -> None:
    """The end of a prompt expires; its beginning is used by another."""
    simulator = Simulator(catalog.rules("mistral", "mistral-large-4"))
    simulator.call(prompt(TEXT[:6400], b"end" * 1000), at=0)
    simulator.call(prompt(TEXT[:6400], b"other"), at=250)
    outcome = simulator.predict(prompt(TEXT[:6400], b"end" * 1000), at=310)
    assert outcome.read == 6400
    assert (outcome.spans[-1].reason, outcome.spans[-1].detail) == ("expired", "10 s ago")


def test_another_process_knows_the_bytes_of_a_restored_prompt() -> None:
    here, there = Simulator(OPENAI), Simulator(OPENAI)
    sent = prompt(TEXT, b"a question")
    here.call(sent, at=0)
    there.restore(sent, here.save(sent, SavedCache()))
    changed = prompt(TEXT[:-4] + b"word", b"a question")
    assert there.predict(changed, at=1).read == (len(TEXT) - 4) // 128 * 128


class Counted(TokenRuns):
    """Counts the blocks whose bytes are read."""

    looked = 0

    def data(self, position: int) -> bytes:
        Counted.looked += 1
        return super().data(position)


def test_a_turn_reads_the_bytes_of_new_blocks_only() -> None:
    simulator = Simulator(OPENAI)
    texts = [b"block %d " % number * 50 for number in range(300)]
    for turn in range(1, 300):
        run = texts[:turn]
        Counted.looked = 0
        simulator.call(
            Counted.given([(text, len(text)) for text in run], texts=run), at=float(turn)
        )
        assert Counted.looked <= 2


def test_the_bytes_that_are_kept_are_bounded() -> None:
    """Those of the least recently used prompts go first; whole blocks are still found by digest."""
    simulator = Simulator(OPENAI, most=100)  # 51,200 bytes

    def sent(number: int, end: bytes) -> TokenRuns:
        return prompt(b"%d" % number + TEXT[:9000] + end)

    for number in range(50):
        simulator.call(sent(number, b"a"), at=number)
    assert simulator.predict(sent(49, b"b"), at=60).read == 9002 // 128 * 128
    assert simulator.predict(sent(0, b"b"), at=60).read == 0
    assert simulator.predict(sent(0, b"a"), at=60).read == 9002 // 128 * 128
    kept = simulator._unmarked._tree
    assert kept._bytes == sum(kept._texts.values()) <= 100 * 512
    assert sum(map(len, kept._branches.values())) == len(kept._texts) == 5


def test_a_replaced_last_block_leaves_one_long_chain() -> None:
    """A conversation with another state at the end of every call: each use is recorded once, not
    for every turn before it."""
    simulator = Simulator(catalog.rules("mistral", "mistral-large-4"))
    turns: list[bytes] = []
    for turn in range(200):
        turns.append(b"turn %d " % turn * 20)
        sent = prompt(TEXT, *turns, b"state %d " % turn * 9)
        before = len(TEXT) + sum(map(len, turns[:-1]))
        read = simulator.call(sent, at=float(turn)).read
        assert read == (before // 64 * 64 if turn else 0)
    tree = simulator._unmarked._tree
    depths = []
    for chain in tree._recent:
        depth, parent = 0, chain.parent
        while parent is not None:
            depth, parent = depth + 1, parent.parent
        depths.append(depth)
    assert max(depths) == 1
    # A state that comes back is still known.
    assert simulator.predict(prompt(TEXT, turns[0], b"state 0 " * 9), at=200.0).read > len(TEXT)
