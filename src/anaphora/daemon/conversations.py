"""Memory of conversations for callers that have none: which earlier call a prompt continues, where
its markers go, and what became of its cached prefix.

A prompt is split once. One index finds the earlier call for the plan and for the verdict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

import msgspec
from msgspec.structs import replace

from anaphora.analysis.conversation_plans import ConversationPlans, PlannedCall, ReadRequest
from anaphora.cache import EarlierCall, PrefixIndex
from anaphora.cache.prefix import SentCall
from anaphora.cache.verdict import Diagnosis, Prediction, Verdict, comparable, judge, saved_usd
from anaphora.cache.verdict.diagnosis import agrees
from anaphora.cache.verdict.prediction import predict, updated_bills
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan

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
    failed: bool = False
    """Nothing was cached by it: later calls are compared with the one before it."""
    compared: bool = False
    before: SentCall | None = None
    """What it is compared with, and"""
    expected: Prediction | None = None
    """what it should read by that; both once they were looked for."""

    @property
    def plan(self) -> Plan | None:
        """Where markers should be; None: the request is left as it is."""
        return None if self.planned is None else self.planned.plan


class CallMemory:
    """The recent calls of all apps. Bounded. Used from one event loop."""

    def __init__(self) -> None:
        self._plans = ConversationPlans()
        self._indexes: OrderedDict[Hashable, PrefixIndex[RememberedCall]] = OrderedDict()

    def begin(
        self, request: ReadRequest, *, scope: Hashable, at: float, own: Plan
    ) -> RememberedCall:
        """Remembers a call that is about to be sent, and plans its markers. `scope` is what a cache
        belongs to; `own` are the markers that the request has."""
        index = self._index(scope)
        sent = SentCall(rendered=request.rendered, plan=own, at=at)
        call = RememberedCall(sent=sent)
        found = index.add(request.rendered, call, scope=scope, hints=request.hints)
        call.earlier = _answered(found)
        matched = None
        if found is not None and (before := found.call.planned) is not None:
            matched = EarlierCall(
                call=before, continues=found.continues, chunks=found.chunks, latest=before
            )
        call.planned = self._plans.add_found(request, matched, scope=scope, at=at)
        self._trim()
        return call

    def expect(self, call: RememberedCall, rules: CacheRules) -> Prediction | None:
        """What the call should read from the cache, by the app's own earlier calls; None where
        there is none to compare with."""
        before = self._before(call, rules)
        if call.expected is None and before is not None:
            bills = updated_bills(before, rules)
            rendered = replace(call.sent.rendered, bills=bills)
            sent = call.sent = replace(call.sent, rendered=rendered)
            call.expected = predict(before, sent, rules, None)
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
