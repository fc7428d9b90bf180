"""Replies of many forms: reading never fails with a foreign error, unknown fields change only the
extras, and nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.errors import AnaphoraError, Parse
from anaphora.values import Opaque, Part, to_json
from anaphora.wire.openai_responses import read_reply, write_reply
from anaphora.wire.openai_responses.reply import read_output
from anaphora.wire.reading import DECODE_ERRORS

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


def shuffled(objects: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return objects.flatmap(lambda one: st.permutations(list(one.items())).map(dict))


PARTS = shuffled(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["output_text"] * 6 + ["refusal", "input_text", "new", 5])},
        optional={
            "text": mostly(TEXTS),
            "refusal": TEXTS,
            "annotations": st.sampled_from([[], None, [{"type": "url_citation", "url": "u"}]]),
            "logprobs": st.just([]),
            'a "name"\n': VALUES,
        },
    )
)
MARKED = st.just(
    {"type": "output_text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}
)
MESSAGES = shuffled(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["assistant"] * 8 + ["user", "robot", None]),
            "content": mostly(st.lists(st.one_of(PARTS, PARTS, PARTS, MARKED), max_size=3)),
        },
        optional={
            "id": mostly(TEXTS),
            "status": st.sampled_from(["completed", None]),
            "phase": TEXTS,
        },
    )
)
CALLS = shuffled(
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS},
        optional={"id": TEXTS, "status": st.just("completed"), "more": VALUES},
    )
)
SUMMARY = st.lists(st.just({"type": "summary_text", "text": "so"}), max_size=2)
REASONING = st.fixed_dictionaries(
    {"type": st.just("reasoning"), "id": TEXTS, "summary": SUMMARY},
    optional={"encrypted_content": st.none() | TEXTS},
)
OTHERS = st.fixed_dictionaries({"type": st.just("web_search_call"), "id": TEXTS})
ITEMS = st.one_of(MESSAGES, MESSAGES, MESSAGES, CALLS, REASONING, OTHERS, VALUES)
USAGES = st.fixed_dictionaries(
    {"input_tokens": COUNTS, "output_tokens": COUNTS},
    optional={"input_tokens_details": st.none() | st.fixed_dictionaries({"cached_tokens": COUNTS})},
)
ANSWERS = shuffled(
    st.fixed_dictionaries(
        {
            "id": mostly(TEXTS),
            "model": mostly(TEXTS),
            "output": mostly(st.lists(ITEMS, max_size=3)),
        },
        optional={
            "object": st.sampled_from(["response"] * 6 + ["response.compaction", "list", None, 5]),
            "status": st.sampled_from(["completed"] * 4 + ["incomplete", "failed", None, 5]),
            "incomplete_details": st.sampled_from([None, None, {"reason": "max_output_tokens"}, 5]),
            "created_at": st.integers(0, 2**40),
            "error": VALUES,
            "instructions": st.none() | TEXTS,
            'a "name"\n': VALUES,
            "usage": mostly(st.none() | USAGES),
        },
    )
)
#: How JSON may be written.
WRITINGS = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, None, 1])}
)


@given(ANSWERS, WRITINGS)
def test_a_reply_reads_the_same_after_writing(answer: Json, how: Json) -> None:
    try:
        reply = read_reply(json.dumps(answer, **how).encode())
    except AnaphoraError:
        return
    again = read_reply(write_reply(reply))
    assert to_json(read_reply(write_reply(again))) == to_json(again)
    assert len(again.message.parts) == len(reply.message.parts)


def outcome(item: Any, how: Json) -> Any:
    """The parts of an item without their extras, or the error."""
    try:
        parts = read_output(msgspec.Raw(json.dumps(item, **how).encode()), "$")
    except (AnaphoraError, *DECODE_ERRORS) as problem:
        return type(problem)
    return [bare(part) for part in parts]


def bare(part: Part) -> Any:
    if isinstance(part, Opaque):
        return part.kind
    return to_json(msgspec.structs.replace(part, extras=None))


@given(ITEMS, WRITINGS)
def test_an_unknown_field_of_an_item_changes_only_its_extras(item: Any, how: Json) -> None:
    if isinstance(item, dict):
        assert outcome({**item, "planted": 1}, how) == outcome(item, how)


TEXT: Json = {"type": "output_text", "text": "x", "annotations": [], "logprobs": []}
ITEM: Json = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant"}


@pytest.mark.parametrize(
    "item",
    [
        {**ITEM, "content": [TEXT]},
        {**ITEM, "phase": "commentary", "content": [TEXT, TEXT]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]},
    ],
    ids=json.dumps,
)
def test_known_fields_are_not_extras(item: Json) -> None:
    answer = {"id": "r", "object": "response", "model": "m", "status": "completed"}
    body = json.dumps({**answer, "output": [item], "usage": None}).encode()
    extras = {"openai_responses": '{"object":"response","status":"completed","usage":null}'}
    assert read_reply(body).extras == extras


def test_missing_output_is_named() -> None:
    answer = {"id": "r", "object": "response", "model": "m"}
    with pytest.raises(Parse) as caught:
        read_reply(json.dumps(answer).encode())
    assert caught.value.path == "$.output"
