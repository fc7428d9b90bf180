"""Memory of conversations for callers that have none: which earlier call a prompt continues, where
its markers go, and what became of its cached prefix.

A prompt is split once. One index finds the earlier call for the plan and for the verdict. A
conversation that another node served is looked up in the shared state first, and put into the index
as if it had been served here.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable

import msgspec
from msgspec.structs import replace

from anaphora.cache import EarlierCall, PrefixIndex
from anaphora.cache.sent_call import SentCall
from anaphora.cache.verdict import (
    Diagnosis,
    Prediction,
    Verdict,
    comparable,
    judge,
    predict_after,
    saved_usd,
)
from anaphora.cache.verdict.values import agrees
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.daemon.shared_state import SharedState
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.traffic.planning import ConversationPlans, PlannedCall, ReadRequest

from .own_prefixes import OwnPrefixes, PrefixScope
from .shared_conversations import SharedConversations, SharedLine

#: Calls of one app with one model that are remembered, and the bytes of their prompts.
_MOST_CALLS, _MOST_BYTES = 1024, 8 * 1024 * 1024
#: Apps and models whose calls are remembered, and the bytes of all their prompts.
_MOST_SCOPES, _MOST_TOTAL = 256, 32 * 1024 * 1024


class RememberedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call, kept as long as a later one may continue it."""

    sent: SentCall
    planned: PlannedCall | None = None
    earlier: EarlierCall[RememberedCall] | None = None
    """Until the call is answered."""
    conversation: str
    """A random id, given to the first call of a conversation, and"""
    turn: int
    """the number of this call in it."""
    failed: bool = False
    """Nothing was cached by it: later calls are compared with the one before it."""
    compared: bool = False
    before: SentCall | None = None
    """What it is compared with, and"""
    expected: Prediction | None = None
    """what it should read by that; both once they were looked for."""

    line: SharedLine | None = None
    """Where it is saved for other nodes."""
    rules: CacheRules | None = None
    """Those that its conversation began with, for verdicts; None: not known."""

    @property
    def continues(self) -> bool:
        """Whether it continues an answered call of its conversation; until it is answered."""
        earlier = _answered(self.earlier)
        return earlier is not None and earlier.continues

    @property
    def plan(self) -> Plan | None:
        """Where markers should be; None: the request is left as it is."""
        return None if self.planned is None else self.planned.plan


class CallMemory:
    """The recent calls of all apps. Bounded. Used from one event loop."""

    def __init__(
        self, shared: SharedState | None = None, prefixes: OwnPrefixes | None = None
    ) -> None:
        """`shared` is where other nodes find the conversations of this one; `prefixes` are those
        that apps have sent, also on other nodes and before a restart."""
        self.prefixes = prefixes
        shares = shared is not None and not shared.alone
        self._plans = ConversationPlans(numbers=_random_number if shares else lambda: 0)
        self._shared = SharedConversations(shared, self._plans) if shared and shares else None
        self._indexes: OrderedDict[Hashable, PrefixIndex[RememberedCall]] = OrderedDict()

    async def look_up(
        self, request: ReadRequest, *, scope: Hashable, at: float, own: Plan
    ) -> EarlierCall[RememberedCall] | None:
        """What other nodes know of the conversation, where this one does not know it; for `begin`.
        A prompt that continues a call of this node by one reply needs no look."""
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
        )
        if found.continues:
            index.add(call.sent.rendered, call, scope=scope, hints=found.hints)
        return EarlierCall(call=call, continues=found.continues, chunks=found.chunks, latest=call)

    def begin(
        self,
        request: ReadRequest,
        *,
        scope: Hashable,
        at: float,
        own: Plan,
        elsewhere: EarlierCall[RememberedCall] | None = None,
    ) -> RememberedCall:
        """Remembers a call that is about to be sent, and plans its markers. `scope` is what a cache
        belongs to; `own` are the markers that the request has; `elsewhere` is what `look_up`
        found."""
        index = self._index(scope)
        sent = SentCall(rendered=request.rendered, plan=own, at=at)
        call = RememberedCall(sent=sent, conversation="", turn=1)
        found = index.add(request.rendered, call, scope=scope, hints=request.hints)
        found = _later(found, elsewhere)
        if found is not None and found.continues:
            call.conversation, call.turn = found.call.conversation, found.call.turn + 1
            call.rules = found.call.rules
        else:
            call.conversation = secrets.token_hex(8)
        call.earlier = _answered(found)
        if self._shared is not None:
            self._shared.begin(call, found, request, scope=scope, at=at)
        matched = None
        if found is not None and (before := found.call.planned) is not None:
            matched = EarlierCall(
                call=before, continues=found.continues, chunks=found.chunks, latest=before
            )
        call.planned = self._plans.add_found(request, matched, scope=scope, at=at)
        self._trim()
        return call

    async def keep_key(
        self, call: RememberedCall, request: ReadRequest, place: PrefixScope, *, scope: Hashable
    ) -> None:
        """Gives a call the cache key that its conversation has elsewhere, or had before a restart;
        of one that begins, the choice is saved once its prompt is long enough to be cached."""
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
            self._plans.split_key(planned, request, split, scope=scope)

    def expect(self, call: RememberedCall, rules: CacheRules) -> Prediction | None:
        """What the call should read from the cache, by the app's own earlier calls; None where
        there is none to compare with."""
        before = self._before(call, rules)
        if call.expected is None and before is not None:
            later, call.expected = predict_after(before, call.sent, rules)
            call.sent = replace(call.sent, rendered=later.rendered)
        return call.expected

    def _before(self, call: RememberedCall, rules: CacheRules) -> SentCall | None:
        if not call.compared:
            call.compared = True
            sent, earlier = call.sent, _answered(call.earlier)
            call.before = comparable(earlier, sent.rendered, rules, at=sent.at)
        return call.before

    def judge(
        self,
        call: RememberedCall,
        rules: CacheRules,
        *,
        price: Price | None,
        profile: Profile | None,
        diagnosis: Diagnosis | None = None,
    ) -> Verdict:
        """The verdict by the bill of `call.sent`; by the rules where there is none yet."""
        before, sent = self._before(call, rules), call.sent
        if (
            call.expected is None
            and before is not None
            and (left := _read_all(before, sent, rules))
        ):
            return _hit(sent, left, price, diagnosis)
        expected = self.expect(call, rules)
        billed = call.sent.usage is not None and call.sent.usage.read is not None
        if billed and expected is not None and call.before and call.before.usage is None:
            expected = replace(expected, exact=False)  # an estimate is not to the token
        return judge(
            call.before,
            call.sent,
            rules,
            expected=expected,
            price=price,
            profile=profile,
            diagnosis=diagnosis,
        )

    def answered(self, call: RememberedCall) -> None:
        """Later calls are compared with this one."""
        call.earlier = call.before = call.expected = None
        if call.line is not None and self._shared is not None:
            self._shared.save(call)

    def refreshed(self, call: RememberedCall, sent: SentCall) -> None:
        """Its prefix was kept alive: `sent` has the time of that."""
        if call.planned is not None and sent.at is not None and call.sent.at is not None:
            self._plans.refreshed(call.planned, sent.at - call.sent.at)
        call.sent = replace(call.sent, at=sent.at, began=sent.began)

    def fail(self, call: RememberedCall) -> None:
        """The call was not answered, so that nothing is known to be cached by it."""
        call.failed = True
        call.before = call.expected = None

    def _index(self, scope: Hashable) -> PrefixIndex[RememberedCall]:
        index = self._indexes.get(scope)
        if index is None:
            index = self._indexes[scope] = PrefixIndex(_MOST_CALLS, _MOST_BYTES)
        self._indexes.move_to_end(scope)
        return index

    def _trim(self) -> None:
        while len(self._indexes) > 1 and (
            len(self._indexes) > _MOST_SCOPES
            or sum(index.size for index in self._indexes.values()) > _MOST_TOTAL
        ):
            self._indexes.popitem(last=False)


def _later(
    here: EarlierCall[RememberedCall] | None, elsewhere: EarlierCall[RememberedCall] | None
) -> EarlierCall[RememberedCall] | None:
    """The earlier call by what this node and the others know. Of conversations that only begin
    alike, the last call of any node has used what is cached."""
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
    """Where the numbers of a node's conversations begin: other nodes have others."""
    return secrets.randbits(40)


def _read_all(before: SentCall, sent: SentCall, rules: CacheRules) -> int:
    """What the call before had cached, where the bill shows that at least that was read; else 0."""
    was, read = before.usage, None if sent.usage is None else sent.usage.read
    if was is None or not read:
        return 0
    left = (was.read or 0) + (was.written_total or 0)
    if rules.mechanism.value != "explicit":
        left = max(left, rules.whole_granules(was.input or 0))
    return left if read >= left else 0


def _hit(sent: SentCall, left: int, price: Price | None, diagnosis: Diagnosis | None) -> Verdict:
    """The verdict where everything was read: nothing has to be explained."""
    usage = sent.usage
    assert usage is not None
    return Verdict(
        result="hit",
        left=left,
        predicted=left,
        billed=usage.read,
        total=usage.input,
        saved=saved_usd(usage, price),
        diagnosis=diagnosis,
        agrees=agrees(diagnosis, (), None, hit=True),
    )


def _answered(
    earlier: EarlierCall[RememberedCall] | None,
) -> EarlierCall[RememberedCall] | None:
    """The earlier call, or the one before it where it failed."""
    while earlier is not None and earlier.call.failed:
        before = earlier.call.earlier
        if before is None:
            return None
        earlier = EarlierCall(
            call=before.call,
            continues=earlier.continues and before.continues,
            chunks=min(earlier.chunks, before.chunks),
            latest=before.latest,
        )
    return earlier
