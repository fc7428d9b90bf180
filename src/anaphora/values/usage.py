"""What a call was billed for, as a partition: no token is counted twice.

Providers disagree on whether "input" includes cached tokens. Here every input token is in exactly
one of uncached, read and written; `None` means "not reported", which is not 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .stability import Ttl

#: Written tokens by the TTL they were written for; "unsplit" when the provider gave only a sum.
WriteTtl: TypeAlias = Ttl | Literal["unsplit"]


class Usage(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """Token counts of one call."""

    uncached: int | None = None
    """Input that was neither read from nor written to the cache."""
    read: int | None = None
    """Input read from the cache."""
    written: dict[WriteTtl, int] | None = None
    """Input written to the cache, by TTL."""
    output: int | None = None
    """Everything the model produced, reasoning included."""
    reasoning: int | None = None
    """The part of `output` that was reasoning."""
    overlap: int = 0
    """Input tokens that the provider counted in two places; here they are in one."""
    raw: str | None = None
    """The provider's own usage object, as JSON text."""

    @property
    def written_total(self) -> int | None:
        return None if self.written is None else sum(self.written.values())

    @property
    def input(self) -> int | None:
        """All input tokens; unknown when nothing about the input was reported."""
        uncached, read, written = self.uncached, self.read, self.written
        if uncached is None and read is None and written is None:
            return None
        return (uncached or 0) + (read or 0) + (sum(written.values()) if written else 0)

    @property
    def total(self) -> int | None:
        if self.input is None or self.output is None:
            return None
        return self.input + self.output
