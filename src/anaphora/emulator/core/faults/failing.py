"""Errors in place of an answer, in the words of the answer's wire, or of its dialect where that has
words of its own."""

from __future__ import annotations

import datetime
from typing import Literal, TypeAlias

import msgspec

from anaphora import errors, wire
from anaphora.emulator.core.asked import Answer, whole
from anaphora.emulator.core.strict.case import overflow_row
from anaphora.errors import Upstream

Form: TypeAlias = Literal["own", "seconds", "milliseconds", "date", "none"]
"""How the wait is told: as the provider does it, which is in the body with Google (`RetryInfo`)
and in `retry-after` with the others; or in a header of that form; or not at all."""

#: The tokens and the limit that an overflow names where no prompt was counted.
_TOO_LONG = (208_310, 200_000)
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def rate_limited(answer: Answer, form: Form, seconds: float, at: float) -> Answer:
    wait = seconds if form == "own" else None
    message = "This request would exceed the rate limit."
    failed_ = refused(answer, errors.RateLimited(message, status=429, retry_after=wait))
    told = {
        "seconds": {"retry-after": f"{seconds:g}"},
        "milliseconds": {"retry-after-ms": f"{seconds * 1000:g}"},
        "date": {"retry-after": http_date(at + seconds)},
    }
    return _with_headers(failed_, told.get(form, {}))


def spend_cap(answer: Answer) -> Answer:
    """Retrying does not help, and nothing says when it would."""
    message = "The spend limit is reached."
    if answer.wire == "anthropic":
        # A rate limit but for its code: PROVIDERS.md, section 1.
        code = "enforced_spend_limit_reached"
        return refused(answer, errors.RateLimited(message, status=429, code=code))
    return refused(answer, errors.QuotaExhausted(message))


def failed(answer: Answer, status: int) -> Answer:
    """The provider's own trouble."""
    if status == 500:
        return refused(answer, Upstream("Internal server error", status=500))
    return refused(answer, errors.Overloaded("Overloaded", status=status))


def overflowed(answer: Answer) -> Upstream:
    """A prompt that is too long, as the provider would tell it."""
    provider = answer.dialect.partition("/")[0] or wire.PROVIDERS[answer.wire]
    row = overflow_row(provider, answer.wire)
    message, code = row.write(*_TOO_LONG), row.code or "invalid_request_error"
    return errors.ContextOverflow(message, status=400, code=code)


def good_status(answer: Answer) -> Answer:
    """An error that calls itself a success."""
    return msgspec.structs.replace(failed(answer, 503), status=200)


def http_date(at: float) -> str:
    """In English whatever the machine speaks, and rounded up: earlier would be too early."""
    moment = datetime.datetime.fromtimestamp(-(-at // 1), datetime.UTC)
    day, month = _DAYS[moment.weekday()], _MONTHS[moment.month - 1]
    return f"{day}, {moment:%d} {month} {moment:%Y %H:%M:%S} GMT"


def refused(answer: Answer, error: Upstream) -> Answer:
    """The error in place of the answer, with those headers of it that are not about its body."""
    codec = wire.get(answer.dialect or answer.wire or "openai_chat")
    status, headers, body = codec.write_error(error)
    kept = {name: value for name, value in answer.headers.items() if name != "cache-control"}
    return whole(body, status=status, headers={**kept, **headers}, wire=answer.wire)


def _with_headers(answer: Answer, headers: dict[str, str]) -> Answer:
    return msgspec.structs.replace(answer, headers={**answer.headers, **headers})
