"""Breakpoints of Chat: their bytes, and the models that take them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from anaphora.catalog import Profile
from anaphora.values import Ttl
from anaphora.wire.markers import nearest_ttls
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
