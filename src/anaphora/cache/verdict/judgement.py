"""The verdict on one call, from its bill and from what should have been read."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import Outcome
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.catalog.prices import lost_usd, saved_usd
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.values import Usage

from .causes import TOKEN_ERROR, find_causes, remaining
from .changes import find_change
from .diagnosis import agrees
from .prediction import predict, reusable_tokens, updated_bills
from .values import CHANGED, PARAMETERS, Cause, Change, Diagnosis, Prediction, Result, Verdict

#: The share of a prefix that an implicit cache without granules reads when it finds all of it.
NEARLY = 0.92
#: Causes with which it is known what could still be read.
_SIMULATED = CHANGED | PARAMETERS | {"marker_on_trailing_system", "other_route"}


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
    """What became of what the earlier call cached, by the later one's bill; by the rules where
    there is no bill. `outcome` is a simulation that knows more than these two calls, `expected` a
    prediction that was already made, `diagnosis` the provider's own."""
    return judge_and_predict(
        earlier,
        later,
        rules,
        outcome=outcome,
        expected=expected,
        price=price,
        profile=profile,
        diagnosis=diagnosis,
    )[0]


def judge_and_predict(
    earlier: SentCall | None,
    later: SentCall,
    rules: CacheRules,
    *,
    outcome: Outcome | None = None,
    expected: Prediction | None = None,
    price: Price | None = None,
    profile: Profile | None = None,
    diagnosis: Diagnosis | None = None,
) -> tuple[Verdict, Prediction | None]:
    """The same, and the prediction that it rests on; None where there is no earlier call."""
    billed_read = later.usage.read if later.usage is not None else None
    if earlier is None:
        first = Verdict(
            result="first",
            billed=billed_read,
            total=later.usage.input if later.usage is not None else None,
            saved=saved_usd(later.usage, price),
            diagnosis=diagnosis,
        )
        return first, None
    if not rules.slots.value:
        earlier, later = _unmarked(earlier), _unmarked(later)
    if expected is None:
        bills = updated_bills(earlier, rules)
        later = replace(later, rendered=replace(later.rendered, bills=bills))
        expected = predict(earlier, later, rules, outcome)
        if earlier.usage is None and billed_read is not None:
            expected = replace(expected, exact=False)  # an estimate is not to the token
    read = expected.read if billed_read is None else billed_read
    result = _result(read, expected, rules.granule_tokens.value)
    usage: Usage = later.usage if later.usage is not None else expected.outcome.usage()
    loss = _Loss(result)
    if result != "hit" or (billed_read is None and read < expected.left):
        loss = _explain(earlier, later, rules, profile, expected, read, usage, result)
    verdict = Verdict(
        result=loss.result,
        causes=loss.causes,
        change=loss.change,
        left=expected.left,
        predicted=expected.read,
        billed=billed_read,
        total=None if later.usage is None else usage.input,
        lost=loss.tokens,
        cost_usd=lost_usd(usage, loss.tokens, price),
        saved=saved_usd(later.usage, price),
        diagnosis=diagnosis,
        agrees=None
        if diagnosis is None
        else agrees(diagnosis, loss.causes, loss.change, loss.result == "hit"),
    )
    return verdict, expected


class _Loss(NamedTuple):
    """What was not read, and why."""

    result: Result
    causes: tuple[Cause, ...] = ()
    change: Change | None = None
    tokens: int = 0


def _explain(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    profile: Profile | None,
    expected: Prediction,
    read: int,
    usage: Usage,
    result: Result,
) -> _Loss:
    change = find_change(earlier, later)
    if result == "hit":
        if change is None:
            return _Loss(result)
        result = "partial"  # a prediction of both calls is exact
    causes = find_causes(earlier, later, rules, change, profile, read, expected)
    # Tokens that are no longer sent are not paid again.
    missed = reusable_tokens(earlier, later, rules, expected, causes[0]) - read
    lost = max(0, min(missed, (usage.input or 0) - read))
    causes = _split_causes(earlier, later, rules, causes, profile, read, expected, lost)
    if causes[0].kind == "below_minimum":
        result = "not_cacheable"
    explained = any(cause.kind in CHANGED for cause in causes)
    return _Loss(result, causes, change if explained else None, lost)


def _split_causes(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    causes: tuple[Cause, ...],
    profile: Profile | None,
    read: int,
    expected: Prediction,
    lost: int,
) -> tuple[Cause, ...]:
    """The causes with the lost tokens of each, where what changed explains only a part: what stands
    before a change could still be read, so its loss is not due to the change."""
    if not expected.left or any(cause.kind not in _SIMULATED for cause in causes):
        return causes
    possible = min(expected.read, expected.left)
    if any(cause.kind == "images_changed" for cause in causes):
        leading = sum(run.count for run in later.rendered.runs if run.section != "messages")
        possible = min(possible, Counts(later.rendered).tokens(leading))
    behind = expected.left - possible
    # Both parts add up to a bill, so their estimates err by a share of the smaller part.
    error = TOKEN_ERROR if profile is None else profile.token_error.value
    doubt = error * (possible if earlier.usage is None else min(possible, behind))
    surely = possible - doubt - rules.granule_tokens.value
    if surely < max(read, rules.minimum_tokens.value):
        return causes
    rest = remaining(earlier, later, rules, expected)
    unexplained = min(possible - read, lost)
    if unexplained == lost:
        return (rest,)
    first, *others = causes
    shares = [replace(first, tokens=lost - unexplained), replace(rest, tokens=unexplained)]
    shares.sort(key=lambda cause: cause.tokens or 0, reverse=True)
    return *shares, *others


def _unmarked(sent: SentCall) -> SentCall:
    """The call without marks that its provider ignores."""
    plan = sent.marks
    if plan is sent.plan and not plan.marks and plan.automatic is None and plan.key is None:
        return sent
    return replace(sent, plan=Plan(held=plan.held))


def _result(read: int, expected: Prediction, granule: int) -> Result:
    if not read:
        return "miss"
    least = float(expected.left)
    if not expected.exact:
        least = least - granule if granule > 1 else least * NEARLY
    return "hit" if read >= least else "partial"
