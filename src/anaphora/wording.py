"""Words for messages and reports: numbers with their nouns, amounts and
durations, and texts of apps and providers without
control characters."""

from __future__ import annotations

import re
from decimal import Decimal

#: Characters that affect a terminal, a line or the direction of text without being visible: C0, DEL
#: and C1, line and paragraph separators, bidirectional controls, invisible ones, halves of
#: surrogate pairs. Joiners (U+200C, U+200D) are left out: scripts and emoji need them.
_CONTROL = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
#: Those of them that change the direction of text, as ranges of a regular expression.
DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
#: The smallest amount in dollars that four digits show.
_FOUR_DIGITS = Decimal("0.0001")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 turn`, `2 turns`, `1,024 tokens`; `plural` for nouns that do not end with -s there."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def compact(number: float) -> str:
    """A count in few characters: `999`, `12.5k`, `3M`."""
    size = abs(number)
    for unit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if unit * 0.99995 <= size < 1e15:
            return f"{number / unit:,.1f}".removesuffix(".0") + letter
    return f"{number:.4g}"


def format_usd(cost_usd: Decimal) -> str:
    """`$1,234.56`, `$0.0012`; two digits of amounts below a hundredth of a cent."""
    sign, amount = ("-" if cost_usd < 0 else ""), abs(cost_usd)
    if not amount:
        return "$0"
    if amount >= 1:
        return f"{sign}${amount:,.2f}"
    if amount >= _FOUR_DIGITS:
        return f"{sign}${amount:.4f}"
    return f"{sign}${amount:.{1 - amount.adjusted()}f}".rstrip("0")


def format_share(share: float) -> str:
    """`87%`; below 1% and above 99% with a digit more. Only 0 is `0%`, and only 1 is `100%`."""
    if 0 < share < 0.01 or 0.99 < share < 1:
        return f"{min(max(share, 0.001), 0.999):.1%}".replace(".0%", "%")
    return f"{share:,.0%}"


def format_loss(cost_usd: Decimal | None) -> str:
    return "cost unknown" if cost_usd is None else f"{format_usd(cost_usd)} lost"


def format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def visible(text: str, keep: str = "") -> str:
    """The text with control characters as escapes (`\\u001b`), but for those in `keep`, which may
    hold ranges. For all displayed text of apps and providers: in a terminal it could move the
    cursor or clear the screen, in a table or a log it could look like another row."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(f"(?![{keep}]){_CONTROL}" if keep else _CONTROL, _escape, text)


def visible_json(data: bytes) -> bytes:
    """The same JSON without control characters. JSON itself escapes only those below U+0020."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return visible(data.decode(errors="replace"), keep="\n\r\t").encode(errors="replace")


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
