"""The JSON that a prompt's hash is taken over: compact, in a fixed order, as Rust's serde_json
writes it, so that the hash is the same in both languages.

Numbers have the shortest digits that read back as the same number, with `.0` if they are whole,
and an exponent outside of a range that depends on their width.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

from anaphora.canonical import dumps
from anaphora.errors import InvalidJson, InvalidRequest

#: The powers of ten that are written without an exponent.
_SINGLE = range(-6, 13)
_DOUBLE = range(-5, 16)


def temperature(value: object) -> str:
    """The temperature in single precision, as hashed and sent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"must be a number, not {type(value).__name__}", path="temperature")
    try:
        if math.isfinite(value):
            return single(value)
    except OverflowError:
        pass
    raise InvalidRequest("must be a finite single-precision number", path="temperature")


def whole(value: object, bits: int, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise InvalidRequest(f"must be a whole number from 0 to 2^{bits} - 1", path=path)
    return value


def text(value: object, path: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"must be text, not {type(value).__name__}", path=path)
    return dumps(value, path=path)


def sorted_json(value: Any, path: str) -> str:
    """A JSON value with the keys of objects sorted at every level."""
    dumps(value, path=path)  # raises with the path to a value that JSON cannot hold
    try:
        return _sorted(value)
    except RecursionError:
        raise InvalidJson("nested too deeply", path=path) from None


def _sorted(value: Any) -> str:
    if isinstance(value, dict):
        members = (f"{_string(key)}:{_sorted(value[key])}" for key in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_sorted, value))}]"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return _string(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return str(int(value))
    try:
        return double(float(value))
    except OverflowError:
        raise InvalidJson("a number beyond the range of a double", path="json_schema") from None


def _string(value: object) -> str:
    return dumps(value).decode()


def double(value: float) -> str:
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    whole = int("".join(map(str, digits)))
    return _formatted("-" if sign else "", whole, int(exponent), _DOUBLE)


def single(value: float) -> str:
    """A number in single precision. `OverflowError` beyond its range."""
    text = repr(float(value))
    if len(text) <= 5 and "e" not in text:
        return text  # up to four digits are the shortest in both widths
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    sign = "-" if bits >> 31 else ""
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    mantissa = fraction | (1 << 23) if exponent else fraction
    if not mantissa:
        return f"{sign}0.0"
    # In quarters of the last bit: decimals between these bounds are read as this number; the
    # number below a power of two is half as far away.
    unit = Fraction(2) ** (max(exponent, 1) - 152)
    exact = mantissa * 4 * unit
    low = exact - (1 if fraction == 0 and exponent > 1 else 2) * unit
    digits, power = _shortest(exact, low, exact + 2 * unit, inclusive=mantissa % 2 == 0)
    return _formatted(sign, digits, power, _SINGLE)


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
            # The nearest; of two equally near, the even one.
            return min(fitting, key=lambda digits: (abs(digits * step - value), digits % 2)), power
        power -= 1


def _formatted(sign: str, digits: int, power: int, plain: range) -> str:
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
