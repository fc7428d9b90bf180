"""One call's verdict: local facts, then the clock, then the rules, then the provider's word."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.cache.simulator import Outcome
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.values import Usage

from . import rules as by
from .changes import change_at
from .comparing import extent, parting
from .diagnosis import agrees
from .money import lost_usd, saved_usd
from .predicting import Prediction, billed, predict
from .sentences import change_said
from .values import VOLATILE, Cause, Change, Diagnosis, Result, Sent, Verdict

#: Of an implicit cache without granules: bills of one that found all there was read so much of it.
_NEARLY = 0.92


def judge(
    earlier: Sent | None,
    later: Sent,
    rules: CacheRules,
    *,
    outcome: Outcome | None = None,
    expected: Prediction | None = None,
    price: Price | None = None,
    profile: Profile | None = None,
    diagnosis: Diagnosis | None = None,
) -> Verdict:
    """What became of what the earlier call left in the cache, by the later one's bill; by the
    rules where there is none. `outcome` is the prediction of a simulator that knows more than these
    two calls, `expected` one that was made already, `diagnosis` what the provider says."""
    billed_read = later.usage.read if later.usage is not None else None
    later = _heard(later, rules)
    if earlier is None:
        verdict = Verdict(
            result="first",
            billed=billed_read,
            total=later.usage.input if later.usage is not None else None,
            saved=saved_usd(later.usage, price),
            diagnosis=diagnosis,
        )
        return verdict
    earlier = _heard(earlier, rules)
    if expected is None:
        later = replace(later, rendered=replace(later.rendered, bills=billed(earlier, rules)))
        expected = predict(earlier, later, rules, outcome)
    read = expected.read if billed_read is None else billed_read
    result = _result(read, expected, rules.granule_tokens.value)
    causes: tuple[Cause, ...] = ()
    lost = 0
    change: Change | None = None
    if result != "hit" or billed_read is None:  # otherwise the bill proves that it did not matter
        change = find_change(earlier, later)
    usage: Usage = later.usage if later.usage is not None else expected.outcome.usage()
    if result != "hit":
        causes = _causes(earlier, later, rules, expected, change, profile, read)
        # What is not sent any more is not paid for again.
        missed = _reusable(earlier, later, rules, expected, causes) - read
        lost = max(0, min(missed, (usage.input or 0) - read))
    return Verdict(
        result=result,
        causes=causes,
        change=change,
        left=expected.left,
        predicted=expected.read,
        billed=billed_read,
        total=None if later.usage is None else usage.input,
        lost=lost,
        cost_usd=lost_usd(usage, lost, price),
        saved=saved_usd(later.usage, price),
        diagnosis=diagnosis,
        agrees=None if diagnosis is None else agrees(diagnosis, causes, change, result == "hit"),
    )


def _heard(sent: Sent, rules: CacheRules) -> Sent:
    """The call without marks that its provider takes no notice of."""
    return sent if rules.slots.value else replace(sent, plan=Plan(held=sent.marks.held))


def find_change(earlier: Sent, later: Sent) -> Change | None:
    """The first byte of what the earlier call may have left in the cache that is not there any
    more; None when the later call begins with all of it."""
    offset = parting(earlier.rendered, later.rendered, extent(earlier))
    return None if offset is None else change_at(earlier.rendered, later.rendered, offset)


def _result(read: int, expected: Prediction, granule: int) -> Result:
    if not read:
        return "miss"
    least = float(expected.left)
    if not expected.exact:
        least = least - granule if granule > 1 else least * _NEARLY
    return "hit" if read >= least else "partial"


def _reusable(
    earlier: Sent, later: Sent, rules: CacheRules, expected: Prediction, causes: tuple[Cause, ...]
) -> int:
    """What could have been read had nothing gone wrong. Where nothing was marked, that is all that
    the two prompts share."""
    if causes and causes[0].kind == "below_minimum":
        return 0
    if expected.left or not causes or causes[0].kind != "no_marker":
        return expected.left
    offset = parting(earlier.rendered, later.rendered, earlier.rendered.cacheable)
    if offset is None:
        offset = earlier.rendered.offset(earlier.rendered.cacheable)
    shared = Counts(earlier.rendered, later.rendered.bills).before(offset)
    return shared if shared >= rules.minimum_tokens.value else 0


def _causes(
    earlier: Sent,
    later: Sent,
    rules: CacheRules,
    expected: Prediction,
    change: Change | None,
    profile: Profile | None,
    read: int,
) -> tuple[Cause, ...]:
    """Everything that explains it, what counts most first."""
    unmarked = by.unmarked(earlier, rules)
    local = [] if unmarked is None else [unmarked]
    local += _local(earlier, later, rules, change)
    found = [*local, by.clock(earlier, later, rules, read)]
    if change is None and unmarked is None:
        # The tokens of the longest prefix that the earlier call asked to keep.
        kept = Counts(earlier.rendered, later.rendered.bills).tokens(extent(earlier))
        found.append(by.too_short(kept, rules))
        found.append(by.lookback(earlier, later, rules))
        found.append(by.thinking(earlier.rendered, later.rendered, profile))
    causes = [cause for cause in found if cause is not None]
    return tuple(causes or [_nothing_found(earlier, later, rules, expected)])


def _local(earlier: Sent, later: Sent, rules: CacheRules, change: Change | None) -> list[Cause]:
    """Changed bytes and changed parameters, in the order in which they are hashed."""
    order = rules.hash_order.value
    found = by.parameters(earlier, later, rules)
    pictured = by.images(earlier.rendered, later.rendered, rules)
    # A byte that differs says more than that there is no image any more.
    images = [] if pictured is None else [pictured]
    if change is None:
        return [*(cause for cause, _ in found), *images]
    at = order.index(change.section)
    before = [cause for cause, section in found if order.index(section) <= at]
    behind = [cause for cause, section in found if order.index(section) > at]
    return [*before, _changed(earlier, rules, change), *behind, *images]


def _changed(earlier: Sent, rules: CacheRules, change: Change) -> Cause:
    said = change_said(change)
    marks = by.placed(earlier, rules)
    only_here = bool(marks) and marks[0] == change.chunk == marks[-1]
    if only_here and (change.kind in VOLATILE or change.chunk + 1 == len(earlier.rendered)):
        return Cause(kind="marker_on_volatile", said=f"the marker stands on what changes: {said}")
    return Cause(kind="changed", said=said)


def _nothing_found(earlier: Sent, later: Sent, rules: CacheRules, expected: Prediction) -> Cause:
    """Nothing here explains it. The provider's side is named only when nothing else can be."""
    reasons = {span.reason for span in expected.outcome.spans}
    if "not_persisted" in reasons:
        said = "the provider keeps whole units only, and none ended there"
        return Cause(kind="not_persisted", said=said)
    if rules.automatic_breakpoint.value == "slots" and expected.read < expected.left:
        said = "another conversation has taken the server's slot since"
        return Cause(kind="evicted", said=said)
    unknown = []
    if not (earlier.complete and later.complete):
        unknown.append("not every byte that was sent is recorded")
    if earlier.at is None or later.at is None:
        unknown.append("nobody recorded when the calls were made")
    if unknown:
        said = f"nothing that is known explains it; {' and '.join(unknown)}"
        return Cause(kind="unexplained", said=said)
    said = "every byte, parameter and rule says that it should have been read: the provider's side"
    return Cause(kind="provider_side", said=said)
