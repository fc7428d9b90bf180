"""Places cache markers in the requests of a relayed program: the `place` of the relay.

    placer = Placer()
    with running(routes, observers=[placer], place=placer) as proxy: ...

A request that gets markers is rendered from what was read of it, by `wire.splicing`; any other one
goes upstream untouched, as one does for which anything fails, with a notice here. As an observer it
sees if a provider or a gateway rejects markers, and then stops placing them there.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.cache.sent_call import expiry, is_alive, ttl_seconds
from anaphora.cache.verdict import RemedyKind
from anaphora.cache.verdict.remedy import REMEDIES
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor, shown_url
from anaphora.rendered import Plan
from anaphora.values import TTL_SECONDS, Notice
from anaphora.wire.dialect.routers import answering_host, with_host
from anaphora.wire.splicing import check_unambiguous, splice
from anaphora.wording import format_duration

from .accounts import Accounts, credentials, is_signed, keys_in
from .calls import RelayedCall, UpstreamRequest, as_logged, decoded_path, whole_answer
from .planning import (
    ConversationPlans,
    OwnMarkers,
    PlannedCall,
    ReadRequest,
    in_tool_order,
    read_request,
    reordered,
    tool_order,
)
from .sent_requests import read_reply

_FAILED = "markers_not_placed"
_NO_PLAN = Plan()
_ANSWERED = 200
#: Statuses of invalid requests, and words of errors about markers.
_INVALID = (400, 422)
_ABOUT_MARKERS = (
    b"cache_control",
    b"prompt_cache",
    b"breakpoint",
    b"cachePoint",
    b"prompt caching",
)
#: The largest error body that is read.
_MOST_ERROR = 1024 * 1024
#: Maximum number of notices kept, of calls to routers, and of remedies that were announced.
_MOST_NOTICES, _MOST_ROUTED, _MOST_ANNOUNCED = 100, 1024, 1024


class AppliedFix(msgspec.Struct, frozen=True):
    """A remedy that is applied to requests for a model from now on."""

    model: str
    kind: RemedyKind
    text: str

    def __str__(self) -> str:
        return f"fix: {self.model}: {self.text}"


class Placer:
    """Called by the relay with each request; returns its body with markers, or None."""

    def __init__(
        self,
        own_markers: OwnMarkers = "keep",
        *,
        fix: bool = False,
        on_fix: Callable[[AppliedFix], None] = lambda _: None,
    ) -> None:
        """`own_markers`: markers that the program places itself are kept, and take slots first; or
        all are replaced by the planner's. `fix` applies the other remedies that change no meaning
        as well; `on_fix` gets each, before the first request that it changes."""
        self._replace = own_markers == "replace"
        self._fix, self._on_fix = fix, on_fix
        self._plans = ConversationPlans(own_markers, fix=fix)
        self._routed = BoundedMap[int, tuple[PlannedCall, ReadRequest]](_MOST_ROUTED)
        """Calls to routers that are not answered yet."""
        self._announced = BoundedMap[tuple[str, str], bool](_MOST_ANNOUNCED)
        self.fixes: Counter[RemedyKind] = Counter()
        """How many requests each remedy changed."""
        self._lock = threading.Lock()
        self._accounts = Accounts()
        self._rejected: set[str] = set()
        """Base URLs that do not accept markers."""
        self.placed = 0
        """Requests that got markers."""
        self.unchanged: Counter[str] = Counter()
        """Requests left unchanged, by reason."""
        self.notices: deque[Notice] = deque(maxlen=_MOST_NOTICES)
        """The latest notices, about omitted markers and unreadable requests."""

    @property
    def failures(self) -> tuple[Notice, ...]:
        """The notices about requests left unchanged because something failed."""
        return tuple(notice for notice in self.notices if notice.code == _FAILED)

    def rejects(self, upstream: str) -> bool:
        """Whether markers were rejected at a base URL."""
        return upstream in self._rejected

    def __call__(self, request: UpstreamRequest) -> bytes | None:
        with self._lock:
            try:
                placed = self._place(request)
            except AnaphoraError as problem:
                placed = self._failure("that cannot be read", str(problem), request)
            except Exception as problem:
                reason = f"{type(problem).__name__} while placing markers"
                placed = self._failure("left after an internal error", reason, request)
            if isinstance(placed, bytes):
                self.placed += 1
                return placed
            self.unchanged[placed] += 1
            return None

    def call_ended(self, call: RelayedCall) -> None:
        """Records rejected markers, and the host behind a router that answered."""
        if call.number in self._routed:
            with self._lock, suppress(AnaphoraError, InvalidCompression, UnknownCompression):
                self._answered(call)
        if call.sent_body is None or call.status not in _INVALID or call.pieces is None:
            return
        encoding = dict(call.response_headers).get("content-encoding", "")
        try:
            answer = decoded(b"".join(each.data for each in call.pieces), encoding, _MOST_ERROR)
        except (InvalidCompression, UnknownCompression):
            return
        if not any(name in answer for name in _ABOUT_MARKERS):
            return
        with self._lock:
            self._rejected.add(call.route.upstream)
            where = call.route.provider or shown_url(call.route.upstream)
            reason = f"{where} rejected a request with markers: none are placed there any more"
            self._note([Notice(_FAILED, reason)])

    def _place(self, request: UpstreamRequest) -> bytes | str:
        """The body with markers, or why it has none."""
        body, path = request.body, decoded_path(request.path)
        if not isinstance(body, bytes):
            return "too large to change"
        if request.route.upstream in self._rejected:
            return "for a provider that rejected markers"
        if is_signed(request.headers) and not request.route.signs:
            return "signed by the command"
        headers = dict(request.headers)
        read = read_request(request.method, request.route.provider, path, headers, body)
        if read is None:
            return "not calls of a model"
        if not read.takes_markers and not self._fix:
            return "for a provider without cache markers"
        codec, asked = read.codec, read.call
        assert codec is not None
        assert asked is not None
        found = credentials(request.headers, request.query)
        account = self._accounts.digest(request.route, found)
        before, done = None, dict[RemedyKind, str]()
        if self._fix:
            before = self._plans.before(read, scope=account)
            ordered = None if before is None else in_tool_order(asked, before.tools)
            if ordered is not None:
                read, asked = reordered(read, ordered), ordered
                done["keep_tools"] = "send the tools in the order of the earlier call"
        planned = self._plans.add(read, scope=account, at=request.started)
        plan = planned.plan
        if self._fix:
            planned.tools = tool_order(asked)
            plan = self._pinned(request, read, planned, before)
        if plan is None and planned.longer is None and not done:
            return "that no change is expected to make cheaper"
        plan = plan or Plan(automatic=read.rendered.automatic)
        slots = read.rules.slots.value
        if plan.automatic is not None:
            slots -= read.rules.automatic_slots.value
        spliced = splice(
            codec,
            read.rendered,
            plan,
            replace=self._replace,
            slots=slots,
            longer=planned.longer,
        )
        self._note((*plan.notices, *spliced.notices))
        sent, own = spliced.plan, read.rendered
        changed = replace(sent, marks=(), automatic=None, notices=()) != _NO_PLAN
        if not (changed or done or (sent.marks, sent.automatic) != (own.marks, own.automatic)):
            return "with the markers already"
        check_unambiguous(body)
        done |= _changes(read, planned, sent)
        for kind, text in done.items():
            self._announce(own.model, kind, text)
        return spliced.body

    def _pinned(
        self,
        request: UpstreamRequest,
        read: ReadRequest,
        planned: PlannedCall,
        before: PlannedCall | None,
    ) -> Plan | None:
        """The plan with the host that has the prefix, at a router that tries others if that one
        fails; its answer will name the host of the next call."""
        router = None if read.dialect is None else read.dialect.router
        if router is None or not router.pin or not request.number:
            return planned.plan
        self._routed[request.number] = planned, replace(read, call=None)
        host, until = ("", 0.0) if before is None else before.host
        if not host or not is_alive(until, request.started):
            return planned.plan
        if with_host(read.rendered, host, router) is None:
            return planned.plan
        return replace(planned.plan or Plan(automatic=read.rendered.automatic), host=host)

    def _answered(self, call: RelayedCall) -> None:
        """Remembers the host that answered."""
        planned, read = self._routed.pop(call.number)
        if call.status != _ANSWERED or call.outcome != "complete":
            return
        logged = as_logged(call, read.rendered.wire, decoded_path(call.path), whole_answer(call))
        reply = read_reply(logged)[0]
        if reply is not None and (reply.usage.input or 0) >= read.rules.minimum_tokens.value:
            host = answering_host(reply, dict(call.response_headers), read.dialect)
            planned.host = host, expiry(call.started, ttl_seconds(read.rules))

    def _announce(self, model: str, kind: RemedyKind, text: str) -> None:
        """Passes on what is changed in a model's requests, before the first of them is sent."""
        self.fixes[kind] += 1
        if (model, text) not in self._announced:
            self._announced[model, text] = True
            self._on_fix(AppliedFix(model, kind, text))

    def _failure(self, kind: str, reason: str, request: UpstreamRequest) -> str:
        redact = Redactor(keys_in(credentials(request.headers, request.query)))
        notice = f"a request was left without markers: {redact(reason)}"
        self._note([Notice(_FAILED, notice, redact(decoded_path(request.path)))])
        return kind

    def _note(self, notices: Iterable[Notice]) -> None:
        """Adds a notice, each only once."""
        self.notices.extend(notice for notice in notices if notice not in self.notices)


def _changes(read: ReadRequest, planned: PlannedCall, plan: Plan) -> dict[RemedyKind, str]:
    """What the plan that is sent has changed, by the remedies."""
    done = dict[RemedyKind, str]()
    if planned.longer is not None:
        seconds = format_duration(TTL_SECONDS[planned.longer])
        done["longer_ttl"] = f"cache for {seconds}, as the pauses so far are longer than the TTL"
    if len(plan.marks) > len(read.rendered.marks) or plan.only_marks:
        done["place_markers"] = "place cache markers"
    if plan.key is not None:
        done["cache_key"] = REMEDIES["cache_key"]
    if plan.host:
        done["pin_host"] = f"stay at {plan.host}, which has the prefix"
    return done
