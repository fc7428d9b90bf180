"""The verdict on one call, from its bill and from what should have been read."""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from anaphora.cache.prefix import SentCall, cached_chunks
from anaphora.cache.simulator import Outcome, SlotPredictor
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Bills, Counts
from anaphora.values import Usage

from .causes import find_causes, lost_usd, reusable_tokens, simulate_pair
from .changes import find_change
from .diagnosis import agrees
from .values import Cause, Change, Diagnosis, Prediction, Result, Verdict

#: The share of a prefix that an implicit cache without granules reads when it finds all of it.
NEARLY = 0.92


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
    billed_read = later.usage.read if later.usage is not None else None
    if earlier is None:
        return Verdict(
            result="first",
            billed=billed_read,
            total=later.usage.input if later.usage is not None else None,
            saved=saved_usd(later.usage, price),
            diagnosis=diagnosis,
        )
    if not rules.slots.value:
        earlier, later = _unmarked(earlier), _unmarked(later)
    if expected is None:
        bills = updated_bills(earlier, rules)
        later = replace(later, rendered=replace(later.rendered, bills=bills))
        expected = _predict(earlier, later, rules, outcome)
        if earlier.usage is None and billed_read is not None:
            expected = replace(expected, exact=False)  # an estimate is not to the token
    read = expected.read if billed_read is None else billed_read
    result = _result(read, expected, rules.granule_tokens.value)
    usage: Usage = later.usage if later.usage is not None else expected.outcome.usage()
    causes: tuple[Cause, ...] = ()
    change: Change | None = None
    lost = 0
    if result != "hit" or billed_read is None:  # a billed hit proves that no change mattered
        change = find_change(earlier, later)
    if result == "hit" and change is not None and read < expected.left:
        result = "partial"  # a prediction of both calls is exact
    if result != "hit":
        causes = find_causes(earlier, later, rules, change, profile, read, expected)
        # Tokens that are no longer sent are not paid again.
        missed = reusable_tokens(earlier, later, rules, expected.left, causes[0]) - read
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
        cost_usd=lost_usd(usage, lost, price) if lost else Decimal(0),
        saved=saved_usd(later.usage, price),
        diagnosis=diagnosis,
        agrees=None if diagnosis is None else agrees(diagnosis, causes, change, result == "hit"),
    )


def _unmarked(sent: SentCall) -> SentCall:
    """The call without marks that its provider ignores."""
    return replace(sent, plan=Plan(held=sent.marks.held))


def _result(read: int, expected: Prediction, granule: int) -> Result:
    if not read:
        return "miss"
    least = float(expected.left)
    if not expected.exact:
        least = least - granule if granule > 1 else least * NEARLY
    return "hit" if read >= least else "partial"


def _predict(
    earlier: SentCall, later: SentCall, rules: CacheRules, outcome: Outcome | None
) -> Prediction:
    """What the later call should read, from these two calls and nothing else."""
    wrote, simulated, predictor = simulate_pair(earlier, later, rules)
    expected = predict_read(wrote, earlier.usage, outcome or simulated, rules)
    if predictor is not None and earlier.usage is not None:
        predictor.billed(earlier.rendered, wrote, earlier.usage)
        expected = predict_slot_read(predictor, later.rendered, outcome or simulated)
    return expected if outcome is None else replace(expected, read=outcome.read)


def predict_read(
    wrote: Outcome, usage: Usage | None, outcome: Outcome, rules: CacheRules
) -> Prediction:
    """The same from the simulated calls: the previous one, which was billed `usage`, and this."""
    kept = wrote.kept
    missed = bool(kept) and usage is not None and usage.read == 0
    explicit = rules.mechanism.value == "explicit" and rules.slots.value > 0
    if not explicit and (not kept or (missed and not rules.slots.value)):
        # Where the provider caches by itself, the whole prompt is cached whatever was read.
        total = wrote.total if usage is None or not usage.input else usage.input
        left = rules.whole_granules(total)
    elif usage is not None and usage.read is not None:
        left = usage.read + (usage.written_total or 0)
    else:
        left = kept
    return Prediction(left=left, read=outcome.read, outcome=outcome, exact=kept > 0)


def predict_slot_read(predictor: SlotPredictor, later: Rendered, outcome: Outcome) -> Prediction:
    """The same on a self-hosted server, whose slots also keep replies."""
    before, read = predictor.before, predictor.read(later, outcome)
    left = 0 if before is None else before.input
    if before is not None and predictor.continues(later, outcome):
        left = min(left, read)  # what the chat template renders differently cannot be read
    return Prediction(left=left, read=read, outcome=outcome, exact=False)


def updated_bills(
    sent: SentCall, rules: CacheRules, kept: int | None = None, counts: Counts | None = None
) -> Bills:
    """The bills that the next prompt carries, this call's included. `kept` is what the simulator
    says it left in the cache; `counts` are those of the prompt, where they exist."""
    usage = sent.usage
    total = None if usage is None else usage.input
    if usage is None or not total:
        return sent.rendered.bills
    counts = Counts(sent.rendered) if counts is None else counts
    if not rules.slots.value:
        return counts.billed(total)
    chunks = cached_chunks(sent)
    if kept is not None and counts.tokens(chunks) != kept:
        return counts.billed(total)
    return counts.billed(total, (chunks, total - (usage.uncached or 0)))


def saved_usd(usage: Usage | None, price: Price | None) -> Decimal | None:
    """What the input would have cost without a cache, less what it cost; negative where more was
    written than read."""
    tokens = usage.input if usage is not None else None
    if usage is None or price is None or tokens is None:
        return None
    rates = price.at(tokens)
    if rates.input is None:
        return None
    parts = [(usage.read or 0, rates.read)]
    for ttl, count in (usage.written or {}).items():
        parts.append((count, rates.writing(None if ttl == "unsplit" else ttl)))
    total = Decimal(0)
    for count, rate in parts:
        if count and rate is None:
            return None
        if count and rate is not None:
            total += count * (rates.input - rate)
    return total.scaleb(-6)
