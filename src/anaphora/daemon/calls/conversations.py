"""Memory of conversations for callers that keep none: the earlier call that a prompt continues, the
places of its markers, and what happened to its cached prefix.

A prompt is split once. One index finds the earlier call for the plan and for the verdict.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from decimal import Decimal

from anaphora.cache import PrefixIndex
from anaphora.cache.cold import ColdPasses, refusal
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.sent_call import SentCall
from anaphora.client.in_flight import PreparedRequest, service_tier
from anaphora.client.target import Target
from anaphora.daemon.access.grants import NANO
from anaphora.daemon.values import App, CallScope, cache_scope
from anaphora.errors import ColdCallRefused
from anaphora.rendered import Plan
from anaphora.traffic.matching import RememberedCall, answered_call
from anaphora.traffic.planning import ConversationPlans, ReadRequest

from .own_prefixes import OwnPrefixes

#: Limits per app and model: remembered calls, bytes of their texts, and bytes of what is remembered
#: besides. A call is remembered longer than its text.
_MOST_CALLS, _MOST_TEXT, _MOST_MEMORY = 32_768, 8 * 1024 * 1024, 24 * 1024 * 1024
#: Limits of all: pairs of app and model, and the same bytes.
_MOST_SCOPES, _MOST_TEXTS, _MOST_MEMORIES = 256, 32 * 1024 * 1024, 48 * 1024 * 1024


class CallMemory:
    """The recent calls of all apps. Bounded. Used from one event loop."""

    def __init__(self) -> None:
        self.prefixes = OwnPrefixes()
        """Those that apps have sent."""
        self._plans = ConversationPlans()
        self._indexes: OrderedDict[CallScope, PrefixIndex[RememberedCall]] = OrderedDict()

    def begin(
        self,
        request: ReadRequest,
        *,
        scope: CallScope,
        at: float,
        own: Plan,
        guarded: bool = False,
    ) -> RememberedCall:
        """Remembers a call that is about to be sent, and plans its markers. `own` are the markers
        that the request has; `guarded`: `call.cold` will be called, and until it may be sent it
        counts as failed for other calls."""
        index = self._index(scope)
        sent = SentCall(rendered=request.rendered, plan=own, at=at)
        call = RememberedCall(sent=sent, conversation="", failed=guarded)
        if guarded:
            call.uses = index.last_uses(request.rendered, scope=scope, hints=request.hints)
        if index.find(request.rendered, scope=scope, hints=request.hints) is None:
            call.last = index.last_call(request.rendered, scope=scope, hints=request.hints)
        found = index.add(request.rendered, call, scope=scope, hints=request.hints)
        if not call.follow(found):
            call.conversation = secrets.token_hex(8)
        call.earlier = answered_call(found)
        matched = None
        if found is not None and (before := found.call.planned) is not None:
            matched = EarlierCall(
                call=before, continues=found.continues, chunks=found.chunks, latest=before
            )
        call.planned = self._plans.add_found(request, matched, scope=cache_scope(scope), at=at)
        self._trim()
        return call

    def answered(self, call: RememberedCall) -> None:
        """Records an answered call: later calls are compared with it."""
        call.earlier = call.before = call.expected = None
        call.end()

    def _index(self, scope: CallScope) -> PrefixIndex[RememberedCall]:
        scope = cache_scope(scope)  # one index for an app: many tokens do not drop those of others
        index = self._indexes.get(scope)
        if index is None:
            index = self._indexes[scope] = PrefixIndex(
                _MOST_CALLS,
                _MOST_TEXT,
                drop_text=RememberedCall.drop_text,
                most_memory=_MOST_MEMORY,
            )
        self._indexes.move_to_end(scope)
        return index

    def _trim(self) -> None:
        """Drops texts of the least recently used apps and models, and then their calls."""
        while len(self._indexes) > _MOST_SCOPES:
            self._indexes.popitem(last=False)
        indexes = self._indexes.values()
        texts = memory = 0
        for each in indexes:
            texts, memory = texts + each.size, memory + each.memory
        if texts <= _MOST_TEXTS and memory <= _MOST_MEMORIES:
            return
        for index in indexes:
            texts, memory = texts - index.size, memory - index.memory
            index.shrink(max(0, _MOST_TEXTS - texts), max(0, _MOST_MEMORIES - memory))
            texts, memory = texts + index.size, memory + index.memory


class ColdGate:
    """Refuses calls of apps whose cached beginning is gone, for grants with `cold_above_usd`.
    Bounded. Used from one event loop.

    The same call passes if it is sent again within some minutes. Calls that arrived before the
    refusal are refused as well."""

    def __init__(self) -> None:
        self._passes = ColdPasses()

    def check(
        self,
        app: App,
        remembered: RememberedCall,
        target: Target,
        prepared: PreparedRequest,
        *,
        known: int,
        arrived: float,
    ) -> None:
        """Raises `ColdCallRefused`. `known` are the tokens of the prompt that the app has sent
        before; `arrived` is when the call came."""
        limit, at = app.grant.llm.cold_above, prepared.at
        if limit is None:
            return
        cold = remembered.cold(
            remembered.rules or target.rules,
            price=target.price(at, service_tier(prepared)),
            profile=target.profile,
            known=known,
        )
        if cold is None or not cold.costs_more_than(Decimal(limit) / NANO):
            return
        scope = app.owner, target.endpoint.id, target.model
        rendered = remembered.sent.rendered
        if self._passes.allows(scope, rendered, arrived):
            return
        now = time.time()
        self._passes.add(self._passes.key(scope, rendered), now, since=now)
        raise ColdCallRefused(refusal(cold), cold=cold)
