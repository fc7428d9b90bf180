r"""Lone surrogates: halves of a pair such as `\ud83d\ude00`, which only JSON can spell.
Gateways written in JavaScript send them where they cut a text inside a character."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TypeVar

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
