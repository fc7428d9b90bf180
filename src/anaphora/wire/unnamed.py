"""Fields of stream events that have no name here.

The structs that events are decoded into take no other fields than their own, so that nothing is
lost unseen. An event with more is decoded again without it, which few ever need.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from .reading import DECODE_ERRORS

Members = dict[str, msgspec.Raw]

_members = msgspec.json.Decoder(Members).decode
_encode = msgspec.json.Encoder().encode


def members_of(raw: bytes | msgspec.Raw) -> Members | None:
    """The fields of an object; None when it is none."""
    try:
        return _members(raw)
    except DECODE_ERRORS:
        return None


def tag_of(members: Members) -> str:
    """An object's type; empty when it has none."""
    try:
        return msgspec.json.decode(members["type"], type=str)
    except (KeyError, *DECODE_ERRORS):
        return ""


def fields_by_tag(kinds: Iterable[Any]) -> dict[str, frozenset[str]]:
    """What the structs of these tags have; the tag is one of them."""
    return {
        str(kind.__struct_config__.tag): frozenset({"type", *kind.__struct_encode_fields__})
        for kind in kinds
    }


def take_unnamed(members: Members, known: Iterable[str]) -> Members:
    """Takes the fields that are not known out of an object."""
    names = frozenset(known)
    return {name: members.pop(name) for name in [*members] if name not in names}


def encoded(members: Members) -> bytes:
    return _encode(members)
