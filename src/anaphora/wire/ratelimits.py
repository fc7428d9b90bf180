"""Rate-limit headers in every form that providers use: what remains, of which limit, until when.

    anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}
    x-ratelimit-{limit,remaining,reset}-{requests,tokens}, with -minute, -hour or -day behind
    x-ratelimit-{limit,remaining,reset}
    ratelimit-{limit,remaining,reset}, and the one field `ratelimit` of the later drafts

Azure sends -1 for unknown; unreadable values are ignored.
"""

from __future__ import annotations

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
    reset: str | None
    """When the limit is full again, as the provider says it: see `errors.seconds_until`."""
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

#: `"default";r=50;t=30`, or `limit=100, remaining=50, reset=5` in an earlier draft.
_FIELD = re.compile(r"\b(r|t|limit|remaining|reset)=(\d+)")


def read_limits(headers: Mapping[str, str], *, at_most: float = 1.0) -> list[RemainingLimit]:
    """All limits in the headers, or those of which at most the share `at_most` remains. Names are
    lowercase."""
    limits: list[RemainingLimit] = []
    if _NAMES.isdisjoint(headers):
        return limits
    anthropic = "anthropic-ratelimit-requests-remaining" in headers
    for what, remaining, limit, reset, gradual in _ANTHROPIC if anthropic else _OTHERS:
        if remaining not in headers or (left := _amount(headers[remaining])) is None:
            continue
        most = _amount(headers.get(limit))
        if most is None or left <= most * at_most:
            limits.append(RemainingLimit(what, left, most, headers.get(reset), gradual))
    if (field := headers.get("ratelimit")) is not None:
        limits += _of_field(field, headers.get("ratelimit-policy", ""))
    return limits


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
        values: dict[str, str] = dict(_FIELD.findall(item))
        left = values.get("r", values.get("remaining"))
        if left is not None:
            most = values.get("limit", quota[1] if quota is not None else None)
            reset = values.get("t", values.get("reset"))
            limits.append(RemainingLimit("requests", float(left), _amount(most), reset, False))
    return sorted(limits, key=lambda limit: limit.remaining)[:1]
