"""Usual requests are read in one go. That gives what reading them field by field gives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some

from anaphora.prompt import Call
from anaphora.values import ToolCall, ToolResult
from anaphora.wire import gemini
from anaphora.wire.gemini import plain, usual
from anaphora.wire.gemini import results as results_of

Json = dict[str, Any]

#: Says nothing, and makes unusual what it stands in.
UNHEARD_OF = {"unheard_of": None}
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
    # And what is no usual part, though each of its fields is usual.
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
#: How JSON may be written.
writings = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])},
    optional={"separators": st.just((",", ":"))},
)


def written(request: Json, how: Json) -> bytes:
    return json.dumps(request, **how).encode()


def read(request: Json, how: Json, path: str = "") -> Call:
    return gemini.parse(written(request, how), path)


def unusual(request: Json) -> Json:
    """The same, so that nothing of it can be read in one go."""
    config = request.get("generationConfig")
    said = {**request, **UNHEARD_OF}
    said["contents"] = [content | UNHEARD_OF for content in request["contents"]]
    if config is not None:
        said["generationConfig"] = config | UNHEARD_OF
    return said


@given(requests, writings, st.sampled_from(["", PATH]))
def test_the_quick_way_gives_what_the_long_way_gives(request: Json, how: Json, path: str) -> None:
    long = unusual(request)
    assert plain.read_plain(written(long, how)) is None
    assert read(request, how, path) == read(long, how, path)


@given(contents, writings)
def test_a_content_by_itself_is_read_as_among_others(said: list[Json], how: Json) -> None:
    """One unusual content, and the others are read one by one: the same messages."""
    image = {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]}
    alone = read({"contents": said}, how).ir.body_chat()
    assert read({"contents": [*said, image]}, how).ir.body_chat()[:-1] == alone


@given(parts)
def test_what_is_tried_is_read_or_left(part: Json) -> None:
    """A part that is not understood whole is left to the long way, never read by half."""
    tried = usual.try_content(msgspec.Raw(written({"role": "user", "parts": [part]}, {})))
    kinds = [k for k in ("text", "functionCall", "functionResponse") if part.get(k) is not None]
    if len(kinds) != 1:
        assert tried is None


USUAL: list[Json] = [
    {"text": "x"},
    {"text": "x", "thoughtSignature": "c2ln"},
    {"text": "x", "thought": True},
    {"functionCall": {"name": "f", "args": {}}},
    {"functionCall": {"id": "1", "name": "f"}, "thoughtSignature": "c2ln"},
    {"functionResponse": {"name": "f", "response": {"result": "x"}}},
    {"functionResponse": {"id": "1", "name": "f", "response": {"output": "{}"}}},
]


@pytest.mark.parametrize("part", USUAL, ids=json.dumps)
def test_these_are_usual(part: Json) -> None:
    """Else the laws above would compare the long way with itself."""
    assert plain.read_plain(written({"contents": [{"role": "user", "parts": [part]}]}, {}))


ALMOST: list[Json] = [
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


@pytest.mark.parametrize("part", [*USUAL, *ALMOST], ids=json.dumps)
def test_what_is_nearly_usual_is_read_the_same(part: Json) -> None:
    request = {"contents": [{"role": "model", "parts": [part, part]}]}
    for ensure_ascii in (True, False):
        how = {"ensure_ascii": ensure_ascii}
        assert read(request, how) == read(unusual(request), how)
    # A name may be written in escapes.
    body = written(request, {}).replace(b'"output"', b'"\\u006futput"')
    assert gemini.parse(body) == gemini.parse(body.replace(b'"role"', b'"unheard_of":null,"role"'))


def test_results_answer_calls_in_the_order_of_the_calls() -> None:
    """Two calls of one function and one of another, none with an id; a result too many."""
    asked = [{"functionCall": {"name": name}} for name in ("read", "write", "read")]
    told = [
        {"functionResponse": {"name": name, "response": {"output": name}}}
        for name in ("read", "read", "write", "read")
    ]
    request = {"contents": [{"role": "model", "parts": asked}, {"role": "user", "parts": told}]}
    for said in (request, unusual(request)):
        calls, results = read(said, {}).ir.body_chat()
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


#: What came, and what is read: the text, whether it is an error, and the form kept beside it.
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


@pytest.mark.parametrize("came, expected", ANSWERS, ids=str)
def test_what_a_tool_answered(came: str, expected: tuple[str, bool, bool]) -> None:
    text, error, form = results_of.read_response(came)
    assert (text, error, form is not None) == expected
    if form is not None:
        assert form == {"gemini.form": '{"response":' + came + "}"}
