"""OpenAI's errors, read and written, on both of its wires and on the hosts that copy them."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response
from anaphora.wire.reading import DECODE_ERRORS

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
    errors.NotFound: "model_not_found not_found_error previous_response_not_found"
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


class _FieldProblem(msgspec.Struct, frozen=True):
    """One invalid field in FastAPI's format, which many hosts use."""

    msg: str
    loc: tuple[str | int, ...] = ()

    @property
    def path(self) -> str:
        return ".".join(str(step) for step in self.loc if step != "body")


_decode_error = msgspec.json.Decoder(ErrorObject | str).decode


def _read(body: bytes, status: int) -> Upstream | None:
    error = _find_error_object(body)
    return None if error is None else from_object(error, status)


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
    return overflow_class(error_class(status, known, _BY_CODE), message)(
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
    # The error's own code is used where the class is the same with it.
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
    """Text as it is, lists and objects as JSON, anything else as None."""
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
        return ErrorObject(message=error)
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
