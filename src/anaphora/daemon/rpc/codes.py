"""Error codes, and the one table from errors to them.

    -32700  not JSON                        -32005  not granted, or a limit of the grant is reached
    -32600  not a request object            -32006  rate limited
    -32601  no such method                  -32007  the provider responded with an error
    -32602  invalid params                  -32008  timeout
    -32603  internal error                  -32009  unavailable
    -32004  the capability is not granted   -32800  cancelled by `llm.cancel`

From -32005 on, `data` has a `kind` for programs, and `retryable`: whether sending again may help.
Texts of providers are not repeated: they may name the operator's account.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from anaphora import errors
from anaphora.daemon.values import public_text
from anaphora.errors import AnaphoraError

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


class RpcError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` of a response."""

    code: int
    message: str
    data: dict[str, Any] | None = None


CANCELLED_ERROR = RpcError(
    CANCELLED, "the call was cancelled", {"kind": "cancelled", "retryable": False}
)
INTERNAL = RpcError(
    INTERNAL_ERROR,
    "internal error; the daemon's log has more",
    {"kind": "internal", "retryable": False},
)

_NAME = re.compile(r"[\w.:\[\]/-]{1,128}", re.ASCII)
#: Fields of an error that its `data` has, where they are known.
_DATA = ("limit", "resets_at", "retry_after", "param", "timeout_ms", "phase")


class _Row(msgspec.Struct, frozen=True):
    """How an error is reported; without a `text`, with its own."""

    code: int
    kind: str
    text: str = ""
    retryable: bool | None = None
    """None: as the error says."""


#: Subclasses before their bases. Errors that the daemon words itself keep their message.
_TABLE: dict[type[AnaphoraError], _Row] = {
    errors.NotGranted: _Row(NOT_GRANTED, "not_granted"),
    errors.GrantExceeded: _Row(NOT_GRANTED, "grant_exceeded"),
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
        # A wire names the place in a `Call`.
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
    if isinstance(problem, errors.Upstream) and not isinstance(problem, errors.Denied):
        data |= {"status": problem.status, "type": problem.code}
        # Names only: a provider may write anything here.
        for name in ("type", "param"):
            if not _NAME.fullmatch(data.get(name) or ""):
                data.pop(name, None)
    return data
