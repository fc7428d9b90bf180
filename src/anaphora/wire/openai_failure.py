"""OpenAI's errors, both ways, on both of its wires. Hosts that speak like it differ in what they
leave out."""

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

#: By the error's code, then by its type. `invalid_request_error` is not here: the status is finer.
_BY_CODE: dict[str, type[Upstream]] = {
    "insufficient_quota": errors.QuotaExhausted,
    "billing_hard_limit_reached": errors.QuotaExhausted,
    "billing_not_active": errors.QuotaExhausted,
    "rate_limit_exceeded": errors.RateLimited,
    "rate_limit_error": errors.RateLimited,
    "requests": errors.RateLimited,
    "tokens": errors.RateLimited,
    "context_length_exceeded": errors.ContextOverflow,
    "exceed_context_size_error": errors.ContextOverflow,  # llama.cpp
    "content_filter": errors.ContentRefused,
    "content_policy_violation": errors.ContentRefused,
    "image_content_policy_violation": errors.ContentRefused,
    "invalid_prompt": errors.ContentRefused,
    "bio_policy": errors.ContentRefused,
    "misalignment_policy_violation": errors.ContentRefused,
    "invalid_api_key": errors.Unauthenticated,
    "authentication_error": errors.Unauthenticated,
    "invalid_authentication": errors.Unauthenticated,
    "account_deactivated": errors.Unauthenticated,
    "permission_error": errors.Forbidden,
    "permission_denied": errors.Forbidden,
    "unsupported_country_region_territory": errors.Forbidden,
    "model_not_found": errors.NotFound,
    "not_found_error": errors.NotFound,
    "previous_response_not_found": errors.NotFound,
    "image_file_not_found": errors.NotFound,
    "request_too_large": errors.TooLarge,
    "string_above_max_length": errors.TooLarge,
    "image_file_too_large": errors.TooLarge,
    "server_error": errors.Overloaded,
    "internal_error": errors.Overloaded,
    "internal_server_error": errors.Overloaded,
    "service_unavailable": errors.Overloaded,
    "service_unavailable_error": errors.Overloaded,
    "server_is_overloaded": errors.Overloaded,
    "overloaded_error": errors.Overloaded,
    "slow_down": errors.Overloaded,
    "vector_store_timeout": errors.Overloaded,
}
#: Status, type and code that each class is told with.
_SAID: dict[type[Upstream], tuple[int, str, str | None]] = {
    errors.RequestRejected: (400, "invalid_request_error", None),
    errors.ContentRefused: (400, "invalid_request_error", "content_policy_violation"),
    errors.ContextOverflow: (400, "invalid_request_error", "context_length_exceeded"),
    errors.Unauthenticated: (401, "invalid_request_error", "invalid_api_key"),
    errors.Forbidden: (403, "permission_error", None),
    errors.NotFound: (404, "invalid_request_error", "model_not_found"),
    errors.TooLarge: (413, "invalid_request_error", "request_too_large"),
    errors.RateLimited: (429, "requests", "rate_limit_exceeded"),
    errors.QuotaExhausted: (429, "insufficient_quota", "insufficient_quota"),
    errors.Overloaded: (503, "server_error", None),
}


class ErrorObject(msgspec.Struct, frozen=True):
    """Hosts put all sorts of things into these fields; only texts and numbers are believed."""

    message: Any = None
    type: Any = None
    param: Any = None
    code: Any = None
    status_code: Any = None


class _Body(msgspec.Struct, frozen=True):
    error: ErrorObject | str


class _Problem(msgspec.Struct, frozen=True):
    """One field that does not pass, as FastAPI tells it; many hosts are built with that."""

    msg: str
    loc: tuple[str | int, ...] = ()

    @property
    def place(self) -> str:
        return ".".join(str(step) for step in self.loc if step != "body")


class _Detail(msgspec.Struct, frozen=True):
    detail: str | tuple[_Problem, ...]


_decode_detail = msgspec.json.Decoder(_Detail).decode
_decode_body = msgspec.json.Decoder(_Body).decode
#: Some hosts leave the object around it out.
_decode_bare = msgspec.json.Decoder(ErrorObject).decode


def read_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error an answer is. Header names are lowercase; `now` is for dates in them."""
    told = _error_object(body)
    request_id = headers.get("x-request-id")
    wait = retry_after(headers, now)
    if told is None:
        # A proxy's page, or nothing at all: the status is all there is.
        kind = error_class(status, None, _BY_CODE)
        message = f"HTTP {status} without an error object"
        error = kind(message, status=status, request_id=request_id, retry_after=wait)
        return with_retry_hints(error, headers, now)
    return with_retry_hints(from_object(told, status, request_id, wait), headers, now)


def from_object(
    told: ErrorObject, status: int, request_id: str | None = None, wait: float | None = None
) -> Upstream:
    """The error an error object is; streams, and answers with status 200, carry the same object."""
    code, kind_of_error = _text(told.code), _text(told.type)
    if status < 400:
        number = told.code if isinstance(told.code, int) else told.status_code
        status = number if isinstance(number, int) and 400 <= number < 600 else status
    known = _known(code, kind_of_error)
    if known is None and status < 400 and kind_of_error != "invalid_request_error":
        known = "server_error"  # the request was taken, and then it went wrong
    message = _text(told.message)
    return overflow_class(error_class(status, known, _BY_CODE), message)(
        message or kind_of_error or code or "an error without a message",
        status=status,
        code=code or kind_of_error,
        param=_text(told.param),
        request_id=request_id,
        retry_after=wait,
    )


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as OpenAI would send them."""
    status, kind, code = _SAID.get(type(error), (500, "server_error", None))
    if error.status is not None and error.status >= 400:
        status = error.status
    # A code stands only where it does not contradict the class, by itself or with the message.
    told = error_class(status, _known(error.code, kind), _BY_CODE)
    if error.code and overflow_class(told, str(error)) is type(error):
        code = None if error.code == kind else error.code
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    if error.request_id is not None:
        headers["x-request-id"] = error.request_id
    return status, headers, dumps(_body(str(error), kind, error.param, code))


def write_failure(event: ReplyFail) -> bytes:
    """The error that a stream ends with."""
    said = {cls.__name__: (kind, code) for cls, (_, kind, code) in _SAID.items()}
    kind, code = said.get(event.error, ("server_error", None))
    return dumps(_body(event.message, kind, None, event.code or code))


def _body(
    message: str, kind: str, param: str | None, code: str | None
) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _known(*words: str | None) -> str | None:
    """The first word that says what kind of error it is."""
    return next((word for word in words if word in _BY_CODE), None)


def _text(value: Any) -> str | None:
    """A text that says something; anything else as JSON, nothing at all as None."""
    if value is None or value == "" or isinstance(value, bool | int | float):
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _error_object(body: bytes) -> ErrorObject | None:
    if body.lstrip()[:1] == b"[":
        # Google's compatible surface puts it into a list of one.
        try:
            (body,) = map(bytes, msgspec.json.decode(body, type=list[msgspec.Raw])[:1])
        except (*DECODE_ERRORS, ValueError):
            return None
    try:
        error = _decode_body(body).error
        return ErrorObject(message=error) if isinstance(error, str) else error
    except DECODE_ERRORS:
        pass
    try:
        return _detailed(_decode_detail(body).detail)
    except DECODE_ERRORS:
        pass
    try:
        bare = _decode_bare(body)
    except DECODE_ERRORS:
        return None
    return bare if bare.message or bare.type else None


def _detailed(detail: str | tuple[_Problem, ...]) -> ErrorObject | None:
    if isinstance(detail, str):
        return ErrorObject(message=detail) if detail else None
    if not detail:
        return None
    told = [f"{each.place}: {each.msg}" if each.place else each.msg for each in detail]
    return ErrorObject(message="; ".join(told), param=detail[0].place)
