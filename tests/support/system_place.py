"""Messages without the note of where their system text was, for comparing them with an app's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from anaphora.values import Message, Opaque, Part
from anaphora.wire.openai import SYSTEM_KEY as KEY

T = TypeVar("T", bound=Part)


def without_place(parts: Iterable[T]) -> tuple[T, ...]:
    return tuple(map(_without, parts))


def without_places(messages: Iterable[Message]) -> list[Message]:
    return [
        msgspec.structs.replace(message, parts=without_place(message.parts)) for message in messages
    ]


def _without(part: T) -> T:
    if isinstance(part, Opaque) or part.extras is None or KEY not in part.extras:
        return part
    rest = {name: text for name, text in part.extras.items() if name != KEY}
    return msgspec.structs.replace(part, extras=rest or None)
