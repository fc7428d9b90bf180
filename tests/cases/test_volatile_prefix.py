"""CASES A: something volatile in the prefix. Each test is named after the thread it comes from."""

from __future__ import annotations

import pytest

from anaphora import cache, catalog
from anaphora.cache.prefix_difference import PrefixDifference
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Conversation, Message
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)


def render(
    conversation: Conversation,
    identity: str = "You are a careful agent.",
    memory: str = "The user likes tea.",
    tail: str = "",
    previous: Rendered | None = None,
) -> Rendered:
    ir = PromptIR.chat(
        conversation,
        system=[
            PromptBlock.cached_long("identity", identity),
            PromptBlock.cached_short("memory", memory),
        ],
        tail=[Message.user(tail)] if tail else [],
    )
    return anthropic.render(
        Call(ir=ir, model=MODEL, params=Params(max_tokens=64)), PROFILE, previous
    )


def broken(earlier: Rendered, later: Rendered) -> PrefixDifference:
    result = cache.fingerprint(later).first_difference(cache.fingerprint(earlier))
    assert result is not None
    return result


def conversation_of(turns: int) -> Conversation:
    return Conversation(
        Message.assistant(f"answer {at}") if at % 2 else Message.user(f"question {at}")
        for at in range(turns)
    )


@pytest.mark.breaks_prefix(reason="the date in the first block rolls at midnight")
def test_opencode_32622_a_date_in_the_first_system_block_rolls_at_midnight() -> None:
    conversation = conversation_of(5)
    sunday = render(conversation, identity="You are helpful. Today is 2026-11-15.")
    monday = render(conversation, identity="You are helpful. Today is 2026-11-16.", previous=sunday)
    result = broken(sunday, monday)
    assert (result.label, result.path) == ("identity", "system[0]")
    assert result.before.endswith('5."}')
    assert result.after.endswith('6."}')


def test_opencode_32622_in_the_tail_the_date_costs_nothing() -> None:
    conversation = conversation_of(5)
    sunday = render(conversation, tail="Today is 2026-11-15.")
    monday = render(conversation, tail="Today is 2026-11-16.", previous=sunday)
    assert cache.fingerprint(monday) == cache.fingerprint(sunday)


@pytest.mark.breaks_prefix(reason="the date rewrites a whole long session")
def test_zeroclaw_10858_what_a_rolled_date_takes_out_of_the_cache_is_counted() -> None:
    conversation = conversation_of(201)
    before = render(conversation, identity="Date: 2026-11-15")
    after = render(conversation, identity="Date: 2026-11-16", previous=before)
    certificate = cache.fingerprint(before)
    kept = cache.fingerprint(after).common_prefix(certificate)
    counts = Counts(before)
    assert kept < 60
    assert counts.before(kept) == pytest.approx(0, abs=30)
    assert counts.before(certificate.size) > 1000


@pytest.mark.breaks_prefix(reason="a nonce in the first block changes at every request")
def test_claude_code_68900_a_nonce_in_the_first_system_block_is_named() -> None:
    conversation = conversation_of(3)
    one = render(conversation, identity="request 3f9a21c4. You are helpful.")
    two = render(conversation, identity="request 77b0e918. You are helpful.", previous=one)
    result = broken(one, two)
    assert (result.label, result.path) == ("identity", "system[0]")
    assert "3f9a21c4" in result.before
    assert "77b0e918" in result.after


@pytest.mark.breaks_prefix(reason="a nonce in the first block changes at every request")
def test_ccproxy_api_61_a_nonce_does_not_hide_behind_equal_lengths() -> None:
    conversation = conversation_of(3)
    one, two = render(conversation, identity="id=a1"), render(conversation, identity="id=a2")
    assert cache.fingerprint(one).size == cache.fingerprint(two).size
    assert not cache.fingerprint(two).extends(cache.fingerprint(one))


@pytest.mark.breaks_prefix(reason="the memory file is rewritten with a new UUID")
def test_multica_6008_a_memory_file_rewritten_with_a_new_uuid_is_named() -> None:
    conversation = conversation_of(7)
    note = "note 550e8400-e29b-41d4-a716-44665544{:04d}: likes tea"
    one = render(conversation, memory=note.format(1))
    two = render(conversation, memory=note.format(2), previous=one)
    result = broken(one, two)
    assert (result.label, result.path) == ("memory", "system[1]")
    data = two.cacheable_data()
    assert data[result.offset : result.offset + 1] == b"2"
    # The identity block before it is still shared.
    assert result.offset > two.offset(1)


def test_hermes_agent_86938_what_changes_lives_in_the_tail_and_is_never_stale() -> None:
    conversation = conversation_of(3)
    previous = None
    for hour in range(4):
        rendered = render(conversation, tail=f"It is {hour:02}:00.", previous=previous)
        assert f"It is {hour:02}:00.".encode() in rendered.data()
        assert rendered.cacheable == len(rendered) - 1
        previous = rendered
