"""Reads the headers of a response: the id of the request, rate limits, and how long to wait.

The forms of rate limits: the remaining amount, the limit, and the time of its reset.

    anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}
    x-ratelimit-{limit,remaining,reset}-{requests,tokens}, also ending in -minute, -hour or -day
    x-ratelimit-{limit,remaining,reset}
    ratelimit-{limit,remaining,reset}, and the one field `ratelimit` of the later drafts

Azure sends -1 for unknown; unreadable values are ignored.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

#: Headers of responses with the provider's id of the request.
REQUEST_IDS = ("request-id", "x-request-id", "x-goog-request-id", "apim-request-id")

#: A header of the emulator's responses.
EMULATED = "anaphora-emulated"

LimitKind: TypeAlias = Literal["requests", "tokens", "output"]
"""The unit of a limit; `tokens` are those of the prompt, or all."""


class RemainingLimit(msgspec.Struct, frozen=True, gc=False):
    """The remaining amount of one limit."""

    unit: LimitKind
    remaining: float
    limit: float | None
    reset: str | None
    """When the limit is full again, in the provider's format: see `seconds_until`."""
    gradual: bool
    """Whether it refills continuously until then, instead of at once."""


_KINDS: tuple[tuple[str, LimitKind], ...] = (
    ("requests", "requests"),
    ("input-tokens", "tokens"),
    ("tokens", "tokens"),
    ("output-tokens", "output"),
)
_PERIODS = ("", "-minute", "-hour", "-day")

_Form: TypeAlias = tuple[LimitKind, str, str, str, bool]
"""The unit; the headers of the remaining amount, the limit and the reset; whether it is gradual."""


def _form(unit: LimitKind, name: str, gradual: bool) -> _Form:
    return unit, name.format("remaining"), name.format("limit"), name.format("reset"), gradual


#: Anthropic and OpenAI document that theirs refill continuously.
_ANTHROPIC = tuple(_form(unit, f"anthropic-ratelimit-{kind}-{{}}", True) for kind, unit in _KINDS)
_OTHERS = (
    *(
        _form(unit, f"x-ratelimit-{{}}-{kind}{period}", True)
        for kind, unit in _KINDS
        for period in _PERIODS
    ),
    _form("requests", "x-ratelimit-{}", False),
    _form("requests", "ratelimit-{}", False),
)

#: Each form has one of these headers.
_NAMES = frozenset({"ratelimit", *(form[1] for form in (*_ANTHROPIC, *_OTHERS))})

#: `"default";r=50;t=30`, or `limit=100, remaining=50, reset=5` in an earlier draft.
_FIELD = re.compile(r"\b(r|t|limit|remaining|reset)=(\d+)")


def read_limits(headers: Mapping[str, str], *, at_most: float = 1.0) -> list[RemainingLimit]:
    """All limits in the headers, or those of which at most the share `at_most` remains. Names are
    lowercase."""
    limits: list[RemainingLimit] = []
    if _NAMES.isdisjoint(headers):
        return limits
    anthropic = "anthropic-ratelimit-requests-remaining" in headers
    for unit, remaining, limit, reset, gradual in _ANTHROPIC if anthropic else _OTHERS:
        left, most = _amount(headers.get(remaining)), _amount(headers.get(limit))
        if left is not None and (most is None or left <= most * at_most):
            limits.append(RemainingLimit(unit, left, most, headers.get(reset), gradual))
    if (field := headers.get("ratelimit")) is not None:
        limits += _of_field(field, headers.get("ratelimit-policy", ""))
    return limits


def _amount(text: str | None) -> float | None:
    """A count; drafts list several policies after commas, the nearest first."""
    if text is None:
        return None
    if text.isdecimal():
        return float(text)
    try:
        number = float(text.partition(",")[0].partition(";")[0])
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _of_field(field: str, policy: str) -> list[RemainingLimit]:
    """The structured field; of several policies the one with the least left."""
    limits: list[RemainingLimit] = []
    quota = re.search(r"\bq=(\d+)", policy)
    for item in field.split(",") if "r=" in field else [field]:
        values: dict[str, str] = dict(_FIELD.findall(item))
        left = values.get("r", values.get("remaining"))
        if left is not None:
            most = values.get("limit", quota[1] if quota is not None else None)
            reset = values.get("t", values.get("reset"))
            limits.append(RemainingLimit("requests", float(left), _amount(most), reset, False))
    return sorted(limits, key=lambda limit: limit.remaining)[:1]


# ── Waits ────────────────────────────────────────────────────────────────────────────────────────

_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h|d))+")
_STEP = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h|d)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
#: Larger numbers are times and not waits: the year 2001 in seconds, and in milliseconds.
_SECONDS_OF_2001, _MILLISECONDS_OF_2001 = 1e9, 1e12


def retry_after(headers: Mapping[str, str], now: datetime.datetime | None = None) -> float | None:
    """The wait in seconds that the headers request; None if there is none, or it is unreadable.

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


def reset_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How long until all exhausted limits are reset; None if that is unknown."""
    limits = read_limits(headers)
    waits = [seconds_until(limit.reset, now) for limit in limits if limit.remaining <= 0]
    return max((wait for wait in waits if wait is not None), default=None)


def seconds_until(text: str | None, now: float | None = None) -> float | None:
    """The seconds until a reset: a duration (`6m0s`, `120ms`), plain seconds, or a time, for which
    `now` is needed: in RFC 3339, or in seconds or milliseconds since 1970."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return _duration(text) if text[-1] in "smhd" else _moment(text, now)
    if not 0 <= number < float("inf"):
        return None
    if number < _SECONDS_OF_2001:
        return number
    if now is None:
        return None
    moment = number if number < _MILLISECONDS_OF_2001 else number / 1000
    return max(0.0, moment - now)


def _duration(text: str) -> float | None:
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _STEP.findall(text))


def _moment(text: str, now: float | None) -> float | None:
    if now is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, moment.timestamp() - now)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < float("inf") else None


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """The provider's id of a request, from the headers of its response."""
    for name in REQUEST_IDS:
        if found := headers.get(name):
            return found
    return None
