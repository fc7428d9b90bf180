"""Small values shared by the parts of the daemon. The state of a call is in `calls.call`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from anaphora.errors import AnaphoraError, Denied, StoreUnavailable
from anaphora.wire.reading import Members

from .access.grants import AppGrant

SOCKET = "socket"
"""The address of peers on the Unix socket."""


class Peer(msgspec.Struct, frozen=True):
    """The origin of a connection."""

    address: str
    """An IP address, or `SOCKET`."""
    uid: int | None = None
    """The peer's user on the Unix socket."""


ERROR_KEY = "anaphora.error"
"""In the scope of a request: the kind of its error, for the log."""
REQUEST_ID_KEY = "anaphora.request_id"
"""In the scope of a request, for errors that the server writes."""
TOKEN_KEY = "anaphora.token"
"""In the scope of a request that may begin an upload: its token, as a `Secret`."""


def kind_of(problem: AnaphoraError) -> str:
    """A constant of the error's class, without anything that a provider sent."""
    return problem.kind if isinstance(problem, Denied) else type(problem).__name__


def public_text(problem: AnaphoraError) -> str:
    """The message for an app, without the store's address."""
    return problem.public if isinstance(problem, StoreUnavailable) else str(problem)


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An app with a valid token."""

    id: str
    grant: AppGrant
    app_grant: AppGrant | None = None
    """Of a narrowed token: the grant of the app."""
    token_id: str = ""
    """Id of the token, not secret. Streams end when their token is revoked."""
    label: str = ""
    """Of a narrowed token: the label of its budget."""
    budgets: tuple[str, ...] = ()
    """Of a narrowed token: the ids of the budgets that its calls count against, the outermost
    first. Its own has the token's id."""
    budget_limits: tuple[int, ...] = ()
    """The limits of `budgets`, in nano-dollars."""

    @property
    def owner(self) -> str:
        """The owner of what calls leave behind: handles, conversations, verdicts, running requests.
        Narrowed tokens do not share theirs with the app. Rates, slots, bodies, bills and the
        provider's cache belong to the app (`id`)."""
        return f"{self.id}/{self.token_id}" if self.budgets else self.id

    @property
    def budget(self) -> str:
        """The id of the token's own budget; empty without one."""
        return self.budgets[-1] if self.budgets else ""


def app_of(owner: str) -> str:
    """The id of the app of an `App.owner`."""
    return owner.partition("/")[0]


CallScope: TypeAlias = tuple[str, ...]
"""Where calls are compared: the owner, the provider, its wire and the model."""


def cache_scope(scope: CallScope) -> CallScope:
    """The scope of the provider's cache, which an app shares with its narrowed tokens."""
    return (app_of(scope[0]), *scope[1:]) if "/" in scope[0] else scope


NO_APP = App(id="", grant=AppGrant(app=""))
"""The app of unauthenticated requests, and of administrators, who make no calls."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An app's request to a provider-compatible endpoint."""

    wire: str
    """A name of `wire.WIRES`."""
    path: str
    """The provider's path: `/v1/messages`."""
    body: bytes
    members: Members
    """The body's fields, decoded once by the strict reader."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that may go upstream: `anthropic-version`, granted `anthropic-beta` values."""


class GrantedModel(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    is_route: bool = False
    """`model` is the name of a route."""
    context: int | None = None
    """Tokens of the context window, if known."""
    max_output: int | None = None
