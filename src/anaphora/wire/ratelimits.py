"""Rate-limit headers in every form that providers use: what remains, of which limit, until when.

    anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}
    x-ratelimit-{limit,remaining,reset}-{requests,tokens}, with -minute, -hour or -day behind
    x-ratelimit-{limit,remaining,reset}
    ratelimit-{limit,remaining,reset}, and the one field `ratelimit` of the later drafts

A reset is a time (RFC 3339, or seconds or milliseconds since 1970), a duration (`6m0s`, `120ms`)
or plain seconds. Azure sends -1 for unknown; unreadable values are ignored.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

LimitKind: TypeAlias = Literal["requests", "tokens", "output"]
"""What is counted; `tokens` are those of the prompt, or all."""


class RemainingLimit(msgspec.Struct, frozen=True, gc=False):
    """What remains of one limit."""

    what: LimitKind
    remaining: float
    limit: float | None
    reset: float | None
    """Seconds until the limit is full again."""
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
"""What is counted; the headers of the rest, the limit and the reset; whether it is gradual."""


def _form(what: LimitKind, name: str, gradual: bool) -> _Form:
    return what, name.format("remaining"), name.format("limit"), name.format("reset"), gradual


#: Anthropic and OpenAI document that theirs refill continuously.
_ANTHROPIC = tuple(_form(what, f"anthropic-ratelimit-{kind}-{{}}", True) for kind, what in _KINDS)
_OTHERS = (
    *(
        _form(what, f"x-ratelimit-{{}}-{kind}{period}", True)
        for kind, what in _KINDS
        for period in _PERIODS
    ),
    _form("requests", "x-ratelimit-{}", False),
    _form("requests", "ratelimit-{}", False),
)

#: Headers of which each form has one.
_NAMES = frozenset({"ratelimit", *(form[1] for form in (*_ANTHROPIC, *_OTHERS))})

_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h|d))+")
_STEP = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h|d)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
#: Larger numbers are times and not waits: 2001 in seconds, and in milliseconds.
_SECONDS_OF_2001, _MILLISECONDS_OF_2001 = 1e9, 1e12
#: `"default";r=50;t=30`, or `limit=100, remaining=50, reset=5` in an earlier draft.
_FIELD = re.compile(r"\b(r|t|limit|remaining|reset)=(\d+)")


def read_limits(
    headers: Mapping[str, str], now: float | None = None, *, at_most: float = 1.0
) -> list[RemainingLimit]:
    """All limits in the headers, or those of which at most the share `at_most` remains. Names are
    lowercase; `now`, in seconds since 1970, is for times in them."""
    limits: list[RemainingLimit] = []
    if _NAMES.isdisjoint(headers):
        return limits
    anthropic = "anthropic-ratelimit-requests-remaining" in headers
    for what, remaining, limit, reset, gradual in _ANTHROPIC if anthropic else _OTHERS:
        if remaining not in headers or (left := _amount(headers[remaining])) is None:
            continue
        most = _amount(headers.get(limit))
        if most is None or left <= most * at_most:
            wait = seconds_until(headers.get(reset), now)
            limits.append(RemainingLimit(what, left, most, wait, gradual))
    if (field := headers.get("ratelimit")) is not None:
        limits += _of_field(field, headers.get("ratelimit-policy", ""))
    return limits


def reset_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """How long until all exhausted limits are reset; None where that is unknown."""
    exhausted = [limit.reset for limit in read_limits(headers, now) if limit.remaining <= 0]
    return max((reset for reset in exhausted if reset is not None), default=None)


def seconds_until(text: str | None, now: float | None = None) -> float | None:
    """The wait of a reset in any form."""
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


def _amount(text: str | None) -> float | None:
    """A count; drafts list several policies behind commas, the nearest first."""
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
        values = {name: float(number) for name, number in _FIELD.findall(item)}
        left = values.get("r", values.get("remaining"))
        if left is not None:
            most = values.get("limit", float(quota[1]) if quota is not None else None)
            reset = values.get("t", values.get("reset"))
            limits.append(RemainingLimit("requests", left, most, reset, False))
    return sorted(limits, key=lambda limit: limit.remaining)[:1]
