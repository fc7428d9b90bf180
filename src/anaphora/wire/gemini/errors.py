"""Gemini's errors in both directions: Google's error object, by its status and details."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire.errors import error_class, overflow_class, retry_after, with_retry_hints
from anaphora.wire.reading import DECODE_ERRORS

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


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error of a response. Header names are lowercase; `now` is for dates in them."""
    request_id, wait = headers.get("x-request-id"), retry_after(headers, now)
    try:
        decoded = _decode(body)
        error = decoded[0].error if isinstance(decoded, list) else decoded.error
    except (*DECODE_ERRORS, IndexError):
        # A proxy's page or an empty body: only the status is known.
        kind = error_class(status, None, _BY_CODE)
        message = f"HTTP {status} without an error object"
        failed = kind(message, status=status, request_id=request_id, retry_after=wait)
        return with_retry_hints(failed, headers, now)
    return with_retry_hints(from_object(error, status, request_id, wait), headers, now)


def from_object(
    error: GoogleError, status: int, request_id: str | None = None, wait: float | None = None
) -> Upstream:
    """The error that an error object describes; streams carry the same object."""
    if status < 400:
        number = error.code
        is_status = isinstance(number, int) and 400 <= number < 600
        status = number if is_status else 500
    details = _details(error.details)
    canonical, reason = _text(error.status), _text(details.get("ErrorInfo", {}).get("reason"))
    known = next((code for code in (reason, canonical) if code in _BY_CODE), None)
    kind = error_class(status, known, _BY_CODE)
    if kind is errors.RateLimited and _is_daily(details.get("QuotaFailure", {})):
        kind = errors.QuotaExhausted
    if status == 413 and kind is errors.RequestRejected:
        kind = errors.TooLarge
    message = _text(error.message)
    return overflow_class(kind, message)(
        message or canonical or "an error without a message",
        status=status,
        code=reason or canonical,
        param=_field(details.get("BadRequest", {})),
        request_id=request_id or _text(details.get("RequestInfo", {}).get("requestId")),
        retry_after=wait if wait is not None else _delay(details.get("RetryInfo", {})),
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
    if error.code in _CANONICAL and _BY_CODE.get(error.code) is type(error):
        canonical = error.code
    details = _written_details(error.code, canonical, isinstance(error, errors.QuotaExhausted))
    if error.param is not None:
        violations = [{"field": error.param, "description": str(error)}]
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": violations})
    if error.retry_after is not None:
        delay = f"{error.retry_after:g}s"
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": delay})
    if error.request_id is not None:
        details.append({"@type": f"{_TYPE}RequestInfo", "requestId": error.request_id})
    headers = {"content-type": "application/json; charset=UTF-8"}
    return status, headers, _body(status, str(error), canonical, details)


def write_failure(event: ReplyFail) -> bytes:
    """The error object that ends a stream."""
    by_name = {kind.__name__: written for kind, written in _STATUS_OF.items()}
    status, canonical = by_name.get(event.error, (500, "INTERNAL"))
    daily = event.error == errors.QuotaExhausted.__name__
    return _body(status, event.message, canonical, _written_details(event.code, canonical, daily))


def _written_details(code: str | None, canonical: str, daily: bool) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = []
    if code and code != canonical:
        details.append({"@type": f"{_TYPE}ErrorInfo", "reason": code})
    if daily:
        details.append({"@type": f"{_TYPE}QuotaFailure", "violations": [{"quotaId": _DAILY}]})
    return details


def _body(status: int, message: str, canonical: str, details: list[Any]) -> bytes:
    error: dict[str, Any] = {"code": status, "message": message, "status": canonical}
    return dumps({"error": {**error, "details": details} if details else error})


def _details(details: Any) -> dict[str, dict[str, Any]]:
    """The details by type; the first of each type."""
    by_type: dict[str, dict[str, Any]] = {}
    for detail in _objects(details):
        if isinstance(kind := detail.get("@type"), str):
            by_type.setdefault(kind.removeprefix(_TYPE), detail)
    return by_type


def _is_daily(quota: dict[str, Any]) -> bool:
    ids = (violation.get("quotaId") for violation in _objects(quota.get("violations")))
    return any(isinstance(quota_id, str) and _DAILY in quota_id for quota_id in ids)


def _field(rejected: dict[str, Any]) -> str | None:
    fields = (_text(v.get("field")) for v in _objects(rejected.get("fieldViolations")))
    return next((field for field in fields if field), None)


def _delay(info: dict[str, Any]) -> float | None:
    """Seconds with an `s` behind, whole or not."""
    delay = info.get("retryDelay")
    if not isinstance(delay, str) or not delay.endswith("s"):
        return None
    try:
        seconds = float(delay[:-1])
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
