"""What is sent to a stop, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from anaphora.errors import AnaphoraError
from anaphora.values import Reply

from .transport import HttpRequest


class Prepared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call as it is sent to one stop."""

    outgoing: HttpRequest
    tokens: Callable[[], int]
    """About how long the prompt is; asked where a limit counts it, at every attempt."""
    gone: tuple[type[AnaphoraError], ...] = ()
    """How the provider says that what the call leans on is there no more: a response that it
    stored, a beginning that it holds. Empty: the call leans on nothing."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came back."""

    stop: int
    prepared: Prepared
    reply: Reply
    raw_hash: str
    at: float
    """When the request that was answered was sent, in seconds since the epoch,"""
    first: float
    """and when its answer began."""
    request_id: str | None


#: Makes the request for a stop; with true, one that leans on no stored response.
Prepare = Callable[[int, bool], Awaitable[Prepared]]
