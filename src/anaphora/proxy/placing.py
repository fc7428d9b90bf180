"""Places cache markers in the requests of a program that is relayed: the `place` of the relay.

    with running(routes, place=Placer()) as proxy: ...

Only markers are added to a request, by `wire.splice`. Whatever fails, the request goes upstream as
the program sent it, with a notice here.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl, unquote

from blake3 import blake3

from anaphora.errors import AnaphoraError
from anaphora.values import Notice
from anaphora.wire.splicing import splice

from .conversation_plans import ConversationPlans, OwnMarkers, read_request
from .exchange import UpstreamRequest

#: Headers and query parameters that tell accounts apart.
_ACCOUNT_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_ACCOUNT_QUERY = ("key", "api_key", "access_token")
#: Notices that are kept.
_MOST_NOTICES = 100


class Placer:
    """Called by the relay with each request; returns its body with markers, or None."""

    def __init__(
        self, own_markers: OwnMarkers = "keep", *, clock: Callable[[], float] = time.time
    ) -> None:
        """`own_markers`: markers that the program places itself are kept, and take slots first; or
        all are replaced by the planner's."""
        self._replace = own_markers == "replace"
        self._plans = ConversationPlans(own_markers)
        self._clock = clock
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self.placed = 0
        """Requests that got markers."""
        self.unchanged: Counter[str] = Counter()
        """Requests that were left as they are, by the reason."""
        self.notices: deque[Notice] = deque(maxlen=_MOST_NOTICES)
        """The latest, about markers that were left out and requests that could not be read."""

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

    def _place(self, request: UpstreamRequest) -> bytes | str:
        """The body with markers, or why it has none."""
        body, path = request.body, unquote(request.path)
        if not isinstance(body, bytes):
            return "too large"
        headers = dict(request.headers)
        read = read_request(request.method, request.route.provider, path, headers, body)
        if read is None:
            return "not a call of a model"
        if not read.takes_markers:
            return "no markers here"
        planned = self._plans.add(read, scope=self._account(request), at=self._clock())
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
        notice = f"a request was left without markers: {reason}"
        self._note([Notice("markers_not_placed", notice, request.path)])
        return kind

    def _note(self, notices: Iterable[Notice]) -> None:
        """Each notice once, however often it comes."""
        self.notices.extend(notice for notice in notices if notice not in self.notices)

    def _account(self, request: UpstreamRequest) -> bytes:
        """Tells apart where requests go, without a key in it."""
        digest = blake3(request.route.upstream.encode(), key=self._key)
        secret = [value for name, value in request.headers if name in _ACCOUNT_HEADERS]
        secret += [value for name, value in parse_qsl(request.query) if name in _ACCOUNT_QUERY]
        for value in secret:
            digest.update(b"\0" + value.encode(errors="replace"))
        return digest.digest(16)
