"""What a choice of a streamed chunk says beside its delta, in fields that have no name here.

Few chunks say anything of the kind (Azure's filters do), so all are read without looking for it,
and those that turn out to hold more are looked at once again. Unnamed fields of the delta itself
are passed over: they would go back to the host as fields of the message, and hosts refuse those.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .stream_choice import ChoiceDelta


class UsualChoice(ChoiceDelta, frozen=True, forbid_unknown_fields=True):
    """A choice with nothing unusual beside its delta."""


class _Choices(msgspec.Struct, frozen=True):
    choices: list[dict[str, Any]] | None = None


_choices = msgspec.json.Decoder(_Choices).decode


def fields_beside(payload: bytes) -> list[tuple[int, dict[str, Any]]]:
    """The index of each choice of a chunk that was read already, and its unnamed fields."""
    found = _choices(payload).choices or ()
    return [(choice.get("index") or 0, _unnamed(choice)) for choice in found]


def _unnamed(choice: dict[str, Any]) -> dict[str, Any]:
    known = ChoiceDelta.__struct_fields__
    return {name: said for name, said in choice.items() if said is not None and name not in known}
