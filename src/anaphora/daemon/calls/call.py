"""The state of one call of an app. The steps in `calls.steps` fill it, in the order of
`calls.pipeline`; fields are grouped by the step that fills them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from anaphora.client.costs.bounds import CostBound
from anaphora.daemon.values import NO_APP, App, Peer, WireRequest
from anaphora.values import Event, Notice, Reply, Usage

from .own_prefixes import NOT_FOUND, FoundPrefix, PrefixScope

if TYPE_CHECKING:
    from anaphora.cache.verdict import Verdict
    from anaphora.client.config.secrets import Secret
    from anaphora.client.in_flight import InFlight, PreparedRequest
    from anaphora.client.response import Attempt, Record
    from anaphora.client.target import Target
    from anaphora.daemon.access.isolation import OwnReads
    from anaphora.daemon.access.rates import TakenRate
    from anaphora.daemon.endpoints.body import CallBody
    from anaphora.daemon.faces.face import Route
    from anaphora.daemon.money.ledger import OpenHold
    from anaphora.prompt import Call
    from anaphora.serving.exchange import HttpExchange
    from anaphora.traffic.matching import RememberedCall
    from anaphora.wire.known_requests import RequestReading
    from anaphora.wire.permissions.facts import CallFacts
    from anaphora.wire.permissions.kept import CallContent


class AppReply(msgspec.Struct, kw_only=True, eq=False):
    """The result of a call, as its app may see it."""

    request_id: str
    provider: str
    """Id in llm.yaml of the provider that answered."""
    wire: str
    """The provider's wire, a name of `wire.WIRES` even if the provider has a dialect."""
    model: str
    """The model that answered."""
    reply: Reply
    """Its usage is masked if apps must not see each other's cache reads."""
    body: bytes | None = None
    """The provider's response bytes, if the request was passed through on the app's own wire and
    nothing in the response has to change."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of the provider's response that may be passed on."""
    usage: Usage = Usage()
    most_usage: Usage | None = None
    """The bound, if the reported cost is impossible."""
    cost_usd: Decimal | None = None
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()
    attempts: tuple[Attempt, ...] = ()


class StreamHead(msgspec.Struct, frozen=True, kw_only=True):
    """The data known when a stream begins."""

    request_id: str
    provider: str
    wire: str
    model: str
    passes_bytes: bool
    """Whether pieces contain the provider's bytes for the app."""
    reply_id: str = ""
    """The provider's name of it, empty if not known yet."""
    headers: tuple[tuple[str, str], ...] = ()
    verdict: Verdict | None = None
    """Compared with the preceding call, without a bill."""
    notices: tuple[Notice, ...] = ()


class StreamPiece(msgspec.Struct, frozen=True, eq=False):
    """Events, and their original bytes if these go to the app unchanged."""

    events: tuple[Event, ...]
    data: bytes | None = None


class CallOutcome(msgspec.Struct, frozen=True, eq=False):
    """How an attempt or the whole call ended. An answer is in the call's flight."""

    error: BaseException | None = None
    sent: bool = True
    """The request may have reached the provider."""
    partial: Reply | None = None
    """The received part of an incomplete reply."""


class AppCall(msgspec.Struct, kw_only=True, eq=False):
    """One call of an app: a `Call` from JSON-RPC, or a request of a wire."""

    # ── authenticate ──
    request_id: str
    exchange: HttpExchange | None = None
    """The HTTP request; None for calls of JSON-RPC."""
    peer: Peer | None = None
    token: Secret | None = None
    """Removed once the app is known."""
    app: App = NO_APP
    is_admin: bool = False
    """A token of an administrator, at `/rpc`."""
    started: float = msgspec.field(default_factory=time.perf_counter)
    """Arrival of the request, on the performance counter."""
    span: object = None
    """OpenTelemetry's span, if tracing is on."""

    # ── read ──
    route: Route | None = None
    """The operation that the path selects."""
    method: str = ""
    """For the audit log: `llm.complete`, or an endpoint's path."""
    provider: str | None = None
    """Id of a provider or route. None: chosen by model among the granted ones."""
    model: str | None = None
    """None if a stored prompt decides it."""
    stored_at: str | None = None
    """The provider that stores the objects named in the request."""
    stream: bool = False
    is_large: bool = False
    """Its new part is so long that it is read in a thread."""
    call: Call | None = None
    """The parsed request, or the prompt of a call of JSON-RPC."""
    reading: RequestReading | None = None
    """What was read of the request, and the chunks of the turn before."""
    content: CallContent | None = None
    """What the messages of a request of a wire hold besides text."""
    request: WireRequest | None = None
    """The request of a wire."""
    body: CallBody | None = None
    """Its decoded body, until the answer is relayed."""
    notices: tuple[Notice, ...] = ()
    """Notices about parts left out of the request."""
    timeout: float | None = None
    allows_cold: bool = False
    """It may be sent although its cached beginning is gone; a header says the same."""
    ignored: tuple[str, ...] = ()
    """Names of ignored params, for the audit log."""

    # ── permit ──
    targets: Sequence[Target] = ()
    """The targets of the call, the best first."""
    given: CallFacts | None = None
    """The facts of the app's request; None for a call of JSON-RPC."""
    stored_tokens: int | None = None
    """Tokens of the stored history that it refers to."""

    # ── plan, for the target of the attempt at hand ──
    facts: CallFacts | None = None
    """The facts of the request that is sent."""
    prepared: PreparedRequest | None = None
    passes_bytes: bool = False
    """The target speaks the wire of the app's request."""
    hides_usage: bool = False
    """We requested the usage of the stream; the app did not."""
    masked: bool = False
    """Cache writes of other apps must be hidden from the app."""
    remembered: RememberedCall | None = None
    """The call in the memory of conversations."""
    conversation: tuple[str, int] | None = None
    """Its conversation and turn at the first target that it was prepared for."""
    scope: PrefixScope | None = None
    """The scope of the target's cache."""
    found: FoundPrefix = NOT_FOUND
    """The part of the prompt that the app has sent before."""
    bound: CostBound = CostBound(0, 0, 0)
    """The maximum cost of the attempt."""
    rated: TakenRate | None = None
    """The call's share of the app's rates."""

    # ── hold ──
    hold: OpenHold | None = None
    """Open until the attempt is settled."""
    held_at: float = 0.0
    """Right before the attempt was sent, on the monotonic clock."""

    # ── send ──
    began: float = 0.0
    """When the call was given to the client, on the monotonic clock."""
    flight: InFlight | None = None
    """Its attempts. The target of the last one is the current target."""
    sent: bool = False
    """An attempt may have reached a provider."""
    written: bool = False
    """The attempt's request may have been written to a connection."""

    # ── relay ──
    leave: Callable[[BaseException], bool] | None = None
    """Ends the app's waiting, and returns whether the answer is read on; None if no app waits."""
    left: type[BaseException] | None = None
    """Why the app stopped waiting."""
    head: StreamHead | None = None
    own: OwnReads | None = None
    """How much of a stream's cache read can be the app's own."""
    record: Record | None = None
    """All figures of the call, until the watchers have seen them."""
    audited: bool = False
    """Its row was given to the audit log."""
    reply: AppReply | None = None
    """The result for the app; of a stream, set at its end."""

    # ── settle ──
    disputed: bool = False
    """The reported usage is impossible."""
    usage: Usage = Usage()
    """As the app sees it."""
    hidden: int = 0
    """Tokens that it read from what other apps wrote."""
    shown_usd: Decimal | None = None
    """The cost of the answered attempt, as the app sees it."""
    saved: Decimal | None = None
    """The savings by the cache, as the app sees them."""
    unbilled: int = 0
    """Nano-dollars charged for attempts without a bill,"""
    shown_unbilled: int = 0
    """and the same as the app sees it."""

    # ── judge ──
    early: Verdict | None = None
    """Of a stream, before the bill."""
    judged: bool = False
    """The verdict by the bill was made ahead, in a thread."""
    judge_early: Callable[[], None] | None = None
    """Computes the early verdict of the attempt; None once that is done."""
