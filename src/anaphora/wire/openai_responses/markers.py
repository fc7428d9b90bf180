"""Breakpoints of Responses: their bytes, and the models that take them."""

from __future__ import annotations

import msgspec

from anaphora.catalog import Profile
from anaphora.values import Ttl
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
