"""Stream events, named noun-action.

Every stream begins with `ReplyStart`; every `PartStart` gets its `PartEnd`; and the last event is
always `ReplyEnd` or `ReplyFail`, also if the connection breaks.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .fields import Extras
from .parts import Part, Refusal, Text
from .reply import Reply, Usage


class _Event(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Base of all events. Field types are not checked: readers make thousands of events, and none
    is used as a key."""


class ReplyStart(_Event, tag="reply-start", frozen=True):
    id: str
    model: str
    created: float | None = None
    """Unix time, if known."""
    extras: Extras | None = None
    """Fields of the reply that are known at its start; the reply has them too."""


class PartStart(_Event, tag="part-start", frozen=True):
    """A part begins. `kind` is the tag of the part; the id and name of a tool call are known."""

    index: int
    kind: str
    id: str | None = None
    name: str | None = None
    item: str | None = None
    """The id of the item that contains the part, if it has one."""
    extras: Extras | None = None
    """Fields of the part that are known at its start; the part has them too."""


class PartDelta(_Event, frozen=True, gc=False):
    """More of a part: the base of one class for each kind of part. `index` is that of the part."""

    index: int
    delta: str


class TextDelta(PartDelta, tag="text-delta", frozen=True):
    """More of the answer's text."""


class ThinkingDelta(PartDelta, tag="thinking-delta", frozen=True):
    """More of the model's reasoning."""


class RefusalDelta(PartDelta, tag="refusal-delta", frozen=True):
    """More of the text of a refusal."""


class ToolArgumentsDelta(PartDelta, tag="tool-arguments-delta", frozen=True):
    """More of the JSON text of a tool call's arguments. The call's id and name are those of its
    `PartStart`."""

    call_id: str | None = None
    name: str | None = None


class OpaqueDelta(PartDelta, tag="opaque-delta", frozen=True):
    """More of the input of a provider's own tool, whose part is `Opaque`."""


class PartEnd(_Event, tag="part-end", frozen=True):
    """The part is complete."""

    index: int
    part: Part


class UsageUpdate(_Event, tag="usage-update", frozen=True):
    """Counts known so far; the last update counts."""

    usage: Usage


class ReplyEnd(_Event, tag="reply-end", frozen=True):
    """The reply is complete."""

    reply: Reply


class ReplyFail(_Event, tag="reply-fail", frozen=True):
    """The stream broke; `error` is a class of `anaphora.errors`, `partial` what was received."""

    error: str
    message: str
    code: str | None = None
    partial: Reply | None = None
    status: int | None = None
    """The status that the provider names in a stream that began well."""


Delta: TypeAlias = TextDelta | ThinkingDelta | RefusalDelta | ToolArgumentsDelta | OpaqueDelta
Event: TypeAlias = ReplyStart | PartStart | Delta | PartEnd | UsageUpdate | ReplyEnd | ReplyFail


class TextPieces:
    """The text in the events of one or more streams. Joined, the pieces are the `text` of the
    reply; with `refusals`, the texts of refusals are included."""

    def __init__(self, *, refusals: bool = False) -> None:
        self._deltas: tuple[type[Delta], ...] = (TextDelta, RefusalDelta)[: 1 + refusals]
        self._parts: tuple[type[Part], ...] = (Text, Refusal)[: 1 + refusals]
        self._lengths: dict[int, int] = {}

    def feed(self, event: object) -> str:
        """The piece of text in an event; empty for most other events."""
        if isinstance(event, self._deltas):
            index, delta = event.index, event.delta
            self._lengths[index] = self._lengths.get(index, 0) + len(delta)
            return delta
        if isinstance(event, PartEnd):
            # A part may arrive whole, without a delta.
            length = self._lengths.pop(event.index, 0)
            if isinstance(event.part, self._parts):
                assert isinstance(event.part, Text | Refusal)
                return event.part.text[length:]
        return ""
