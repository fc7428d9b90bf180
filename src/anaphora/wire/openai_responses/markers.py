"""Breakpoints of Responses: their bytes, the models that take them, and the chunk a mark means."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import BlockMark, Call, MarkRequest, ToolMark
from anaphora.rendered import ChunkRun
from anaphora.values import Ttl
from anaphora.wire.markers import MarkLocation, find_message
from anaphora.wire.openai import profile_value

MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}

#: The breakpoint that OpenAI sets by itself takes no bytes; its TTL is among the cache options.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b"", "12h": b""}


class Traits(msgspec.Struct, frozen=True):
    """How a model's profile changes requests."""

    system_role: str = "developer"
    """The role of system messages: `developer` or `system`."""
    system_slot: str = "instructions"
    """System text as `instructions`, or as the first `message` where it can carry breakpoints."""
    explicit: bool = False
    """Takes `prompt_cache_breakpoint` and `prompt_cache_options`."""
    kept: bool = False
    """The slot is the one that the system text came in, not the profile's."""


def traits_of(profile: Profile, slot: str | None = None) -> Traits:
    """The profile's traits. `slot` is the one that the system text came in, if any."""
    default = Traits()
    traits = Traits(
        system_role=profile_value(profile, "system_role", default.system_role),
        system_slot=profile_value(profile, "system_slot", default.system_slot),
        explicit=profile_value(profile, "explicit_breakpoints", default.explicit),
    )
    if slot is None or slot == traits.system_slot:
        return traits
    return msgspec.structs.replace(traits, system_slot=slot, kept=True)


def locate(
    mark: MarkRequest,
    call: Call,
    runs: list[ChunkRun],
    traits: Traits,
    held: list[ChunkRun],
    part_of: Callable[[ChunkRun, range, tuple[int, ...]], MarkLocation],
) -> MarkLocation:
    """The chunk that a mark means, or why there is none. `held` are the runs that a stored response
    holds; `part_of` finds the chunk of a path in a message's chunks."""
    if not traits.explicit:
        return f"{call.model} takes no breakpoints: it caches by itself"
    if isinstance(mark, ToolMark):
        return "a tool cannot carry a breakpoint here"
    if isinstance(mark, BlockMark):
        if traits.system_slot != "message":
            return "instructions cannot carry a breakpoint"
        if any(run.section == "system" for run in held):
            return "a stored response holds it, so it is not sent"
        position = call.ir.system_field_index(mark.index)
        # System blocks are hashed first.
        return (position, None) if position is not None else f"no system block {mark.index}"
    match = find_message(runs, mark.message_id)
    if match is None:
        return f"no message {mark.message_id}"
    run, first, chunks = match
    if any(run is other for other in held):
        return "a stored response holds it, so it is not sent"
    location = part_of(run, chunks, mark.path)
    if isinstance(location, str):
        return location.format(f"message {mark.message_id}")
    return first + location[0], location[1]
