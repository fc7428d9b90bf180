"""Token counts as a partition, where a provider's input count includes what was cached."""

from __future__ import annotations

from anaphora.values import WriteTtl


def count(told: int | None) -> int | None:
    """A count; nobody sends fewer than no tokens, so a negative one tells nothing."""
    return None if told is None or told < 0 else told


def counts(told: dict[WriteTtl, int]) -> dict[WriteTtl, int]:
    """Written tokens by TTL, without those that nothing was written for."""
    return {ttl: tokens for ttl, tokens in told.items() if tokens > 0}


def partition(
    total: int | None, read: int | None, written: dict[WriteTtl, int] | None
) -> tuple[int | None, int | None, dict[WriteTtl, int] | None, int]:
    """Uncached, read, written, and how many tokens were counted twice.

    Some hosts count what they wrote as read, too, so that the parts are more than the whole. No
    token is in the partition twice: the surplus is taken from what was written, then from what was
    read.
    """
    if total is None:
        return None, read, written, 0
    uncached = total - (read or 0) - sum((written or {}).values())
    if uncached >= 0:
        return uncached, read, written, 0
    surplus = overlap = -uncached
    if written:
        written = dict(written)
        for ttl in reversed(written):
            less = min(surplus, written[ttl])
            written[ttl] -= less
            surplus -= less
        written = counts(written)
    return 0, None if read is None else read - surplus, written, overlap
