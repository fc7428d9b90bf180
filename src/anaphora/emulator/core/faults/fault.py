"""A fault: its name, what it may be told, and what it makes of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from anaphora.emulator.core.asked import Answer

from . import content, failing, timing

Applied: TypeAlias = Callable[[Answer], Answer]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault is like before anything is said of it."""

    make: Callable[[Fault], Applied]
    seconds: float | None = None
    """The wait it speaks of, unless told otherwise; None: it speaks of none."""
    after: bool = False
    """It may be told behind how many pieces of the answer it comes."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float = 0.0
    after: int | None = None
    """Pieces of the answer that still come; None: half of them."""
    at: float = 0.0
    """When the request came: dates count from there."""

    def apply(self, answer: Answer) -> Answer:
        """The answer, gone wrong."""
        return KINDS[self.name].make(self)(answer)


def _rate_limit(form: failing.Form) -> Kind:
    return Kind(make=lambda f: lambda a: failing.rate_limited(a, form, f.seconds, f.at), seconds=1)


def _status(status: int) -> Kind:
    return Kind(make=lambda _: lambda a: failing.failed(a, status))


#: By the name that files and the header call it.
KINDS: dict[str, Kind] = {
    "rate-limit": _rate_limit("own"),
    "rate-limit-seconds": _rate_limit("seconds"),
    "rate-limit-ms": _rate_limit("milliseconds"),
    "rate-limit-date": _rate_limit("date"),
    "rate-limit-bare": _rate_limit("none"),
    "spend-cap": Kind(make=lambda _: failing.spend_cap),
    "500": _status(500),
    "503": _status(503),
    "529": _status(529),
    "ok-error": Kind(make=lambda _: failing.good_status),
    "timeout": Kind(make=lambda _: timing.hang),
    "reset": Kind(make=lambda f: lambda a: timing.reset(a, f.after), after=True),
    "slow-first-byte": Kind(make=lambda f: lambda a: timing.late(a, f.seconds), seconds=2),
    "slow-drip": Kind(make=lambda f: lambda a: timing.drip(a, f.seconds), seconds=0.2),
    "cut": Kind(make=lambda f: lambda a: timing.cut(a, f.after), after=True),
    "stream-error": Kind(make=lambda f: lambda a: content.error_event(a, f.after), after=True),
    "broken-json": Kind(make=lambda f: lambda a: content.broken_json(a, f.after), after=True),
    "broken-utf8": Kind(make=lambda f: lambda a: content.broken_utf8(a, f.after), after=True),
    "context-overflow": Kind(make=lambda f: lambda a: content.overflow(a, f.after), after=True),
    "wrong-content-type": Kind(make=lambda _: content.wrong_type),
    "wrong-form": Kind(make=lambda _: content.wrong_form),
    "duplicate-events": Kind(make=lambda f: lambda a: content.duplicated(a, f.after), after=True),
    "unknown-events": Kind(make=lambda f: lambda a: content.unknown(a, f.after), after=True),
}
