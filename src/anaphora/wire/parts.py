"""What the part writers of several wires share: arguments, extras, unknown fields, notices."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anaphora.canonical import check_object, is_object, string
from anaphora.errors import InvalidRequest
from anaphora.values import Extras, Notice, Opaque, Part

from .reading import Members, decode_members, encode_members, object_members, request_error


def notices_below(notices: Iterable[Notice], place: str) -> list[Notice]:
    """The notices with their paths below `place`."""
    return [
        msgspec.structs.replace(notice, path=f"{place}.{notice.path}" if notice.path else place)
        for notice in notices
    ]


def object_arguments(text: str, notices: list[Notice]) -> bytes:
    """A call's arguments where the wire takes only an object. Other text, which a model may write,
    is kept in one."""
    if is_object(text):
        return text.encode()
    if not text.strip():
        return b"{}"
    why = "the call's arguments are not a JSON object; sent as text in invalid_arguments"
    notices.append(Notice("arguments_not_an_object", why, "arguments"))
    try:
        return b'{"invalid_arguments":' + string(text) + b"}"
    except InvalidRequest as problem:
        raise problem.within("arguments") from None


def extra_members(extras: Extras | None, wire: str) -> bytes:
    """The extras of that wire, as members of an object without its braces."""
    if extras is None or wire not in extras:
        return b""
    return check_object(extras[wire], path=f"extras.{wire}").strip()[1:-1].strip().encode()


def inner_and_outer(extras: Extras | None, wire: str, field: str) -> tuple[bytes, bytes]:
    """The extras inside the object `field`, and beside it; each with its leading comma."""
    if extras is None or wire not in extras:
        return b"", b""
    path = f"extras.{wire}"
    outer = object_members(extras[wire].encode(), path, request_error)
    raw = outer.pop(field, None)
    if raw is None or bytes(raw) == b"null":
        return b"", _following(outer)
    return _following(object_members(raw, f"{path}.{field}", request_error)), _following(outer)


def _following(members: Members) -> bytes:
    return b"," + encode_members(members)[1:-1] if members else b""


# ── Unknown fields of a message ──────────────────────────────────────────────────────────────────
#
# They are kept in an opaque part of a kind that only their own wire reads.


def fields_part(wire: str, kind: str, members: Members) -> list[Part]:
    """The part that holds these fields; none where there are none."""
    return [Opaque(wire, kind, encode_members(members).decode())] if members else []


def is_fields_part(part: Part, wires: tuple[str, ...], kind: str) -> bool:
    return isinstance(part, Opaque) and part.kind == kind and part.provider in wires


def fields_in_parts(parts: Iterable[Part], wires: tuple[str, ...], kind: str) -> bytes:
    """The fields that these parts hold, as members of an object without its braces."""
    members: Members = {}
    for part in parts:
        if isinstance(part, Opaque) and is_fields_part(part, wires, kind):
            members |= decode_members(check_object(part.json, path="json"))
    return encode_members(members)[1:-1]
