"""Predicts a call's read from the rules and the bill of the previous call; explains cached tokens
that were not read, and their cost."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from anaphora.cache.history import removed_tokens
from anaphora.cache.kept_texts import with_text_of
from anaphora.cache.prefix_difference import first_difference
from anaphora.cache.sent_call import (
    MadeCall,
    SentCall,
    expiry,
    host_changed,
    is_alive,
    made_call,
    shared_chunks,
    ttl_seconds,
    updated_bills,
    writing_marks,
)
from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator
from anaphora.cache.simulator.outcome import (
    Prediction,
    marked_outcome,
    predict_read,
)
from anaphora.cache.simulator.prefixes import prefix_outcome
from anaphora.cache.simulator.prompt import is_from_model
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.catalog.prices import EXACT
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Bills, Counts
from anaphora.values import TTL_SECONDS, Usage

from .causes import TOKEN_ERROR, remaining, why_not_read
from .changes import find_change
from .figures import with_unverified
from .values import CHANGED, PARAMETERS, Cause, Change, Result

#: Between two calls whose times are unknown: long enough to be visible, too short to expire.
_UNKNOWN_GAP = 60.0


def predict(
    earlier: SentCall, later: SentCall, rules: CacheRules, outcome: Outcome | None
) -> Prediction:
    """What the later call should read, from these two calls and nothing else."""
    if outcome is None:
        start, then, reasoning = _times(earlier, later)
        made = made_call(
            rules, start, began=earlier.began, ended=earlier.ended, reasoning=reasoning
        )
        pair = simulate_extension(rules, earlier, later, made, then, later.rendered.bills)
        if pair is not None:
            return predict_read(pair[0], earlier.usage, pair[1], rules, marked=earlier.is_marked)
    earlier, simulator = with_text_of(earlier, later.rendered), Simulator(rules)
    # The later prompt carries the bill of the earlier one.
    before = RenderedPrompt(replace(earlier.rendered, bills=later.rendered.bills), earlier.marks)
    if outcome is None:
        wrote, simulated = _simulate_pair(simulator, before, earlier, later)
    else:
        wrote = simulator.predict(before, at=earlier.at or 0.0, scope=earlier.route)
        simulated = outcome
    expected = predict_read(wrote, earlier.usage, simulated, rules, marked=earlier.is_marked)
    return expected if outcome is None else replace(expected, read=outcome.read)


def simulate_extension(
    rules: CacheRules, earlier: SentCall, later: SentCall, made: MadeCall, at: float, bills: Bills
) -> tuple[Outcome, Outcome] | None:
    """The earlier call in an empty cache, and the later one after it, sent at `at`; None if that
    takes a simulation: bytes or parameters have changed, or the earlier prompt cannot be read.
    """
    was, now = earlier.marks, later.marks
    if was.key != now.key or was.held or now.held or earlier.route != later.route:
        return None
    before, after = earlier.rendered, later.rendered
    marked = was.marks or now.marks or was.automatic or now.automatic
    if not marked and rules.keeps_only_marked:
        totals = Counts(before, bills).total, Counts(after).total
        none, still = (marked_outcome((), int, total=each, marked=False) for each in totals)
        return none, still
    if before.envelope.cache_params != after.envelope.cache_params:
        return None
    if made.lives_from < made.at or not made.readable < at:
        return None
    chunks = len(before)
    if not chunks or shared_chunks(after, before) < chunks:
        return None
    if _uses_granules(rules, was, now):
        if not is_alive(expiry(made.lives_from, ttl_seconds(rules)), at):
            return None
        wrote = prefix_outcome(rules, Counts(before, bills).total, 0, "new")
        read, count = chunks, len(after)
        if count > chunks and rules.reply_cached(made.reasoning):
            while read < count and is_from_model(*after.locate(read)):
                read += 1
        counts = Counts(after)
        return wrote, prefix_outcome(rules, counts.total, counts.tokens(read), "new")
    if _uses_markers(rules, before, was, now):
        return _simulate_marks(rules, was, now, Counts(before, bills), Counts(after), made, at)
    return None


def _uses_granules(rules: CacheRules, before: Plan, after: Plan) -> bool:
    """Whether both calls use a cache of granules, without markers."""
    if not rules.caches_tokens:
        return False
    if rules.mechanism.value == "implicit" or not rules.slots.value:
        return True
    marked = before.marks or after.marks or before.automatic or after.automatic
    return rules.mechanism.value == "both" and not marked


def _uses_markers(rules: CacheRules, prompt: Rendered, before: Plan, after: Plan) -> bool:
    """Whether both calls have markers of their own alone, which reach back by blocks."""
    if rules.mechanism.value == "implicit" or rules.automatic_breakpoint.value == "slots":
        return False
    if not before.marks or not after.marks or before.automatic or after.automatic:
        return False
    unit, reused = rules.lookback_unit, rules.trailing_system_reused
    if unit is not None and unit.value != "blocks":
        return False
    if reused is None or reused.value:
        return True
    last = prompt.runs[-1]  # what is written at a trailing system message is not found again
    return last.section != "messages" or last.log.role_of(last.count - 1) != "system"


def _simulate_marks(
    rules: CacheRules,
    was: Plan,
    now: Plan,
    before: Counts,
    after: Counts,
    made: MadeCall,
    at: float,
) -> tuple[Outcome, Outcome] | None:
    """Two calls with markers; None if nothing is read, or a part has expired."""
    sizes = {mark.chunk: before.tokens(mark.chunk + 1) for mark in was.marks}
    written = writing_marks(rules, was.marks, sizes.__getitem__)
    if not written:
        return None
    lifetime = min([TTL_SECONDS[mark.ttl] for mark in written])
    if not is_alive(expiry(made.lives_from, lifetime), at):
        return None
    reach = 1 if rules.lookback_positions is None else rules.lookback_positions.value
    found = -1
    for mark in written:
        for marker in now.marks:
            if marker.chunk - reach < mark.chunk <= marker.chunk:
                found = max(found, mark.chunk)
    if found < 0:
        return None
    wrote = marked_outcome(written, sizes.__getitem__, total=before.total)
    sizes = {mark.chunk: after.tokens(mark.chunk + 1) for mark in now.marks}
    if found not in sizes:
        sizes[found] = after.tokens(found + 1)
    writes = writing_marks(rules, now.marks, sizes.__getitem__)
    while writes and writes[0].chunk <= found:
        writes = writes[1:]
    return wrote, marked_outcome(writes, sizes.__getitem__, total=after.total, found=found)


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
    return later, at_host(earlier, later, expected)


def at_host(earlier: SentCall | None, later: SentCall, expected: Prediction) -> Prediction:
    """The prediction, given the host that answered: of another host's cache nothing is known."""
    if earlier is None or not host_changed(earlier, later):
        return expected
    return replace(expected, read=0)


def unmarked(sent: SentCall) -> SentCall:
    """The call without the marks that its provider ignores."""
    plan = sent.marks
    if plan is sent.plan and not plan.marks and plan.automatic is None and plan.key is None:
        return sent
    return replace(sent, plan=Plan(held=plan.held, host=plan.host))


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
    more = expected.read - (usage.read or 0)
    return replace(usage, read=expected.read, uncached=max(0, (usage.uncached or 0) - more))


def _simulate_pair(
    simulator: Simulator, before: RenderedPrompt, earlier: SentCall, later: SentCall
) -> tuple[Outcome, Outcome]:
    """The earlier call in an empty cache, and the later one after it."""
    start, then, reasoning = _times(earlier, later)
    wrote = simulator.call(
        before,
        at=start,
        began=earlier.began,
        ended=earlier.ended,
        reasoning=reasoning,
        scope=earlier.route,
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


def reusable_tokens(
    earlier: SentCall, later: SentCall, rules: CacheRules, expected: Prediction, cause: Cause
) -> int:
    """The tokens that could have been read without any loss. If nothing was marked, that is
    everything the two prompts share."""
    if cause.kind == "not_persisted":
        return expected.read
    if expected.left or cause.kind != "no_marker" or not rules.slots.value:
        return expected.left
    cacheable = earlier.rendered.cacheable
    offset = first_difference(earlier.rendered, later.rendered, cacheable)
    if offset is None:
        offset = earlier.rendered.offset(cacheable)
    shared = Counts(earlier.rendered, later.rendered.bills).before(offset)
    return min(shared, rules.longest_prefix) if shared >= rules.minimum_tokens.value else 0


# ── What was not read ─────────────────────────────────────────────────────────────────────────────

#: Causes for which it is known how much could still be read.
_SIMULATED = CHANGED | PARAMETERS | {"compaction", "marker_on_trailing_system", "other_route"}


class Loss(NamedTuple):
    """Cached tokens that were not read, and why."""

    result: Result
    causes: tuple[Cause, ...] = ()
    change: Change | None = None
    tokens: int = 0


def explain_loss(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    profile: Profile | None,
    expected: Prediction,
    read: int,
    usage: Usage,
    result: Result,
) -> Loss:
    """The loss of a call with this bill: `read` tokens were read, and more had been cached."""
    earlier = with_text_of(earlier, later.rendered)
    change = find_change(earlier, later)
    if result == "hit":
        if change is None:
            return Loss(result)
        result = "partial"  # a prediction of both calls is exact
    causes = why_not_read(earlier, later, rules, change, profile, read, expected)
    missed = reusable_tokens(earlier, later, rules, expected, causes[0]) - read
    if change is not None and expected.left:
        # Tokens that are no longer sent are not billed again.
        behind = max(0, expected.left - expected.read)
        missed -= min(behind, removed_tokens(earlier, later.rendered, change.chunk))
    lost = max(0, min(missed, (usage.input or 0) - read))
    causes = _split_causes(earlier, later, rules, causes, profile, read, expected, lost)
    causes = with_unverified(causes, rules)
    if causes[0].kind in ("below_minimum", "above_maximum"):
        result = "not_cacheable"
    elif causes[0].kind == "unknown":
        result, lost = "unknown", 0  # nothing proves that more could have been read
    elif not _is_proven(later, causes):
        lost = 0
    explained = any(cause.kind in CHANGED for cause in causes)
    return Loss(result, causes, change if explained else None, lost)


def _is_proven(later: SentCall, causes: tuple[Cause, ...]) -> bool:
    """Whether bytes or clock confirm what a recording states about a history: a program that
    resumes or compacts a session may send something else."""
    return later.began_by is None or any(cause.kind == "expired" for cause in causes)


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
    """The causes with the lost tokens of each, if a change explains only a part: tokens before a
    change could still be read, so their loss is not due to the change."""
    if not expected.left or any(cause.kind not in _SIMULATED for cause in causes):
        return causes
    if not (earlier.complete and later.complete):
        return causes  # the tokens before a recorded change are not known
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


def lost_usd(usage: Usage | None, lost: int, price: Price | None) -> Decimal | None:
    """The cost of lost tokens, less the cost of reading them. They follow the tokens that were
    read, so they were written again as far as anything was, longest TTL first, and else paid as
    input."""
    if usage is None or price is None:
        return None
    rates = price.at(usage.input or 0)
    paid = [(lost, rates.input)]
    by_ttl = {None if ttl == "unsplit" else ttl: n for ttl, n in (usage.written or {}).items()}
    for ttl in sorted(by_ttl, key=lambda ttl: TTL_SECONDS[ttl] if ttl else 0):
        paid.insert(0, (by_ttl[ttl], rates.writing(ttl)))
    total, left = Decimal(0), lost
    for tokens, rate in paid:
        again = min(left, tokens)
        if again and (rate is None or rates.read is None):
            return None
        if rate is not None and rates.read is not None:
            more = EXACT.subtract(rate, rates.read)
            total = EXACT.add(total, EXACT.multiply(more, again))
        left -= again
    return total.scaleb(-6, EXACT)
