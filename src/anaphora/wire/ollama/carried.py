"""What a part carries along for this wire, and how this wire had put it.

Under the wire's name stand fields that nobody knows: they go back as they came. Under `PUT` stands
what the message did not say although a part needs it (an id, mostly), so that it is not said back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from anaphora.canonical import check_object, string
from anaphora.errors import InvalidRequest
from anaphora.values import Extras, Notice, Opaque, Part
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, request_error

WIRE = "ollama"
PUT = "ollama.put"

#: An opaque part that holds fields of its message; and one that is an image nobody can read.
MESSAGE_FIELDS = "message"
OTHER_IMAGE = "image"

Notices = list[Notice]


class Put(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call or a result stood in its message."""

    unsaid: tuple[str, ...] = ()
    """Fields that were missing: what the part has in their place was made up here."""
    index: int | None = None
    """The number a call was given."""
    moment: str | None = None
    """When the answer was made that the call came in: its id is made from that."""


_decode = msgspec.json.Decoder(Put).decode
_encode = msgspec.json.Encoder().encode


def how_put(extras: Extras | None) -> Put:
    if extras is None or PUT not in extras:
        return Put()
    try:
        return _decode(extras[PUT])
    except DECODE_ERRORS as problem:
        raise InvalidRequest(str(problem), path=f"extras.{PUT}") from None


def carried(rest: bytes, put: Put) -> Extras | None:
    """The extras of a part: members that nobody took, and how it was put."""
    extras = {WIRE: (b"{" + rest + b"}").decode()} if rest else {}
    if put != Put():
        extras[PUT] = _encode(put).decode()
    return extras or None


def put_as(unsaid: tuple[str, ...], index: int | None) -> Extras | None:
    """The extras of a part that carries nothing but how it was put."""
    text = _put_as_text(unsaid, index)
    return None if text is None else {PUT: text}


@functools.lru_cache(64)
def _put_as_text(unsaid: tuple[str, ...], index: int | None) -> str | None:
    """Nearly all parts of a conversation are put in the same few ways."""
    put = Put(unsaid, index)
    return None if put == Put() else _encode(put).decode()


def extra_members(extras: Extras | None) -> bytes:
    """The fields that came along for this wire, as members of an object."""
    if extras is None or WIRE not in extras:
        return b""
    return members_of(extras[WIRE], f"extras.{WIRE}")


def inner_and_outer(extras: Extras | None) -> tuple[bytes, bytes]:
    """Fields that came along with a function: inside `function`, and beside it; each with its
    comma."""
    members = extra_members(extras)
    if not members:
        return b"", b""
    fields = Fields(b"{" + members + b"}", f"extras.{WIRE}", request_error)
    inside = fields.nested("function")
    inner, outer = inside.rest() if inside is not None else b"", fields.rest()
    return b"," + inner if inner else b"", b"," + outer if outer else b""


def joined_members(outer: bytes, inner: bytes) -> bytes:
    """The other way round: what was left inside `function` and beside it, as one object's."""
    function = b'"function":{' + inner + b"}" if inner else b""
    return b",".join(member for member in (outer, function) if member)


def members_of(json: str, path: str) -> bytes:
    return check_object(json, path=path).strip()[1:-1].strip().encode()


def is_fields(part: Part) -> bool:
    return isinstance(part, Opaque) and (part.provider, part.kind) == (WIRE, MESSAGE_FIELDS)


def message_fields(parts: Iterable[Part]) -> bytes:
    """The fields of a message that travel as parts of it, as members of an object."""
    merged: dict[str, msgspec.Raw] = {}
    for part in parts:
        if isinstance(part, Opaque) and is_fields(part):
            json = check_object(part.json, path="json")
            merged |= msgspec.json.decode(json, type=dict[str, msgspec.Raw])
    return b",".join(string(name) + b":" + bytes(raw) for name, raw in merged.items())


def no_place(extras: Extras | None, notices: Notices) -> None:
    """A notice for fields of a part that is only a text or a picture on this wire."""
    if extra_members(extras):
        notices.append(Notice("fields_left_out", "it is no object here: its fields are left out"))
