"""Absent fields are put into a request's bytes, and nothing else is changed (D10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog
from anaphora.daemon.access.grants import LlmGrant
from anaphora.daemon.calls.translation import (
    FilledBody,
    fill_max_tokens,
    fill_store,
    max_tokens_to_fill,
)
from anaphora.wire.permissions.fields import read_facts
from anaphora.wire.reading import decode_members

PLACES = {
    "anthropic": ("max_tokens",),
    "openai_chat": ("max_completion_tokens",),
    "openai_responses": ("max_output_tokens",),
    "gemini": ("generationConfig", "maxOutputTokens"),
}
EVERY_WIRE = pytest.mark.parametrize("wire", PLACES)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
spaces = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")])


def fill(wire: str, body: bytes, **options: Any) -> FilledBody:
    return fill_max_tokens(wire, body, decode_members(body), 77, **options)


@settings(max_examples=25)
@given(
    fields=st.dictionaries(st.text('abcü\\"{}', max_size=4), json_values, max_size=4),
    space=spaces,
    around=st.sampled_from(["", " ", "\n\t"]),
    ascii_only=st.booleans(),
)
@EVERY_WIRE
def test_filling_adds_one_field_and_keeps_every_other_byte(
    wire: str, fields: dict[str, Any], space: tuple[str, str], around: str, ascii_only: bool
) -> None:
    text = json.dumps(fields, separators=space, ensure_ascii=ascii_only)
    body = (around + text + around).encode()
    filled = fill(wire, body)
    *outer, name = PLACES[wire]
    expected = {outer[0]: {name: 77}} if outer else {name: 77}
    assert json.loads(filled.body) == fields | expected
    end = body.rindex(b"}")
    assert filled.body.startswith(body[:end])
    assert filled.body.endswith(body[end:])
    assert filled.members == decode_members(filled.body)


@each_row(
    ("wire", "body", "filled"),
    [
        ("anthropic", '{"a":1, "max_tokens" : null }', '{"a":1, "max_tokens" : 77 }'),
        (
            "gemini",
            '{"generationConfig": {"topK": 1 }, "x": 2}',
            '{"generationConfig": {"topK": 1 ,"maxOutputTokens":77}, "x": 2}',
        ),
        (
            "gemini",
            '{"generation_config":{"max_output_tokens":null}}',
            '{"generation_config":{"max_output_tokens":77}}',
        ),
        ("gemini", '{"generationConfig":null}', '{"generationConfig":{"maxOutputTokens":77}}'),
        ("openai_chat", '{"max_tokens":null}', '{"max_tokens":null,"max_completion_tokens":77}'),
    ],
)
def test_filling_into_objects_and_nulls(wire: str, body: str, filled: str) -> None:
    result = fill(wire, body.encode())
    assert result.body.decode() == filled
    assert result.members == decode_members(filled.encode())


@each_row(
    ("wire", "body"),
    [
        ("anthropic", '{"max_tokens": 5}'),
        ("openai_chat", '{"max_tokens":9000}'),
        ("openai_chat", '{"max_completion_tokens":5}'),
        ("openai_responses", '{"max_output_tokens":5}'),
        ("gemini", '{"generationConfig":{"max_output_tokens":5}}'),
    ],
)
def test_limit_of_the_request_is_never_changed(wire: str, body: str) -> None:
    """A larger one than the grant's is refused, not lowered."""
    assert fill(wire, body.encode()).body == body.encode()


def test_chat_limit_has_the_name_that_the_host_takes() -> None:
    profile = catalog.profile("mistral", "mistral-large-latest")
    assert profile.max_tokens_field is not None
    name = profile.max_tokens_field.value
    assert json.loads(fill("openai_chat", b"{}", profile=profile).body) == {name: 77}


@EVERY_WIRE
def test_filled_limit_is_the_one_that_is_checked(wire: str) -> None:
    filled = fill(wire, b"{}")
    facts = read_facts(wire, filled.members)
    assert facts.max_tokens == 77
    assert facts.max_tokens_field == ".".join(PLACES[wire])


def test_limit_to_fill_is_the_largest_of_the_grant() -> None:
    """D10: on provider-compatible endpoints, as far as the model can."""
    opus = catalog.profile("anthropic", "claude-opus-4-5")
    unknown = catalog.profile("vllm", "some-model")
    assert opus.output_tokens is not None
    assert max_tokens_to_fill(LlmGrant(max_tokens=2048), opus) == 2048
    assert max_tokens_to_fill(LlmGrant(max_tokens=10**7), opus) == opus.output_tokens.value
    assert max_tokens_to_fill(LlmGrant(), opus) == opus.output_tokens.value
    assert max_tokens_to_fill(LlmGrant(), unknown) == 1024


def test_answers_are_not_stored_unless_asked_for() -> None:
    body = b'{"input":"hi"}'
    filled = fill_store("openai_responses", body, decode_members(body))
    assert filled.body == b'{"input":"hi","store":false}'
    asked = b'{"store":true}'
    assert fill_store("openai_responses", asked, decode_members(asked)).body == asked
    assert fill_store("openai_chat", body, decode_members(body)).body == body
