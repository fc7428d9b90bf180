"""What a call should read: from the rules, and from the bill of the previous call."""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.cache.prefix import first_difference
from anaphora.cache.sent_call import SentCall, updated_bills
from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator, SlotPredictor
from anaphora.cache.simulator.outcome import Prediction, predict_read
from anaphora.cache.simulator.prefixes import simulate_extension
from anaphora.cache.simulator.simulator import made_call
from anaphora.catalog import CacheRules
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage

from .values import Cause

#: Between two calls whose times are unknown: long enough to be visible, too short to expire.
_UNKNOWN_GAP = 60.0


def predict(
    earlier: SentCall, later: SentCall, rules: CacheRules, outcome: Outcome | None
) -> Prediction:
    """What the later call should read, from these two calls and nothing else."""
    if outcome is None:
        start, then, reasoning = _times(earlier, later)
        made = made_call(rules, start, began=earlier.began, reasoning=reasoning)
        pair = simulate_extension(rules, earlier, later, made, then, later.rendered.bills)
        if pair is not None:
            return predict_read(pair[0], earlier.usage, pair[1], rules)
    simulator = Simulator(rules)
    # The later prompt carries the bill of the earlier one.
    before = RenderedPrompt(replace(earlier.rendered, bills=later.rendered.bills), earlier.marks)
    if outcome is None:
        wrote, simulated = _simulate_pair(simulator, before, earlier, later)
    else:
        wrote = simulator.predict(before, at=earlier.at or 0.0, scope=earlier.route)
        simulated = outcome
    expected = predict_read(wrote, earlier.usage, simulated, rules)
    predictor = simulator.slot_predictor()
    if predictor is not None and earlier.usage is not None:
        predictor.billed(earlier.rendered, wrote, earlier.usage)
        expected = predict_slot_read(predictor, later.rendered, simulated)
    return expected if outcome is None else replace(expected, read=outcome.read)


def predict_after(
    earlier: SentCall, later: SentCall, rules: CacheRules, outcome: Outcome | None = None
) -> tuple[SentCall, Prediction]:
    """The later call, counted with the bill of the earlier one, and what it should read."""
    if not rules.slots.value:
        earlier, later = unmarked(earlier), unmarked(later)
    bills = updated_bills(earlier, rules)
    later = replace(later, rendered=replace(later.rendered, bills=bills))
    expected = predict(earlier, later, rules, outcome)
    if earlier.usage is None and later.usage is not None and later.usage.read is not None:
        expected = replace(expected, exact=False)  # an estimate is not to the token
    return later, expected


def unmarked(sent: SentCall) -> SentCall:
    """The call without marks that its provider ignores."""
    plan = sent.marks
    if plan is sent.plan and not plan.marks and plan.automatic is None and plan.key is None:
        return sent
    return replace(sent, plan=Plan(held=plan.held))


def predict_usage(earlier: SentCall | None, later: SentCall, rules: CacheRules) -> Usage:
    """The bill of the input that the later call should get."""
    if earlier is None:
        prompt, at = RenderedPrompt(later.rendered, later.marks), later.at or 0.0
        return Simulator(rules).predict(prompt, at=at, scope=later.route).usage()
    bills = updated_bills(earlier, rules)
    later = replace(later, rendered=replace(later.rendered, bills=bills))
    return predicted_usage(predict(earlier, later, rules, None))


def predicted_usage(expected: Prediction) -> Usage:
    """The bill of the input by a prediction."""
    usage = expected.outcome.usage()
    # The slots of a server also keep replies, which the simulated outcome does not have.
    more = expected.read - (usage.read or 0)
    return replace(usage, read=expected.read, uncached=max(0, (usage.uncached or 0) - more))


def _simulate_pair(
    simulator: Simulator, before: RenderedPrompt, earlier: SentCall, later: SentCall
) -> tuple[Outcome, Outcome]:
    """The earlier call in an empty cache, and the later one after it."""
    start, then, reasoning = _times(earlier, later)
    wrote = simulator.call(
        before, at=start, began=earlier.began, reasoning=reasoning, scope=earlier.route
    )
    after = RenderedPrompt(later.rendered, later.marks)
    return wrote, simulator.predict(after, at=then, scope=later.route)


def _times(earlier: SentCall, later: SentCall) -> tuple[float, float, int | None]:
    """When the two calls were sent, and the hidden reasoning of the earlier one."""
    start = earlier.at if earlier.at is not None else 0.0
    then = start + _UNKNOWN_GAP
    if earlier.at is not None and later.at is not None:
        then = max(start, later.at)
    return start, then, None if earlier.usage is None else earlier.usage.reasoning


def predict_slot_read(predictor: SlotPredictor, later: Rendered, outcome: Outcome) -> Prediction:
    """The same on a self-hosted server, whose slots also keep replies."""
    before, read = predictor.before, predictor.read(later, outcome)
    left = 0 if before is None else before.input
    if before is not None and predictor.continues(later, outcome):
        left = min(left, read)  # what the chat template renders differently cannot be read
    return Prediction(left=left, read=read, outcome=outcome, exact=False)


def reusable_tokens(
    earlier: SentCall, later: SentCall, rules: CacheRules, expected: Prediction, cause: Cause
) -> int:
    """What could have been read had nothing gone wrong. Where nothing was marked, that is all that
    the two prompts share."""
    if cause.kind == "not_persisted":
        return expected.read
    if expected.left or cause.kind != "no_marker" or not rules.slots.value:
        return expected.left
    cacheable = earlier.rendered.cacheable
    offset = first_difference(earlier.rendered, later.rendered, cacheable)
    if offset is None:
        offset = earlier.rendered.offset(cacheable)
    shared = Counts(earlier.rendered, later.rendered.bills).before(offset)
    return shared if shared >= rules.minimum_tokens.value else 0
