"""What the part writers of several wires share: arguments, extras, and the paths of notices."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anaphora.canonical import check_object, is_object, string
from anaphora.errors import InvalidRequest
from anaphora.values import Extras, Notice

from .reading import Members, encode_members, object_members, request_error


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
