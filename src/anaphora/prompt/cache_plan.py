"""What the caller decides about breakpoints: the only authority on them.

A mark names a tool, a system block, or a part of a message by the message's id. It never names a
message by its index: rendering may merge messages, and then the index would mean another one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from anaphora.values import Extras, Ttl


class _Mark(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="on"
):
    """Common ground of all marks. `extras` are fields of a marker that have no name here: wire
    name -> JSON object text. No marker that is sent has them, and a notice says so."""


class ToolMark(_Mark, tag="tool", frozen=True):
    name: str
    ttl: Ttl = "5m"
    extras: Extras | None = None


class BlockMark(_Mark, tag="block", frozen=True):
    """On the system block at this index of `PromptIR.system_blocks`."""

    index: int
    ttl: Ttl = "5m"
    extras: Extras | None = None


class PartMark(_Mark, tag="part", frozen=True):
    """On a part of a message. `(2,)` is its third part, `(2, 0)` the first part inside that tool
    result; the empty path means the last part that can carry a mark."""

    message_id: str
    path: tuple[int, ...] = ()
    ttl: Ttl = "5m"
    extras: Extras | None = None


MarkRequest: TypeAlias = ToolMark | BlockMark | PartMark


class Earlier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A response given before, by the id its provider knows it by."""

    provider: str
    id: str


class PromptCachePlan(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The caller's own marks, and what the planner should know to place the others."""

    marks: tuple[MarkRequest, ...] = ()
    frozen_through: str | None = None
    """Id of the last message that stays byte-stable until the next compaction."""
    messages: bool = True
    """False when no message may carry a marker, because what stands first among them changes."""
    message_ttl: Ttl | None = None
    """How long the breakpoints inside the history should live; None lets the planner decide."""
    automatic: Ttl | None = None
    """Ask the provider to place a breakpoint by itself (one slot), for this long."""
    mode: Literal["implicit", "explicit"] | None = None
    """Where the provider has both: whether it may add breakpoints of its own."""
    key: str | None = None
    """Requests with the same key are sent where their prefix is likely cached."""
    retention: str | None = None
    """The older way to ask for a longer life, where only that exists."""
    prewarm: bool = False
    """Write the cache, answer nothing."""
    diagnose: bool = False
    """Ask the provider why a prefix was missed,"""
    compare_with: Earlier | None = None
    """compared with this one."""
