"""The verdict on one call: the call it is compared with, its bill, and its predicted read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import NamedTuple, Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.cache.history import is_compacted
from anaphora.cache.prefix_index import EarlierCall, PrefixIndex
from anaphora.cache.sent_call import SentCall, cached_chunks, may_be_cached
from anaphora.cache.simulator import Outcome
from anaphora.cache.simulator.outcome import Prediction
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage

from .avoiding import with_remedy
from .causes import recorded_cause
from .changes import changed_tool_fields, joined_names
from .diagnosis import Diagnosis
from .prediction import Loss, explain_loss, lost_usd, predict_after, unmarked
from .remedy import Remedy, RemedyKind, summed
from .values import Cause, Result, Verdict, agrees, reported_cause

#: The share of a prefix that an implicit cache without granules reads when it finds all of it.
NEARLY = 0.92
#: A call that misses less than each of these is a hit: a share of the prefix, tokens and dollars.
_FEW, _FEW_TOKENS, _CENT = 0.02, 1024, Decimal("0.01")
#: Calls of conversations that are remembered, and the bytes of their prompts.
_MOST_CALLS, _MOST_BYTES = 2048, 32 * 1024 * 1024


class SentRecord(Protocol):
    """A remembered call, for the verdict on a later one."""

    @property
    def sent(self) -> SentCall: ...


Compared = TypeVar("Compared", bound=SentRecord)


class ComparedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call, kept as long as a later one may be compared with it."""

    sent: SentCall
    rules: CacheRules | None = None
    """The rules that its conversation began with, for verdicts; None: not known."""
    conversation: Hashable = None
    turn: int = 1
    """The number of this call in its conversation."""
    past: tuple[float | None, ...] = ()
    """When the two calls of the conversation before this one were sent."""
    remedies: Mapping[RemedyKind, Remedy] = msgspec.field(default_factory=dict)
    """What each would have saved at the losses of the conversation so far."""

    def follow(self, earlier: EarlierCall[Self] | None) -> bool:
        """Joins the conversation that it continues; False if it begins one."""
        if earlier is None or not earlier.continues:
            return False
        before = earlier.call
        self.conversation, self.turn = before.conversation, before.turn + 1
        self.rules, self.remedies = before.rules, before.remedies
        self.past = *before.past[-1:], before.sent.at
        return True

    def remedied(
        self,
        verdict: Verdict,
        before: SentCall | None,
        sent: SentCall,
        rules: CacheRules,
        price: Price | None,
        profile: Profile | None,
    ) -> Verdict:
        """The verdict on this call with what would have avoided its losses so far."""
        since = self.past[0] if len(self.past) > 1 else None
        if before is not None and verdict.explains_loss:
            verdict = with_remedy(
                verdict, before, sent, rules, price=price, profile=profile, since=since
            )
        if verdict.remedy is None:
            return verdict
        remedy = summed(verdict.remedy, self.remedies, self.turn)
        self.remedies = {**self.remedies, remedy.kind: remedy}
        return replace(verdict, remedy=remedy)


def comparable(
    earlier: EarlierCall[Compared] | None,
    later: Rendered,
    rules: CacheRules,
    *,
    at: float | None = None,
) -> SentCall | None:
    """The call that the next one is judged against: the call before it in its conversation. For a
    new conversation that is the beginning it shares with an earlier call: the rest is not expected
    to be read. None if no shared part can have been cached for both. `at` is when the next call was
    sent: of calls in parallel, one that ended earlier may have been sent later.
    """
    if earlier is None:
        return None
    sent, latest = earlier.call.sent, earlier.latest.sent
    if earlier.continues:
        return sent
    if is_compacted(latest, later, earlier.chunks):
        return latest
    if earlier.chunks < len(sent.rendered):
        sent = _beginning(sent, earlier.chunks)
        if not may_be_shared(sent, later, rules):
            return None
    if latest.at is None or sent.at is None:
        return sent
    used = latest.at if at is None else min(latest.at, at)
    if used <= sent.at:
        return sent
    answered = sent.began is None or sent.began <= used
    return replace(sent, at=used, began=None if answered else sent.began)


def may_be_shared(beginning: SentCall, later: Rendered, rules: CacheRules) -> bool:
    """Whether the beginning of another conversation can have been cached for this prompt too. If
    whole units are kept, only a beginning that several prompts shared is kept."""
    if rules.automatic_breakpoint.value == "units":
        return False
    marked = rules.needs_marks and rules.slots.value > 0
    tokens = Counts(beginning.rendered).tokens(cached_chunks(beginning))
    if tokens < rules.minimum_tokens.value or (marked and not beginning.marks.marks):
        return False
    was, now = (dict(each.envelope.cache_params) for each in (beginning.rendered, later))
    changed = (name for name in {*was, *now} if was.get(name) != now.get(name))
    return not any(rules.voided_by(name) for name in changed)  # type: ignore[arg-type]


def _beginning(sent: SentCall, chunks: int) -> SentCall:
    """A call cut off after its first chunks. Their own bill is unknown, but the call's bill shows
    how many bytes a token has."""
    rendered, total = sent.rendered, None if sent.usage is None else sent.usage.input
    runs, left = [], chunks
    for run in rendered.runs:
        if left > 0:
            runs.append(replace(run, count=min(left, run.count)))
        left -= run.count
    plan = sent.marks
    marks = tuple(mark for mark in plan.marks if mark.chunk < chunks)
    rendered = replace(
        rendered,
        runs=tuple(runs),
        cacheable=min(rendered.cacheable, chunks),
        body_order=None,
        frozen=None,
        marks=marks,
        automatic=None,
        bills=Counts(rendered).billed(total) if total else rendered.bills,
    )
    return replace(sent, rendered=rendered, plan=Plan(marks=marks), usage=None)


def judge(
    earlier: SentCall | None,
    later: SentCall,
    rules: CacheRules,
    *,
    outcome: Outcome | None = None,
    expected: Prediction | None = None,
    price: Price | None = None,
    profile: Profile | None = None,
    diagnosis: Diagnosis | None = None,
) -> Verdict:
    """The verdict on the later call: how much of the earlier call's cache was read, by the bill, or
    by the rules if there is no bill. `outcome` is a simulation that knows more than these two
    calls, `expected` a prediction that was already made, `diagnosis` the provider's own."""
    billed_read = later.usage.read if later.usage is not None else None
    if earlier is None:
        return _first(later, price, diagnosis)
    if not rules.slots.value:
        earlier, later = unmarked(earlier), unmarked(later)
    if expected is None:
        later, expected = predict_after(earlier, later, rules, outcome)
    read = expected.read if billed_read is None else billed_read
    usage: Usage = later.usage if later.usage is not None else expected.outcome.usage()
    result = _result(read, expected, rules.granule_tokens.value)
    loss = Loss(result)
    if result != "hit" or (billed_read is None and read < expected.left):
        loss = explain_loss(earlier, later, rules, profile, expected, read, usage, result)
    weak = loss.result == "unknown" or later.event in [(one.kind, one.text) for one in loss.causes]
    reported = reported_cause(diagnosis) if weak else None
    if reported is not None:
        missed = min(expected.left, usage.input or 0) - read
        loss = Loss(result, (reported,), tokens=max(0, missed))
    if small := result == "partial" and _is_small(loss, expected, later, price):
        loss = Loss("hit")
    return Verdict(
        result=loss.result,
        causes=loss.causes,
        change=loss.change,
        left=expected.left,
        predicted=expected.read,
        billed=billed_read,
        total=None if later.usage is None else usage.input,
        lost=loss.tokens,
        cost_usd=lost_usd(usage, loss.tokens, price) if loss.tokens else Decimal(0),
        saved=saved_usd(later.usage, price),
        diagnosis=diagnosis,
        agrees=None
        if diagnosis is None or small
        else reported is not None
        or agrees(diagnosis, loss.causes, loss.change, loss.result == "hit"),
        host=later.host,
        pinned=bool(later.host) and later.marks.host == later.host,
    )


class JudgedPair(NamedTuple):
    before: SentCall | None
    """The call it is judged against."""
    verdict: Verdict
    expected: Prediction | None
    """The predicted read."""


def judge_matched(
    earlier: EarlierCall[Compared] | None,
    sent: SentCall,
    rules: CacheRules,
    *,
    price: Price | None,
    profile: Profile | None,
    diagnosis: Diagnosis | None = None,
) -> JudgedPair:
    """The verdict on a call whose earlier one was found by its beginning."""
    before = comparable(earlier, sent.rendered, rules, at=sent.at)
    expected = None
    if before is not None:
        sent, expected = predict_after(before, sent, rules)
    verdict = judge(
        before,
        sent,
        rules,
        expected=expected,
        price=price,
        profile=profile,
        diagnosis=diagnosis,
    )
    return JudgedPair(before, verdict, expected)


class ComparedCalls:
    """Earlier calls of conversations that are sent whole with each call. Bounded."""

    def __init__(self) -> None:
        self.index: PrefixIndex[ComparedCall] = PrefixIndex(_MOST_CALLS, _MOST_BYTES)

    def judge(
        self,
        call: ComparedCall,
        reply_id: str,
        *,
        scope: Hashable,
        rules: CacheRules,
        price: Price | None,
        profile: Profile,
    ) -> Verdict:
        """The verdict on a call, which is remembered. `rules` are those that a conversation begins
        with now, `scope` is the owner of the cache."""
        sent, last = call.sent, None
        if self.index.find(sent.rendered, scope=scope) is None:
            last = self.index.last_call(sent.rendered, scope=scope)
        earlier = self.index.add(sent.rendered, call, scope=scope, reply_id=reply_id)
        if last is not None:
            sent = call.sent = compared_tools(last.sent, sent, last.rules or rules)
        if not call.follow(earlier):
            call.conversation, call.rules = object(), rules
        pair = judge_matched(earlier, sent, call.rules or rules, price=price, profile=profile)
        return call.remedied(pair.verdict, pair.before, sent, call.rules or rules, price, profile)


def compared_tools(last: SentCall, sent: SentCall, rules: CacheRules) -> SentCall:
    """A call that shares nothing with an earlier one, with the fields in which its tools differ
    from those of the last call, if that may have cached them."""
    if not may_be_cached(last, rules):
        return sent
    return replace(sent, tool_fields=changed_tool_fields(last.rendered, sent.rendered))


def side_call(sent: SentCall, price: Price | None = None) -> Verdict:
    """The verdict on a side call, which shares nothing with the conversation."""
    return as_side_call(_first(sent, price, None))


def as_side_call(verdict: Verdict, *, side_call: bool = True) -> Verdict:
    """The verdict on a first call that turned out to be a side call, or to be none."""
    text = (
        "it shares no beginning with the conversation of its session, and no call has followed it"
    )
    return replace(verdict, causes=(Cause("side_call", text),) if side_call else ())


def _first(sent: SentCall, price: Price | None, diagnosis: Diagnosis | None) -> Verdict:
    recorded, fields = recorded_cause(None, sent), sent.tool_fields
    if sent.usage is not None and sent.usage.read:
        fields = ()
    if fields:
        names = joined_names(fields)
        recorded = Cause("tools_changed", f"tools differ from the call before: {names}")
    return Verdict(
        result="first",
        causes=() if recorded is None else (recorded,),
        tool_fields=fields,
        billed=None if sent.usage is None else sent.usage.read,
        total=None if sent.usage is None else sent.usage.input,
        saved=saved_usd(sent.usage, price),
        diagnosis=diagnosis,
        host=sent.host,
    )


def _result(read: int, expected: Prediction, granule: int) -> Result:
    if not read:
        return "miss"
    least = float(expected.left)
    if not expected.exact:
        least = least - granule if granule > 1 else least * NEARLY
    return "hit" if read >= least else "partial"


def _is_small(loss: Loss, expected: Prediction, later: SentCall, price: Price | None) -> bool:
    """Whether a bill misses so few tokens that the call counts as a hit, if no bytes show why."""
    if later.complete and loss.causes[0].kind not in ("provider_side", "unknown"):
        return False
    read = None if later.usage is None else later.usage.read
    short = expected.left - (read or 0)
    if read is None or short >= min(_FEW_TOKENS, _FEW * expected.left):
        return False
    usd = lost_usd(later.usage, short, price)
    return usd is None or usd < _CENT


def saved_usd(usage: Usage | None, price: Price | None) -> Decimal | None:
    """The cost of the input without a cache, less its actual cost; negative if more was written
    than read."""
    tokens = usage.input if usage is not None else None
    if usage is None or price is None or tokens is None:
        return None
    rates = price.at(tokens) if price.tiers else price
    if rates.input is None:
        return None
    parts = [(usage.read or 0, rates.read)]
    for ttl, count in (usage.written or {}).items():
        parts.append((count, rates.writing(None) if ttl == "unsplit" else rates.write.get(ttl)))
    total = Decimal(0)
    for count, rate in parts:
        if count and rate is None:
            return None
        if count and rate is not None:
            total += count * (rates.input - rate)
    return total.scaleb(-6)
