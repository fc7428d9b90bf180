"""What a handle holds, and whether it still is what a call begins with.

The planner asks before it plans with a handle, the wire before it leaves out what the handle holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    from .chunks import Rendered
    from .plan import CacheHandle


class Misfit(msgspec.Struct, frozen=True):
    """Why a handle cannot be used: a code for programs, a reason for people."""

    code: str
    reason: str


def held_digest(rendered: Rendered, chunks: int) -> str:
    """What a handle over the first chunks stands for: the settings that it froze, and the bytes.
    Two halves, so that one can tell which of them changed."""
    return f"{_settings(rendered)}-{rendered.digest(chunks).hex()}"


def misfit(rendered: Rendered, held: CacheHandle) -> Misfit | None:
    """Why this call cannot begin with what the handle holds; None when it can."""
    found = unholdable(rendered, held.chunks)
    if found is not None:
        return found
    settings, _, data = held.digest.partition("-")
    if settings != _settings(rendered):
        return Misfit(
            "held_settings_changed",
            "the handle was made with another model or tool choice, which it froze",
        )
    if data != rendered.digest(held.chunks).hex():
        return Misfit("held_prefix_changed", "the prompt no longer begins with what is held")
    return None


def unholdable(rendered: Rendered, chunks: int) -> Misfit | None:
    """Why the first chunks cannot be held under a handle; None when they can."""
    if rendered.frozen_with is None:
        return Misfit("held_unsupported", f"{rendered.wire} holds nothing under a handle")
    whole = sum(run.count for run in rendered.runs if run.section != "messages")
    if chunks >= len(rendered):
        return Misfit("held_too_much", "at least one message must be left to send")
    if chunks < max(whole, 1):
        return Misfit("held_too_little", "a handle holds all of the system prompt and the tools")
    run, at = rendered.locate(chunks)
    if run.position(at)[1]:
        return Misfit("held_inside_message", "what is held ends with a message, not inside one")
    return None


def _settings(rendered: Rendered) -> str:
    return blake3(rendered.frozen_with or b"").hexdigest(length=16)
