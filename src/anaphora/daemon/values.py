"""The values that the parts of the daemon hand to each other, and the interfaces between them.

    endpoint or JSON-RPC method ─AppCall─▶ Delegation ─▶ AppReply, or AppStream

An endpoint authenticates the app and reads the request. `Delegation` checks the grant, holds the
most that the call can cost, sends it, settles the hold to the bill, and judges the cache.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import msgspec

from anaphora.cache.verdict import Verdict
from anaphora.client.response import Attempt
from anaphora.errors import AnaphoraError, Denied, StoreUnavailable
from anaphora.prompt import Call
from anaphora.values import Event, Notice, Reply, Usage
from anaphora.wire.body_memory import ListElements
from anaphora.wire.reading import Members

from .access.grants import AppGrant

T = TypeVar("T")


class Peer(msgspec.Struct, frozen=True):
    """Where a connection comes from."""

    address: str
    """An IP address; `socket` for the Unix socket."""
    uid: int | None = None
    """The peer's user on the Unix socket."""


ERROR_KEY = "anaphora.error"
"""In the scope of a request: the kind of the error that it was answered with, for the log."""
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


class AppCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One call of an app: a `Call` from JSON-RPC, or a request of a wire."""

    app: App
    request_id: str
    method: str
    """For the audit log: `llm.complete`, or an endpoint's path."""
    provider: str | None
    """The id of a provider or a route; None: the model decides, among what is granted."""
    model: str | None
    stored_at: str | None = None
    """The provider that keeps the objects which the request names."""
    stream: bool = False
    is_large: bool = False
    """So much of it is new that it is read in a thread."""
    call: Call | None = None
    request: WireRequest | None = None
    timeout: float | None = None
    ignored: tuple[str, ...] = ()
    """Names of params that were ignored, for the audit log."""


class AppReply(msgspec.Struct, kw_only=True, eq=False):
    """What became of a call, as its app may see it."""

    request_id: str
    provider: str
    """The id in llm.yaml that answered."""
    wire: str
    """The provider's wire: a name of `wire.WIRES`, also where it has a dialect of it."""
    model: str
    """The model that answered."""
    reply: Reply
    """Its usage is masked where apps must not see each other's cache reads."""
    body: bytes | None = None
    """The response as the provider sent it, where the request went through on the app's own wire
    and nothing in it has to change."""
    headers: tuple[tuple[str, str], ...] = ()
    """Of the provider's response, those that may be passed on."""
    usage: Usage = Usage()
    most_usage: Usage | None = None
    """The most that it can be, where the reported one cannot be true."""
    cost_usd: Decimal | None = None
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class StreamHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a stream begins."""

    request_id: str
    provider: str
    wire: str
    model: str
    passes_bytes: bool
    """Whether pieces hold the provider's bytes for the app."""
    reply_id: str = ""
    """As the provider names it; empty where it is not known yet."""
    headers: tuple[tuple[str, str], ...] = ()
    verdict: Verdict | None = None
    """Against the call before, without a bill."""
    notices: tuple[Notice, ...] = ()


class StreamPiece(msgspec.Struct, frozen=True, eq=False):
    """Events, and the bytes they came in where those go to the app as they are."""

    events: tuple[Event, ...]
    data: bytes | None = None


class AppStream(Protocol):
    """A response that is arriving. Reading it slowly slows the provider down."""

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which reads the stream and writes it to the app; afterwards the
        stream is closed. Where the app goes before the end (this is cancelled, or `work` cannot
        write), it is let go at once, and the answer is read on where the provider bills all of
        it."""
        ...

    async def head(self) -> StreamHead:
        """When the first event has arrived; raises what `complete` would raise."""
        ...

    def __aiter__(self) -> AsyncIterator[StreamPiece]: ...

    @property
    def reply(self) -> AppReply | None:
        """After the last piece."""
        ...

    async def aclose(self) -> None:
        """Cancels upstream where the stream has not ended, and settles what was received."""
        ...


class Delegation(Protocol):
    """Makes the calls of apps. In this order, before anything is sent: `InvalidRequest` where the
    provider is unknown, the model not one of its `known_models`, or the prompt has no message that
    its wire takes (the path is the field's: `provider`, `model`, `messages`); then `Denied` by the
    grant. Otherwise raises what a client does."""

    async def complete(self, call: AppCall) -> AppReply:
        """A call of `nexo/admin/llm/complete` or `llm.complete` without `max_tokens` gets the
        provider's configured default, at most the grant's largest."""
        ...

    def stream(self, call: AppCall) -> AppStream: ...

    def check_before_body(
        self, app: App, method: str, *, stream: bool, request_id: str = ""
    ) -> None:
        """Raises `Denied` for what an app may not do whatever its request holds: it has not the
        capability, or its requests of this minute are used up. Audits it."""
        ...

    def deny(self, app: App, method: str, error: Denied, *, request_id: str = "") -> None:
        """Audits a call that was refused before it became an `AppCall`. Never fails."""
        ...

    async def count_tokens(self, call: AppCall) -> tuple[int, bool]:
        """The tokens of a call's prompt, and whether the provider counted them (else estimated)."""
        ...

    def models(self, app: App) -> tuple[GrantedModel, ...]:
        """What the app may call."""
        ...

    async def explain(self, app: App, request_id: str) -> dict[str, Any] | None:
        """The verdict of one of the app's recent calls, as JSON values."""
        ...


class GrantedModel(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    is_route: bool = False
    """`model` is the name of a route, which stands for its models."""
    context: int | None = None
    """Tokens of the window, where known."""
    max_output: int | None = None
