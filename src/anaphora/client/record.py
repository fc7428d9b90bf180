"""What is known of a call when it is over: for the caller, and for whoever watches.

Carries no prompt and no answer of its own making, but what others said may quote them: a provider
in what it says of a failure (`Attempt.reason`), a verdict in the bytes around a change. So a record
is for this process; `observe.export` decides what of it may leave.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.values import Notice, StopReason, Usage


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a request was sent, or could not be."""

    provider: str
    """The id in the configuration."""
    model: str
    at: float
    """When it began, in seconds since the epoch,"""
    seconds: float
    """and how long it took, the wait for our own limits not counted."""
    queued: float = 0.0
    """How long it had to wait for our own limits."""
    status: int | None = None
    request_id: str | None = None
    error: str | None = None
    """The class in `anaphora.errors`; None: this one was answered."""
    reason: str = ""
    """What the error said."""
    wait: float | None = None
    """How long the next attempt was put off."""


class BlockShare(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt is in a block, by its label."""

    label: str
    section: Literal["tools", "system", "messages"]
    tokens: int


Operation: TypeAlias = Literal["chat", "prewarm"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One call, from the caller's side: however often it was sent."""

    operation: Operation = "chat"
    provider: str
    """The id in the configuration,"""
    system: str
    """and whose service that is: `anthropic`, `openai`, …"""
    wire: str
    host: str
    model: str
    """The one that was asked for,"""
    answered_by: str | None = None
    """and the one that answered."""
    response_id: str | None = None
    request_id: str | None = None
    streamed: bool = False
    at: float
    """Seconds since the epoch; the others count from here."""
    first: float | None = None
    """When the answer began,"""
    seconds: float
    """and when everything was over."""
    attempts: tuple[Attempt, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    stop: StopReason | None = None
    usage: Usage = Usage()
    predicted: int | None = None
    """Tokens that should have been read by the rules, as it was seen before sending."""
    verdict: Verdict | None = None
    cost_usd: Decimal | None = None
    saved: Decimal | None = None
    """What the cache took off the bill, what writing to it cost counted in."""
    blocks: tuple[BlockShare, ...] = ()
    error: str | None = None
    notices: tuple[Notice, ...] = ()
