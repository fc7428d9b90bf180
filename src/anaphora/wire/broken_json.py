r"""Lone surrogates: halves of a pair such as `\ud83d\ude00`, which only JSON can spell.
Gateways written in JavaScript send them where they cut a text inside a character. And JSON whose
end is missing, closed so that the part that arrived can be read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from anaphora.errors import Parse

T = TypeVar("T")

find_surrogate = re.compile(rb"\\u[dD]").search
#: Every escape sequence of a JSON text; the group is a lone surrogate.
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)


def replace_lone_surrogates(data: bytes) -> bytes:
    """JSON in which every lone surrogate is U+FFFD."""
    if not find_surrogate(data):
        return data
    return _ESCAPES.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)


def replaces_lone_surrogates(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Decorates readers of whole replies: a body that cannot be read is read without them."""

    @functools.wraps(read)
    def reading(body: bytes) -> T:
        try:
            return read(body)
        except Parse:
            replaced = replace_lone_surrogates(body)
            if replaced == body:
                raise
        return read(replaced)

    return reading


def lone_surrogate(data: bytes) -> str:
    """The first one, and where it is; empty where there is none. The rest of a pair that is cut off
    with the data is not missed."""
    for found in _ESCAPES.finditer(data) if find_surrogate(data) else ():
        if found[1] and data.find(b'"', found.end()) >= 0:
            code = found[1][2:].decode().upper()
            return f"lone surrogate U+{code} at byte {found.start()} is not valid Unicode"
    return ""


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
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
