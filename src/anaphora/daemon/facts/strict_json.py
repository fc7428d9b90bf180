"""Reads JSON that is checked and then sent on: what two parsers could read differently is refused.

Refused: duplicate keys at any depth, also spelled with different escapes; more than one value, a
BOM, invalid UTF-8, NaN, numbers out of range, nesting too deep.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from anaphora.errors import RequestRejected
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
#: Keys quoted in errors are cut to this length.
SHOWN = 64


def decode_strict(data: bytes) -> Any:
    """The value. Raises `RequestRejected`."""
    try:
        value = _decode(data)
    except DECODE_ERRORS as problem:
        bom = " (it begins with a BOM)" if data[:3] == b"\xef\xbb\xbf" else ""
        raise rejected(f"not valid JSON: {decode_reason(problem, data)}{bom}") from None
    # Bytes that decoding and encoding gives back have no duplicate keys. White space is removed
    # first where there is some; other spellings of the same value are read again, slower.
    encoded = _encode(value)
    if encoded != data and encoded != msgspec.json.format(data, indent=-1):
        _find_duplicates(data)
    return value


def _find_duplicates(data: bytes) -> None:
    try:
        json.loads(data, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise rejected("not valid JSON: nested too deep") from None
    except ValueError:
        # Only a number that Python does not read: the first parser has accepted the rest.
        raise rejected("not valid JSON: a number is out of range") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) == len({name for name, _ in pairs}):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise rejected(f"the key {name[:SHOWN]!r} occurs twice in an object", param=name)
        seen.add(name)


def rejected(reason: str, status: int = 400, *, param: str | None = None) -> RequestRejected:
    return RequestRejected(reason, status=status, param=None if param is None else param[:SHOWN])
