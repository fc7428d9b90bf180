"""What a stream says while it runs.

Events are named noun-action. Every stream begins with `ReplyStart`; every `PartStart` gets its
`PartEnd`; and the last event is always `ReplyEnd` or `ReplyFail`, whatever the connection did.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .parts import Extras, Part
from .reply import Reply
from .usage import Usage


class _Event(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Common ground of all events."""


class ReplyStart(_Event, tag="reply-start", frozen=True):
    id: str
    model: str
    created: float | None = None
    """When it was begun, in seconds since 1970, where whoever answers knows it."""
    extras: Extras | None = None
    """Fields of the answer that are known when it begins; the reply has them too."""


class PartStart(_Event, tag="part-start", frozen=True):
    """A part begins. `kind` is the tag of the part to come; a tool call's id and name are known."""

    index: int
    kind: str
    id: str | None = None
    name: str | None = None
    item: str | None = None
    """The id of what the part is said in, where that has one of its own."""
    extras: Extras | None = None
    """Fields of the part that are known when it begins; the part has them too."""


class PartDelta(_Event, tag="part-delta", frozen=True):
    """More of it: text, reasoning, or the JSON text of arguments."""

    index: int
    delta: str


class PartEnd(_Event, tag="part-end", frozen=True):
    """The part is whole."""

    index: int
    part: Part


class UsageUpdate(_Event, tag="usage-update", frozen=True):
    """Counts as far as they are known; the last one holds."""

    usage: Usage


class ReplyEnd(_Event, tag="reply-end", frozen=True):
    """The answer is complete."""

    reply: Reply


class ReplyFail(_Event, tag="reply-fail", frozen=True):
    """The stream broke; `error` names the class of `anaphora.errors`, `partial` what there is."""

    error: str
    message: str
    code: str | None = None
    partial: Reply | None = None


Event: TypeAlias = ReplyStart | PartStart | PartDelta | PartEnd | UsageUpdate | ReplyEnd | ReplyFail
