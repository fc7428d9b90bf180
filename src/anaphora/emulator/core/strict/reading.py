"""A body as the checks read it.

Nearly every message is somebody's text and nothing else. No check has a word to say about one of
these by itself, so it is enough to see that it is one: the others are read into objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .case import Object

#: How many lists of tools are remembered as they were read: the same comes with every turn.
_TOOLS = 64

_decode = msgspec.json.Decoder().decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Talk(msgspec.Struct, frozen=True):
    """How a wire says what was said."""

    field: str
    """What it calls the list of messages."""
    plain: Callable[[msgspec.Raw], object]
    """Reads a message that nothing can be said against by itself; `DecodeError` for any other."""


def read(
    fields: Mapping[str, msgspec.Raw], talk: Talk
) -> tuple[Object, list[msgspec.Raw], list[tuple[int, Object]]]:
    """Everything but the messages; the messages as they came, and those that are not plain."""
    body: Object = {}
    said: list[msgspec.Raw] = []
    for name, raw in fields.items():
        data = bytes(raw)
        if name == talk.field and data[:1] == b"[":
            body[name] = said = _list(raw)
        else:
            body[name] = _tools(data) if name == "tools" else _decode(data)
    return body, said, _unusual(said, talk.plain)


def _unusual(
    said: list[msgspec.Raw], plain: Callable[[msgspec.Raw], object]
) -> list[tuple[int, Object]]:
    found: list[tuple[int, Object]] = []
    for at, raw in enumerate(said):
        try:
            plain(raw)
        except msgspec.DecodeError:
            message = _decode(raw)
            if isinstance(message, dict):
                found.append((at, message))
    return found


@functools.lru_cache(maxsize=_TOOLS)
def _tools(listed: bytes) -> Any:
    """Read by many, changed by nobody."""
    return _decode(listed)
