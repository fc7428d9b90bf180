"""Finds cold requests of a program before they are sent.

    calls = ColdCalls(above_usd)
    found = calls.find(request)             None: it is not cold, or may pass
    calls.let_pass(found)                   the next one like it passes
    calls.allow(found)                      it is sent nevertheless
    calls.ended(number, sent, answered=…)   its bill and its times

Requests are assigned to conversations by their prefixes, as for verdicts. A request that cannot be
read, or whose price is not known, is not cold.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from anaphora.cache import CallHints, PrefixIndex
from anaphora.cache.cold import ALLOWED, COLD_HEADER, ColdPasses, ColdPrefix
from anaphora.cache.sent_call import SentCall
from anaphora.catalog.pricing import PriceBook
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression
from anaphora.errors import AnaphoraError
from anaphora.wire.request_bodies import RequestBodies

from .accounts import Accounts, credentials
from .calls import UpstreamRequest, header_of
from .matching import RememberedCall, answered_call
from .sent_requests import unsent_request

#: Remembered calls, and bytes of their prompts.
_MOST_CALLS, _MOST_BYTES = 4096, 32 * 1024 * 1024


class ColdRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that costs more than the limit because its beginning is not cached."""

    number: int
    model: str
    call: RememberedCall
    hints: CallHints
    cold: ColdPrefix | None
    scope: Hashable


class ColdCalls:
    """The recent requests of all programs. Bounded."""

    def __init__(self, above_usd: Decimal) -> None:
        self._above = above_usd
        self._lock = threading.RLock()
        self._index: PrefixIndex[RememberedCall] = PrefixIndex(
            _MOST_CALLS, _MOST_BYTES, drop_text=RememberedCall.drop_text
        )
        self._bodies = RequestBodies(most_bytes=_MOST_BYTES // 4)
        self._passes = ColdPasses()
        self._accounts = Accounts()
        self._prices: PriceBook | None = None
        self._open: dict[int, RememberedCall] = {}
        """The calls that have not ended, by number."""

    def find(self, request: UpstreamRequest) -> ColdRequest | None:
        """The request, if it is cold and may not pass. Any other is remembered as sent."""
        with self._lock:
            return self._find(request)

    def _find(self, request: UpstreamRequest) -> ColdRequest | None:
        try:
            unsent = unsent_request(request, self._bodies)
        except (AnaphoraError, InvalidCompression, UnknownCompression, ValueError):
            return None
        if unsent is None or not unsent[0].sent.complete:
            return None
        read = unsent[0]
        found = credentials(request.headers, request.query)
        account = self._accounts.digest(request.route, found)
        scope = account, read.provider, read.wire, read.model
        rendered, at = read.sent.rendered, request.started
        earlier = self._index.find(rendered, scope=scope, hints=read.hints)
        call = RememberedCall(sent=read.sent, conversation="", rules=read.rules)
        call.follow(earlier)
        call.earlier = answered_call(earlier)
        call.uses = self._index.last_uses(rendered, scope=scope, hints=read.hints)
        if self._prices is None:
            self._prices = PriceBook(at)
        price = self._prices.price(read.provider, read.model, at, read.wire, read.service_tier)
        cold = call.cold(read.rules, price=price, profile=read.profile)
        result = ColdRequest(request.number, read.model, call, read.hints, cold, scope)
        if cold is not None and cold.costs_more_than(self._above):
            allowed = header_of(request.headers, COLD_HEADER).strip().lower() == ALLOWED
            if not allowed and not self.passes(result):
                return result
        self.allow(result)
        return None

    def passes(self, found: ColdRequest) -> bool:
        """Whether it was refused a short time ago, or allowed."""
        with self._lock:
            sent = found.call.sent
            return self._passes.allows(found.scope, sent.rendered, sent.at or 0.0)

    def let_pass(self, found: ColdRequest, since: float = 0.0) -> None:
        """The same request passes for some minutes, if it began after a time."""
        with self._lock:
            sent = found.call.sent
            self._passes.add(self._passes.key(found.scope, sent.rendered), sent.at or 0.0, since)

    def allow(self, found: ColdRequest) -> None:
        """The request is sent: later ones are compared with it."""
        with self._lock:
            call = found.call
            self._index.add(call.sent.rendered, call, scope=found.scope, hints=found.hints)
            self._open[found.number] = call

    def ended(self, number: int, sent: SentCall | None, *, answered: bool) -> None:
        """A call has ended; `sent` has its bill and its times, if these could be read."""
        with self._lock:
            call = self._open.pop(number, None)
            if call is None:
                return
            if not answered:
                call.fail()
                return
            call.earlier = call.before = call.expected = None
            if sent is not None:
                call.sent = replace(
                    call.sent,
                    usage=sent.usage,
                    began=sent.began,
                    ended=sent.ended,
                    reply_lines=sent.reply_lines,
                    host=sent.host,
                )
            call.end()
