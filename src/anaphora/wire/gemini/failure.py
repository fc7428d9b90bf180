"""Gemini's errors, both ways: Google's error object, by its status and its details."""

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
#: HTTP status and canonical status that each class is told with.
_SAID: dict[type[Upstream], tuple[int, str]] = {
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
_TYPE = "type.googleapis.com/google.rpc."
#: Part of the id of every quota that is given once a day.
_DAILY = "PerDay"


class ErrorObject(msgspec.Struct, frozen=True):
    """Proxies put all sorts of things into these fields; only what is expected is believed."""

    message: Any = None
    status: Any = None
    code: Any = None
    details: Any = None


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject


_decode = msgspec.json.Decoder(_Body | list[_Body]).decode


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error an answer is. Header names are lowercase; `now` is for dates in them."""
    request_id, wait = headers.get("x-request-id"), retry_after(headers, now)
    try:
        told = _decode(body)
        error = told[0].error if isinstance(told, list) else told.error
    except (*DECODE_ERRORS, IndexError):
        # A proxy's page, or nothing at all: the status is all there is.
        kind = error_class(status, None, _BY_CODE)
        message = f"HTTP {status} without an error object"
        failed = kind(message, status=status, request_id=request_id, retry_after=wait)
        return with_retry_hints(failed, headers, now)
    return with_retry_hints(from_object(error, status, request_id, wait), headers, now)


def from_object(
    told: ErrorObject, status: int, request_id: str | None = None, wait: float | None = None
) -> Upstream:
    """The error an error object is; streams carry the same object."""
    if status < 400:
        number = told.code
        is_status = isinstance(number, int) and 400 <= number < 600
        status = number if is_status else 500
    details = _details(told.details)
    canonical, reason = _text(told.status), _text(details.get("ErrorInfo", {}).get("reason"))
    known = next((word for word in (reason, canonical) if word in _BY_CODE), None)
    kind = error_class(status, known, _BY_CODE)
    if kind is errors.RateLimited and _is_daily(details.get("QuotaFailure", {})):
        kind = errors.QuotaExhausted
    if status == 413 and kind is errors.RequestRejected:
        kind = errors.TooLarge
    message = _text(told.message)
    return overflow_class(kind, message)(
        message or canonical or "an error without a message",
        status=status,
        code=reason or canonical,
        param=_field(details.get("BadRequest", {})),
        request_id=request_id or _text(details.get("RequestInfo", {}).get("requestId")),
        retry_after=wait if wait is not None else _delay(details.get("RetryInfo", {})),
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Google would send them."""
    status, canonical = _SAID.get(type(error), (500, "INTERNAL"))
    if error.status is not None and error.status >= 400:
        status = error.status
    if error.code and _BY_CODE.get(error.code) is type(error) and error.code.isupper():
        canonical = error.code if error.code in _STATUSES else canonical
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
    headers = {"content-type": "application/json; charset=UTF-8"}
    return status, headers, dumps({"error": _object(status, str(error), canonical, details)})


def write_failure(event: ReplyFail) -> bytes:
    """The error that a stream ends with."""
    said = {kind.__name__: told for kind, told in _SAID.items()}
    status, canonical = said.get(event.error, (500, "INTERNAL"))
    details: list[dict[str, Any]] = []
    if event.code and event.code != canonical:
        details.append({"@type": f"{_TYPE}ErrorInfo", "reason": event.code})
    if event.error == errors.QuotaExhausted.__name__:
        details.append({"@type": f"{_TYPE}QuotaFailure", "violations": [{"quotaId": _DAILY}]})
    return dumps({"error": _object(status, event.message, canonical, details)})


_STATUSES = frozenset(canonical for _, canonical in _SAID.values()) | {
    "FAILED_PRECONDITION",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
}


def _object(status: int, message: str, canonical: str, details: list[Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"code": status, "message": message, "status": canonical}
    return {**said, "details": details} if details else said


def _details(told: Any) -> dict[str, dict[str, Any]]:
    """The details by what they are; the first of each kind."""
    found: dict[str, dict[str, Any]] = {}
    for detail in told if isinstance(told, list) else ():
        if isinstance(detail, dict) and isinstance(kind := detail.get("@type"), str):
            found.setdefault(kind.removeprefix(_TYPE), detail)
    return found


def _is_daily(quota: dict[str, Any]) -> bool:
    ids = (violation.get("quotaId") for violation in _objects(quota.get("violations")))
    return any(isinstance(quota_id, str) and _DAILY in quota_id for quota_id in ids)


def _field(rejected: dict[str, Any]) -> str | None:
    fields = (_text(v.get("field")) for v in _objects(rejected.get("fieldViolations")))
    return next((field for field in fields if field), None)


def _delay(info: dict[str, Any]) -> float | None:
    """Seconds with an `s` behind, whole or not."""
    told = info.get("retryDelay")
    if not isinstance(told, str) or not told.endswith("s"):
        return None
    try:
        seconds = float(told[:-1])
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
