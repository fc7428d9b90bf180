"""Numbers as Rust's serde_json writes them, so that a prompt's hash is the same in both languages.

Shortest digits that read back as the same number, with `.0` where they are whole; an exponent
outside of a range that differs between the two widths.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

#: From which power of ten to which one digits are written out.
_SINGLE = range(-6, 13)
_DOUBLE = range(-5, 16)


def double(value: float) -> str:
    """A finite double."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    whole = int("".join(map(str, digits)))
    return _written("-" if sign else "", whole, int(exponent), _DOUBLE)


@lru_cache(maxsize=256)
def _single(bits: int) -> str:
    sign = "-" if bits >> 31 else ""
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    mantissa = fraction | (1 << 23) if exponent else fraction
    # In quarters of the last bit: what lies between these bounds is read as this number; the
    # number below a power of two is half as far away.
    unit = Fraction(2) ** (max(exponent, 1) - 152)
    value = mantissa * 4 * unit
    low = value - (1 if fraction == 0 and exponent > 1 else 2) * unit
    high = value + 2 * unit
    if not mantissa:
        return f"{sign}0.0"
    digits, power = _shortest(value, low, high, inclusive=mantissa % 2 == 0)
    return _written(sign, digits, power, _SINGLE)


def single(value: float) -> str:
    """A number as a single-precision one. `OverflowError` beyond what one can hold."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return _single(bits)


def _shortest(
    value: Fraction, low: Fraction, high: Fraction, *, inclusive: bool
) -> tuple[int, int]:
    """The digits, and the power of ten of the last one."""
    power = len(str(int(high))) if high >= 1 else 1 - len(str(int(1 / high)))
    while True:
        step = Fraction(10) ** power
        below = value // step
        fitting = [
            digits
            for digits in (below, below + 1)
            if low < digits * step < high or (inclusive and digits * step in (low, high))
        ]
        if fitting:
            # The nearest; of two that are as near, the even one.
            return min(fitting, key=lambda digits: (abs(digits * step - value), digits % 2)), power
        power -= 1


def _written(sign: str, digits: int, power: int, plain: range) -> str:
    if not digits:
        return f"{sign}0.0"
    text = str(digits)
    stripped = text.rstrip("0")
    power += len(text) - len(stripped)
    text = stripped
    first = len(text) + power - 1
    if first not in plain:
        rest = f".{text[1:]}" if len(text) > 1 else ""
        return f"{sign}{text[0]}{rest}e{first}"
    if first < 0:
        return f"{sign}0.{'0' * (-first - 1)}{text}"
    whole, rest = text[: first + 1].ljust(first + 1, "0"), text[first + 1 :]
    return f"{sign}{whole}.{rest or '0'}"
