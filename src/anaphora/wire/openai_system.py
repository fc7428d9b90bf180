"""Where a request of OpenAI's had its system text: under which role, and in which slot.

Chat takes a system message as `system` or `developer`; Responses takes the system prompt as such a
message or as `instructions`. They differ in what is hashed, and a stored response keeps messages
but no instructions. So what `parse` found is kept in the extras of the first part or block, and
`render` uses it again. The model's profile decides for prompts that come from nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from anaphora.prompt import PromptBlock
from anaphora.values import Extras, Notice, Opaque, Part, Text
from anaphora.wire.reading import DECODE_ERRORS

Slot: TypeAlias = Literal["message", "instructions"]

#: In the extras of a part or a block.
KEY = "openai.system"


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept. A field that is missing is for the profile to decide."""

    role: Literal["system", "developer"] | None = None
    slot: Slot | None = None
    """Only Responses has two."""


_decode = msgspec.json.Decoder(Place).decode
_NOWHERE = Place()


def keep_place(extras: Extras | None, place: Place) -> Extras:
    """The extras with the place in them."""
    return {**(extras or {}), KEY: msgspec.json.encode(place).decode()}


def with_place(parts: tuple[Part, ...], role: str) -> tuple[Part, ...]:
    """The parts of a system message, with the message's role in the first that is not blank."""
    kept = Place("developer" if role == "developer" else "system")
    for at, part in enumerate(parts):
        if not isinstance(part, Opaque) and (not isinstance(part, Text) or part.text.strip()):
            first = msgspec.structs.replace(part, extras=keep_place(part.extras, kept))
            return (*parts[:at], first, *parts[at + 1 :])
    return parts


def place_of(held: Iterable[PromptBlock | Part]) -> Place:
    """Where the system prompt with these blocks, or a system message with these parts, was."""
    for one in held:
        if not isinstance(one, Opaque) and one.extras is not None and KEY in one.extras:
            try:
                return _decode(one.extras[KEY])
            except DECODE_ERRORS:
                return _NOWHERE
    return _NOWHERE


def role_of(place: Place, wanted: str) -> str:
    """The role to use. `wanted` is the profile's: everyone who takes `developer` takes `system`
    too, but not the other way round."""
    return wanted if place.role is None or wanted == "system" else place.role


def changed_role(place: Place, wanted: str, path: str) -> list[Notice]:
    """A notice where the role is not the one that it came with."""
    if place.role is None or role_of(place, wanted) == place.role:
        return []
    return [Notice("role_changed", f"{place.role} is not a role of this model: {wanted}", path)]
