"""Gemini's errors in both directions: Google's error object, by its status and details."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire.error_details import shown_fields
from anaphora.wire.errors import error_class, overflow_class, read_response
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.response_headers import seconds_until

#: By the reason in the details, then by the canonical status.
_BY_CODE: dict[str, type[Upstream]] = {
    "API_KEY_INVALID": errors.Unauthenticated,
    "API_KEY_EXPIRED": errors.Unauthenticated,
    "ACCESS_TOKEN_EXPIRED": errors.Unauthenticated,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": errors.Forbidden,
    "CREDENTIALS_MISSING": errors.Unauthenticated,
    "API_KEY_SERVICE_BLOCKED": errors.Forbidden,
    "CONSUMER_SUSPENDED": errors.Forbidden,
    "SERVICE_DISABLED": errors.Forbidden,
    "BILLING_DISABLED": errors.QuotaExhausted,
    "RATE_LIMIT_EXCEEDED": errors.RateLimited,
    "INVALID_ARGUMENT": errors.RequestRejected,
    "FAILED_PRECONDITION": errors.RequestRejected,
    "OUT_OF_RANGE": errors.RequestRejected,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "PERMISSION_DENIED": errors.Forbidden,
    "NOT_FOUND": errors.NotFound,
    "RESOURCE_EXHAUSTED": errors.RateLimited,
    "UNIMPLEMENTED": errors.RequestRejected,
    "ABORTED": errors.Overloaded,
    "CANCELLED": errors.Overloaded,
    "DEADLINE_EXCEEDED": errors.Overloaded,
    "INTERNAL": errors.Overloaded,
    "UNAVAILABLE": errors.Overloaded,
    "UNKNOWN": errors.Overloaded,
}
#: The HTTP status and canonical status that each class is written with.
_STATUS_OF: dict[type[Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "INVALID_ARGUMENT"),
    errors.ContentRefused: (400, "INVALID_ARGUMENT"),
    errors.ContextOverflow: (400, "INVALID_ARGUMENT"),
    errors.TooLarge: (413, "INVALID_ARGUMENT"),
    errors.Unauthenticated: (401, "UNAUTHENTICATED"),
    errors.Forbidden: (403, "PERMISSION_DENIED"),
    errors.NotFound: (404, "NOT_FOUND"),
    errors.RateLimited: (429, "RESOURCE_EXHAUSTED"),
    errors.QuotaExhausted: (429, "RESOURCE_EXHAUSTED"),
    errors.Overloaded: (503, "UNAVAILABLE"),
}
#: Canonical statuses that a code may be written as.
_CANONICAL = frozenset(canonical for _, canonical in _STATUS_OF.values()) | {
    "FAILED_PRECONDITION",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
}
_TYPE = "type.googleapis.com/google.rpc."
#: Part of the id of every daily quota.
_DAILY = "PerDay"
_HEADERS = {"content-type": "application/json; charset=UTF-8"}


class GoogleError(msgspec.Struct, frozen=True):
    """Google's error object. Proxies write other types into these fields, so any is accepted."""

    message: Any = None
    status: Any = None
    code: Any = None
    details: Any = None


class _Body(msgspec.Struct, frozen=True):
    error: GoogleError


_decode = msgspec.json.Decoder(_Body | list[_Body]).decode
_object = msgspec.json.Decoder(GoogleError).decode


def _read(body: bytes, status: int) -> Upstream | None:
    decoded = _decode(body)
    bodies = decoded if isinstance(decoded, list) else [decoded]
    if not bodies:
        return None
    error = from_object(bodies[0].error, status)
    fields = msgspec.structs.asdict(bodies[0].error)
    present = {name: value for name, value in fields.items() if value is not None}
    error.details = shown_fields("gemini", present)
    return error


read_error = partial(read_response, _read, _BY_CODE)


def from_object(error: GoogleError, status: int) -> Upstream:
    """The error that an error object describes; streams carry the same object."""
    if status < 400:
        number = error.code
        is_status = isinstance(number, int) and 400 <= number < 600
        status = number if is_status else 500
    details: dict[str, dict[str, Any]] = defaultdict(dict)
    for detail in reversed(_objects(error.details)):
        details[str(detail.get("@type")).removeprefix(_TYPE)] = detail
    canonical, reason = _text(error.status), _text(details["ErrorInfo"].get("reason"))
    known = next((code for code in (reason, canonical) if code in _BY_CODE), None)
    kind = error_class(status, known, _BY_CODE)
    quotas = (v.get("quotaId") for v in _objects(details["QuotaFailure"].get("violations")))
    if kind is errors.RateLimited and any(_DAILY in (_text(quota) or "") for quota in quotas):
        kind = errors.QuotaExhausted
    if status == 413 and kind is errors.RequestRejected:
        kind = errors.TooLarge
    message = _text(error.message)
    fields = (_text(v.get("field")) for v in _objects(details["BadRequest"].get("fieldViolations")))
    return overflow_class(kind, message)(
        message or canonical or "an error without a message",
        status=status,
        code=reason or canonical,
        param=next(filter(None, fields), None),
        request_id=_text(details["RequestInfo"].get("requestId")),
        retry_after=seconds_until(_text(details["RetryInfo"].get("retryDelay"))),
    )


def error_of(raw: bytes | msgspec.Raw) -> Upstream:
    """The error of an error object in a body that came with status 200."""
    try:
        return from_object(_object(raw), 200)
    except DECODE_ERRORS:
        return from_object(GoogleError(), 200)


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Google would send them."""
    status, canonical = _STATUS_OF.get(type(error), (500, "INTERNAL"))
    if error.status is not None and error.status >= 400:
        status = error.status
    if error.details is not None:
        canonical = error.details.get("status", canonical)
    elif error.code in _CANONICAL and _BY_CODE.get(error.code) is type(error):
        canonical = error.code
    details: list[dict[str, Any]] = []
    if error.code and error.code != canonical:
        details.append({"@type": f"{_TYPE}ErrorInfo", "reason": error.code})
    if isinstance(error, errors.QuotaExhausted):
        details.append({"@type": f"{_TYPE}QuotaFailure", "violations": [{"quotaId": _DAILY}]})
    if error.param is not None:
        violations = [{"field": error.param, "description": str(error)}]
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": violations})
    if error.retry_after is not None:
        delay = f"{error.retry_after:g}s"
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": delay})
    if error.request_id is not None:
        details.append({"@type": f"{_TYPE}RequestInfo", "requestId": error.request_id})
    written: dict[str, Any] = {"code": status, "message": str(error), "status": canonical}
    written |= error.details or {}
    if details:
        written["details"] = details
    return status, dict(_HEADERS), dumps({"error": written})


def write_failure(event: ReplyFail) -> bytes:
    """The error object that ends a stream."""
    kinds = {kind.__name__: kind for kind in _STATUS_OF}
    error = kinds.get(event.error, Upstream)(event.message, code=event.code)
    return write_error(error)[2]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
