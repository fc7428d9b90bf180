"""What this wire needs to know of a model."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.catalog import Profile


class Traits(msgspec.Struct, frozen=True):
    """How a model wants its system text, and whether it takes breakpoints."""

    system_role: str = "developer"
    """The role of system messages: `developer` or `system`."""
    system_slot: str = "instructions"
    """System text as `instructions`, or as the first `message` where it can carry breakpoints."""
    explicit: bool = False
    """Takes `prompt_cache_breakpoint` and `prompt_cache_options`."""
    kept: bool = False
    """The slot is the one that the system text came in, and not the profile's."""


def traits(profile: Profile) -> Traits:
    """What the profile says; where it is silent, what every model of OpenAI takes."""
    plain = Traits()
    return Traits(
        system_role=_figure(profile, "system_role", plain.system_role),
        system_slot=_figure(profile, "system_slot", plain.system_slot),
        explicit=_figure(profile, "explicit_breakpoints", plain.explicit),
    )


def in_slot(traits: Traits, slot: str | None) -> Traits:
    """With the slot that the system text came in; None: it came in none."""
    if slot is None or slot == traits.system_slot:
        return traits
    return msgspec.structs.replace(traits, system_slot=slot, kept=True)


def _figure(profile: Profile, name: str, otherwise: Any) -> Any:
    figure = getattr(profile, name, None)
    return otherwise if figure is None else figure.value
