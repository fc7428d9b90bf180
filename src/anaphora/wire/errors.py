"""HTTP errors of providers, by status and structured code.

Errors are recognised by a message only if neither code nor status tells them: a prompt that is too
long, and what some hosts answer with the code of any bad request. The messages are in the catalog.
OpenAI's errors are here too: both of its wires have them, and many hosts copy them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.catalog.dialect_rows import ErrorKind
from anaphora.catalog.load import error_kind
from anaphora.errors import Upstream
from anaphora.values import ReplyFail

from .error_details import inner_message, shown_fields
from .reading import DECODE_ERRORS, closed_json
from .response_headers import request_id_in, reset_after, retry_after

#: The class of each status, if the provider's code does not decide.
BY_STATUS: dict[int, type[Upstream]] = {
    400: errors.RequestRejected,
    401: errors.Unauthenticated,
    402: errors.QuotaExhausted,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.Overloaded,
    409: errors.Overloaded,
    413: errors.TooLarge,
    422: errors.RequestRejected,
    429: errors.RateLimited,
    529: errors.Overloaded,
}

#: Ends the message of an error whose body has none.
NO_ERROR_OBJECT = "without an error object"

MAX_ERROR_BYTES = 256 * 1024
"""Bytes of an error's body that are read."""
MAX_MESSAGE = 2 * 1024
"""Characters of an error's message; the rest is cut off."""
#: Bytes of a truncated error in which its message is searched.
_READ_OF_CUT = 4 * 1024
#: Characters of a code, and of a field's name.
_MAX_NAME = 512

#: The class of each kind of the catalog.
KINDS: dict[ErrorKind, type[Upstream]] = {
    "rate_limit": errors.RateLimited,
    "quota": errors.QuotaExhausted,
    "overloaded": errors.Overloaded,
    "auth": errors.Unauthenticated,
    "permission": errors.Forbidden,
    "not_found": errors.NotFound,
    "context_overflow": errors.ContextOverflow,
    "too_large": errors.TooLarge,
    "content_refused": errors.ContentRefused,
    "invalid": errors.RequestRejected,
}
#: Classes that an overflow may have by status or code, if it has no code of its own. A body over
#: the byte limit (413) stays `TooLarge` unless its message is about the context window.
_MAYBE_OVERFLOW = (errors.RequestRejected, errors.TooLarge, errors.Overloaded)
#: The same for other errors that only a message tells.
_MAYBE_OTHER = (errors.RequestRejected, errors.Forbidden, errors.RateLimited)


def error_class(
    status: int, code: str | None, by_code: Mapping[str, type[Upstream]]
) -> type[Upstream]:
    """The class of an error: by the provider's code first, then by the status."""
    if code is not None and code in by_code:
        return by_code[code]
    if status in BY_STATUS:
        return BY_STATUS[status]
    return errors.Overloaded if status >= 500 else errors.RequestRejected


def overflow_class(kind: type[Upstream], message: str | None) -> type[Upstream]:
    """The class of the message, if it is one of the catalog's; otherwise `kind`."""
    found = error_kind(message) if message else None
    if found is None:
        return kind
    may_be = _MAYBE_OVERFLOW if found == "context_overflow" else _MAYBE_OTHER
    return KINDS[found] if kind in may_be else kind


def read_response(
    read: Callable[[bytes, int], Upstream | None],
    by_code: Mapping[str, type[Upstream]],
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error of a response: the one that `read` finds in the body, else by the status. Header
    names are lowercase; `now` is for dates in them. Each wire sets the first two."""
    error = _found(read, body, status)
    is_cut = len(body) >= MAX_ERROR_BYTES
    if error is None and is_cut:
        error = _found(read, closed_json(body[:_READ_OF_CUT]) or b"", status)
    if error is None:
        # A proxy's page or an empty body: only the status is known.
        kind = error_class(status, None, by_code)
        error = kind(f"HTTP {status} {NO_ERROR_OBJECT}", status=status)
    shorten(error)
    if is_cut:
        _set_message(error, f"{error} (of the response, {MAX_ERROR_BYTES:,} bytes were read)")
    error.request_id = request_id_in(headers) or error.request_id
    return with_retry_hints(error, headers, now)


def _found(
    read: Callable[[bytes, int], Upstream | None], body: bytes, status: int
) -> Upstream | None:
    try:
        return read(body, status)
    except DECODE_ERRORS:
        return None


def shorten(error: errors.AnaphoraError) -> None:
    """Truncate the texts of an error: each is searched for secrets later."""
    text = str(error)
    if len(text) > MAX_MESSAGE:
        _set_message(error, f"{text[:MAX_MESSAGE]}… ({len(text):,} characters)")
    if isinstance(error, Upstream):
        for name in ("code", "param"):
            value = getattr(error, name)
            if isinstance(value, str) and len(value) > _MAX_NAME:
                setattr(error, name, f"{value[:_MAX_NAME]}…")


def _set_message(error: errors.AnaphoraError, text: str) -> None:
    error.args = (text,)
    if isinstance(error, Upstream) and error.details is not None:
        error.details = {**error.details, "message": text}


def with_retry_hints(
    error: Upstream, headers: Mapping[str, str], now: datetime.datetime | None = None
) -> Upstream:
    """The error with the retry hints of the headers.

    `x-should-retry` decides either way, `retry-after` gives the wait. A rate limit that names no
    wait ends when the exhausted limits are reset.
    """
    decision = headers.get("x-should-retry")
    if decision in ("true", "false"):
        error.retryable = decision == "true"
    wait = retry_after(headers, now)
    if wait is not None:
        error.retry_after = wait
    elif error.retry_after is None and isinstance(error, errors.RateLimited):
        error.retry_after = reset_after(headers, None if now is None else now.timestamp())
    return error


def error_headers(error: Upstream, request_id: str = "x-request-id") -> dict[str, str]:
    """The headers of a written error; `request_id` is the name of the one with its id."""
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    if error.request_id is not None:
        headers[request_id] = error.request_id
    return headers


# ── OpenAI's form ─────────────────────────────────────────────────────────────────────────────────

#: Error classes by code or type, several codes each. `invalid_request_error` is not here: the
#: status is more specific.
_CODES: dict[type[Upstream], str] = {
    errors.QuotaExhausted: "insufficient_quota billing_hard_limit_reached billing_not_active",
    errors.RateLimited: "rate_limit_exceeded rate_limit_error requests tokens",
    # The second is llama.cpp's.
    errors.ContextOverflow: "context_length_exceeded exceed_context_size_error",
    errors.ContentRefused: "content_filter content_policy_violation image_content_policy_violation"
    " invalid_prompt bio_policy misalignment_policy_violation",
    errors.Unauthenticated: "invalid_api_key authentication_error invalid_authentication"
    " account_deactivated",
    errors.Forbidden: "permission_error permission_denied unsupported_country_region_territory",
    errors.NotFound: "model_not_found invalid_model not_found_error previous_response_not_found"
    " image_file_not_found",
    errors.TooLarge: "request_too_large string_above_max_length image_file_too_large",
    errors.Overloaded: "server_error internal_error internal_server_error service_unavailable"
    " service_unavailable_error server_is_overloaded overloaded_error slow_down"
    " vector_store_timeout",
}
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

#: Status, type and code that each class is written with.
_WRITTEN: dict[type[Upstream], tuple[int, str, str | None]] = {
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
    """The error object. Hosts put values of any type into these fields; only text and numbers are
    used."""

    message: Any = None
    type: Any = None
    param: Any = None
    code: Any = None
    status_code: Any = None
    metadata: Any = None


class _FieldProblem(msgspec.Struct, frozen=True):
    """One invalid field in FastAPI's format, which many hosts use."""

    msg: str
    loc: tuple[str | int, ...] = ()

    @property
    def path(self) -> str:
        return ".".join(str(step) for step in self.loc if step != "body")


_decode_error = msgspec.json.Decoder(ErrorObject | str).decode


def _read(body: bytes, status: int) -> Upstream | None:
    found = _find_error_object(body)
    if found is None:
        return None
    error = from_object(found, status)
    error.details = _details(body)
    return error


def _details(body: bytes) -> dict[str, Any] | None:
    """The fields of the error object in a body that may be shown."""
    whole = msgspec.json.decode(body)
    return shown_fields("openai", whole.get("error")) if isinstance(whole, dict) else None


read_error = partial(read_response, _read, _BY_CODE)


def from_object(error: ErrorObject, status: int) -> Upstream:
    """The error of an error object, which streams and responses with status 200 carry too."""
    code, error_type = _text(error.code), _text(error.type)
    if status < 400:
        number = error.code if isinstance(error.code, int) else error.status_code
        status = number if isinstance(number, int) and 400 <= number < 600 else status
    known = _known(code, error_type)
    if known is None and status < 400 and error_type != "invalid_request_error":
        known = "server_error"  # the request was accepted and failed later
    message = _text(error.message)
    inner = inner_message({"message": message, "metadata": error.metadata})
    if inner is not None and inner not in (message or ""):
        message = f"{message}: {inner}" if message else inner
    kind = overflow_class(error_class(status, known, _BY_CODE), inner)
    return overflow_class(kind, message)(
        message or error_type or code or "an error without a message",
        status=status,
        code=code or error_type,
        param=_text(error.param),
    )


def from_json(raw: msgspec.Raw) -> Upstream:
    """The error of the `error` field of a stream's chunk: an object or a text."""
    try:
        error = _decode_error(raw)
    except DECODE_ERRORS:
        error = ErrorObject()
    return from_object(ErrorObject(message=error) if isinstance(error, str) else error, 200)


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as OpenAI would send them."""
    status, kind, code = _WRITTEN.get(type(error), (500, "server_error", None))
    if error.status is not None and error.status >= 400:
        status = error.status
    if error.details is not None:
        fields = {"message": str(error), **error.details}
        if error.param is not None:
            fields.setdefault("param", error.param)
        if type(error) is errors.ContextOverflow and fields.get("code") is None:
            fields["code"] = code  # clients look for it
        return status, error_headers(error), dumps({"error": fields})
    # The error's own code is kept if it has the same class.
    as_read = error_class(status, _known(error.code, kind), _BY_CODE)
    if error.code and overflow_class(as_read, str(error)) is type(error):
        code = None if error.code == kind else error.code
    return status, error_headers(error), _body(str(error), kind, error.param, code)


def write_failure(event: ReplyFail) -> bytes:
    """The error object that ends a stream of Chat Completions."""
    written = {cls.__name__: (kind, code) for cls, (_, kind, code) in _WRITTEN.items()}
    kind, code = written.get(event.error, ("server_error", None))
    return _body(event.message, kind, None, event.code or code)


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _known(*codes: str | None) -> str | None:
    """The first code that has a class of its own."""
    return next((code for code in codes if code in _BY_CODE), None)


def _text(value: Any) -> str | None:
    """Text unchanged, lists and objects as JSON, anything else as None."""
    if value is None or value == "" or isinstance(value, bool | int | float):
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _find_error_object(body: bytes) -> ErrorObject | None:
    whole = msgspec.json.decode(body)
    if isinstance(whole, list) and whole:
        whole = whole[0]  # Google's compatible endpoint wraps it in a list
    if not isinstance(whole, dict):
        return None
    error = whole.get("error")
    if isinstance(error, str):
        return ErrorObject(message=error, code=whole.get("code"))
    if isinstance(error, dict):
        return msgspec.convert(error, ErrorObject)
    if "detail" in whole:
        try:
            return _from_detail(msgspec.convert(whole["detail"], str | tuple[_FieldProblem, ...]))
        except msgspec.ValidationError:
            pass
    bare = msgspec.convert(whole, ErrorObject)  # some hosts leave out the enclosing object
    return bare if bare.message or bare.type else None


def _from_detail(detail: str | tuple[_FieldProblem, ...]) -> ErrorObject | None:
    if not detail or isinstance(detail, str):
        return ErrorObject(message=detail) if detail else None
    messages = [f"{each.path}: {each.msg}" if each.path else each.msg for each in detail]
    return ErrorObject(message="; ".join(messages), param=detail[0].path)
