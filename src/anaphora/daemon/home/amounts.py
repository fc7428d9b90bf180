"""Amounts in dollars, as they are written in extensions.yaml and by commands."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from anaphora.daemon.access.grants import NANO, dollars
from anaphora.daemon.store import LARGEST_AMOUNT
from anaphora.errors import InvalidRequest
from anaphora.redaction import quoted
from anaphora.yaml_values import Origin, dotted

UNLIMITED = "unlimited"

#: Amounts in plain digits: YAML reads 010 as 8, and 1:30 as 90.
_AMOUNT = re.compile(r"(0|[1-9][0-9]{0,9})(?:\.([0-9]+))?")
_MOST_DOLLARS = 1_000_000_000
_DIGITS = 9


def nano_dollars(value: float | str | None, origin: Origin, *path: str | int) -> int | None:
    """Parsed from the digits in the file, without the error of a float. None for `unlimited` and
    for a missing value."""
    if value is None or value == UNLIMITED:
        return None
    if isinstance(value, str):
        raise origin.invalid(
            f"expected dollars in digits, such as 5.00, or unlimited, found {quoted(value)}", *path
        )
    amount = _AMOUNT.fullmatch(origin.numbers.get(dotted(path), f"{value!r}"))
    if amount is None:
        raise origin.invalid("write dollars in plain digits, such as 5.00", *path)
    whole, part = int(amount[1]), (amount[2] or "").rstrip("0")
    if len(part) > _DIGITS:
        raise origin.invalid("a dollar has nine decimals at most", *path)
    if whole >= _MOST_DOLLARS:
        raise origin.invalid(f"at most {_MOST_DOLLARS - 1:,}; or write unlimited", *path)
    return whole * NANO + int(part.ljust(_DIGITS, "0"))


def nano_usd_of(text: str) -> int:
    """Nano-dollars of an amount in digits. Raises `InvalidRequest`."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise InvalidRequest(
            f"must be an amount in dollars like 0.0125, got {text[:40]!r}", path="usd"
        )
    if amount < 0:
        raise InvalidRequest("must be ≥ 0", path="usd")
    if amount > Decimal(LARGEST_AMOUNT) / NANO:
        raise InvalidRequest(f"must be ≤ {dollars(LARGEST_AMOUNT)}", path="usd")
    nano = amount.scaleb(9)
    if nano != nano.to_integral_value():
        raise InvalidRequest("has more than nine decimals", path="usd")
    return int(nano)
