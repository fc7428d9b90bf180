"""Prefixes stored at the provider under a handle: which may be stored, and which calls can use
them."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from .chunks import Rendered
from .plan import CacheHandle


class Misfit(msgspec.Struct, frozen=True):
    """Why a handle cannot be used: a code and a message."""

    code: str
    reason: str


def held_digest(rendered: Rendered, chunks: int) -> str:
    """The identity of a handle over the first chunks: a hash of the frozen settings and one of the
    bytes, so that a mismatch names which of them changed."""
    return f"{_settings(rendered)}-{rendered.digest(chunks).hex()}"


def misfit(rendered: Rendered, held: CacheHandle) -> Misfit | None:
    """Why this call cannot use the handle; None if it can."""
    problem = unholdable(rendered, held.chunks)
    if problem is not None:
        return problem
    settings, _, data = held.digest.partition("-")
    if settings != _settings(rendered):
        return Misfit(
            "held_settings_changed",
            "the handle was created with another model or tool choice",
        )
    if data != rendered.digest(held.chunks).hex():
        return Misfit("held_prefix_changed", "the prompt no longer begins with the stored prefix")
    return None


def unholdable(rendered: Rendered, chunks: int) -> Misfit | None:
    """Why the first chunks cannot be stored under a handle; None if they can."""
    if rendered.frozen_with is None:
        return Misfit("held_unsupported", f"{rendered.wire} has no cache handles")
    whole = sum(run.count for run in rendered.runs if run.section != "messages")
    if chunks >= len(rendered):
        return Misfit("held_too_much", "at least one message must remain to be sent")
    if chunks < max(whole, 1):
        return Misfit(
            "held_too_little", "a handle must contain the whole system prompt and all tools"
        )
    run, index = rendered.locate(chunks)
    if run.position(index)[1]:
        return Misfit("held_inside_message", "a handle must end at the end of a message")
    return None


def _settings(rendered: Rendered) -> str:
    return blake3(rendered.frozen_with or b"").hexdigest(length=16)
