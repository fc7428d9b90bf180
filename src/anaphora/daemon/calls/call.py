"""All that one call of an app carries. The steps in `calls.steps` fill it, in the order of
`calls.pipeline`; each part below names the step that does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from anaphora.daemon.money.bounds import CostBound
from anaphora.daemon.values import NO_APP, App, Peer, WireRequest
from anaphora.values import Event, Notice, Reply, Usage

from .own_prefixes import NOT_FOUND, FoundPrefix, PrefixScope

if TYPE_CHECKING:
    from anaphora.cache.verdict import Verdict
    from anaphora.client.config.secrets import Secret
    from anaphora.client.in_flight import InFlight, PreparedRequest
    from anaphora.client.observe import Watchers
    from anaphora.client.pool import ProviderPool
    from anaphora.client.response import Attempt, Record
    from anaphora.client.target import Target
    from anaphora.daemon.access.checks import GrantRates
    from anaphora.daemon.access.denials import DenialLog
    from anaphora.daemon.access.granted_models import GrantedTargets
    from anaphora.daemon.access.isolation import OwnReads, SharedProviders
    from anaphora.daemon.endpoints.body import CallBody
    from anaphora.daemon.faces.face import Route
    from anaphora.daemon.facts.request import RequestFacts
    from anaphora.daemon.money.late_bills import GrowingConversation, LateBills, StoredHistory
    from anaphora.daemon.money.ledger import Ledger, OpenHold
    from anaphora.daemon.off_loop import OffLoop
    from anaphora.daemon.shared_state import SharedState, Taken
    from anaphora.errors import Denied
    from anaphora.prompt import Call
    from anaphora.serving.exchange import HttpExchange
    from anaphora.traffic.matching import RememberedCall

    from .conversations import CallMemory
    from .fair_admission import ProviderNews
    from .keep_warm import PrefixRefresher
    from .reading_on import WaitedCall
    from .steps.audit import BreakTexts, Explanations


class CallTools(msgspec.Struct, kw_only=True, eq=False):
    """What all calls of a daemon share."""

    pool: ProviderPool
    granted: GrantedTargets
    ledger: Ledger
    rates: GrantRates
    memory: CallMemory
    shared: SharedProviders
    shared_state: SharedState
    news: ProviderNews
    watchers: Watchers
    denials: DenialLog
    explanations: Explanations
    texts: BreakTexts
    history: StoredHistory
    late_bills: LateBills
    off_loop: OffLoop
    refresher: PrefixRefresher | None = None
    """Where a grant has `keep_warm`."""
    draining: bool = False
    """New calls are refused."""
    _locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = msgspec.field(
        default_factory=WeakValueDictionary
    )

    def refuse(self, call: AppCall, error: Denied) -> None:
        """Notes a call that was refused before anything was sent."""
        self.denials.add(
            call.app.id,
            call.method,
            error,
            request_id=call.request_id,
            provider=call.provider or "",
            model=call.model or "",
            group=call.app.grant.group,
            ignored=call.ignored,
        )

    def lock(self, app: str, provider: str) -> asyncio.Lock:
        """Held by the call of an app that waits for the rate limits of a provider."""
        lock = self._locks.get((app, provider))
        if lock is None:
            lock = self._locks[app, provider] = asyncio.Lock()
        return lock


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


class CallOutcome(msgspec.Struct, frozen=True, eq=False):
    """How an attempt ended, or the whole call. An answer is in the call's flight."""

    error: BaseException | None = None
    sent: bool = True
    """The request may have reached the provider."""
    partial: Reply | None = None
    """What was received of a reply that is not complete."""


class AppCall(msgspec.Struct, kw_only=True, eq=False):
    """One call of an app: a `Call` from JSON-RPC, or a request of a wire."""

    # ── authenticate ──
    request_id: str
    exchange: HttpExchange | None = None
    """The HTTP request; None for calls of JSON-RPC and refreshes."""
    peer: Peer | None = None
    token: Secret | None = None
    """Until the app is known."""
    app: App = NO_APP
    is_admin: bool = False
    """A token of an administrator, at `/rpc`."""
    started: float = 0.0
    """When the request arrived, on the performance counter."""
    span: object = None
    """Of OpenTelemetry, where that is on."""

    # ── read ──
    route: Route | None = None
    """What the path asks for."""
    method: str = ""
    """For the audit log: `llm.complete`, or an endpoint's path."""
    provider: str | None = None
    """The id of a provider or a route; None: the model decides, among what is granted."""
    model: str | None = None
    """None where a stored prompt decides it."""
    stored_at: str | None = None
    """The provider that keeps the objects which the request names."""
    stream: bool = False
    is_large: bool = False
    """So much of it is new that it is read in a thread."""
    call: Call | None = None
    """The prompt of a call of JSON-RPC."""
    request: WireRequest | None = None
    """The request of a wire."""
    body: CallBody | None = None
    """Its body, decoded; until the answer is relayed."""
    notices: tuple[Notice, ...] = ()
    """About what was left out of the request."""
    timeout: float | None = None
    ignored: tuple[str, ...] = ()
    """Names of params that were ignored, for the audit log."""

    # ── permit ──
    targets: Sequence[Target] = ()
    """Where the call may go, the best first."""
    given: RequestFacts | None = None
    """What the app's request asks for; None for a call of JSON-RPC."""
    stored_tokens: int | None = None
    """The size of the history that it refers to."""
    refresher: PrefixRefresher | None = None
    """Keeps the cached prefix alive afterwards, where the grant allows that."""

    # ── plan, for the target of the attempt at hand ──
    parsed: Call | None = None
    """The app's request as a call, where it has to be translated."""
    facts: RequestFacts | None = None
    """Of the request as it is sent."""
    prepared: PreparedRequest | None = None
    passes_bytes: bool = False
    """The target speaks the wire of the app's request."""
    hides_usage: bool = False
    """We requested the usage of the stream; the app did not."""
    masked: bool = False
    """What other apps wrote to the cache must not be seen."""
    remembered: RememberedCall | None = None
    """The call in memory."""
    conversation: tuple[str, int] | None = None
    """Its conversation and turn by the first target that it was prepared for, or of a refresh."""
    scope: PrefixScope | None = None
    """Where the target caches."""
    found: FoundPrefix = NOT_FOUND
    """What the app has sent of the prompt before."""
    bound: CostBound = CostBound(0, 0, 0)
    """The most that the attempt can cost."""
    rated: Taken | None = None
    """What the call takes of the app's rates."""
    grown: list[GrowingConversation] = []
    """Stored conversations that the call runs in."""

    # ── hold ──
    hold: OpenHold | None = None
    """Open until the attempt is settled."""
    held_at: float = 0.0
    """Right before the attempt was sent, on the monotonic clock."""

    # ── send ──
    began: float = 0.0
    """When the call went to the client, on the monotonic clock."""
    flight: InFlight | None = None
    """Of its attempts; the last one's target is the one at hand."""
    sent: bool = False
    """An attempt may have reached a provider."""
    written: bool = False
    """The attempt's request may have been written to a connection."""
    once: bool = False
    """It is not sent again where the provider fails."""

    # ── relay ──
    waited: WaitedCall | None = None
    """The app that waits; None: there is none."""
    left: type[BaseException] | None = None
    """Why the app does not wait any more."""
    head: StreamHead | None = None
    own: OwnReads | None = None
    """What a stream may read of the app's own earlier calls."""
    record: Record | None = None
    """All figures of the call; until the watchers have seen them."""
    reply: AppReply | None = None
    """What the app gets, or got at the end of its stream."""

    # ── settle ──
    disputed: bool = False
    """The reported usage cannot be true."""
    label: str = ""
    """Under which the ledger books all of it; empty: by the blocks of the prompt."""
    usage: Usage = Usage()
    """As the app sees it."""
    hidden: int = 0
    """Tokens that it read and that other apps wrote."""
    shown_usd: Decimal | None = None
    """What the answered attempt cost, as the app sees it."""
    saved: Decimal | None = None
    """What the cache saved, as the app sees it."""
    unbilled: int = 0
    """Nano-dollars that were charged for attempts without a bill,"""
    shown_unbilled: int = 0
    """and the same as the app sees it."""

    # ── judge ──
    early: Verdict | None = None
    """Of a stream, before the bill."""
    judge_early: Callable[[], None] | None = None
    """Makes the early verdict of the attempt; None: it is made."""
    refreshed: tuple[Notice, ...] = ()
    """About the pause of the conversation that the call ended."""
