"""Reads and writes JSON-RPC 2.0 messages, and the errors in them.

    match read_message(data):
        case RpcBatch(items): …
        case RpcRequest() as request: …
        case InvalidMessage() as invalid: write_error(invalid.id, invalid.error)

A message is JSON without duplicate keys. An id is a text, a number or null, and is returned byte
for byte; a request without one is a notification and gets no response.

    -32700  not JSON                        -32005  not granted, or a limit of the grant is reached
    -32600  not a request object            -32006  rate limited
    -32601  no such method                  -32007  the provider responded with an error
    -32602  invalid params                  -32008  timeout
    -32603  internal error                  -32009  unavailable
    -32004  the capability is not granted   -32800  cancelled by `llm.cancel`

From -32005 on, `data` has a `kind` for programs, and `retryable`: whether a retry may succeed.
Texts of providers are not included: they may name the operator's account.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from anaphora import errors
from anaphora.daemon.values import public_text
from anaphora.errors import AnaphoraError, RequestRejected, TooLarge
from anaphora.wire.reading import Members, decode_elements, decode_members
from anaphora.wire.strict_json import decode_pieces, decode_strict

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CAPABILITY_DENIED = -32004
NOT_GRANTED = -32005
RATE_LIMITED = -32006
PROVIDER_ERROR = -32007
TIMEOUT = -32008
UNAVAILABLE = -32009
CANCELLED = -32800

VERSION = "2.0"
MOST_IN_BATCH = 50
#: Limited, since every delta repeats the id.
LONGEST_ID = 256
NULL = b"null"

RequestKey: TypeAlias = str | int | float | None
"""The value of an id: 1 and 1.0 are the same request, 1 and "1" are not."""

_encode = msgspec.json.Encoder().encode


class RpcError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` of a response."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class RpcRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request object, or a notification."""

    method: str
    params: bytes | None
    """The JSON object; empty if absent, None if params are positional."""
    id: bytes | None = None
    """The JSON of the id; None for a notification."""

    @property
    def is_notification(self) -> bool:
        return self.id is None

    @property
    def key(self) -> RequestKey:
        return key_of(self.id or NULL)


class InvalidMessage(msgspec.Struct, frozen=True):
    """A message that is not a request object."""

    error: RpcError
    id: bytes = NULL
    """The request's id if it could be read."""


class RpcBatch(msgspec.Struct, frozen=True):
    items: tuple[RpcRequest | InvalidMessage, ...]


RpcMessage: TypeAlias = RpcRequest | InvalidMessage | RpcBatch


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def read_message(data: bytes, *, by_pieces: bool = False) -> RpcMessage:
    """Reads a request, a notification, or a batch of them. Never raises. `by_pieces`: for use in a
    thread, lets other threads run."""
    try:
        if by_pieces:
            decode_pieces(data)
        else:
            decode_strict(data)
    except (RequestRejected, TooLarge) as problem:
        return InvalidMessage(RpcError(PARSE_ERROR, str(problem)))
    if data.lstrip()[:1] == b"[":
        return _read_batch(decode_elements(data))
    return _read_request(data)


def _read_batch(elements: list[msgspec.Raw]) -> RpcBatch | InvalidMessage:
    if not elements:
        return _invalid("a batch must hold at least one request")
    if len(elements) > MOST_IN_BATCH:
        count = f"a batch may hold {MOST_IN_BATCH} requests, not {len(elements):,}"
        return _invalid(count)
    return RpcBatch(tuple(map(_read_request, elements)))


def _read_request(data: bytes | msgspec.Raw) -> RpcRequest | InvalidMessage:
    if bytes(data).lstrip()[:1] != b"{":
        return _invalid("a request must be an object")
    members = decode_members(data)
    id = bytes(members["id"]) if "id" in members else None
    if id is not None and (reason := _id_problem(id)):
        return _invalid(reason)
    shown_id = NULL if id is None else id
    if _text(members, "jsonrpc") != VERSION:
        return _invalid(f'jsonrpc must be "{VERSION}"', shown_id)
    method = _text(members, "method")
    if method is None:
        return _invalid("method must be a text", shown_id)
    if "params" not in members:
        return RpcRequest(method=method, params=b"{}", id=id)
    params = bytes(members["params"])
    match params[:1]:
        case b"{":
            return RpcRequest(method=method, params=params, id=id)
        case b"[":
            return RpcRequest(method=method, params=None, id=id)
        case _:
            return _invalid("params must be an object", shown_id)


def _id_problem(id: bytes) -> str:
    if len(id) > LONGEST_ID:
        return f"an id may have {LONGEST_ID} bytes, not {len(id):,}"
    return "" if id == NULL or id[:1] in b'"-0123456789' else "id must be a text, a number or null"


def _text(members: Members, name: str) -> str | None:
    raw = bytes(members.get(name, b""))
    return str(msgspec.json.decode(raw)) if raw[:1] == b'"' else None


def key_of(id: bytes | msgspec.Raw) -> RequestKey:
    """The value of an id."""
    key: RequestKey = msgspec.json.decode(id)
    return key


def _invalid(reason: str, id: bytes = NULL) -> InvalidMessage:
    return InvalidMessage(RpcError(INVALID_REQUEST, reason), id)


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_result(id: bytes, result: object) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, _encode(result))


def write_error(id: bytes, error: RpcError) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, _encode(error))


def write_notification(method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), _encode(params))


def write_batch(responses: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(responses)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

CANCELLED_ERROR = RpcError(
    CANCELLED, "the call was cancelled", {"kind": "cancelled", "retryable": False}
)
INTERNAL = RpcError(
    INTERNAL_ERROR,
    "internal error; the daemon's log has more",
    {"kind": "internal", "retryable": False},
)

_NAME = re.compile(r"[\w.:\[\]/-]{1,128}", re.ASCII)
#: Fields of an error that are copied to `data` if they are set.
_DATA = ("limit", "resets_at", "retry_after", "param", "timeout_ms", "phase")


class _Row(msgspec.Struct, frozen=True):
    """How an error is reported. Without `text`, its own message is used."""

    code: int
    kind: str
    text: str = ""
    retryable: bool | None = None
    """None: the error's own value."""


#: Subclasses before their bases. The daemon's own errors keep their message.
_TABLE: dict[type[AnaphoraError], _Row] = {
    errors.NotGranted: _Row(NOT_GRANTED, "not_granted"),
    errors.GrantExceeded: _Row(NOT_GRANTED, "grant_exceeded"),
    errors.ColdCallRefused: _Row(NOT_GRANTED, "cold_cache"),
    errors.GrantRateLimited: _Row(RATE_LIMITED, "grant_rate_limited"),
    errors.StoreUnavailable: _Row(UNAVAILABLE, "unavailable"),
    errors.Denied: _Row(NOT_GRANTED, "denied"),
    errors.Throttled: _Row(RATE_LIMITED, "throttled", retryable=True),
    errors.Unavailable: _Row(UNAVAILABLE, "circuit_open", retryable=True),
    errors.Timeout: _Row(TIMEOUT, "timeout", retryable=True),
    errors.Transport: _Row(UNAVAILABLE, "transport", "the provider could not be reached"),
    errors.RateLimited: _Row(RATE_LIMITED, "rate_limited", "the provider's rate limit is reached"),
    errors.Overloaded: _Row(PROVIDER_ERROR, "overloaded", "the provider failed"),
    errors.QuotaExhausted: _Row(
        PROVIDER_ERROR, "quota_exhausted", "the operator's quota at the provider is used up"
    ),
    errors.Unauthenticated: _Row(
        PROVIDER_ERROR, "unauthenticated", "the provider does not accept the operator's key"
    ),
    errors.Forbidden: _Row(
        PROVIDER_ERROR, "forbidden", "the operator's key may not do this at the provider"
    ),
    errors.NotFound: _Row(PROVIDER_ERROR, "not_found", "the provider has no such model or object"),
    errors.TooLarge: _Row(PROVIDER_ERROR, "too_large", "the request is too large for the provider"),
    errors.ContextOverflow: _Row(
        PROVIDER_ERROR, "context_overflow", "the prompt is longer than the model's context window"
    ),
    errors.ContentRefused: _Row(
        PROVIDER_ERROR, "content_refused", "the provider declined the content"
    ),
    errors.RequestRejected: _Row(
        PROVIDER_ERROR, "request_rejected", "the provider refused the request as invalid"
    ),
    errors.Upstream: _Row(PROVIDER_ERROR, "provider_error", "the provider responded with an error"),
    errors.Parse: _Row(
        PROVIDER_ERROR, "invalid_reply", "the provider's reply does not have the expected format"
    ),
    errors.InvalidConfig: _Row(
        UNAVAILABLE, "misconfigured", "the daemon's configuration of this provider cannot be used"
    ),
}


def invalid_params(reason: str, path: str = "") -> RpcError:
    """`path` names the field: `messages[3].role`."""
    data: dict[str, Any] = {"kind": "invalid_params", "retryable": False}
    if path:
        data["param"] = path
    return RpcError(INVALID_PARAMS, f"{path}: {reason}" if path else reason, data)


def error_of(problem: AnaphoraError) -> RpcError:
    """The error that an app gets."""
    if isinstance(problem, errors.InvalidRequest):
        # A wire's error has the path in a `Call`.
        path = problem.path.removeprefix("params.")
        return invalid_params(problem.reason, "messages" if path == "ir" else path)
    if isinstance(problem, errors.CapabilityDenied):
        data = {
            "capability": problem.capability,
            "microapp_id": problem.app,
            "method": problem.method,
        }
        return RpcError(CAPABILITY_DENIED, str(problem), data)
    for kind in type(problem).__mro__:
        if (row := _TABLE.get(kind)) is not None:
            return RpcError(row.code, row.text or public_text(problem), _data(problem, row))
    return INTERNAL


def _data(problem: AnaphoraError, row: _Row) -> dict[str, Any]:
    retryable = problem.retryable if row.retryable is None else row.retryable
    data: dict[str, Any] = {"kind": row.kind, "retryable": retryable}
    for name in _DATA:
        if (value := getattr(problem, name, None)) is not None:
            data[name] = value
    if (wait := getattr(problem, "wait", None)) is not None:
        data["retry_after"] = wait
    if isinstance(problem, errors.ColdCallRefused) and problem.cold is not None:
        cold = problem.cold
        data |= {"reason": cold.reason, "tokens": cold.tokens}
        data["extra_usd"] = [float(usd) for usd in cold.range_usd or ()]
    if isinstance(problem, errors.Upstream) and not isinstance(problem, errors.Denied):
        data |= {"status": problem.status, "type": problem.code}
        # Only plain names: a provider may write anything here.
        for name in ("type", "param"):
            if not _NAME.fullmatch(data.get(name) or ""):
                data.pop(name, None)
    return data
