"""The ids that messages get by their position.

Every request asks for the same few, and making one costs as much as making a small message.
"""

from __future__ import annotations

from collections.abc import Sequence

_FIRST = tuple(f"m{index}" for index in range(256))


def message_ids(count: int) -> Sequence[str]:
    """`m0`, `m1`, … for that many messages."""
    if count <= len(_FIRST):
        return _FIRST[:count]
    return [*_FIRST, *(f"m{index}" for index in range(len(_FIRST), count))]
