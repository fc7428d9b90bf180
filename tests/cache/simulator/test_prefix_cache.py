"""Caches without markers, by the rules of PROVIDERS.md, sections 2c and 5, and traces/README.md."""

from __future__ import annotations

import pytest
from support.prompts import chat, unmarked
from support.tables import each_row

from anaphora import catalog
from anaphora.cache.simulator import Simulator, TokenRuns
from anaphora.cache.simulator.view import SavedCache
from anaphora.rendered import Kind


def simulator(provider: str, model: str) -> Simulator:
    return Simulator(catalog.rules(provider, model))


GRANULES = [
    # provider, model, tokens that were sent before, tokens read of them
    ("openai", "gpt-4.1", 1023, 0),
    ("openai", "gpt-4.1", 1024, 1024),
    ("openai", "gpt-4.1", 1151, 1024),
    ("openai", "gpt-4.1", 1152, 1152),
    ("openai", "gpt-5.5", 1407, 0),
    ("openai", "gpt-5.5", 1408, 1408),
    ("openai", "gpt-5.5", 2431, 1920),
    ("openai", "gpt-5.5", 2432, 2432),
    ("openrouter", "openai/gpt-5.5", 2432, 2432),
    ("openrouter", "deepseek/deepseek-v4-pro", 300, 256),
    ("mistral", "mistral-large-4", 63, 0),
    ("mistral", "mistral-large-4", 64, 64),
    ("mistral", "mistral-large-4", 191, 128),
    ("deepseek", "deepseek-v3.2", 127, 64),
    ("deepseek", "deepseek-v4-pro", 127, 0),
    ("deepseek", "deepseek-v4-pro", 300, 256),
    ("vllm", "any", 15, 0),
    ("vllm", "any", 47, 32),
]


@each_row("provider, model, before, read", GRANULES)
def test_reads_are_whole_granules(provider: str, model: str, before: int, read: int) -> None:
    cache = simulator(provider, model)
    cache.call(chat([("a", before)]), at=0)
    outcome = cache.call(chat([("a", before), ("more", 5000)]), at=1)
    assert (outcome.read, outcome.written) == (read, {})
    left = [(span.tokens, span.reason) for span in outcome.spans if span.end == before]
    if read == before:
        assert left == [(read, "found")]
    else:
        assert left == [(before - read, "not_whole_granule" if read else "below_minimum")]


def test_a_server_always_computes_the_last_token() -> None:
    """Which is why vLLM computes a whole block when every token of a prompt is known."""
    cache = simulator("vllm", "any")
    prompt = chat([("a", 64)])
    cache.call(prompt, at=0)
    assert cache.call(prompt, at=1).read == 48
    assert cache.call(chat([("a", 64), ("b", 1)]), at=2).read == 64


@pytest.mark.parametrize(
    "provider, model, lives", [("openai", "gpt-4.1", 86400), ("mistral", "mistral-large-4", 300)]
)
def test_entries_end_with_their_lifetime(provider: str, model: str, lives: int) -> None:
    for after, result in [(lives - 1, True), (lives + 1, False)]:
        cache = simulator(provider, model)
        cache.call(chat([("a", 2048)]), at=0)
        outcome = cache.call(chat([("a", 2048)]), at=after)
        assert bool(outcome.read) is result
        assert outcome.spans[-1].reason == ("found" if result else "expired")


def test_the_third_conversation_that_shares_a_beginning_hits_the_second_does_not() -> None:
    """DeepSeek: A+C after A+B misses, and makes A a unit; A+D then hits."""
    cache = simulator("deepseek", "deepseek-v4-pro")
    shared = ("A", 1280)
    first, second, third = (
        cache.call(unmarked([shared, (name, 300)]), at=at) for at, name in enumerate("BCD")
    )
    assert [first.read, second.read, third.read] == [0, 0, 1280]
    assert second.spans[-1].reason == "not_persisted"


def test_an_append_only_conversation_reads_its_last_prompt() -> None:
    cache = simulator("deepseek", "deepseek-v4-pro")
    blocks: list[tuple[str, int]] = [("system", 1000)]
    before = 0
    for turn in range(5):
        blocks += [(f"q{turn}", 100)]
        outcome = cache.call(unmarked(blocks), at=turn)
        assert outcome.read == before // 128 * 128
        before = sum(tokens for _, tokens in blocks)
        blocks += [(f"a{turn}", 60)]


def test_the_answer_is_a_unit_inside_a_tool_loop_and_not_after_a_users_turn() -> None:
    """traces/README.md: a later hit reaches to the end of the previous output in tool loops (37 of
    43), less often after a new user turn (20 of 60)."""
    for kind, read in [(Kind.TOOL_RESULT, 1280 + 256), (Kind.TEXT, 1280)]:
        cache = simulator("deepseek", "deepseek-v4-pro")
        cache.call(unmarked([("q", 1280)]), at=0)
        prompt = TokenRuns.given(
            [("q", 1280), ("answer", 256), ("next", 10)],
            from_model=(False, True, False),
            kinds=(Kind.TEXT, Kind.TOOL_CALL, kind),
        )
        assert cache.call(prompt, at=1).read == read


def test_openai_caches_replies_without_hidden_reasoning() -> None:
    for model, read in [("gpt-4.1", 1280 + 256), ("gpt-5.2", 1280)]:
        cache = simulator("openai", model)
        cache.call(unmarked([("q", 1280)]), at=0)
        prompt = unmarked([("q", 1280), ("answer", 256), ("next", 10)], from_model=(1,))
        assert cache.call(prompt, at=1).read == read, model


def test_system_text_comes_before_tools_at_openai() -> None:
    """A volatile system prompt costs the tools too: they are rendered behind it."""
    rules = catalog.rules("openai", "gpt-4.1")
    order = rules.hash_order.value
    assert order.index("system") < order.index("tools")
    cache = Simulator(rules)
    cache.call(chat([("system at 9:00", 200), ("tools", 4000)]), at=0)
    assert cache.call(chat([("system at 9:01", 200), ("tools", 4000)]), at=60).read == 0


def test_cache_keys_separate_calls() -> None:
    cache = simulator("openai", "gpt-4.1")

    def keyed(key: bytes) -> TokenRuns:
        return TokenRuns.given([("a", 2048)], cache_params={"cache_key": key})

    cache.call(keyed(b"one"), at=0)
    outcome = cache.call(keyed(b"two"), at=1)
    assert (outcome.read, outcome.spans[0].reason) == (0, "param_changed")
    assert outcome.spans[0].detail == "cache_key"
    assert cache.call(keyed(b"one"), at=2).read == 2048


def test_concurrent_calls_do_not_read_each_other() -> None:
    cache = simulator("openai", "gpt-4.1")
    prompt = chat([("a", 2048)])
    together = [cache.call(prompt, at=0, began=2, ended=9) for _ in range(3)]
    assert [outcome.read for outcome in together] == [0, 0, 0]
    assert together[1].spans[0].reason == "not_readable_yet"
    assert cache.call(prompt, at=10).read == 2048


def test_gemini_reads_what_another_conversation_shares() -> None:
    cache = simulator("google", "gemini-2.5-pro")
    system = ("system", 8001)
    reads = [cache.call(unmarked([system, (turn, 100)]), at=turn).read for turn in range(3)]
    assert reads == [0, 8001, 8001]


def test_a_model_without_an_implicit_cache_reads_nothing() -> None:
    cache = simulator("google", "gemini-2.0-flash")
    prompt = chat([("a", 50_000)])
    outcome = [cache.call(prompt, at=at) for at in (0, 1)][1]
    assert (outcome.read, outcome.spans[0].reason) == (0, "no_marker")


@each_row(
    "model, reasoning, read",
    [
        ("gpt-5.2", 0, 2304),
        ("gpt-5.2", 64, 1920),
        ("gpt-5.2", None, 1920),  # a model that mostly reasons, and hides it
        ("gpt-4.1", 0, 2304),
        ("gpt-4.1", None, 2304),
    ],
)
def test_reply_is_read_where_no_reasoning_was_hidden(
    model: str, reasoning: int | None, read: int
) -> None:
    cache = simulator("openai", model)
    cache.call(TokenRuns.given([("question", 2000)]), at=0, reasoning=reasoning)
    blocks = [("question", 2000), ("reply", 400), ("more", 100)]
    following = TokenRuns.given(blocks, from_model=[False, True, False])
    assert cache.predict(following, at=5).read == read
    # The next process knows what became of the reply.
    saved = cache.save(TokenRuns.given([("question", 2000)]), SavedCache())
    other = simulator("openai", model)
    other.restore(TokenRuns.given([("question", 2000)]), saved)
    assert other.predict(following, at=5).read == read
