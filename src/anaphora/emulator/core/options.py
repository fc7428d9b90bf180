"""How an emulator was started."""

from __future__ import annotations

import re

import msgspec

from anaphora.errors import InvalidRequest

from .faults import Faults
from .replies.script import Script

_LATENCY = re.compile(r"(\d+(?:\.\d+)?)(ms|s)\Z")


class Latency(msgspec.Struct, frozen=True):
    """How long an answer takes, in seconds: until it begins, and between two pieces of it."""

    first: float = 0.0
    pace: float = 0.0

    @classmethod
    def read(cls, text: str) -> Latency:
        """`50ms`, or `200ms,10ms` with the time between two pieces of a stream behind."""
        found = [_LATENCY.match(part.strip()) for part in text.split(",")]
        if len(found) > 2 or None in found:
            raise InvalidRequest(
                f"{text!r} is no time; write 50ms, 1.5s, or 200ms,10ms", path="latency"
            )
        units = {"ms": 0.001, "s": 1.0}
        return cls(*(float(one[1]) * units[one[2]] for one in found if one is not None))


class Options(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 0
    latency: Latency = Latency()
    providers: tuple[str, ...] = ()
    """Those that answer; none named: all."""
    keys: frozenset[str] | None = None
    """The keys that are good; None: any is."""
    script: Script = Script()
    """What is answered; what it does not match is answered with something invented."""
    faults: Faults = Faults()
    """What goes wrong, and when; a request's own header may ask for more."""
    strict: bool = True
    """Refuse what the provider refuses; otherwise only what cannot be read."""
    remembered: int = 1000
    """How many calls the journal keeps."""
