"""Requests decode strictly. One with unknown fields is read the same, and keeps them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies as some
from support.laws.case import grown
from support.laws.ollama import CASE
from support.tables import each_row

from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptBlock, PromptIR
from anaphora.values import Message, ToolCall, ToolResult
from anaphora.wire import ollama
from anaphora.wire.ollama.types import ChatRequest

Json = dict[str, Any]

#: A null means a missing field, but the strict decoder rejects its name.
UNKNOWN = {"unknown_field": None}

texts = st.none() | some.texts | st.sampled_from(["", " ", 'Zürich\n\\ "x"'])
ids = st.none() | st.sampled_from(["", "c1", "c2"])
names = st.sampled_from(["read", "write"])
functions = st.fixed_dictionaries(
    {"name": names},
    optional={
        "arguments": st.sampled_from([None, {}, {"a": [1, "é"]}]),
        "index": st.none() | st.integers(0, 2),
    },
)
calls = st.fixed_dictionaries(
    {"function": functions}, optional={"id": ids, "type": st.just("function")}
)
users = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system"])}, optional={"content": texts}
)
assistants = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": texts,
        "thinking": texts,
        "tool_calls": st.none() | st.lists(calls, max_size=3),
    },
)
results = st.fixed_dictionaries(
    {"role": st.just("tool")},
    optional={"content": texts, "tool_name": st.none() | names | st.just(""), "tool_call_id": ids},
)
messages = st.lists(users | assistants | results, max_size=7)
options = st.fixed_dictionaries(
    {},
    optional={
        "num_predict": st.sampled_from([None, 7, -1]),
        "temperature": st.sampled_from([None, 0, 0.5]),
        "top_p": st.just(0.9),
        "top_k": st.just(40),
        "seed": st.just(7),
        "frequency_penalty": st.just(0.5),
        "presence_penalty": st.just(-1),
        "stop": st.sampled_from([None, [], ["END"], "END"]),
        "num_ctx": st.just(9),
    },
)
tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
requests = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": messages},
    optional={
        "stream": st.none() | st.booleans(),
        "options": st.none() | options,
        "tools": st.sampled_from([None, [], [tool]]),
        "format": st.sampled_from([None, "json", {"type": "object"}]),
        "think": st.sampled_from([None, True, False, "high", "so so"]),
        "keep_alive": st.sampled_from([None, "5m", 0]),
    },
).flatmap(lambda request: st.permutations(list(request.items())).map(dict))
#: Ways to write JSON.
writings = st.fixed_dictionaries(
    {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])},
    optional={"separators": st.just((",", ":"))},
)


def read(request: Json, how: Json) -> Call:
    return ollama.parse(json.dumps(request, **how).encode())


def is_strict(request: Json) -> bool:
    try:
        msgspec.json.decode(json.dumps(request).encode(), type=ChatRequest)
    except msgspec.DecodeError:
        return False
    return True


def with_unknown(request: Json) -> Json:
    """The same request with unknown fields everywhere."""
    messages = [message | UNKNOWN for message in request["messages"]]
    return {**request, "messages": messages, **UNKNOWN}


@given(requests, writings)
def test_unknown_fields_change_nothing_else(request: Json, how: Json) -> None:
    other = with_unknown(request)
    assert not is_strict(other)
    assert read(request, how) == read(other, how)


@given(messages, writings)
def test_one_unknown_field_changes_no_other_message(messages: list[Json], how: Json) -> None:
    unknown = {"role": "user", "content": "x", "unknown_field": 1}
    alone = read({"model": "m", "messages": messages}, how).ir
    among = read({"model": "m", "messages": [*messages, unknown]}, how).ir
    assert among.body_chat()[:-1] == alone.body_chat()
    assert among.system_blocks == alone.system_blocks


STRICT: list[Json] = [
    {"role": "user", "content": "x"},
    {"role": "system", "content": "x"},
    {"role": "assistant", "content": "x", "thinking": "y"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"index": 0, "name": "f", "arguments": {}}}],
    },
    {"role": "tool", "content": "x", "tool_name": "f"},
    {"role": "tool", "content": "x", "tool_call_id": "1"},
]


@each_row("message", STRICT, ids=json.dumps)
def test_documented_messages_decode_strictly(message: Json) -> None:
    request = {"model": "m", "messages": [message, message]}
    assert is_strict(request)
    assert read(request, {}) == read(with_unknown(request), {})


#: Calls, results by tool and id, and the calls that these are read to answer.
PAIRS: list[tuple[list[str], list[tuple[str | None, str | None]], list[str]]] = [
    (["read", "write"], [("read", None), ("write", None)], ["call_1_0", "call_1_1"]),
    (["read", "write"], [("write", None), ("read", None)], ["call_1_1", "call_1_0"]),
    (["read", "read"], [("read", None), ("read", None)], ["call_1_0", "call_1_1"]),
    (["read", "write"], [(None, None), (None, None)], ["call_1_0", "call_1_1"]),
    (["read", "read"], [("read", "call_1_0"), ("read", None)], ["call_1_0", "call_1_1"]),
    (["read"], [("read", None), ("read", None)], ["call_1_0", ""]),
    (["read"], [("write", None), ("read", None)], ["", "call_1_0"]),
    ([], [("read", None), (None, None)], ["", ""]),
]


@each_row("called, answers, expected", PAIRS, ids=str)
def test_which_call_a_result_answers(
    called: list[str], answers: list[tuple[str | None, str | None]], expected: list[str]
) -> None:
    requested = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": name}} for name in called],
    }
    results = [{"role": "tool", "tool_name": name, "tool_call_id": id_} for name, id_ in answers]
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}, requested, *results]}
    for body in (request, with_unknown(request)):
        parts = [part for message in messages_of(read(body, {})) for part in message.parts]
        assert [part.name for part in parts if isinstance(part, ToolCall)] == called
        assert [part.call_id for part in parts if isinstance(part, ToolResult)] == expected


def messages_of(call: Call) -> list[Message]:
    return list(call.ir.body_chat())


@pytest.mark.parametrize("arguments", ['"{}"', "[]", "5"])
def test_arguments_that_are_no_object_are_refused_by_name(arguments: str) -> None:
    function = '{"name":"f","arguments":' + arguments + "}"
    message = '{"role":"assistant","tool_calls":[{"function":' + function + "}]}"
    with pytest.raises(InvalidRequest, match="expected an object") as caught:
        ollama.parse(f'{{"model":"m","messages":[{message}]}}'.encode())
    assert caught.value.path == "$.messages[0].tool_calls[0].function.arguments"


@given(CASE.turns, some.blocks)
def test_unknown_fields_do_not_change_messages(
    turns: list[list[Message]], blocks: tuple[PromptBlock, ...]
) -> None:
    ir = PromptIR.chat(grown(turns)[-1], system=blocks)
    body = json.loads(CASE.encode(Call(ir=ir, model="qwen3")))
    quick = ollama.parse(json.dumps(body).encode())
    for message in body["messages"]:
        message["unheard_of"] = None  # says nothing, and makes every message unusual
    assert ollama.parse(json.dumps(body).encode()) == quick
