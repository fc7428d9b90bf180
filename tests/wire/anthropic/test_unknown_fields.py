"""Replies with unknown fields are read like those without."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.wire.anthropic import read_reply

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
BLOCKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": TEXTS}, optional={"citations": st.none()}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": TEXTS,
            "name": TEXTS,
            "input": st.dictionaries(TEXTS, VALUES, max_size=2),
        },
        optional={"caller": st.just({"type": "direct"})},
    ),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS, "signature": TEXTS}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": TEXTS}),
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": TEXTS, "cache_control": st.just({"type": "ephemeral"})}
    ),
    st.fixed_dictionaries({"type": st.just("server_tool_use"), "id": TEXTS, "name": TEXTS}),
)
ANSWERS = st.fixed_dictionaries(
    {
        "id": TEXTS,
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": TEXTS,
        "content": st.lists(BLOCKS, max_size=3),
        "usage": st.fixed_dictionaries(
            {"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)},
            optional={"cache_read_input_tokens": st.none() | st.integers(0, 9)},
        ),
    },
    optional={
        "stop_reason": st.sampled_from(["end_turn", "tool_use", "refusal", "new_reason", None]),
        "stop_sequence": st.none() | TEXTS,
        "container": VALUES,
    },
)


@given(ANSWERS)
def test_an_unknown_field_changes_only_the_extras(answer: dict[str, Any]) -> None:
    expected = read_reply(json.dumps(answer).encode())
    planted = read_reply(json.dumps({**answer, "x_new": 1}).encode())
    extras = json.loads((planted.extras or {})["anthropic"])
    assert extras.pop("x_new") == 1
    assert extras == json.loads((expected.extras or {"anthropic": "{}"})["anthropic"])
    assert msgspec.structs.replace(planted, extras=expected.extras) == expected


def test_missing_content_is_named() -> None:
    answer = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": {}}
    with pytest.raises(Exception, match=r"\$\.content"):
        read_reply(json.dumps(answer).encode())
