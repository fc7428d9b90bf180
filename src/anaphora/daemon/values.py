"""Small values that the parts of the daemon hand to each other. What a call carries is in
`calls.call`."""

from __future__ import annotations

import msgspec

from anaphora.errors import AnaphoraError, Denied, StoreUnavailable
from anaphora.wire.elements import ListElements
from anaphora.wire.reading import Members

from .access.grants import AppGrant

SOCKET = "socket"
"""The address of peers on the Unix socket."""


class Peer(msgspec.Struct, frozen=True):
    """Where a connection comes from."""

    address: str
    """An IP address, or `SOCKET`."""
    uid: int | None = None
    """The peer's user on the Unix socket."""


ERROR_KEY = "anaphora.error"
"""In the scope of a request: the kind of the error that it was answered with, for the log."""
REQUEST_ID_KEY = "anaphora.request_id"
"""In the scope of a request, for errors that the server writes."""
TOKEN_KEY = "anaphora.token"
"""In the scope of a request that may begin an upload: its token, as a `Secret`."""


def kind_of(problem: AnaphoraError) -> str:
    """A constant of the error's class, without anything that a provider sent."""
    return problem.kind if isinstance(problem, Denied) else type(problem).__name__


def public_text(problem: AnaphoraError) -> str:
    """The message for an app, which does not learn where the store is."""
    return problem.public if isinstance(problem, StoreUnavailable) else str(problem)


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An app that has shown a valid token."""

    id: str
    grant: AppGrant
    token_id: str = ""
    """Names the token, and is no secret: a stream ends when its token is revoked."""


NO_APP = App(id="", grant=AppGrant(app=""))
"""Who sends a request that is not authenticated yet; and administrators, who make no calls."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request to a provider-compatible endpoint, as the app sent it."""

    wire: str
    """A name of `wire.WIRES`."""
    path: str
    """As the provider has it: `/v1/messages`."""
    body: bytes
    members: Members
    """The body's fields, decoded once by the strict reader."""
    headers: tuple[tuple[str, str], ...] = ()
    """Those that may go upstream: `anthropic-version`, granted `anthropic-beta` values."""
    elements: ListElements | None = None
    """The messages, where they were taken out of the body before."""


class GrantedModel(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    is_route: bool = False
    """`model` is the name of a route, which stands for its models."""
    context: int | None = None
    """Tokens of the window, where known."""
    max_output: int | None = None
