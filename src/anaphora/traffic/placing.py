"""Places cache markers in the requests of a relayed program: the `place` of the relay.

    placer = Placer()
    with running(routes, observers=[placer], place=placer) as proxy: ...

Only markers are added to a request, by `wire.splice`. If anything fails, the request goes upstream
unchanged, with a notice here. As an observer it sees if a provider or a gateway rejects markers,
and then stops placing them there.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression, decoded
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor, shown_url
from anaphora.values import Notice
from anaphora.wire.splicing import splice

from .accounts import Accounts, credentials, keys_in
from .calls import RelayedCall, UpstreamRequest, decoded_path
from .planning import ConversationPlans, OwnMarkers, read_request

if TYPE_CHECKING:
    from anaphora.client.seen import SeenIndex

_FAILED = "markers_not_placed"
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
#: Maximum number of notices kept.
_MOST_NOTICES = 100


class Placer:
    """Called by the relay with each request; returns its body with markers, or None."""

    def __init__(self, own_markers: OwnMarkers = "keep", *, seen: SeenIndex | None = None) -> None:
        """`own_markers`: markers that the program places itself are kept, and take slots first; or
        all are replaced by the planner's. `seen` has beginnings of earlier runs."""
        self._replace = own_markers == "replace"
        self._plans = ConversationPlans(own_markers, seen=seen)
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
                placed = self._failure("cannot be read", str(problem), request)
            except Exception as problem:
                reason = f"{type(problem).__name__} while placing markers"
                placed = self._failure("internal error", reason, request)
            if isinstance(placed, bytes):
                self.placed += 1
                return placed
            self.unchanged[placed] += 1
            return None

    def call_ended(self, call: RelayedCall) -> None:
        """Records rejected markers."""
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
            return "too large"
        if request.route.upstream in self._rejected:
            return "markers were rejected"
        headers = dict(request.headers)
        read = read_request(request.method, request.route.provider, path, headers, body)
        if read is None:
            return "not a call of a model"
        if not read.takes_markers:
            return "no markers here"
        found = credentials(request.headers, request.query)
        account = self._accounts.digest(request.route, found)
        planned = self._plans.add(read, scope=account, at=request.started, host=request.route.host)
        plan, slots = planned.plan, read.rules.slots.value
        if plan is None:
            return "reuse is not expected"
        if plan.automatic is not None:
            slots -= read.rules.automatic_slots.value
        spliced = splice(
            body, plan, read.rendered, read.dialect, replace=self._replace, slots=slots
        )
        self._note((*plan.notices, *spliced.notices))
        return "nothing to add" if spliced.body is body else spliced.body

    def _failure(self, kind: str, reason: str, request: UpstreamRequest) -> str:
        redact = Redactor(keys_in(credentials(request.headers, request.query)))
        notice = f"a request was left without markers: {redact(reason)}"
        self._note([Notice(_FAILED, notice, redact(decoded_path(request.path)))])
        return kind

    def _note(self, notices: Iterable[Notice]) -> None:
        """Adds a notice, each only once."""
        self.notices.extend(notice for notice in notices if notice not in self.notices)
