"""Requests decode strictly. One with unknown fields is read the same, and keeps them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some
from support.tables import each_row

from anaphora.prompt import Call
from anaphora.values import Opaque, ToolCall, ToolResult
from anaphora.wire import gemini
from anaphora.wire.gemini.parts import read_response
from anaphora.wire.gemini.types import GenerateContentRequest

Json = dict[str, Any]

#: A null means a missing field, but the strict decoder rejects its name.
UNKNOWN = {"unknown_field": None}
PATH = "/v1beta/models/m:generateContent"

texts = some.texts | st.sampled_from(["", "{", "{}", '{"a":1}', "null", 'Zürich\n\\ "x"'])
ids: Any = {"id": st.none() | st.sampled_from(["", "c1", "c2"])}
signatures: Any = {"thoughtSignature": st.none() | st.sampled_from(["c2ln", "é=", "", 7])}
names = st.sampled_from(["read", "write"])
responses = st.one_of(
    st.none(),
    st.sampled_from([{}, [], ["x"], 5, "x", {"": 1}, {"result": {"output": "x"}}]),
    st.dictionaries(
        st.sampled_from(["output", "error", "result", "other"]), st.none() | texts, max_size=2
    ),
)
calls = st.fixed_dictionaries(
    {"name": names}, optional={"args": st.none() | st.just({"a": [1, "é"]}), **ids}
)
results = st.fixed_dictionaries({"name": names, "response": responses}, optional=ids)
parts = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries({"text": texts}, optional={"thought": st.booleans(), **signatures}),
    st.fixed_dictionaries({"functionCall": calls}, optional=signatures),
    st.fixed_dictionaries({"functionResponse": results}),
    # Any combination of known fields.
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.none() | texts,
            "functionCall": calls,
            "functionResponse": results,
            "thought": st.booleans(),
            **signatures,
        },
    ),
)
contents = st.lists(
    st.fixed_dictionaries(
        {"parts": st.lists(parts, max_size=3)},
        optional={"role": st.sampled_from(["user", "model"])},
    ).map(lambda content: {"role": "user", **content}),
    max_size=6,
)
plain_values = {
    "maxOutputTokens": st.none() | st.integers(0, 9),
    "temperature": st.sampled_from([None, 0, 0.5]),
    "topP": st.just(0.9),
    "topK": st.just(40),
    "candidateCount": st.just(2),
    "seed": st.just(7),
    "presencePenalty": st.just(0.5),
    "frequencyPenalty": st.just(-1),
    "stopSequences": st.sampled_from([None, [], ["END"], ["a", "b"]]),
}
configs = st.none() | st.fixed_dictionaries(
    {},
    optional={
        **plain_values,
        "thinkingConfig": st.just({"thinkingBudget": 5}),
        "responseModalities": st.just(["TEXT"]),
    },
)
system = {"parts": [{"text": "Be brief."}]}
tools = [{"functionDeclarations": [{"name": "read", "parametersJsonSchema": {"type": "object"}}]}]
requests: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"contents": contents},
    optional={
        "generationConfig": configs,
        "model": st.sampled_from([None, "", "models/x"]),
        "systemInstruction": st.sampled_from([None, system, {"parts": [{"inlineData": {}}]}]),
        "tools": st.sampled_from([None, [], tools]),
        "toolConfig": st.just({"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {}}),
        "safetySettings": st.sampled_from([None, [], [{"category": "x"}]]),
        "cachedContent": st.sampled_from([None, "cachedContents/x"]),
    },
).flatmap(lambda request: st.permutations(list(request.items())).map(dict))
#: Ways to write JSON.
writings = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])},
    optional={"separators": st.just((",", ":"))},
)


def written(request: Json, how: Json) -> bytes:
    return json.dumps(request, **how).encode()


def read(request: Json, how: Json, path: str = "") -> Call:
    return gemini.parse(written(request, how), path)


def is_strict(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=GenerateContentRequest)
    except msgspec.DecodeError:
        return False
    return True


def with_unknown(request: Json) -> Json:
    """The same request with unknown fields everywhere."""
    config = request.get("generationConfig")
    changed = {**request, **UNKNOWN}
    changed["contents"] = [content | UNKNOWN for content in request["contents"]]
    if config is not None:
        changed["generationConfig"] = config | UNKNOWN
    return changed


@given(requests, writings, st.sampled_from(["", PATH]))
def test_unknown_fields_change_nothing_else(request: Json, how: Json, path: str) -> None:
    other = with_unknown(request)
    assert not is_strict(written(other, how))
    assert read(request, how, path) == read(other, how, path)


@given(contents, writings)
def test_one_unknown_field_changes_no_other_content(contents: list[Json], how: Json) -> None:
    unknown = {"role": "user", "parts": [{"text": "x", "unknown_field": 1}]}
    alone = read({"contents": contents}, how).ir.body_chat()
    assert read({"contents": [*contents, unknown]}, how).ir.body_chat()[:-1] == alone


@given(parts)
def test_a_part_of_several_kinds_is_kept_whole(part: Json) -> None:
    (message,) = read({"contents": [{"role": "user", "parts": [part]}]}, {}).ir.body_chat()
    kinds = [k for k in ("text", "functionCall", "functionResponse") if part.get(k) is not None]
    assert isinstance(message.parts[0], Opaque) == (len(kinds) != 1)


STRICT: list[Json] = [
    {"text": "x"},
    {"text": "x", "thoughtSignature": "c2ln"},
    {"text": "x", "thought": True},
    {"functionCall": {"name": "f", "args": {}}},
    {"functionCall": {"id": "1", "name": "f"}, "thoughtSignature": "c2ln"},
    {"functionResponse": {"name": "f", "response": {"result": "x"}}},
    {"functionResponse": {"id": "1", "name": "f", "response": {"output": "{}"}}},
]


@each_row("part", STRICT, ids=json.dumps)
def test_documented_parts_decode_strictly(part: Json) -> None:
    assert is_strict(written({"contents": [{"role": "user", "parts": [part]}]}, {}))


OTHERS: list[Json] = [
    {"functionCall": {"name": "f"}, "thought": False},
    {"functionCall": {"name": "f"}, "thoughtSignature": None},
    {"functionCall": {"name": "f", "args": None, "id": ""}, "thoughtSignature": "é="},
    {"text": "x", "thought": False, "thoughtSignature": "é="},
    {"text": "x", "thought": True, "thoughtSignature": 7},
    {"functionResponse": {"name": "f", "response": {"output": "x", "error": None}}},
    {"functionResponse": {"name": "f", "response": {"output": "{}"}}},
    {"functionResponse": {"name": "f", "response": {"output": {"a": 1}}}},
    {"functionResponse": {"name": "f", "response": {"error": {"a": 1}}}},
    {"functionResponse": {"name": "f", "response": ["output"]}},
    {"functionResponse": {"name": "f", "response": {}}},
]


@each_row("part", [*STRICT, *OTHERS], ids=json.dumps)
def test_rare_forms_are_read_the_same(part: Json) -> None:
    request = {"contents": [{"role": "model", "parts": [part, part]}]}
    for ensure_ascii in (True, False):
        how = {"ensure_ascii": ensure_ascii}
        assert read(request, how) == read(with_unknown(request), how)
    # A name may be written in escapes.
    body = written(request, {}).replace(b'"output"', b'"\\u006futput"')
    assert gemini.parse(body) == gemini.parse(
        body.replace(b'"role"', b'"unknown_field":null,"role"')
    )


def test_results_answer_calls_in_the_order_of_the_calls() -> None:
    """Two calls of one function and one of another, none with an id; a result too many."""
    calls_sent = [{"functionCall": {"name": name}} for name in ("read", "write", "read")]
    answers = [
        {"functionResponse": {"name": name, "response": {"output": name}}}
        for name in ("read", "read", "write", "read")
    ]
    request = {
        "contents": [{"role": "model", "parts": calls_sent}, {"role": "user", "parts": answers}]
    }
    for body in (request, with_unknown(request)):
        calls, results = read(body, {}).ir.body_chat()
        assert [part.id for part in calls.parts if isinstance(part, ToolCall)] == [
            "call_0_0",
            "call_0_1",
            "call_0_2",
        ]
        assert [part.call_id for part in results.parts if isinstance(part, ToolResult)] == [
            "call_0_0",
            "call_0_2",
            "call_0_1",
            "call_1_3",
        ]


#: A response, and what is read: the text, whether it is an error, and whether its form is kept.
ANSWERS: list[tuple[str, tuple[str, bool, bool]]] = [
    ('{"output": "x"}', ("x", False, False)),
    ('{ "output":"x\\n" }', ("x\n", False, False)),
    (r'{"\u006futput":"x"}', ("x", False, False)),
    ('{"error":"x"}', ("x", True, False)),
    (r'{"\u0065rror":"x"}', ("x", True, False)),
    ('{"error":{"code":5}}', ('{"code":5}', True, True)),
    ('{"output":"{}"}', ("{}", False, True)),
    ('{"output":"{"}', ("{", False, False)),
    ('{"output":5}', ('{"output":5}', False, False)),
    ('{"output":"x","error":null}', ('{"output":"x","error":null}', False, False)),
    ('{"result": "x"}', ('{"result": "x"}', False, False)),
    ('{"":1}', ('{"":1}', False, False)),
    ("{}", ("{}", False, False)),
    ("null", ("", False, False)),
    ('["x"]', ('["x"]', False, True)),
]


@each_row("response, expected", ANSWERS, ids=str)
def test_response_objects(response: str, expected: tuple[str, bool, bool]) -> None:
    text, error, form = read_response(response)
    assert (text, error, form is not None) == expected
    if form is not None:
        assert form == {"gemini.form": '{"response":' + response + "}"}
