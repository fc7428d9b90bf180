"""The values that may be exported."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors
from anaphora.client.observe.export import (
    BoundedNames,
    address,
    block_label,
    error_type,
    label,
    outcome,
    shares,
    word,
)
from anaphora.client.response import BlockShare


@each_row(
    "text",
    [
        "claude-sonnet-4-5",
        "qwen3:8b",
        "meta-llama/Llama-3.3-70B-Instruct",
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5",
        "resp_0a1b",
    ],
)
def test_names_and_ids_pass(text: str) -> None:
    assert word(text) == text


@each_row("text", ["", "two words", "line\nbreak", "naïve", "x" * 201, "a\x00b"])
def test_invalid_names_become_other(text: str) -> None:
    assert word(text) == "other"


@each_row(
    "error, expected",
    [
        (None, "ok"),
        ("RateLimited", "RateLimited"),
        ("Timeout", "Timeout"),
        ("ValueError", "ValueError"),
        (asyncio.CancelledError.__name__, "CancelledError"),
        ("Overloaded: the prompt 'I am ill' is too long", "_OTHER"),
        ("Literal", "_OTHER"),
        ("", "_OTHER"),
    ],
)
def test_errors_are_known_classes(error: str | None, expected: str) -> None:
    assert outcome(error) == expected
    assert error_type(error) == (None if error is None else expected)


def test_every_library_error_keeps_its_name() -> None:
    def below(base: type[Exception]) -> set[str]:
        return {base.__name__}.union(*(below(kind) for kind in base.__subclasses__()))

    ours = {name for name in below(errors.AnaphoraError) if hasattr(errors, name)}
    assert len(ours) > 20
    assert {error_type(name) for name in ours} == ours


@each_row(
    "host, expected",
    [
        ("api.openai.com", ("api.openai.com", None)),
        ("127.0.0.1:8787", ("127.0.0.1", 8787)),
        ("[::1]:8080", ("::1", 8080)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
        ("user:sk-secret@proxy.local:8443", ("proxy.local", 8443)),
        ("sk-secret@proxy.local", ("proxy.local", None)),
        ("no host here", ("other", None)),
        ("host:port", ("host:port", None)),
        ("", ("other", None)),
    ],
)
def test_addresses(host: str, expected: tuple[str, int | None]) -> None:
    assert address(host) == expected


@given(st.text())
def test_labels_are_short_and_printable(text: str) -> None:
    exported = label(text)
    assert len(exported) <= 80
    assert exported.isprintable()
    if len(text) <= 80 and text.isprintable():
        assert exported == text


def test_messages_are_grouped_by_run_and_blocks_by_label() -> None:
    assert block_label("conversation m17", "messages") == "conversation"
    assert block_label("volatile_tail m18", "messages") == "volatile_tail"
    assert block_label("conversation rules", "system") == "conversation rules"
    assert block_label("pinned note", "messages") == "pinned note"


blocks = st.builds(
    BlockShare,
    label=st.sampled_from(["a", "b", "c", "d", "e", "conversation m1", "conversation m2"]),
    section=st.sampled_from(["tools", "system", "messages"]),
    tokens=st.integers(0, 1000),
)


@given(st.lists(blocks), st.integers(1, 5))
def test_bounded_shares_keep_all_tokens(given: list[BlockShare], most: int) -> None:
    found = shares(given, most)
    assert sum(found.values()) == sum(block.tokens for block in given)
    assert len(found.keys() - {"other"}) <= most


@given(st.lists(st.sampled_from("abcdefgh")), st.integers(0, 5))
def test_names_once_passed_always_pass(given: list[str], most: int) -> None:
    bounded = BoundedNames(most)
    exported = [bounded(text) for text in given]
    through = set(exported) - {"other"}
    assert len(through) <= most
    for text, out in zip(given, exported, strict=True):
        assert out == (text if text in through else "other")
