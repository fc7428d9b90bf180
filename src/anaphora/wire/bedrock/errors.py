"""Bedrock's errors in both directions.

The body has only a message; the type is in the header `x-amzn-errortype`, before a colon. In a
stream it is the type of an exception frame, and begins with a small letter. A refusal of the model
itself names the block by a JSON pointer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from anaphora import errors
from anaphora.canonical import dumps
from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire.errors import error_class, error_headers, overflow_class, read_response
from anaphora.wire.eventstream import encode_exception
from anaphora.wire.reading import DECODE_ERRORS

from .types import CACHE_POINT

ERROR_TYPE = "x-amzn-errortype"
_ORIGIN = ":http://internal.amazon.com/coral/com.amazon.bedrock/"

_BY_CODE: dict[str, type[Upstream]] = {
    "ValidationException": errors.RequestRejected,
    "AccessDeniedException": errors.Forbidden,
    "ExpiredTokenException": errors.Unauthenticated,
    "IncompleteSignatureException": errors.Unauthenticated,
    "InvalidSignatureException": errors.Unauthenticated,
    "MissingAuthenticationTokenException": errors.Unauthenticated,
    "UnrecognizedClientException": errors.Unauthenticated,
    "ResourceNotFoundException": errors.NotFound,
    "ThrottlingException": errors.RateLimited,
    "ServiceQuotaExceededException": errors.QuotaExhausted,
    "ModelNotReadyException": errors.Overloaded,
    "ModelTimeoutException": errors.Overloaded,
    "ModelErrorException": errors.Overloaded,
    "ModelStreamErrorException": errors.Overloaded,
    "InternalServerException": errors.Overloaded,
    "ServiceUnavailableException": errors.Overloaded,
}
#: The status and type that each class is written with.
_WRITTEN: dict[type[Upstream], tuple[int, str]] = {
    errors.RequestRejected: (400, "ValidationException"),
    errors.ContentRefused: (400, "ValidationException"),
    errors.ContextOverflow: (400, "ValidationException"),
    errors.TooLarge: (413, "ValidationException"),
    errors.Unauthenticated: (403, "UnrecognizedClientException"),
    errors.Forbidden: (403, "AccessDeniedException"),
    errors.NotFound: (404, "ResourceNotFoundException"),
    errors.RateLimited: (429, "ThrottlingException"),
    errors.QuotaExhausted: (400, "ServiceQuotaExceededException"),
    errors.Overloaded: (503, "ServiceUnavailableException"),
}
#: The exceptions that a stream may end with, by their types in HTTP.
_IN_STREAM = {
    "InternalServerException",
    "ModelStreamErrorException",
    "ModelTimeoutException",
    "ServiceUnavailableException",
    "ThrottlingException",
    "ValidationException",
}
_UNKNOWN_MODEL = "The provided model identifier is invalid."
#: Before the error of the model itself.
_OF_MODEL = "The model returned the following errors: "
_POINTER = re.compile(r"#(/[A-Za-z0-9_/-]+)")


class _Body(msgspec.Struct, frozen=True):
    """The error's body; some of AWS's services write capitals, and the type into it."""

    message: Any = None
    Message: Any = None
    type: Any = msgspec.field(name="__type", default=None)


_decode = msgspec.json.Decoder(_Body).decode


def read_error(
    status: int, headers: Mapping[str, str], body: bytes, now: datetime | None = None
) -> Upstream:
    """The error of a response. Header names are lowercase."""
    return read_response(partial(_read, headers), _BY_CODE, status, headers, body, now)


def _read(headers: Mapping[str, str], body: bytes, status: int) -> Upstream | None:
    found = _decode(body)
    text = next((each for each in (found.message, found.Message) if isinstance(each, str)), None)
    named = headers.get(ERROR_TYPE) or (found.type if isinstance(found.type, str) else "")
    code = named.partition(":")[0].rpartition("#")[2] or None
    if not text and code is None:
        return None
    return error_of(text or code or "", status, code)


def error_of(message: str, status: int | None, code: str | None) -> Upstream:
    """The error of a message and type; streams carry the same in their frames."""
    if code is None and status == 400:
        code = "ValidationException"
    kind = error_class(status or 500, code, _BY_CODE)
    if kind is errors.RequestRejected and message.startswith(_UNKNOWN_MODEL):
        kind = errors.NotFound
    kind = overflow_class(kind, message.removeprefix(_OF_MODEL))
    pointer = _POINTER.search(message)
    return kind(
        message,
        status=status,
        code=code,
        param=None if pointer is None else path_of_pointer(pointer[1]),
    )


def path_of_pointer(pointer: str) -> str:
    """`/messages/2/content/0` as `messages[2].content[0]`."""
    path = ""
    for step in pointer.strip("/").split("/"):
        path += f"[{step}]" if step.isdecimal() else f".{step}" if path else step
    return path


def meant_path(param: str, body: bytes) -> str:
    """The path of a block without the markers before it, as in the prompt that was rendered: the
    provider counts them, since they are blocks of the request. `param` is that of an error."""
    steps = [int(each) if each.isdecimal() else each for each in re.findall(r"[^.\[\]]+", param)]
    try:
        value = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return param
    path = ""
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return param
            marks = [
                each for each in value[:step] if isinstance(each, dict) and CACHE_POINT in each
            ]
            path, value = f"{path}[{step - len(marks)}]", value[step]
        else:
            path = f"{path}.{step}" if path else step
            value = value.get(step) if isinstance(value, dict) else None
    return path


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def write_error(error: Upstream) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as Bedrock would send them."""
    status, code = _WRITTEN.get(type(error), (500, "InternalServerException"))
    if error.status is not None and error.status >= 400:
        status = error.status
    # The type of another class would be read as that class.
    if error.code is not None and _BY_CODE.get(error.code) is type(error):
        code = error.code
    headers = error_headers(error, "x-amzn-requestid")
    return status, {**headers, ERROR_TYPE: code + _ORIGIN}, dumps({"message": str(error)})


def write_failure(event: ReplyFail) -> bytes:
    """The exception that ends a stream."""
    written = {kind.__name__: code for kind, (_, code) in _WRITTEN.items()}
    code = event.code if event.code in _IN_STREAM else written.get(event.error, "")
    code = code if code in _IN_STREAM else "InternalServerException"
    return encode_exception(code[:1].lower() + code[1:], event.message)


def read_exception(headers: Mapping[str, str], payload: bytes) -> Upstream:
    """The error of an exception frame, or of an error frame, whose message is a header."""
    code = headers.get(":exception-type") or headers.get(":error-code") or ""
    message = headers.get(":error-message", "")
    try:
        found = _decode(payload)
        message = next((m for m in (found.message, found.Message) if isinstance(m, str)), message)
    except DECODE_ERRORS:
        pass
    return error_of(
        message or code or "the stream failed", None, code[:1].upper() + code[1:] or None
    )
