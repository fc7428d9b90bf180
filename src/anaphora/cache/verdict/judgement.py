"""The verdict on one call, from its bill and from what should have been read."""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator import Outcome
from anaphora.cache.simulator.outcome import Prediction
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.values import Usage

from .causes import recorded_cause
from .prediction import Loss, explain_loss, lost_usd, predict_after, unmarked
from .values import Cause, Diagnosis, Result, Verdict, agrees

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
        return _first(later, price, diagnosis)
    if not rules.slots.value:
        earlier, later = unmarked(earlier), unmarked(later)
    if expected is None:
        later, expected = predict_after(earlier, later, rules, outcome)
    read = expected.read if billed_read is None else billed_read
    result = _result(read, expected, rules.granule_tokens.value)
    usage: Usage = later.usage if later.usage is not None else expected.outcome.usage()
    loss = Loss(result)
    if result != "hit" or (billed_read is None and read < expected.left):
        loss = explain_loss(earlier, later, rules, profile, expected, read, usage, result)
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
        if diagnosis is None
        else agrees(diagnosis, loss.causes, loss.change, loss.result == "hit"),
    )


def side_call(sent: SentCall, price: Price | None = None) -> Verdict:
    """The verdict on a call beside a conversation: it has nothing of it to read."""
    return as_side_call(_first(sent, price, None))


def as_side_call(verdict: Verdict, *, side_call: bool = True) -> Verdict:
    """The verdict on a first call that turned out to be a side call, or to be none."""
    text = "it shares no beginning with the conversation of its session, and no call follows it"
    return replace(verdict, causes=(Cause("side_call", text),) if side_call else ())


def _first(sent: SentCall, price: Price | None, diagnosis: Diagnosis | None) -> Verdict:
    recorded = recorded_cause(None, sent)
    return Verdict(
        result="first",
        causes=() if recorded is None else (recorded,),
        billed=None if sent.usage is None else sent.usage.read,
        total=None if sent.usage is None else sent.usage.input,
        saved=saved_usd(sent.usage, price),
        diagnosis=diagnosis,
    )


def _result(read: int, expected: Prediction, granule: int) -> Result:
    if not read:
        return "miss"
    least = float(expected.left)
    if not expected.exact:
        least = least - granule if granule > 1 else least * NEARLY
    return "hit" if read >= least else "partial"


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
