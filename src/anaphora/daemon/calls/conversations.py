"""Memory of conversations for callers that keep none: the earlier call that a prompt continues, the
places of its markers, and what happened to its cached prefix.

A prompt is split once. One index finds the earlier call for the plan and for the verdict. A
conversation that another node served is looked up in the shared state first, and put into the index
as if it had been served here.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

from msgspec.structs import replace

from anaphora.cache import EarlierCall, PrefixIndex
from anaphora.cache.sent_call import SentCall
from anaphora.daemon.shared_state import SharedState
from anaphora.daemon.values import CallScope, cache_scope
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.traffic.matching import RememberedCall, answered_call
from anaphora.traffic.planning import ConversationPlans, ReadRequest

from .own_prefixes import OwnPrefixes, PrefixScope
from .shared_conversations import SharedConversations

#: Limits per app and model: remembered calls, bytes of their texts, and bytes of what is remembered
#: besides. A call is remembered longer than its text.
_MOST_CALLS, _MOST_TEXT, _MOST_MEMORY = 32_768, 8 * 1024 * 1024, 24 * 1024 * 1024
#: Limits of all: pairs of app and model, and the same bytes.
_MOST_SCOPES, _MOST_TEXTS, _MOST_MEMORIES = 256, 32 * 1024 * 1024, 48 * 1024 * 1024


class CallMemory:
    """The recent calls of all apps. Bounded. Used from one event loop."""

    def __init__(
        self, shared: SharedState | None = None, prefixes: OwnPrefixes | None = None
    ) -> None:
        """`shared` makes the conversations of this node available to others; `prefixes` are those
        that apps have sent, including on other nodes and before a restart."""
        self.prefixes = prefixes
        shares = shared is not None and not shared.alone
        self._plans = ConversationPlans(numbers=_random_number if shares else lambda: 0)
        self._shared = SharedConversations(shared, self._plans) if shared and shares else None
        self._indexes: OrderedDict[CallScope, PrefixIndex[RememberedCall]] = OrderedDict()

    async def look_up(
        self, request: ReadRequest, *, scope: CallScope, at: float, own: Plan
    ) -> EarlierCall[RememberedCall] | None:
        """What other nodes know of a conversation that is unknown here; passed to `begin`. Not
        looked up if the prompt continues a call of this node by one reply."""
        if self._shared is None:
            return None
        index = self._index(scope)
        here = index.find(request.rendered, scope=scope, hints=request.hints)
        found = await self._shared.find(request, here, scope=scope, at=at, own=own)
        if found is None:
            return None
        call = RememberedCall(
            sent=found.call.sent,
            planned=found.call.planned,
            conversation=found.conversation,
            turn=found.call.turn,
            line=found.line,
            ended=True,
        )
        if found.continues:
            index.add(call.sent.rendered, call, scope=scope, hints=found.hints)
        return EarlierCall(call=call, continues=found.continues, chunks=found.chunks, latest=call)

    def begin(
        self,
        request: ReadRequest,
        *,
        scope: CallScope,
        at: float,
        own: Plan,
        elsewhere: EarlierCall[RememberedCall] | None = None,
        guarded: bool = False,
    ) -> RememberedCall:
        """Remembers a call that is about to be sent, and plans its markers. `own` are the markers
        that the request has, `elsewhere` is the result of `look_up`; `guarded`: `call.cold` will be
        called, and until it may be sent it counts as failed for other calls."""
        index = self._index(scope)
        sent = SentCall(rendered=request.rendered, plan=own, at=at)
        call = RememberedCall(sent=sent, conversation="", failed=guarded)
        if guarded:
            call.uses = index.last_uses(request.rendered, scope=scope, hints=request.hints)
        found = index.add(request.rendered, call, scope=scope, hints=request.hints)
        found = _later(found, elsewhere)
        if not call.follow(found):
            call.conversation = secrets.token_hex(8)
        call.earlier = answered_call(found)
        if self._shared is not None:
            self._shared.begin(call, found, request, scope=scope, at=at)
        matched = None
        if found is not None and (before := found.call.planned) is not None:
            matched = EarlierCall(
                call=before, continues=found.continues, chunks=found.chunks, latest=before
            )
        call.planned = self._plans.add_found(request, matched, scope=cache_scope(scope), at=at)
        self._trim()
        return call

    async def keep_key(
        self, call: RememberedCall, request: ReadRequest, place: PrefixScope, *, scope: CallScope
    ) -> None:
        """Gives a call the cache key that its conversation has on other nodes or had before a
        restart. For a new conversation, the choice is saved once its prompt is long enough to be
        cached."""
        planned = call.planned
        if self.prefixes is None or planned is None or planned.state.key_saved:
            return
        if planned.plan is None or planned.plan.key is None or not request.takes_markers:
            return
        if Counts(request.rendered).total < request.rules.minimum_tokens.value:
            return
        planned.state.key_saved = True
        split = await self.prefixes.was_split(place, call.sent)
        if split is None:
            self.prefixes.save_split(place, call.sent, "-" in planned.plan.key)
        else:
            self._plans.split_key(planned, request, split, scope=cache_scope(scope))

    def answered(self, call: RememberedCall) -> None:
        """Records an answered call: later calls are compared with it."""
        call.earlier = call.before = call.expected = None
        if call.line is not None and self._shared is not None:
            self._shared.save(call)
        call.end()

    def refreshed(self, call: RememberedCall, sent: SentCall) -> None:
        """Records that the call's prefix was kept alive, at the time in `sent`."""
        if call.planned is not None and sent.at is not None and call.sent.at is not None:
            self._plans.refreshed(call.planned, sent.at - call.sent.at)
        call.sent = replace(call.sent, at=sent.at, began=sent.began)

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


def _later(
    here: EarlierCall[RememberedCall] | None, elsewhere: EarlierCall[RememberedCall] | None
) -> EarlierCall[RememberedCall] | None:
    """The later of the calls found here and on other nodes. Of conversations that only share a
    beginning, the last call of any node has used the cache entry."""
    if here is None or elsewhere is None or here.continues:
        return elsewhere if here is None else here
    if elsewhere.continues or elsewhere.chunks > here.chunks:
        return elsewhere
    if elsewhere.chunks < here.chunks:
        return here
    newer = (elsewhere.latest.sent.at or 0.0) > (here.latest.sent.at or 0.0)
    latest = elsewhere.latest if newer else here.latest
    return EarlierCall(call=here.call, continues=False, chunks=here.chunks, latest=latest)


def _random_number() -> int:
    """The first number of this node's conversations: random, so that nodes do not collide."""
    return secrets.randbits(40)
