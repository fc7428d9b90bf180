"""The system prompt as labelled blocks, each with the caching it asks for."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from anaphora.values import CachePolicy, Extras

from .checks import expect

_POLICIES = f" ({', '.join(policy.name for policy in CachePolicy)})"


class PromptBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One contiguous slice of the system prompt.

    `label` and `kind` are for telemetry and diagnosis; no provider ever sees them. Keep labels the
    same across requests, so that dashboards can group by them.
    """

    label: str
    text: str
    cache: CachePolicy = CachePolicy.NONE
    kind: str | None = None
    extras: Extras | None = None
    """Fields of a provider's block that have no name here: wire name -> JSON object text."""

    def __post_init__(self) -> None:
        expect(self.text, str, "text")
        expect(self.cache, CachePolicy, "cache", _POLICIES)

    @classmethod
    def plain(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Not cached: sender, current task, whatever changes from call to call."""
        return cls(label, text, CachePolicy.NONE, kind)

    @classmethod
    def cached_short(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Kept for five minutes: what rotates every few turns."""
        return cls(label, text, CachePolicy.EPHEMERAL_5M, kind)

    @classmethod
    def cached_long(cls, label: str, text: str, kind: str | None = None) -> PromptBlock:
        """Kept for an hour: tools, identity, skills; what a whole session shares."""
        return cls(label, text, CachePolicy.EPHEMERAL_1H, kind)


def flatten_blocks(blocks: Iterable[PromptBlock]) -> str:
    """The blocks as one text: empty ones dropped, the rest joined by a blank line."""
    return "\n\n".join(block.text for block in blocks if block.text)
