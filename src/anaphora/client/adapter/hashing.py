"""What a prompt's hash is taken over: compact JSON, in one order, as serde_json writes it."""

from __future__ import annotations

import math
from typing import Any

from anaphora.canonical import dumps
from anaphora.errors import InvalidJson, InvalidRequest

from .numbers import double, single


def temperature(value: object) -> str:
    """As it is hashed and sent; what a single-precision number cannot be is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"must be a number, not {type(value).__name__}", path="temperature")
    try:
        if math.isfinite(value):
            return single(value)
    except OverflowError:
        pass
    raise InvalidRequest("must be a finite single-precision number", path="temperature")


def whole(value: object, bits: int, path: str) -> int:
    """A number of an unsigned type of that width."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
        raise InvalidRequest(f"must be a whole number from 0 to 2^{bits} - 1", path=path)
    return value


def text(value: object, path: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"must be text, not {type(value).__name__}", path=path)
    return dumps(value, path=path)


def sorted_json(value: Any, path: str) -> str:
    """Any JSON value, the keys of objects sorted at every level."""
    dumps(value, path=path)  # refuses what JSON cannot hold, with the path to it
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
        raise InvalidJson("a number beyond what a double holds", path="json_schema") from None


def _string(value: object) -> str:
    return dumps(value).decode()
