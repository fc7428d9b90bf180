"""Numbers, times and names as the pages show them."""

from __future__ import annotations

import math
import re
import time
from decimal import Decimal
from typing import Literal, TypeAlias

import htpy
from markupsafe import Markup

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.wording import counted, format_share, format_usd

UNKNOWN = "unknown"
#: Shown if there is nothing to measure, such as the share of no tokens.
NOTHING = "–"
#: Characters of a name that are shown.
MOST_SHOWN = 80
#: Longer names are wrapped in tables.
_WRAPPED = 30
#: A long hexadecimal id, optionally with a prefix, or a UUID: `req_8738ddcdd13e70e6870eb509`.
_HEX_ID = re.compile(r"(?:[A-Za-z]+[_-]){0,2}[0-9a-f][0-9a-f.-]{14,}")
#: Characters that change the direction of the text after them.
_DIRECTIONS = dict.fromkeys(
    (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"
)

TimeForm: TypeAlias = Literal["minute", "second", "clock", "day"]
_FORMS: dict[TimeForm, str] = {
    "minute": "%Y-%m-%d %H:%M UTC",
    "second": "%Y-%m-%d %H:%M:%S UTC",
    "clock": "%H:%M",
    "day": "%b %d",
}


def usd(nano: int | None) -> str:
    return UNKNOWN if nano is None else format_usd(Decimal(nano).scaleb(-9))


def spent(sums: CallTotals) -> str:
    """The cost of several calls: `$1.20+` if some costs are unknown, `unknown` if all are."""
    if sums.unpriced and not sums.cost_nano_usd:
        return UNKNOWN
    return usd(sums.cost_nano_usd) + ("+" if sums.unpriced else "")


def lost_usd(sums: CallTotals) -> str:
    """Cost of the tokens billed again; unknown if no call has a known loss."""
    if sums.lost and sums.unpriced and not sums.lost_nano_usd:
        return UNKNOWN
    return usd(sums.lost_nano_usd)


def call_cost(call: AuditEnvelope) -> str:
    """The cost of one call, with the part charged without a bill."""
    if unbilled := call.unbilled_nano_usd:
        return f"{usd((call.cost_nano_usd or 0) + unbilled)}, {usd(unbilled)} of it without a bill"
    if call.outcome != "ok" and not call.cost_nano_usd:
        return NOTHING
    return usd(call.cost_nano_usd)


def lost(number: int, nano: int | None) -> str:
    """Tokens that were billed again, and their cost."""
    return f"{tokens(number)}, " + ("cost unknown" if nano is None else f"{usd(nano)} lost")


def count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def reported(number: int | None) -> str:
    """A count that a provider may not have reported."""
    return NOTHING if number is None else count(number)


def unless_zero(number: int) -> str:
    return count(number) if number else NOTHING


def tokens(number: int | None) -> str:
    return UNKNOWN if number is None else counted(number, "token")


def percent(share: float | None) -> str:
    return NOTHING if share is None or not math.isfinite(share) else format_share(share)


def seconds(duration: float | None) -> str:
    if duration is None or not math.isfinite(duration):
        return UNKNOWN
    if duration < 0:
        return "-" + seconds(-duration)
    if duration < 0.9995:
        return f"{duration * 1000:.0f} ms"
    if duration < 60:
        return f"{duration:.2g} s" if duration < 9.95 else f"{duration:.0f} s"
    if duration < 3600:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:,.1f} h" if duration < 172_800 else f"{duration / 86_400:,.0f} days"


def iso(at: float) -> str | None:
    """A time in UTC, to the second; None if it is outside the calendar."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return None


def utc(at: float | None, form: TimeForm = "minute") -> str:
    """A time as text, marked as UTC."""
    try:
        return f"{UNKNOWN} time" if at is None else time.strftime(_FORMS[form], time.gmtime(at))
    except (OverflowError, OSError, ValueError):
        return f"{UNKNOWN} time"


def local_time(at: float | None, form: TimeForm = "minute") -> Markup:
    """A UTC time that `dashboard.js` shows in the viewer's time zone. `clock` and `day` are for
    axes, whose chart names the zone. Formatted as a string, not as an element: a page has hundreds
    of them."""
    exact, text = (None if at is None else iso(at)), utc(at, form)
    if exact is None:
        return Markup(f'<span class="dim">{text}</span>')
    return Markup(f'<time class="local" datetime="{exact}" data-form="{form}">{text}</time>')


def name(text: str, most: int = MOST_SHOWN) -> htpy.Node:
    """A name from a request, isolated from the surrounding text direction; shortened if long."""
    if not text:
        return htpy.span(".dim")["(none)"]
    if len(text) <= most:
        return htpy.bdi(".long")[text] if len(text) > _WRAPPED else htpy.bdi[text]
    return [
        htpy.bdi(".long")[text[:most]],
        htpy.span(".dim")[f"… ({counted(len(text), 'character')})"],
    ]


def short_id(text: str, most: int = MOST_SHOWN) -> htpy.Node:
    """An id. A long hexadecimal one is shown shortened, in full on hover; selecting it copies the
    full id."""
    if not _HEX_ID.fullmatch(text):
        return name(text, most)
    return htpy.bdi(".id", title=text)[text]


def plain_name(text: str, most: int = MOST_SHOWN) -> str:
    """A name for places without markup: options of a field, titles."""
    if not text:
        return "(none)"
    shown = text[:most].translate(_DIRECTIONS)
    return shown if len(text) <= most else f"{shown}… ({counted(len(text), 'character')})"
