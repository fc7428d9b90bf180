"""Anthropic's errors, both ways."""

from __future__ import annotations

from functools import partial

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.wire.error_details import shown_fields
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response

from .types import ErrorBody, ErrorReply

_STATUS_AND_TYPE: dict[type[Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "invalid_request_error"),
    errors.ContentRefused: (400, "invalid_request_error"),
    errors.ContextOverflow: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.QuotaExhausted: (402, "billing_error"),
    errors.Forbidden: (403, "permission_error"),
    errors.NotFound: (404, "not_found_error"),
    errors.TooLarge: (413, "request_too_large"),
    errors.RateLimited: (429, "rate_limit_error"),
    errors.Overloaded: (529, "overloaded_error"),
}
#: A rate limit but for its code: PROVIDERS.md, section 1.
_SPEND_LIMIT = "enforced_spend_limit_reached"
#: By the error's type, and by the finer code in its details. Of several classes with one type the
#: first counts.
_BY_CODE: dict[str, type[Upstream]] = {
    **{kind: cls for cls, (_, kind) in reversed(_STATUS_AND_TYPE.items())},
    "conflict_error": errors.Overloaded,
    "api_error": errors.Overloaded,
    "timeout_error": errors.Overloaded,
    _SPEND_LIMIT: errors.QuotaExhausted,
    "exceed_context_size_error": errors.ContextOverflow,  # llama.cpp
}


def _read(body: bytes, status: int) -> Upstream:
    reply = msgspec.json.decode(body, type=ErrorReply)
    error = error_of(reply.error, status, reply.request_id)
    error.details = shown_fields("anthropic", msgspec.json.decode(body)["error"])
    return error


read_error = partial(read_response, _read, _BY_CODE)


def error_of(body: ErrorBody, status: int, request_id: str | None = None) -> Upstream:
    """The error of an error object; streams carry the same object."""
    code = body.details.error_code if body.details is not None else None
    kind = error_class(status, code if code in _BY_CODE else body.type, _BY_CODE)
    return overflow_class(kind, body.message)(
        body.message or body.type,
        status=status,
        code=code or body.type or None,
        request_id=request_id,
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Anthropic would send them."""
    status, kind = _STATUS_AND_TYPE.get(type(error), (500, "api_error"))
    if error.code == _SPEND_LIMIT:
        status, kind = _STATUS_AND_TYPE[errors.RateLimited]
    content: dict[str, object] = {"type": kind, "message": str(error)}
    # The type of another class would be read as that class; a spend limit comes as a rate limit.
    named = (type(error), None) if error.code != _SPEND_LIMIT else (errors.QuotaExhausted,)
    if error.details is not None:
        content |= error.details
    elif error.code not in (None, kind) and _BY_CODE.get(error.code) in named:
        content["details"] = {"error_code": error.code}
    body = {"type": "error", "error": content, "request_id": error.request_id}
    return error.status or status, error_headers(error, "request-id"), dumps(body)
