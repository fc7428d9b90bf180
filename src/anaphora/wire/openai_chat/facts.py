"""What this wire needs to know of a model: four facts, from its profile."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.catalog import Profile
from anaphora.values import Ttl

#: What marking a part inserts. Without a TTL of its own it lives as long as the request says,
#: and Chat's requests can only say 30 minutes.
MARKERS: dict[Ttl, bytes] = {
    "30m": b',"prompt_cache_breakpoint":{"mode":"explicit"}',
    "12h": b',"prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}',
}

#: The breakpoint that OpenAI places by itself takes a slot, and needs no word in the request.
BY_ITSELF: dict[Ttl, bytes] = {"30m": b""}

#: The nearest lifetime there is for each that may be asked for.
NEAREST: dict[Ttl, Ttl] = {"5m": "30m", "30m": "30m", "1h": "30m", "12h": "12h", "24h": "12h"}


#: What a request can say of all its breakpoints.
REQUEST_TTL: dict[Ttl, Ttl] = dict.fromkeys(NEAREST, "30m")


class Facts(msgspec.Struct, frozen=True):
    max_tokens_field: str
    """max_completion_tokens or max_tokens."""
    system_role: str
    """developer or system."""
    breakpoints: bool
    """Takes `prompt_cache_breakpoint` on parts, and `prompt_cache_options`."""


def facts_of(profile: Profile) -> Facts:
    return Facts(
        _value(profile, "max_tokens_field", "max_completion_tokens"),
        _value(profile, "system_role", "developer"),
        _value(profile, "explicit_breakpoints", False),
    )


def _value(profile: Profile, name: str, otherwise: Any) -> Any:
    figure = getattr(profile, name, None)
    return otherwise if figure is None else figure.value
