"""Stream events, named noun-action.

Every stream begins with `ReplyStart`; every `PartStart` gets its `PartEnd`; and the last event is
always `ReplyEnd` or `ReplyFail`, also if the connection breaks.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .parts import Extras, Part
from .reply import Reply, Usage


class _Event(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Base of all events. Readers make them by the thousand, and nothing is remembered by them: the
    types of their fields are not checked."""


class ReplyStart(_Event, tag="reply-start", frozen=True):
    id: str
    model: str
    created: float | None = None
    """Unix time, if known."""
    extras: Extras | None = None
    """Fields of the reply that are known at its start; the reply has them too."""


class PartStart(_Event, tag="part-start", frozen=True):
    """A part begins. `kind` is the tag of the part to come; a tool call's id and name are known."""

    index: int
    kind: str
    id: str | None = None
    name: str | None = None
    item: str | None = None
    """The id of the item that contains the part, if it has one."""
    extras: Extras | None = None
    """Fields of the part that are known at its start; the part has them too."""


class PartDelta(_Event, tag="part-delta", frozen=True):
    """More text, reasoning, or JSON text of arguments."""

    index: int
    delta: str


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


Event: TypeAlias = ReplyStart | PartStart | PartDelta | PartEnd | UsageUpdate | ReplyEnd | ReplyFail
