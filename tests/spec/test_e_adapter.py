"""SPEC E1 to E3: the adapter's shape, what a request is hashed by. (E4's tree: test_e_errors.py;
adapters over the client: tests/client/adapter.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora.client.adapter import (
    LlmAdapter,
    LlmMessage,
    LlmRequest,
    LlmResponse,
    StreamChunk,
    TokenUsage,
    blake3_hex,
)
from anaphora.errors import InvalidRequest


def request(**changes: Any) -> LlmRequest:
    """The request of the golden value, with changes."""
    fields: dict[str, Any] = {
        "model": "test-model",
        "system": "be precise",
        "messages": (LlmMessage("user", "hello"),),
        "temperature": 0.0,
        "max_tokens": 256,
        "timeout_ms": 30_000,
    }
    return LlmRequest(**{**fields, **changes})


class Echo(LlmAdapter):
    """The smallest adapter there is."""

    @property
    def adapter_id(self) -> str:
        return "echo"

    async def complete(self, request: LlmRequest) -> LlmResponse:
        text = request.messages[-1].content
        return LlmResponse(text=text, model=request.model, raw_hash=blake3_hex(text.encode()))


def test_e1_an_adapter_without_a_stream_gives_one_chunk_that_stops() -> None:
    async def main() -> tuple[LlmResponse, list[StreamChunk]]:
        adapter: LlmAdapter = Echo()
        return await adapter.complete(request()), [c async for c in adapter.stream(request())]

    response, chunks = asyncio.run(main())
    assert response.text == "hello"
    assert chunks == [StreamChunk("hello", "stop")]


def test_e1_adapter_id_is_a_constant_in_lower_case() -> None:
    assert Echo().adapter_id == "echo"
    with pytest.raises(AttributeError):
        Echo().adapter_id = "other"  # type: ignore[misc]


def test_e2_the_fields_are_these_in_this_order() -> None:
    """They stand in audit records: to rename or to reorder one is to break those."""
    assert LlmRequest.__struct_fields__ == (
        "model",
        "system",
        "messages",
        "temperature",
        "max_tokens",
        "json_schema",
        "timeout_ms",
    )
    assert LlmResponse.__struct_fields__ == ("text", "parsed_json", "model", "usage", "raw_hash")
    assert TokenUsage.__struct_fields__ == ("prompt_tokens", "completion_tokens")
    assert StreamChunk.__struct_fields__ == ("delta", "finish_reason")


def test_e2_a_request_survives_json() -> None:
    requested = request(json_schema={"type": "object"})
    back = msgspec.json.decode(msgspec.json.encode(requested), type=LlmRequest)
    assert back == requested
    assert back.prompt_hash() == requested.prompt_hash()


def test_e2_the_raw_hash_is_lower_case_blake3_of_the_bytes() -> None:
    assert blake3_hex(b"abc") == blake3(b"abc").hexdigest()
    assert blake3_hex(b"abc") == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"


def test_e3_the_golden_value() -> None:
    golden = "7c2425e4636e65344b2bfd37c0d04d80a9c8f2ddfda25fb6aae4770696bf3b14"
    assert request().prompt_hash() == golden


@pytest.mark.parametrize(
    "changes",
    [{"model": "other-model"}, {"timeout_ms": 1}, {"messages": [LlmMessage("user", "hello")]}],
)
def test_e3_model_and_timeout_are_not_in_it(changes: Mapping[str, Any]) -> None:
    assert request(**changes).prompt_hash() == request().prompt_hash()


@each_row(
    "changes",
    [
        {"system": "be brief"},
        {"messages": ()},
        {"messages": (LlmMessage("user", "world"),)},
        {"messages": (LlmMessage("assistant", "hello"),)},
        {"messages": (LlmMessage("tool", "hello"),)},
        {"temperature": 0.5},
        {"temperature": -0.0},
        {"max_tokens": 255},
        {"json_schema": {}},
        {"json_schema": False},
    ],
)
def test_e3_everything_else_is(changes: Mapping[str, Any]) -> None:
    assert request(**changes).prompt_hash() != request().prompt_hash()


@each_row(
    "temperature, written",
    [
        (0, "0.0"),
        (0.0, "0.0"),
        (0.1, "0.1"),
        (0.7, "0.7"),
        (0.7000000000001, "0.7"),
        (1, "1.0"),
        (2.0, "2.0"),
        (100.0, "100.0"),
        (1e-5, "0.00001"),
        (1e-7, "1e-7"),
        (1e-60, "0.0"),
        (1e16, "1e16"),
        (1e21, "1e21"),
    ],
)
def test_e3_temperature_is_a_single_in_its_shortest_form(temperature: float, written: str) -> None:
    encoded = request(temperature=temperature).canonical().decode()
    assert f'"temperature":{written},' in encoded


@each_row("temperature", [float("nan"), float("inf"), float("-inf"), 1e39, 10**400])
def test_e3_a_non_finite_temperature_is_an_invalid_request(temperature: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(temperature=temperature).prompt_hash()
    assert caught.value.path == "temperature"


@each_row(
    "schema, written",
    [
        (
            {"b": {"d": 1, "c": [{"z": 1, "y": 2}]}, "a": 2},
            '{"a":2,"b":{"c":[{"y":2,"z":1}],"d":1}}',
        ),
        # Sorted by code points, as UTF-8 is: the last one is beyond the BMP.
        ({"😀": 1, "ﬁ": 2, "é": 3, "Z": 4}, '{"Z":4,"é":3,"ﬁ":2,"😀":1}'),
        ({"a": 1.0, "b": 1e16, "c": 1e-7, "d": -0.0}, '{"a":1.0,"b":1e16,"c":1e-7,"d":-0.0}'),
        (
            [2**64 - 1, -(2**63), 2**64],
            "[18446744073709551615,-9223372036854775808,1.8446744073709552e19]",
        ),
        ([True, None, "a\u2028\x7f\x1f/"], '[true,null,"a\u2028\x7f\\u001f/"]'),
    ],
)
def test_e3_the_schema_has_sorted_keys(schema: Any, written: str) -> None:
    encoded = request(json_schema=schema).canonical().decode()
    assert encoded.endswith(f',"json_schema":{written}}}')


def test_e3_without_a_schema_the_field_is_left_out() -> None:
    assert request().canonical() == (
        b'{"system":"be precise","messages":[{"role":"user","content":"hello"}],'
        b'"temperature":0.0,"max_tokens":256}'
    )


@given(st.text(), st.text())
def test_e3_texts_are_compact_json_whatever_they_hold(system: str, content: str) -> None:
    """Escaped as little as JSON allows, compared with json.dumps(ensure_ascii=False)."""
    encoded = request(system=system, messages=(LlmMessage("user", content),)).canonical()
    fields = {
        "system": system,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0.0,
        "max_tokens": 256,
    }
    assert encoded.decode() == json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


@each_row(
    "changes, path",
    [
        ({"system": "\ud800"}, "system"),
        ({"system": None}, "system"),
        (
            {"messages": (LlmMessage("user", "a"), LlmMessage("user", "\ud800"))},
            "messages[1].content",
        ),
        ({"messages": (LlmMessage("system", "a"),)}, "messages[0].role"),  # type: ignore[arg-type]
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "0"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"json_schema": {"a": [float("nan")]}}, "json_schema.a[0]"),
        ({"json_schema": {"a": object()}}, "json_schema.a"),
        ({"json_schema": {1: 2}}, "json_schema"),
    ],
)
def test_e3_what_cannot_be_hashed_is_named(changes: Mapping[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**changes).prompt_hash()
    assert caught.value.path == path
