"""JSON whose end is missing, closed so that the part that arrived can be read."""

from __future__ import annotations

import re

import msgspec

from .reading import DECODE_ERRORS

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[{}\[\],]', re.DOTALL)
#: An escape that the cut has left incomplete, at the end of a text.
_HALF_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CLOSING = {b"{": b"}", b"[": b"]"}


def closed_json(data: bytes) -> bytes | None:
    """The JSON that `data` is the beginning of, without what follows, and without the last member
    or element where that cannot be read. None where nothing can be read. `data` should be short:
    all of its structure is looked at."""
    open_text: int | None = None
    closing: list[bytes] = []
    last_comma: tuple[int, bytes] | None = None
    for token in _TOKEN.finditer(data):
        first = token[0][:1]
        if first == b'"':
            if not token[1]:
                open_text = token.start()
        elif first == b",":
            last_comma = token.start(), b"".join(reversed(closing))
        elif first in _CLOSING:
            closing.append(_CLOSING[first])
        elif closing:
            closing.pop()
    whole = data
    if open_text is not None:
        text = data[open_text:].decode("utf-8", "ignore").encode()
        whole = data[:open_text] + _HALF_ESCAPE.sub(b"", text) + b'"'
    found = [whole + b"".join(reversed(closing))]
    if last_comma is not None:
        found.append(data[: last_comma[0]] + last_comma[1])
    return next((each for each in found if _is_json(each)), None)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except DECODE_ERRORS:
        return False
    return True
