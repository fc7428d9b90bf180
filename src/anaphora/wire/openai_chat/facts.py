"""What this wire needs to know of a model, from its profile and its provider's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.catalog import Profile
from anaphora.values import Ttl
from anaphora.wire.markers import nearest_ttls

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
    """Parts may be marked."""
    options: bool
    """Takes OpenAI's `prompt_cache_options`, and places a breakpoint by itself."""
    markers: Mapping[Ttl, bytes]
    nearest: Mapping[Ttl, Ttl]
    reasoning_field: str | None
    """Where reasoning goes back to the model; None: into the field that it came in."""
    host: str
    """Whose models they are: reasoning goes back to who said it."""
    reasoning_needed: bool
    """An assistant's message that calls tools is refused without its reasoning."""


def facts_of(profile: Profile, markers: Mapping[Ttl, bytes] | None = None) -> Facts:
    """`markers` are the provider's own, where it has others than OpenAI or none."""
    own = markers is None
    breakpoints = _value(profile, "explicit_breakpoints", False) if own else bool(markers)
    return Facts(
        max_tokens_field=_value(profile, "max_tokens_field", "max_completion_tokens"),
        system_role=_value(profile, "system_role", "developer"),
        breakpoints=breakpoints,
        options=own and breakpoints,
        markers=(MARKERS if markers is None else markers) if breakpoints else {},
        nearest=NEAREST if not markers else nearest_ttls(markers),
        reasoning_field=_value(profile, "reasoning_field", None),
        host=profile.provider,
        reasoning_needed=_value(profile, "reasoning_needed", False),
    )


def _value(profile: Profile, name: str, otherwise: Any) -> Any:
    figure = getattr(profile, name, None)
    return otherwise if figure is None else figure.value
