"""Finds secrets that the events of a stream share: a model writes a key in several deltas.

The strings of one name (`"text"`, `"content"`, `"delta"`, …) are read as one text, in their order.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from anaphora.canonical import string

_MEMBER = re.compile(rb'"([A-Za-z_]{1,40})"\s*:\s*"([^"\\]*+(?:\\.[^"\\]*+)*+)"')
#: Edits of a text.
_Edits = Callable[[bytes], Sequence[tuple[int, int, bytes]]]


def spread_edits(data: bytes, edits_of: _Edits) -> list[tuple[int, int, bytes]]:
    """The edits of a stream that replace such secrets."""
    strings: dict[bytes, list[tuple[int, int]]] = {}
    for found in _MEMBER.finditer(data):
        if found.end(2) > found.start(2):
            strings.setdefault(found[1], []).append(found.span(2))
    made: list[tuple[int, int, bytes]] = []
    for spans in strings.values():
        if len(spans) > 1:
            made += _group_edits(data, spans, edits_of)
    return sorted(made)


def _group_edits(
    data: bytes, spans: Sequence[tuple[int, int]], edits_of: _Edits
) -> Iterator[tuple[int, int, bytes]]:
    texts = [_value(data[start:end]) for start, end in spans]
    starts, length = [], 0
    for text in texts:
        starts.append(length)
        length += len(text)
    left: dict[int, bytearray] = {}
    for first, last, mask in reversed(edits_of(b"".join(texts))):
        at = bisect_right(starts, first) - 1
        while at < len(starts) and starts[at] < last:
            rest = left.setdefault(at, bytearray(texts[at]))
            begin, end = max(first - starts[at], 0), min(last - starts[at], len(texts[at]))
            rest[begin:end] = mask if first >= starts[at] else b""
            at += 1
    for at, rest in left.items():
        yield (*spans[at], string(rest.decode("utf-8", "replace"))[1:-1])


def _value(escaped: bytes) -> bytes:
    """The text of a JSON string's inside; as it is where it is not one."""
    if b"\\" not in escaped:
        return escaped
    try:
        text: str = json.loads(b'"%b"' % escaped, strict=False)
        return text.encode("utf-8", "surrogatepass")
    except ValueError:
        return escaped
