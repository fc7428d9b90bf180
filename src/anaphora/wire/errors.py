"""HTTP errors of providers, by status and structured code.

Only a prompt that is too long is recognised by its message, and only by messages of the catalog.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from anaphora import errors
from anaphora.catalog import is_overflow
from anaphora.errors import Upstream

from .ratelimits import reset_after
from .reading import DECODE_ERRORS

#: What a status means where the provider's code does not decide.
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

#: Classes that an overflow may have by status or code, where it has no code of its own. A body over
#: the byte limit (413) stays `TooLarge` unless its message is about the context window.
_MAYBE_OVERFLOW = (errors.RequestRejected, errors.TooLarge, errors.Overloaded)


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
    """`ContextOverflow` where the message is one of the catalog's; otherwise `kind`."""
    if message and kind in _MAYBE_OVERFLOW and is_overflow(message):
        return errors.ContextOverflow
    return kind


def retry_after(headers: Mapping[str, str], now: datetime.datetime | None = None) -> float | None:
    """The wait in seconds that the headers ask for; None where they do not, or unreadably.

    `retry-after-ms` is in milliseconds, `retry-after` in seconds or an HTTP date, which needs
    `now`. Header names are lowercase.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None or now is None:
        return seconds
    # Imported here only: it loads sockets and a mail parser.
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - now).total_seconds())


def read_response(
    read: Callable[[bytes, int], Upstream | None],
    by_code: Mapping[str, type[Upstream]],
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime.datetime | None = None,
) -> Upstream:
    """The error of a response: the one that `read` finds in the body, or what the status means.
    Header names are lowercase; `now` is for dates in them. Each wire sets the first two."""
    try:
        error = read(body, status)
    except DECODE_ERRORS:
        error = None
    if error is None:
        # A proxy's page or an empty body: only the status is known.
        kind = error_class(status, None, by_code)
        error = kind(f"HTTP {status} without an error object", status=status)
    error.request_id = headers.get("request-id") or headers.get("x-request-id") or error.request_id
    return with_retry_hints(error, headers, now)


def with_retry_hints(
    error: Upstream, headers: Mapping[str, str], now: datetime.datetime | None = None
) -> Upstream:
    """The error with what the headers tell about retries.

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


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None
