"""Reads JSON that is checked and then forwarded. JSON that two parsers could read differently is
refused.

Refused: duplicate keys at any depth, including different escapes of one key; more than one value, a
BOM, invalid UTF-8, NaN, numbers out of range, nesting too deep.

`decode_pieces` reads large JSON in pieces, so that other threads can run. A call of msgspec blocks
all threads for a time proportional to the values it reads, so their number is limited, and long
lists are decoded a few elements at a time.

`is_heavy` tells whether that is needed. A call takes time for each of its values rather than for
each byte: a body of 250 KB may be one text, or 6,000 tools.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from anaphora.errors import RequestRejected, TooLarge

from .reading import (
    DECODE_ERRORS,
    Members,
    decode_elements,
    decode_members,
    decode_reason,
    encode_members,
)

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
#: Keys quoted in errors are cut to this length.
SHOWN = 64
LARGE = 256 * 1024
"""A body with more new bytes than this is read in a thread,"""
HEAVY = 1_000
"""and JSON with more values than this."""
MOST_VALUES = 500_000
"""Limit for a large request: texts, numbers, lists and objects."""
MOST_VALUES_OF_PART = 50_000
"""Limit for one message, system block, tool or other field."""
#: Bytes that one call reads, unless a single text is longer.
_PIECE = 64 * 1024
#: Levels at which a value is divided: request, list, message, its list, block.
_DEPTH = 5
_STRUCTURE = (b",", b"[", b"{")


def decode_strict(data: bytes) -> Any:
    """The value. Raises `RequestRejected`."""
    try:
        value = _decode(data)
    except DECODE_ERRORS as problem:
        bom = " (it begins with a BOM)" if data[:3] == b"\xef\xbb\xbf" else ""
        raise rejected(f"not valid JSON: {decode_reason(problem, data)}{bom}") from None
    # If decoding and encoding gives the same bytes, there are no duplicate keys. White space is
    # removed first; other spellings are read again by a slower parser.
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
        # Only a number that Python cannot read: the first parser has accepted the rest.
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


# ── By pieces ────────────────────────────────────────────────────────────────────────────────────


def decode_pieces(data: bytes) -> tuple[Any, Members]:
    """A value, and its members if it is an object. Raises `RequestRejected` and `TooLarge`."""
    _check_values(data, MOST_VALUES, "the request has")
    members = _members(data)
    if members is None:
        return _decode_part(data, 0), {}
    return {name: _decode_part(raw, 1) for name, raw in members.items()}, members


def _members(data: bytes) -> Members | None:
    """The members of an object; None if it is not an object, or may have a duplicate key."""
    try:
        plain = msgspec.json.format(data, indent=-1)
        if encode_members(decode_members(plain)) != plain:
            return None
        return decode_members(data)
    except DECODE_ERRORS:
        return None


def _decode_part(raw: bytes | msgspec.Raw, depth: int) -> Any:
    """The value of a part, which is divided if it is long."""
    data = bytes(raw)
    if len(data) > _PIECE and depth < _DEPTH:
        if data[:1] == b"{" and (members := _members(data)) is not None:
            return {name: _decode_part(inner, depth + 1) for name, inner in members.items()}
        if data[:1] == b"[":
            try:
                return _decode_list(decode_elements(data), depth)
            except DECODE_ERRORS:
                pass  # decoding the whole raises the error
    if len(data) > 2 * MOST_VALUES_OF_PART:
        _check_values(data, MOST_VALUES_OF_PART, "a part of the request has")
    return decode_strict(data)


def _decode_list(elements: Sequence[msgspec.Raw], depth: int) -> list[Any]:
    """Decodes a list, many short elements at a time."""
    values: list[Any] = []
    short: list[msgspec.Raw] = []
    size = 0
    for each in elements:
        length = memoryview(each).nbytes + 1  # with its comma
        if size + length > _PIECE:
            values += decode_strict(b"[" + b",".join(short) + b"]")
            short, size = [], 0
        if length > _PIECE:
            values.append(_decode_part(each, depth + 1))
        else:
            short.append(each)
            size += length
    values += decode_strict(b"[" + b",".join(short) + b"]")
    return values


def is_heavy(data: bytes) -> bool:
    """Whether JSON takes so long that others must be served meanwhile."""
    return len(data) > LARGE or _has_values(data, HEAVY)


def _check_values(data: bytes, most: int, what: str) -> None:
    if _has_values(data, most):
        raise TooLarge(f"{what} more than {most:,} JSON values", status=413)


def _has_values(data: bytes, most: int) -> bool:
    """Whether JSON has more values than this: commas and opening brackets outside texts, or texts
    twice as often. For invalid JSON the result is arbitrary."""
    if data.count(b",") <= most // 2 and data.count(b'"') <= most:
        return False
    if b"\\" in data:  # what is left of an escape is neither a quote nor a backslash
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    count = quotes = 0
    for start in range(0, len(data), _PIECE):
        pieces = data[start : start + _PIECE].split(b'"')
        # In valid JSON every second piece is a text.
        outside = b"".join(pieces[quotes % 2 :: 2])
        count += sum(map(outside.count, _STRUCTURE))
        quotes += len(pieces) - 1
        # And at least every second text follows a comma or bracket.
        if count > most or quotes > 4 * most:
            return True
    return False
