"""Verdicts on recorded conversations: each call against the billed call before it.

A recording has one list of messages that only grows, and often lacks the system prompt. So the
change that broke a prefix is seldom recorded: the cause of a loss is named if the clock, the rules,
the program itself (a resumed session, a compaction, another effort), the provider's own diagnosis
or the bills (the entry of an older call was read) show it, and otherwise unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from anaphora import catalog
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.sent_call import updated_bills
from anaphora.cache.simulator import Outcome
from anaphora.cache.verdict import (
    Prediction,
    SentCall,
    Verdict,
    judge,
    side_call,
    with_remedy,
)
from anaphora.cache.verdict.judgement import NEARLY
from anaphora.cache.verdict.remedy import Remedy, RemedyKind, summed
from anaphora.catalog import CacheRules, Price
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import Ttl

from .chunks import RecordedPrompt
from .format import RecordedParams, Trace, TraceCall
from .predict import Predictor
from .predicted import Predicted
from .replay import Replay

#: Seconds: 12 of 19 turns of Codex after such a pause found only the shared beginning.
_LONG_PAUSE = 600.0

Pricing: TypeAlias = Callable[[str, str, float | None, str | None], Price | None]


class TraceVerdict(NamedTuple):
    predicted: Predicted
    model: str
    """The model of this call, which may have changed since the first."""
    verdict: Verdict


class BillVerdict(NamedTuple):
    """The verdict on a call by its bill, without a prediction."""

    trace: Trace
    call: int
    provider: str
    model: str
    price: Price | None
    gap: float | None
    """Seconds since the call before began."""
    verdict: Verdict
    before: int = 0
    """Tokens of the prompt of the call before, if it is in the trace."""
    ttl: Ttl | None = None
    """The lifetime that the call before wrote for."""


def judge_traces(
    traces: Iterable[Trace], price: Pricing | None = None, steps: LearnedSteps | None = None
) -> Iterator[TraceVerdict]:
    """A verdict for every billed call, in the order in which they happened. `steps` holds rules
    learned from bills of other conversations, and learns from these."""
    for _, judged in judge_calls(traces, Predictor(steps=steps), price):
        if judged is not None:
            yield judged


def judge_calls(
    traces: Iterable[Trace], predictor: Predictor, price: Pricing | None = None
) -> Iterator[tuple[Predicted, TraceVerdict | None]]:
    """Every call in the order in which they happened; those with a bill have a verdict."""
    rendered = {trace.id: _RenderedTrace(trace) for trace in traces}
    for predicted in predictor.play([each.trace for each in rendered.values()]):
        billed = predicted.billed is not None
        yield predicted, rendered[predicted.trace].judge(predicted, price) if billed else None


def judge_bills(
    traces: Iterable[Trace],
    price: Pricing,
    steps: LearnedSteps | None = None,
    *,
    hits: bool = False,
) -> Iterator[BillVerdict]:
    """The verdicts of `judge_traces` on calls that read less than could be read, and with `hits` on
    all others. No prompt is simulated, so `predicted` is what the call before left: a simulation
    changes a verdict only if markers are recorded or the provider keeps units or slots. `traces`
    have different ids."""
    by_id = {trace.id: trace for trace in traces}
    if any(map(_needs_simulation, by_id.values())):
        for call, model, verdict in judge_traces(by_id.values(), price, steps):
            paid = price(call.provider, model, call.at, call.wire)
            trace = by_id[call.trace]
            if hits or verdict.result != "hit":
                sent = call.previous or 0
                yield BillVerdict(
                    trace, call.call, call.provider, model, paid, call.gap, verdict, sent
                )
        return
    rendered = {trace.id: _RenderedTrace(trace) for trace in by_id.values()}
    for replay, index, params in Predictor(steps=steps).follow(by_id.values()):
        if replay.trace.calls[index].usage is not None:
            each = rendered[replay.trace.id]
            judged = each.judge_bill(replay, index, params, price, hits=hits)
            if judged is not None:
                yield judged


def _needs_simulation(trace: Trace) -> bool:
    provider = catalog.provider_named(trace.provider) or trace.provider
    rules = catalog.rules(provider, trace.model, trace.wire)
    if trace.tools or rules.automatic_breakpoint.value in ("units", "slots"):
        return True
    return any(call.breakpoints is not None for call in trace.calls)


class _MadeCall(NamedTuple):
    """A call with a bill, and the facts that its verdict needs."""

    call: TraceCall
    model: str
    params: dict[str, bytes]
    rules: CacheRules
    ttl: Ttl
    """Of its writes, if no markers are recorded."""


class _RenderedTrace:
    """A recording as chunks, once they are needed; all calls share one log."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._chunks = RecordedPrompt(trace)
        self._params = RecordedParams(trace)
        self._before: _MadeCall | None = None
        self._ttl: Ttl | None = None
        """The TTL of writes by calls without recorded markers, by their bills."""
        self._entries: set[int] = set()
        """What each call before the last left in the cache."""
        self._since: float | None = None
        """When the call before the last was sent."""
        self._remedies: dict[RemedyKind, Remedy] = {}
        """What each would have saved so far."""

    def judge(self, predicted: Predicted, price: Pricing | None) -> TraceVerdict:
        call, provider = self.trace.calls[predicted.call], predicted.provider
        params = self._params.after(call, in_loop=predicted.in_loop)
        model = self._params.model
        rules = predicted.rules or catalog.rules(provider, model, predicted.wire)
        params["model"] = rules.model.encode()
        made = self._made(call, model, params, rules)
        profile = catalog.profile(provider, model)
        if self._is_side_call(predicted.call, rules):
            return TraceVerdict(predicted, model, side_call(self._sent(made, provider)))
        outcome, lapsed = predicted.outcome, predicted.lapsed
        if predicted.billed is not None and lapsed is not None:
            outcome = lapsed if predicted.billed.cache_read <= lapsed.read else outcome
        paid = None if price is None else price(provider, model, call.at, predicted.wire)
        earlier = None if self._before is None else self._sent(self._before, provider)
        later = self._later(made, provider, self._before)
        verdict = judge(
            earlier,
            later,
            rules,
            outcome=outcome,
            price=paid,
            profile=profile,
            diagnosis=call.diagnosis,
        )
        verdict = with_remedy(
            verdict, earlier, later, rules, price=paid, profile=profile, since=self._since
        )
        if verdict.remedy is not None:
            remedy = summed(verdict.remedy, self._remedies, predicted.call + 1)
            self._remedies[remedy.kind] = remedy
            verdict = replace(verdict, remedy=remedy)
        self._follow(made)
        return TraceVerdict(predicted, model, verdict)

    def judge_bill(
        self, replay: Replay, index: int, params: dict[str, bytes], price: Pricing, *, hits: bool
    ) -> BillVerdict | None:
        """None for a call without a loss, unless these are wanted."""
        call, provider, model = self.trace.calls[index], replay.provider, replay.called_model
        made = self._made(call, model, params, replay.rules)
        before, since = self._before, self._since
        beside = self._is_side_call(index, made.rules)
        if not beside:
            self._follow(made)
        if not hits and before is not None and (beside or _is_hit(before, made)):
            return None
        paid = price(provider, model, call.at, replay.wire)
        if beside:
            verdict = side_call(self._sent(made, provider))
        else:
            verdict = self._compare(before, made, provider, paid, since)
        if verdict.result == "hit" and not hits:
            return None
        gap = None
        if before is not None and before.call.at is not None and call.at is not None:
            gap = None if call.gap_unknown else call.at - before.call.at
        sent = 0 if before is None or before.call.usage is None else before.call.usage.total
        return BillVerdict(
            self.trace,
            index,
            provider,
            model,
            paid,
            gap,
            verdict,
            sent,
            None if before is None else before.ttl,
        )

    def _compare(
        self,
        before: _MadeCall | None,
        made: _MadeCall,
        provider: str,
        price: Price | None,
        since: float | None,
    ) -> Verdict:
        later, rules = self._later(made, provider, before), made.rules
        earlier = expected = None
        if before is not None:
            earlier = self._sent(before, provider)
            left, marked = _left(before.call, rules)
            exact = marked and left >= rules.minimum_tokens.value
            expected = Prediction(left=left, read=left, outcome=Outcome(()), exact=exact)
            bills = updated_bills(earlier, rules)
            later = replace(later, rendered=replace(later.rendered, bills=bills))
        profile = catalog.profile(provider, made.model)
        verdict = judge(
            earlier,
            later,
            rules,
            expected=expected,
            price=price,
            profile=profile,
            diagnosis=made.call.diagnosis,
        )
        return with_remedy(
            verdict, earlier, later, rules, price=price, profile=profile, since=since
        )

    def _made(
        self, call: TraceCall, model: str, params: dict[str, bytes], rules: CacheRules
    ) -> _MadeCall:
        if self._before is None and self.trace.before is not None:
            before = self.trace.before  # counted in another file
            if before.usage is not None and before.messages <= call.messages:
                ttl = self._written_for(before, rules)
                self._before = _MadeCall(before, before.model or model, params, rules, ttl)
        return _MadeCall(call, model, params, rules, self._written_for(call, rules))

    def _follow(self, made: _MadeCall) -> None:
        """Moves on to the next call."""
        if self._before is not None:
            self._entries.add(_left(self._before.call, self._before.rules)[0])
        self._since = None if self._before is None else self._before.call.at
        self._before = made

    def _later(self, made: _MadeCall, provider: str, before: _MadeCall | None) -> SentCall:
        call, sent = made.call, self._sent(made, provider)
        if call.gap_unknown:
            # After the clock stepped back, the time between the two is unknown.
            sent = replace(sent, at=None, began=None, ended=None)
        if before is None or call.usage is None:
            return sent
        fell = self._fell_after_pause(before.call, call, made.rules)
        sent = replace(sent, event=call.event_since(before.call), pause_fell=fell)
        if call.began_by is not None or call.usage.cache_read not in self._entries:
            return sent
        return replace(sent, read_older=self.trace.only_tools(before.call, call))

    def _fell_after_pause(self, before: TraceCall, call: TraceCall, rules: CacheRules) -> bool:
        """Whether a call of Codex, after a long pause, read less than the conversation's first
        prompt: only what other conversations share."""
        first = self.trace.calls[0].usage
        if self.trace.source != "codex" or first is None or call.usage is None or call.gap_unknown:
            return False
        if before.at is None or call.at is None or call.at - before.at < _LONG_PAUSE:
            return False
        return call.usage.cache_read < rules.whole_granules(first.total)

    def _sent(self, made: _MadeCall, provider: str) -> SentCall:
        call = made.call
        per_token = catalog.profile(provider, made.model).bytes_per_token.value
        rendered = self._chunks.rendered(call.messages, made.model, made.params, per_token)
        assert call.usage is not None
        return SentCall(
            rendered=rendered,
            plan=self._plan(made, rendered),
            at=call.at,
            began=call.t_first,
            ended=call.ended,
            usage=call.usage.usage(),
            began_by=call.began_by,
            marks_recorded=call.breakpoints is not None,
            complete=False,  # the recording has messages, not the bytes that were sent
        )

    def _is_side_call(self, index: int, rules: CacheRules) -> bool:
        """Whether the next call reads the entry of the call before this one, and this one did not:
        it was sent beside the conversation."""
        call, before = self.trace.calls[index].usage, self._before
        left = None if before is None else before.call.usage
        calls = self.trace.calls
        following = (calls[at].usage for at in range(index + 1, len(calls)))
        after = next(filter(None, following), None)
        if call is None or left is None or after is None:
            return False
        cached = left.cached
        if not rules.needs_marks:
            cached = max(cached, rules.whole_granules(left.total))
        return call.total < cached <= after.cache_read and call.cache_read < cached

    def _written_for(self, call: TraceCall, rules: CacheRules) -> Ttl:
        """The TTL that the bills show: the longest of this call's, else that of the last one."""
        written = [] if call.usage is None else [*call.usage.by_ttl]
        self._ttl = next((ttl for ttl in rules.ttls.value if ttl in written), self._ttl)
        if self._ttl is not None:
            return self._ttl
        return "5m" if rules.default_ttl is None else rules.default_ttl.value

    def _plan(self, made: _MadeCall, rendered: Rendered) -> Plan | None:
        """The markers that were sent; one after the last block if none are recorded."""
        call, rules = made.call, made.rules
        if rules.automatic_breakpoint.value == "last_message" and rules.default_ttl is not None:
            return Plan(automatic=rules.default_ttl.value)
        if rules.mechanism.value != "explicit" or not len(rendered):
            return Plan()
        tools, ends = self._chunks.tools, self._chunks.ends
        last = len(rendered) - 1
        marks: dict[int, Ttl] = {}
        automatic: Ttl | None = None
        for where, ttl, tool in call.markers:
            lifetime: Ttl = ttl if ttl in rules.ttls.value else "5m"
            if where == "automatic":
                automatic = lifetime
            elif where == "tools":
                marks[max(0, tools - 1) if tool is None or not tools else tool] = lifetime
            elif isinstance(where, int) and where < len(ends):
                marks[min(last, tools + ends[where] - 1)] = lifetime
        if call.breakpoints is None:
            marks[last] = made.ttl
        placed = tuple(Mark(chunk, marks[chunk]) for chunk in sorted(marks))
        return Plan(marks=placed, automatic=automatic)


def _left(call: TraceCall, rules: CacheRules) -> tuple[int, bool]:
    """What a call left in the cache, as in `predict_read`, and whether it is at markers."""
    assert call.usage is not None
    automatic = rules.automatic_breakpoint.value == "last_message" and rules.default_ttl is not None
    if rules.needs_marks or (automatic and rules.slots.value):
        return call.usage.cached, True
    return rules.whole_granules(call.usage.total), False


def _is_hit(before: _MadeCall, made: _MadeCall) -> bool:
    """Whether a call read all that the one before left."""
    assert made.call.usage is not None
    read, (left, marked) = made.call.usage.cache_read, _left(before.call, made.rules)
    least = float(left)
    if not marked:
        granule = made.rules.granule_tokens.value
        least = left - granule if granule > 1 else left * NEARLY
    return read > 0 and read >= least
