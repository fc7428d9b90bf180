"""Which conversation a request belongs to, and its verdict by the requests before it.

pairs = RequestPairs()                 requests that have been sent: watch, hooks, explain
earlier = pairs.add(request)
before, verdict, expected = judge_request(earlier, request, price)

call = RememberedCall(...)             requests that are to be sent: the daemon
call.plan, call.expect(rules), call.judge(rules, ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from anaphora.cache import PrefixIndex
from anaphora.cache.cold import ColdPrefix, cold_call, still_used
from anaphora.cache.learned_steps import LearnedSteps
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict import (
    Diagnosis,
    Prediction,
    SentCall,
    Verdict,
    comparable,
    judge,
    judge_matched,
    predict_after,
    saved_usd,
)
from anaphora.cache.verdict.judgement import ComparedCall, JudgedPair, compared_tools
from anaphora.cache.verdict.values import agrees
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan, Rendered

from .planning import PlannedCall
from .sent_requests import SentRequest

_Scope: TypeAlias = tuple[str, ...]


class RequestPairs:
    """Finds the request before each request: with its model and host or, if its conversation has
    moved, with the model or host that it came from."""

    def __init__(
        self,
        most_calls: int = 4096,
        most_bytes: int = 64 * 1024 * 1024,
        *,
        steps: LearnedSteps | None = None,
    ) -> None:
        """`most_bytes` limits the prompts of remembered requests. `steps` are learned from bills,
        and learn from these."""
        self._near = PrefixIndex[SentRequest](most_calls, most_bytes, drop_text=_without_text)
        self._anywhere = PrefixIndex[SentRequest](most_calls, most_bytes, drop_text=_without_text)
        self._steps = LearnedSteps() if steps is None else steps
        self._only: dict[_Scope, _Scope | None] = {}
        """The only model and host of a provider seen so far; None if there are several. Only then
        are they remembered across models and hosts."""

    @property
    def size(self) -> int:
        """Bytes of the remembered prompts."""
        return max(self._near.size, self._anywhere.size)

    def add(self, request: SentRequest) -> EarlierCall[SentRequest] | None:
        """Remembers a request, and returns the one before it."""
        sent = request.sent
        prompt = RenderedPrompt(sent.rendered, Plan())
        scope = request.provider, request.wire
        own = *scope, request.model, sent.route
        if self._only.setdefault(scope, own) not in (own, None):
            self._only[scope] = None
            for each in self._near.calls():
                if (each.provider, each.wire) == scope:
                    _remember(self._anywhere, each, scope)
        last = self._near.last_call(sent.rendered, scope=own, hints=request.hints)
        earlier = _remember(self._near, request, own, prompt)
        if earlier is None and last is not None:
            request.sent = compared_tools(last.sent, sent, last.catalog_rules)
        if self._only[scope] is None:
            other = _remember(self._anywhere, request, scope, prompt)
            if other is not None and other.continues and not (earlier and earlier.continues):
                # The same prompt for another model is a separate conversation.
                grown = len(sent.rendered) > len(other.call.sent.rendered)
                earlier = other if grown else earlier
        prompt.hashed = None
        self._learn(request, earlier)
        return earlier

    def _learn(self, request: SentRequest, earlier: EarlierCall[SentRequest] | None) -> None:
        """Gives a request the rules of its conversation, and learns from its bill for later
        conversations."""
        sent, rules = request.sent, request.catalog_rules
        request.follow(earlier)
        if earlier is None or not earlier.continues or not same_cache(earlier.call, request):
            request.rules = self._steps.begin(sent.route, rules)
        if sent.usage is not None:
            read, conversation = sent.usage.read, request.conversation
            self._steps.learn(sent.route, rules, read, conversation=conversation)


def _without_text(request: SentRequest, bare: Rendered) -> tuple[SentRequest, Rendered]:
    """A copy: the caller may still use the request."""
    sent = _with_prompt(request.sent, bare)
    return replace(request, sent=sent), sent.rendered


def _with_prompt(sent: SentCall, bare: Rendered) -> SentCall:
    rendered = replace(sent.rendered, runs=bare.runs, envelope=bare.envelope)
    return replace(sent, rendered=rendered)


def same_cache(one: SentRequest, two: SentRequest) -> bool:
    """Whether two requests are of one model at one account."""
    of_one = one.provider, one.wire, one.model, one.sent.route
    return of_one == (two.provider, two.wire, two.model, two.sent.route)


def _remember(
    index: PrefixIndex[SentRequest],
    request: SentRequest,
    scope: _Scope,
    prompt: RenderedPrompt | None = None,
) -> EarlierCall[SentRequest] | None:
    return index.add(
        request.sent.rendered,
        request,
        scope=scope,
        hints=request.hints,
        reply_id=request.reply_id,
        prompt=prompt,
    )


def paired(
    requests: Iterable[SentRequest], steps: LearnedSteps | None = None
) -> Iterator[tuple[EarlierCall[SentRequest] | None, SentRequest]]:
    """Each request with the one before it."""
    pairs = RequestPairs(steps=steps)
    for request in requests:
        yield pairs.add(request), request


def judge_request(
    earlier: EarlierCall[SentRequest] | None,
    request: SentRequest,
    price: Price | None,
) -> JudgedPair:
    """The verdict on a request, the request it is judged against, and the prediction by their
    markers, if the verdict needed it."""
    sent, rules = request.sent, request.rules
    pair = judge_matched(
        earlier,
        sent,
        rules,
        price=price,
        profile=request.profile,
        diagnosis=request.diagnosis,
    )
    verdict = request.remedied(pair.verdict, pair.before, sent, rules, price, request.profile)
    pair = pair._replace(verdict=verdict)
    if rules.slots.value:
        return pair
    marked = (each.marks.marks or each.marks.automatic for each in (pair.before, sent) if each)
    # Markers do not count for the verdict there.
    return pair._replace(expected=None) if any(marked) else pair


class RememberedCall(ComparedCall, kw_only=True, eq=False):
    """A call of a program whose requests are changed or delegated, from planning on. `conversation`
    is an id."""

    conversation: str
    planned: PlannedCall | None = None
    earlier: EarlierCall[RememberedCall] | None = None
    """Until the call is answered."""
    last: RememberedCall | None = None
    """The last call of the same app and model if `earlier` is None; until this one is judged."""
    failed: bool = False
    """It cached nothing: later calls are compared with the one before it."""
    compared: bool = False
    before: SentCall | None = None
    """The call it is compared with, and"""
    expected: Prediction | None = None
    """the predicted read; both set once they were looked up."""
    bare: Rendered | None = None
    """Its prompt without text that is to be dropped when it has ended."""
    ended: bool = False
    uses: Sequence[tuple[RememberedCall, int]] = ()
    """The last calls that sent its beginnings, and how many chunks each; only until `cold` is
    called."""

    @property
    def continues(self) -> bool:
        """Whether it continues an answered call of its conversation; until it is answered."""
        earlier = answered_call(self.earlier)
        return earlier is not None and earlier.continues

    @property
    def plan(self) -> Plan | None:
        """Where markers should be; None: the request is left unchanged."""
        return None if self.planned is None else self.planned.plan

    def fail(self) -> None:
        """The call was not answered, so nothing is known to be cached by it."""
        self.failed = True
        self.before = self.expected = None
        self.end()

    def end(self) -> None:
        """Nothing will be read from its text any more, except by later calls."""
        self.ended, self.last, bare = True, None, self.bare
        if bare is not None:
            self.sent, self.bare = _with_prompt(self.sent, bare), None

    def drop_text(self, bare: Rendered) -> tuple[RememberedCall, Rendered]:
        """Replaces its prompt by this one, which has less text, once it has ended."""
        self.bare = bare
        if not self.ended:
            return self, bare
        self.end()
        return self, self.sent.rendered

    def expect(self, rules: CacheRules) -> Prediction | None:
        """What the call should read from the cache, by the program's own earlier calls; None if
        there is no call to compare with."""
        if self.expected is not None:
            return self.expected
        before = self._before(rules)
        if before is not None:
            later, self.expected = predict_after(before, self.sent, rules)
            self.sent = replace(self.sent, rendered=later.rendered)
        return self.expected

    def cold(
        self, rules: CacheRules, *, price: Price | None, profile: Profile, known: int = 0
    ) -> ColdPrefix | None:
        """Whether the call, which is about to be sent, pays for a beginning again. The first
        `known` tokens are known to be cached."""
        uses, self.uses = self.uses, ()
        for call, chunks in uses:
            if not call.failed:
                known = max(known, still_used(call.sent, chunks, self.sent, rules))
        expected = self.expect(rules)
        return cold_call(
            self._before(rules),
            self.sent,
            rules,
            continues=self.continues,
            price=price,
            profile=profile,
            expected=expected,
            known=known,
        )

    def judge(
        self,
        rules: CacheRules,
        *,
        price: Price | None,
        profile: Profile | None,
        diagnosis: Diagnosis | None = None,
    ) -> Verdict:
        """The verdict by the bill of `sent`; by the rules if there is no bill yet."""
        before = self.before if self.compared else self._before(rules)
        if self.last is not None:
            last, self.last = self.last, None
            self.sent = compared_tools(last.sent, self.sent, last.rules or rules)
        left = 0
        if self.expected is None and before is not None:
            left = _read_all(before, self.sent, rules)
        if left:
            return _hit(self.sent, left, price, diagnosis)
        expected, usage = self.expect(rules), self.sent.usage
        billed = usage is not None and usage.read is not None
        if billed and expected is not None and before is not None and before.usage is None:
            expected = replace(expected, exact=False)  # an estimate is not exact
        verdict = judge(
            before,
            self.sent,
            rules,
            expected=expected,
            price=price,
            profile=profile,
            diagnosis=diagnosis,
        )
        return self.remedied(verdict, before, self.sent, rules, price, profile)

    def _before(self, rules: CacheRules) -> SentCall | None:
        if not self.compared:
            self.compared = True
            sent, earlier = self.sent, answered_call(self.earlier)
            self.before = comparable(earlier, sent.rendered, rules, at=sent.at)
        return self.before


def _read_all(before: SentCall, sent: SentCall, rules: CacheRules) -> int:
    """Tokens cached by the previous call, if the bill shows that at least those were read; else
    0."""
    was, read = before.usage, None if sent.usage is None else sent.usage.read
    if was is None or not read:
        return 0
    left = (was.read or 0) + (was.written_total or 0)
    if rules.mechanism.value != "explicit":
        left = max(left, rules.whole_granules(was.input or 0))
    return left if read >= left else 0


def _hit(sent: SentCall, left: int, price: Price | None, diagnosis: Diagnosis | None) -> Verdict:
    """The verdict if everything was read."""
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


def answered_call(
    earlier: EarlierCall[RememberedCall] | None,
) -> EarlierCall[RememberedCall] | None:
    """The earlier call, or the one before it if it failed."""
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
