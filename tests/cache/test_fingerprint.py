"""WireFingerprint: certifying a prefix, and naming what broke it."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from anaphora import cache, catalog
from anaphora.cache import WireFingerprint
from anaphora.cache.prefix_difference import common_length
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, Segment
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message, SegmentRole, Tool
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)


def render(
    *messages: str,
    identity: str = "You are terse.",
    tools: tuple[Tool, ...] = (Tool("look"),),
    tail: str = "now",
    previous: Rendered | None = None,
) -> Rendered:
    conversation = Conversation(
        Message.assistant(text) if at % 2 else Message.user(text)
        for at, text in enumerate(messages)
    )
    ir = PromptIR.chat(
        conversation,
        system=[PromptBlock.cached_long("identity", identity)],
        tail=[Message.user(tail)],
    )
    call = Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=1))
    return anthropic.render(call, PROFILE, previous)


def test_the_digest_is_blake3_of_the_cacheable_bytes() -> None:
    rendered = render("hello", "hi", "how?")
    fingerprint = cache.fingerprint(rendered)
    assert fingerprint.digest == blake3(rendered.cacheable_data()).digest()
    assert fingerprint.size == len(rendered.cacheable_data())
    assert fingerprint.hex == fingerprint.digest.hex()


def test_the_tail_does_not_count() -> None:
    assert cache.fingerprint(render("a", tail="09:00")) == cache.fingerprint(
        render("a", tail="09:01")
    )


def test_an_older_view_keeps_its_digest_while_the_conversation_grows() -> None:
    conversation = Conversation([Message.user("a")])
    call = Call(ir=PromptIR.chat(conversation), model=MODEL, params=Params(max_tokens=1))
    first = anthropic.render(call, PROFILE)
    longer = conversation.append(Message.assistant("b"), Message.user("c"))
    second = anthropic.render(
        Call(ir=PromptIR.chat(longer), model=MODEL, params=Params(max_tokens=1)), PROFILE, first
    )
    ahead = cache.fingerprint(second)
    assert cache.fingerprint(first).digest == blake3(first.cacheable_data()).digest()
    assert cache.fingerprint(second) == ahead
    assert ahead.extends(cache.fingerprint(first))
    assert not cache.fingerprint(first).extends(ahead)


def test_a_restored_fingerprint_can_be_compared_but_not_explained() -> None:
    before, after = cache.fingerprint(render("a")), cache.fingerprint(render("a", "b", "c"))
    restored = WireFingerprint.restore(before.hex, before.size, before.chunks)
    assert restored == before
    assert after.extends(restored)
    assert not cache.fingerprint(render("x", "b", "c")).extends(restored)
    with pytest.raises(ValueError, match="restored fingerprint has no bytes"):
        after.first_difference(restored)


@pytest.mark.parametrize(
    ("earlier", "later", "label", "path", "before", "after"),
    [
        (
            {"identity": "It is 09:00."},
            {"identity": "It is 09:01."},
            "identity",
            "system[0]",
            "0.",
            "1.",
        ),
        (
            {"tools": (Tool("look", "old"),)},
            {"tools": (Tool("look", "new"),)},
            "tool look",
            "tools[0]",
            "old",
            "new",
        ),
        (
            {"tools": (Tool("look"),)},
            {"tools": (Tool("alter"), Tool("look"))},
            "tool alter",
            "tools[0]",
            "look",
            "alter",
        ),
    ],
)
def test_first_difference_names_byte_block_and_both_sides(
    earlier: dict[str, str], later: dict[str, str], label: str, path: str, before: str, after: str
) -> None:
    one = render("hello", **earlier)  # type: ignore[arg-type]
    two = render("hello", "hi", "more", **later)  # type: ignore[arg-type]
    result = cache.fingerprint(two).first_difference(cache.fingerprint(one))
    assert result is not None
    a, b = one.cacheable_data(), two.cacheable_data()
    assert a[: result.offset] == b[: result.offset]
    assert a[result.offset] != b[result.offset]
    assert (result.label, result.path) == (label, path)
    assert before in result.before
    assert after in result.after
    assert f"byte {result.offset} in {label} ({path})" in str(result)


def test_an_edited_turn_is_named_by_its_message() -> None:
    one, two = render("hello", "first", "q"), render("hello", "edited", "q", "more")
    result = cache.fingerprint(two).first_difference(cache.fingerprint(one))
    assert result is not None
    assert (result.label, result.path) == ("conversation m1", "messages[1].content[0]")


def test_a_dropped_turn_is_a_difference_at_the_end_of_what_is_left() -> None:
    one, two = render("hello", "first", "q"), render("hello")
    result = cache.fingerprint(two).first_difference(cache.fingerprint(one))
    assert result is not None
    assert result.offset == cache.fingerprint(two).size
    assert (result.label, result.after) == ("conversation m1", "")


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_the_common_beginning_is_found_to_the_byte(shared: bytes, a: bytes, b: bytes) -> None:
    mine, theirs = shared + a, shared + b
    result = common_length(mine, theirs)
    assert mine[:result] == theirs[:result]
    assert result == min(len(mine), len(theirs)) or mine[result] != theirs[result]


def segments(conversation: Conversation, dynamic: str) -> PromptIR:
    return PromptIR(
        segments=(
            Segment.of(SegmentRole.STABLE_PREFIX, Message.user("guide")),
            Segment.of(SegmentRole.DYNAMIC_CONTEXT, Message.user(dynamic)),
            Segment(SegmentRole.CONVERSATION, conversation),
        )
    )


@pytest.mark.breaks_prefix(reason="a changed dynamic context cuts the cacheable bytes short")
def test_cacheable_bytes_end_at_the_first_dynamic_chunk_that_changed() -> None:
    conversation = Conversation([Message.assistant("hello")])

    def turn(dynamic: str, previous: Rendered | None) -> Rendered:
        call = Call(ir=segments(conversation, dynamic), model=MODEL, params=Params(max_tokens=1))
        return anthropic.render(call, PROFILE, previous)

    first = turn("summary 1", None)
    same = turn("summary 1", first)
    changed = turn("summary 2", same)
    settled = turn("summary 2", changed)
    assert [first.cacheable, same.cacheable, changed.cacheable, settled.cacheable] == [3, 3, 1, 3]
    assert cache.fingerprint(same).extends(cache.fingerprint(first))
    assert not cache.fingerprint(changed).extends(cache.fingerprint(same))
    assert cache.fingerprint(settled).extends(cache.fingerprint(changed))
