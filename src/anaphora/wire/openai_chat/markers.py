"""Breakpoints of Chat: their bytes, the models that take them, and the chunk a mark means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from anaphora.catalog import Profile
from anaphora.prompt import BlockMark, MarkRequest, PromptIR, ToolMark
from anaphora.rendered import ChunkRun
from anaphora.values import Message, Ttl
from anaphora.wire.markers import MarkLocation, find_message, nearest_ttls
from anaphora.wire.openai import NEAREST, profile_value

#: The bytes that mark a part. Without a TTL it has the request's, which is always 30 minutes.
MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}

#: The breakpoint that OpenAI sets by itself takes a slot, but no bytes in the request.
AUTOMATIC: dict[Ttl, bytes] = {"30m": b""}

#: The TTL of `prompt_cache_options` for each that may be asked for.
REQUEST_TTL: dict[Ttl, Ttl] = dict.fromkeys(NEAREST, "30m")

#: Types of content parts that may carry a breakpoint.
MARKABLE = frozenset({"text", "image_url", "input_audio", "file"})


class Traits(msgspec.Struct, frozen=True):
    """How a model's profile and its provider's dialect change requests."""

    max_tokens_field: str
    """max_completion_tokens or max_tokens."""
    system_role: str
    """developer or system."""
    breakpoints: bool
    """Parts may be marked."""
    options: bool
    """Takes OpenAI's `prompt_cache_options`, and OpenAI sets a breakpoint by itself."""
    markers: Mapping[Ttl, bytes]
    nearest: Mapping[Ttl, Ttl]
    reasoning_field: str | None
    """The field for reasoning; None: the one that it came in."""
    host: str
    """The provider: reasoning is sent back only to the host it came from."""
    reasoning_needed: bool
    """Rejects an assistant message with tool calls and without reasoning."""


def traits_of(profile: Profile, markers: Mapping[Ttl, bytes] | None = None) -> Traits:
    """`markers` are the dialect's, where they differ from OpenAI's; empty: it has none."""
    own = markers is None
    breakpoints = profile_value(profile, "explicit_breakpoints", False) if own else bool(markers)
    return Traits(
        max_tokens_field=profile_value(profile, "max_tokens_field", "max_completion_tokens"),
        system_role=profile_value(profile, "system_role", "developer"),
        breakpoints=breakpoints,
        options=own and breakpoints,
        markers=(MARKERS if markers is None else markers) if breakpoints else {},
        nearest=NEAREST if not markers else nearest_ttls(markers),
        reasoning_field=profile_value(profile, "reasoning_field", None),
        host=profile.provider,
        reasoning_needed=profile_value(profile, "reasoning_needed", False),
    )


def locate(
    mark: MarkRequest,
    ir: PromptIR,
    runs: list[ChunkRun],
    traits: Traits,
    positions: Callable[[Message], Sequence[tuple[tuple[int, ...], bool]]],
) -> MarkLocation:
    """The chunk that a mark means, or why there is none. `positions` gives for each chunk of a
    message the path of its part, and whether it may be marked."""
    if not traits.breakpoints:
        return "this model takes no breakpoints; it caches by itself"
    if isinstance(mark, ToolMark):
        return "a tool definition takes no breakpoint here"
    if isinstance(mark, BlockMark):
        position = ir.system_field_index(mark.index)
        if position is None:
            return f"no system block {mark.index}, or a blank one"
        return position, None  # system blocks are hashed first
    match = find_message(runs, mark.message_id)
    if match is None:
        return f"no message {mark.message_id}"
    run, first, chunks = match
    if chunks:
        message = run.source[run.log.message_of(chunks.start)]
        # The last chunk below the path: a tool result may be several.
        located = reversed(list(zip(chunks, positions(message), strict=True)))
        for chunk, (path, markable) in located:
            if markable and path[: len(mark.path)] == mark.path:
                return first + chunk, None
    if not mark.path:
        return f"no part of message {mark.message_id} takes a breakpoint"
    return f"part {list(mark.path)} of message {mark.message_id} takes no breakpoint"
