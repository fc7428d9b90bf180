"""The emulator's settings."""

from __future__ import annotations

import re

import msgspec

from anaphora.errors import InvalidRequest

from .faults import Faults
from .replies.script import Script

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")


class Latency(msgspec.Struct, frozen=True):
    """Seconds before the first byte of a response, and between two chunks of a stream."""

    first: float = 0.0
    pace: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Latency:
        """Reads `50ms`, or `200ms,10ms` with the time between two chunks of a stream."""
        matches = [_DURATION.match(part.strip()) for part in text.split(",")]
        if len(matches) > 2 or None in matches:
            reason = f"{text!r} is not a duration; write 50ms, 1.5s, or 200ms,10ms"
            raise InvalidRequest(reason, path="latency")
        units = {"ms": 0.001, "s": 1.0}
        return cls(*(float(match[1]) * units[match[2]] for match in matches if match is not None))


class EmulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    """Another seed gives other replies and ids."""
    latency: Latency = Latency()
    providers: tuple[str, ...] = ()
    """The providers to serve; empty: all."""
    keys: frozenset[str] | None = None
    """The API keys to accept; None: any."""
    script: Script = Script()
    """Scripted replies; requests that match no rule get a generated reply."""
    faults: Faults = Faults()
    """The faults to inject; a request's header may ask for another."""
    strict: bool = True
    """Reject what the provider rejects; otherwise only requests that cannot be read."""
    remembered: int = 1000
    """How many calls the journal keeps."""
