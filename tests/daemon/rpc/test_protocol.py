"""JSON-RPC 2.0 messages as tables: bytes on one side, requests and codes on the other (D7)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import errors
from anaphora.daemon.rpc.protocol import (
    InvalidMessage,
    RpcBatch,
    RpcError,
    RpcRequest,
    error_of,
    key_of,
    read_message,
    write_batch,
    write_error,
    write_notification,
    write_result,
)

CALL = b'{"jsonrpc":"2.0","method":"health","id":%b}'


def invalid(data: bytes) -> tuple[int, Any]:
    message = read_message(data)
    assert isinstance(message, InvalidMessage), message
    return message.error.code, json.loads(message.id)


@each_row("data", [
    b"", b" ", b"{", b"nul", b"{} {}", b'{"a":1}{"a":1}', b"[1,]", b"'a'", b"NaN", b"Infinity",
    b"\xef\xbb\xbf" + CALL % b"1",
    CALL % b"NaN",
    b'{"jsonrpc":"2.0","method":"\xff","id":1}',
    '{"jsonrpc":"2.0"}'.encode("utf-16"),
    b'{"jsonrpc":"2.0","method":"a","method":"b","id":1}',
    b'{"jsonrpc":"2.0","method":"a","params":{"x":{"y":1,"y":2}},"id":1}',
    b'{"jsonrpc":"2.0","method":"a","m\\u0065thod":"b","id":1}',
    b'[{"jsonrpc":"2.0","method":"a","id":1,"id":2}]',
    b'{"jsonrpc":"2.0","method":"a","id":1e999}',
    b"[" * 20_000,
    b'{"jsonrpc":"2.0","method":"a","params":{"x":1e0,"y":%b},"id":1}' % (b"1" * 5000),
])  # fmt: skip
def test_what_is_not_json_without_duplicate_keys_is_a_parse_error(data: bytes) -> None:
    """D7: -32700, before anything else is looked at."""
    assert invalid(data) == (-32700, None)


@each_row("data, id", [
    (b"1", None), (b'"text"', None), (b"null", None), (b"true", None),
    (b"[]", None),
    (b"{}", None),
    (b'{"foo":"boo"}', None),
    (b'{"jsonrpc":"2.0","id":1}', 1),
    (b'{"jsonrpc":"2.0","method":1,"id":1}', 1),
    (b'{"jsonrpc":"2.0","method":1,"params":"bar"}', None),
    (b'{"jsonrpc":"2.0","method":"health","params":"bar","id":"a"}', "a"),
    (b'{"jsonrpc":"2.0","method":"health","params":null,"id":"a"}', "a"),
    (b'{"jsonrpc":"2.0","method":"health","params":1,"id":0.5}', 0.5),
    (b'{"jsonrpc":"1.0","method":"health","id":1}', 1),
    (b'{"jsonrpc":2.0,"method":"health","id":1}', 1),
    (b'{"method":"health","id":1}', 1),
    (b'{"jsonrpc":"2.0","result":1,"id":1}', 1),
    (CALL % b"true", None),
    (CALL % b"[1]", None),
    (CALL % b'{"a":1}', None),
    (CALL % (b'"%b"' % (b"x" * 300)), None),
    (b"[" + b",".join([CALL % b"1"] * 51) + b"]", None),
])  # fmt: skip
def test_what_is_not_a_request_object_is_an_invalid_request(data: bytes, id: object) -> None:
    """D7: -32600, with the request's id where it has a valid one. An empty batch and one of more
    than 50 get a single response."""
    assert invalid(data) == (-32600, id)


@each_row(
    "id", [b"1", b"-7", b"0", b"1.5", b"1E4", b'"a"', b'""', b'"\\u00e9"', b"null",
           b"123456789012345678901234567890"],
)  # fmt: skip
def test_an_id_comes_back_in_the_bytes_it_was_sent_in(id: bytes) -> None:
    request = read_message(CALL % id)
    assert isinstance(request, RpcRequest)
    assert request.id == id
    assert not request.is_notification
    assert write_result(id, {"a": 1}) == b'{"jsonrpc":"2.0","id":%b,"result":{"a":1}}' % id


def test_ids_are_compared_by_value() -> None:
    assert key_of(b"1") == key_of(b"1.0") != key_of(b'"1"')
    assert key_of(b'"\\u0061"') == key_of(b'"a"')
    assert key_of(b"null") is None


def test_a_request_without_an_id_is_a_notification() -> None:
    request = read_message(b' {"jsonrpc": "2.0", "method": "llm.cancel", "params": {"id": 1}}\n')
    assert isinstance(request, RpcRequest)
    assert request.is_notification
    assert request.method == "llm.cancel"
    assert request.params == b'{"id": 1}'


@pytest.mark.parametrize("params, expected", [
    (b"", b"{}"), (b',"params":{}', b"{}"), (b',"params":[]', None), (b',"params":[1]', None),
])  # fmt: skip
def test_params_are_an_object_or_positional(params: bytes, expected: bytes | None) -> None:
    request = read_message(b'{"jsonrpc":"2.0","method":"health","id":1%b}' % params)
    assert isinstance(request, RpcRequest)
    assert request.params == expected


def test_each_request_of_a_batch_is_checked_by_itself() -> None:
    """D7."""
    batch = read_message(b"[%b,1,{},%b]" % (CALL % b"1", CALL % b"true"))
    assert isinstance(batch, RpcBatch)
    valid, *others = batch.items
    assert isinstance(valid, RpcRequest)
    assert [each.error.code for each in others if isinstance(each, InvalidMessage)] == [-32600] * 3
    largest = read_message(b"[" + b",".join([CALL % b"1"] * 50) + b"]")
    assert isinstance(largest, RpcBatch)
    assert len(largest.items) == 50


def test_messages_are_written_as_the_specification_has_them() -> None:
    assert json.loads(write_error(b'"x"', RpcError(-32601, "no such method"))) == {
        "jsonrpc": "2.0", "id": "x", "error": {"code": -32601, "message": "no such method"},
    }  # fmt: skip
    assert write_notification("llm.delta", {"id": 1}) == (
        b'{"jsonrpc":"2.0","method":"llm.delta","params":{"id":1}}'
    )
    assert write_batch([b"{}", b"{}"]) == b"[{},{}]"


NAMES = st.text(max_size=5)
JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50)
@given(st.binary() | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_reading_never_raises(data: bytes) -> None:
    """Any bytes give a request, a batch, or an error with one of two codes."""
    message = read_message(data)
    if isinstance(message, InvalidMessage):
        assert message.error.code in (-32700, -32600)


@settings(max_examples=50)
@given(st.dictionaries(NAMES, JSON_VALUES, max_size=3), NAMES | st.integers() | st.none())
def test_a_written_request_is_read_back(params: dict[str, Any], id: str | int | None) -> None:
    sent = {"jsonrpc": "2.0", "method": "llm.complete", "params": params, "id": id}
    request = read_message(json.dumps(sent, indent=1).encode(errors="surrogatepass"))
    if isinstance(request, InvalidMessage):  # a lone surrogate
        assert request.error.code == -32700
        return
    assert isinstance(request, RpcRequest)
    assert request.params is not None
    assert msgspec.json.decode(request.params) == params
    assert request.key == id


@each_row("problem, code, data", [
    (errors.InvalidRequest("must be a text", path="messages[3].content"), -32602,
     {"kind": "invalid_params", "retryable": False, "param": "messages[3].content"}),
    (errors.CapabilityDenied("no", capability="llm_complete", app="a", method="llm.complete"), -32004,
     {"capability": "llm_complete", "microapp_id": "a", "method": "llm.complete"}),
    (errors.NotGranted("no", param="model"), -32005,
     {"kind": "not_granted", "retryable": False, "param": "model"}),
    (errors.GrantExceeded("no", limit="usd_per_day", resets_at=7.0), -32005,
     {"kind": "grant_exceeded", "retryable": False, "limit": "usd_per_day", "resets_at": 7.0}),
    (errors.GrantRateLimited("no", limit="requests_per_minute", retry_after=2.5), -32006,
     {"kind": "grant_rate_limited", "retryable": True, "limit": "requests_per_minute", "retry_after": 2.5}),
    (errors.StoreUnavailable("full"), -32009, {"kind": "unavailable", "retryable": True}),
    (errors.RateLimited("no", status=429, retry_after=3.0), -32006,
     {"kind": "rate_limited", "retryable": True, "retry_after": 3.0, "status": 429}),
    (errors.Throttled("no", wait=4.0), -32006, {"kind": "throttled", "retryable": True, "retry_after": 4.0}),
    (errors.Unavailable("no", wait=5.0), -32009, {"kind": "circuit_open", "retryable": True, "retry_after": 5.0}),
    (errors.Transport("no", phase="send"), -32009, {"kind": "transport", "retryable": True, "phase": "send"}),
    (errors.Timeout(50), -32008, {"kind": "timeout", "retryable": True, "timeout_ms": 50}),
    (errors.Overloaded("org-1 is down", status=529, code="overloaded_error"), -32007,
     {"kind": "overloaded", "retryable": True, "status": 529, "type": "overloaded_error"}),
    (errors.RequestRejected("sk-1", status=400, code="a code with text", param="max_tokens"), -32007,
     {"kind": "request_rejected", "retryable": False, "status": 400, "param": "max_tokens"}),
    (errors.MissingSecret("secrets/A.txt"), -32009, {"kind": "misconfigured", "retryable": False}),
    (errors.Parse("not a reply"), -32007, {"kind": "invalid_reply", "retryable": False}),
    (errors.Io("/home/a is full"), -32603, {"kind": "internal", "retryable": False}),
])  # fmt: skip
def test_errors_have_codes_kinds_and_whether_to_retry(
    problem: errors.AnaphoraError, code: int, data: dict[str, Any]
) -> None:
    """D3, D7: one table for every error."""
    error = error_of(problem)
    assert (error.code, error.data) == (code, data)


@each_row("kind", [
    each for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.Upstream) and not issubclass(each, errors.Denied)
])  # fmt: skip
def test_the_text_of_a_provider_is_never_repeated(kind: type[errors.Upstream]) -> None:
    """D7, D12: it may name the operator's account, or parts of a key."""
    error = error_of(kind("in organization org-4711: sk-canary", status=400, code="x"))
    assert "4711" not in error.message
    assert "canary" not in error.message
    assert error.data is not None
    assert error.data["kind"] != "provider_error" or kind is errors.Upstream
