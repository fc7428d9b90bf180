"""Replies of many forms: reading never fails with a foreign error, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.errors import AnaphoraError
from anaphora.values import Reply, to_json
from anaphora.wire.openai_chat import read_reply, write_reply

Json = dict[str, Any]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
COUNTS = st.none() | st.integers(-1, 9)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly valid values, sometimes any other."""
    return st.one_of(usual, usual, usual, usual, usual, VALUES)


FUNCTIONS = st.fixed_dictionaries(
    {"name": mostly(TEXTS), "arguments": mostly(TEXTS)}, optional={"parsed": st.none()}
)
CALLS = st.fixed_dictionaries(
    {"id": mostly(TEXTS), "function": FUNCTIONS},
    optional={"type": st.sampled_from(["function", "function", "custom", None])},
)
UNUSUAL_CALLS = st.fixed_dictionaries({"index": st.just(0), "function": FUNCTIONS})
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant"] * 8 + ["user", None])},
    optional={
        "content": mostly(st.none() | TEXTS) | PARTS,
        "refusal": mostly(st.none() | TEXTS),
        "annotations": st.sampled_from([[], [], None, [None], [{"type": "url_citation"}]]),
        "tool_calls": st.none() | st.lists(CALLS, max_size=2) | st.lists(UNUSUAL_CALLS, max_size=1),
        "reasoning_content": mostly(st.none() | TEXTS),
        "reasoning": mostly(st.none() | TEXTS),
        "audio": st.none(),
        "function_call": st.none(),
    },
)
UNUSUAL_MESSAGES = MESSAGES.flatmap(
    lambda encoded: VALUES.map(lambda value: {**encoded, "more": value})
)
CHOICES: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"message": st.one_of(MESSAGES, MESSAGES, MESSAGES, UNUSUAL_MESSAGES, VALUES)},
    optional={
        "index": st.just(0),
        "finish_reason": st.sampled_from(["stop", "tool_calls", "new_reason", None, 5]),
        "logprobs": st.sampled_from([None, None, {"content": []}]),
        "stop_reason": st.sampled_from([None, None, 7]),
    },
)
USAGES = st.fixed_dictionaries(
    {"prompt_tokens": COUNTS, "completion_tokens": COUNTS},
    optional={
        "prompt_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": COUNTS}),
        "prompt_cache_hit_tokens": COUNTS,
    },
)
ANSWERS = st.fixed_dictionaries(
    {
        "id": mostly(TEXTS),
        "model": mostly(TEXTS),
        "choices": st.lists(CHOICES, min_size=1, max_size=1) | st.lists(CHOICES, max_size=2),
    },
    optional={
        "object": VALUES,
        "created": st.integers(0, 2**40),
        "service_tier": st.none() | TEXTS,
        "system_fingerprint": st.none() | TEXTS,
        'a "name"\n': VALUES,
        "error": VALUES,
        "usage": mostly(st.none() | USAGES),
    },
).flatmap(lambda answer: st.permutations(list(answer.items())).map(dict))
#: How JSON may be written.
WRITINGS = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, None, 1])}
)


@given(ANSWERS, WRITINGS)
def test_a_reply_reads_the_same_after_writing(answer: Json, how: Json) -> None:
    try:
        reply: Reply = read_reply(json.dumps(answer, **how).encode())
    except AnaphoraError:
        return
    again = read_reply(write_reply(reply))
    assert to_json(read_reply(write_reply(again))) == to_json(again)
    assert again.message.parts == reply.message.parts


def answer(message: Json, **beside: Any) -> bytes:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    frame = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**frame, "choices": [{**choice, **beside}], "usage": None}).encode()


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OPENAI: Json = {"role": "assistant", "content": "x", "refusal": None, "annotations": []}


@each_row(
    "message",
    [
        OPENAI,
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"role": "assistant", "content": "x", "reasoning": "hm"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "assistant", "content": None, "refusal": "no"},
    ],
    ids=json.dumps,
)
def test_known_fields_are_not_extras(message: Json) -> None:
    body = answer(message)
    assert read_reply(body).extras == {"openai_chat": '{"created":1}'}


def test_fields_of_a_choice_are_kept() -> None:
    filtered = answer(OPENAI, content_filter_results={"hate": 1})
    expected = '{"created":1,"choice":{"content_filter_results":{"hate": 1}}}'
    assert read_reply(filtered).extras == {"openai_chat": expected}


@pytest.mark.parametrize("field", ["choices", "choices[0].message"])
def test_missing_field_is_named(field: str) -> None:
    encoded: Json = json.loads(answer(OPENAI))
    if field == "choices":
        del encoded["choices"]
    else:
        del encoded["choices"][0]["message"]
    with pytest.raises(AnaphoraError) as caught:
        read_reply(json.dumps(encoded).encode())
    assert getattr(caught.value, "path", "") == f"$.{field}"
