"""Explicit caches: a beginning that the provider holds under a handle.

    held = Held(handle, chunks, digest(rendered, chunks))     once the provider gave the handle
    check(later, held)                                        why it no longer fits, or None

Knows no wire: what a handle freezes besides chunks is `Rendered.frozen_with`.
"""

from __future__ import annotations

from anaphora.rendered import CacheHandle, Rendered
from anaphora.rendered.holding import held_digest, misfit
from anaphora.values import Notice


def digest(rendered: Rendered, chunks: int) -> str:
    """What a handle over the first chunks stands for: their bytes, and the settings that it
    freezes with them."""
    return held_digest(rendered, chunks)


def check(rendered: Rendered, held: CacheHandle) -> Notice | None:
    """Why the handle cannot be used for this call: the prompt begins otherwise, a frozen setting
    changed, nothing would be left to send, or the wire holds nothing. None when it can."""
    found = misfit(rendered, held)
    return None if found is None else Notice(found.code, found.reason, "plan.held")
