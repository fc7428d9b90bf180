"""Judges each relayed call: tokens read from the cache, cost, and breaks.

    judge = Judge(on_call=print)
    with running(routes, observers=[judge]) as proxy: ...
    judge.calls, judge.summary()

A call is compared with the previous one of its conversation, which is found by the beginnings of
prompts. A turn costs what it adds: messages of an earlier request are not split, hashed or compared
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.sent_call import SentCall
from anaphora.cache.verdict import Prediction, Verdict, predict_usage, predicted_usage
from anaphora.catalog import Price
from anaphora.catalog.prices import cost_of
from anaphora.catalog.pricing import PriceBook
from anaphora.client.prices import iterations_usd
from anaphora.client.transport.decoding import InvalidCompression, UnknownCompression
from anaphora.errors import AnaphoraError
from anaphora.redaction import Redactor
from anaphora.rendered import Plan
from anaphora.values import Notice
from anaphora.wire import cloud_paths
from anaphora.wire.known_requests import MOST_BYTES, KnownRequests
from anaphora.wire.reading import Members

from .accounts import Accounts, Credentials, credentials, keys_in
from .calls import (
    RealtimeBill,
    RelayedCall,
    as_logged,
    decoded_path,
    is_unread,
    kind_of,
    named_model,
    whole_answer,
    why_ended,
    wire_at,
)
from .matching import RequestPairs, judge_request
from .savings import Savings
from .sent_requests import (
    ResponseChains,
    SentRequest,
    billed_usage,
    known_request,
    read_reply,
    request_of,
)
from .summary import WatchSummary, summary_of
from .sums import JudgedCall, Totals

#: Calls whose verdicts are kept.
_MOST_CALLS = 10_000
#: Credentials for which a redactor is kept.
_MOST_REDACTORS = 16
#: The steps of a verdict but the last, which publishes it; those that read request and response.
_STEPS, _READING_STEPS = 5, 3
_UNREAD_API = Notice("not_read", "Ollama's /api/ is passed on, not read; /v1 is read.")
#: The texts of a change, which may quote the prompt.
_TEXTS = ("before", "after", "detail", "label", "path")


class CallJudge:
    """Judges calls one by one, each in comparison with earlier ones. Bounded. Not thread-safe."""

    def __init__(
        self,
        *,
        most_bytes: int = 64 * 1024 * 1024,
        totals: Totals | None = None,
        savings: Savings | None = None,
    ) -> None:
        """`most_bytes` limits the prompts kept to compare later calls with. `totals` gets the
        conversations, `savings` the calls that have a verdict."""
        self._totals = totals
        self._savings = savings
        self._pairs = RequestPairs(most_bytes=most_bytes)
        self._chains = ResponseChains(most_bytes=most_bytes)
        self._requests = KnownRequests(MOST_BYTES)
        self._prices: PriceBook | None = None
        self._accounts = Accounts()
        self._redactors: dict[Credentials, Redactor] = {}
        """By the credentials of recent calls, which mostly match the next one."""
        self._conversations = 0
        self._told_unread = False
        self._prepared: dict[int, tuple[JudgedCall, Iterator[None]]] = {}
        """Calls to be judged next, by number, with their remaining steps."""
        self.last_sent: SentCall | None = None
        """The prompt of the last ended call, if it was read."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the prompts that later calls are compared with."""
        return self._pairs.size

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Models without a known price, as `provider/model`."""
        return () if self._prices is None else self._prices.unpriced

    # ── One call ─────────────────────────────────────────────────────────────────────────────────

    def judge(self, call: RelayedCall) -> JudgedCall:
        """The verdict on an ended call, or why there is none."""
        self.last_sent = None
        prepared = self._prepared.pop(call.number, None)
        judged, steps = self._begin(call) if prepared is None else prepared
        for _ in steps:
            pass
        return judged

    def prepare(self, calls: Sequence[RelayedCall]) -> None:
        """Does all steps of `judge` except the last, for calls that are judged next, in this order.
        Each step is done for all of them, so that its code and data are still in the processor's
        caches: faster than all steps of one call in a row."""
        prepared = {call.number: self._begin(call) for call in calls}
        of_a_wire = sorted(prepared, key=lambda number: prepared[number][0].wire)
        for step in range(_STEPS):
            # Requests of different wires are read independently.
            for number in of_a_wire if step < _READING_STEPS else prepared:
                judged, steps = prepared[number]
                try:
                    next(steps, None)
                except Exception as problem:
                    prepared[number] = judged, map(_raise, [problem])
        self._prepared = prepared

    def _begin(self, call: RelayedCall) -> tuple[JudgedCall, Iterator[None]]:
        """The call, and the steps that judge it."""
        path = decoded_path(call.path)
        found = credentials(call.request_headers, call.query)
        redact = self._redactor_of(found)
        judged = JudgedCall(
            number=call.number,
            at=call.started,
            seconds=call.ended,
            method=call.method,
            path=redact(path),
            provider=call.route.provider,
            wire=wire_at(path) or "",
            status=call.status,
            placed=call.sent_body is not None,
            notices=call.notices,
        )
        return judged, self._steps(call, judged, path, found, redact)

    def _steps(
        self,
        call: RelayedCall,
        judged: JudgedCall,
        path: str,
        found: Credentials,
        redact: Redactor,
    ) -> Iterator[None]:
        judged.kind, judged.reason = kind_of(call, judged.wire, path)
        unread = judged.kind == "other" and is_unread(call.route.provider, path)
        if unread and not self._told_unread:
            self._told_unread = True
            judged.notices += (_UNREAD_API,)
        if judged.kind == "judged":
            try:
                yield from self._read(call, judged, path, found, redact)
            except (InvalidCompression, AnaphoraError, ValueError) as problem:
                judged.kind, judged.reason = "not_judged", str(problem)
            if judged.kind != "judged" and call.outcome != "complete":
                judged.kind, judged.reason = call.outcome, why_ended(call)
        elif call.realtime is not None:
            self._add_bill(judged, call.realtime)
        elif judged.kind == "not_judged" and (model := cloud_paths.unread_model(path)):
            self._add_unread(call, judged, model)
        elif judged.wire:
            judged.model = named_model(call)
        judged.reason = redact(judged.reason)

    def _add_unread(self, call: RelayedCall, judged: JudgedCall, model: str) -> None:
        """The bill of a call whose body is not read."""
        try:
            answer = whole_answer(call)
        except (InvalidCompression, UnknownCompression):
            answer = b""
        usage = billed_usage(call.response_headers, answer)
        self._add_bill(judged, RealtimeBill(model, usage))

    def _add_bill(self, judged: JudgedCall, bill: RealtimeBill) -> None:
        judged.model, judged.usage = bill.model, bill.usage
        if bill.usage is None or bill.reason:
            return
        price = self._price_book(judged.at).price(judged.provider, bill.model, judged.at)
        judged.cost_usd = cost_of(bill.usage, price, Plan())
        judged.output_usd = None if price is None else price.of_output(bill.usage)

    def _price_book(self, at: float) -> PriceBook:
        if self._prices is None:
            self._prices = PriceBook(at)
        return self._prices

    def _redactor_of(self, found: Credentials) -> Redactor:
        redactor = self._redactors.get(found)
        if redactor is None:
            if len(self._redactors) >= _MOST_REDACTORS:
                self._redactors.clear()
            redactor = self._redactors[found] = Redactor(keys_in(found))
        return redactor

    def _read(
        self,
        call: RelayedCall,
        judged: JudgedCall,
        path: str,
        found: Credentials,
        redact: Redactor,
    ) -> Iterator[None]:
        """Reads the request and the bill, and adds the verdict."""
        try:
            answer = whole_answer(call)
        except UnknownCompression as problem:
            answer, judged.reason = b"", f"the answer is {problem}"
        logged = as_logged(call, judged.wire, path, answer)
        reading = known_request(self._requests, logged)
        yield
        reply = read_reply(logged)
        yield
        request = request_of(
            logged, str(call.number), chains=self._chains, reading=reading, reply=reply
        )
        judged.model = request.model
        if request.failure or (not answer and call.outcome != "complete"):
            judged.kind, judged.reason = "error", request.failure
            return
        account = self._accounts.digest(call.route, found)
        request.sent = replace(request.sent, route=account)
        yield
        yield from self._compare(call, judged, request, reading.members(), redact)

    def _compare(
        self,
        call: RelayedCall,
        judged: JudgedCall,
        request: SentRequest,
        members: Members,
        redact: Redactor,
    ) -> Iterator[None]:
        """Adds the verdict, the bill and the price."""
        earlier, sent = self._pairs.add(request), request.sent
        yield
        prices = self._price_book(judged.at)
        price = prices.price(
            request.provider, request.model, sent.at, request.wire, request.service_tier
        )
        before, expected = self._add_verdict(judged, earlier, request, price, redact)
        yield
        self.last_sent = sent
        if sent.usage is not None:
            judged.usage = replace(sent.usage, raw=None)
            judged.cost_usd = cost_of(sent.usage, price, sent.marks)
            if price is not None and judged.cost_usd is not None:
                raw = sent.usage.raw
                if raw is not None and '"iterations"' in raw:
                    price_of = partial(
                        prices.price,
                        request.provider,
                        at=sent.at,
                        wire=request.wire,
                        service_tier=request.service_tier,
                    )
                    judged.cost_usd += iterations_usd(sent.usage, price, sent.marks, price_of)
                judged.output_usd = price.of_output(sent.usage)
        if sent.usage is None or sent.usage.read is None:
            judged.predicted = (
                predicted_usage(expected)
                if expected is not None
                else predict_usage(before, sent, request.rules)
            )
        if self._savings is not None:
            self._savings.add(call, request, members, earlier, price)
        if before is not None and earlier is not None:
            judged.compared_with = int(earlier.call.place)
            then = earlier.call.sent.at
            judged.gap = None if then is None else judged.at - then
        conversation = request.conversation
        opened = not conversation.number
        if opened:
            self._conversations += 1
            conversation.number = self._conversations
        conversation.calls += 1
        judged.conversation, judged.turn = conversation.number, conversation.calls
        if opened and self._totals is not None:
            like = 0
            if before is not None and earlier is not None and not earlier.continues:
                like = earlier.call.conversation.number
            session = request.hints.conversation, request.hints.user
            self._totals.open_conversation(session, judged, like, request.tool_bytes)

    def _add_verdict(
        self,
        judged: JudgedCall,
        earlier: EarlierCall[SentRequest] | None,
        request: SentRequest,
        price: Price | None,
        redact: Redactor,
    ) -> tuple[SentCall | None, Prediction | None]:
        """The call that it is judged against, and the prediction, if the verdict needed it."""
        before, verdict, expected = judge_request(earlier, request, price)
        judged.verdict = _redacted(verdict, redact)
        return before, expected


class Judge:
    """An observer of the relay, with the sums of all calls. `on_call` is called for each call in
    the order they end, in the relay's observer thread; everything else may be read from any
    thread."""

    def __init__(
        self,
        on_call: Callable[[JudgedCall], None] | None = None,
        *,
        most_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._on_call = on_call
        self._calls: deque[JudgedCall] = deque(maxlen=_MOST_CALLS)
        self.totals = Totals()
        self.savings = Savings()
        """The cost of the same calls with Anaphora's markers."""
        self._judge = CallJudge(most_bytes=most_bytes, totals=self.totals, savings=self.savings)
        self.prepare = self._judge.prepare
        self.last: JudgedCall | None = None
        """The last ended call, for observers after this one."""

    @property
    def calls(self) -> tuple[JudgedCall, ...]:
        """The latest calls, in the order they ended."""
        with self.totals.lock:
            return tuple(self._calls)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the prompts that later calls are compared with."""
        return self._judge.kept_bytes

    @property
    def last_sent(self) -> SentCall | None:
        """The prompt of the last ended call, if it was read."""
        return self._judge.last_sent

    def call_ended(self, call: RelayedCall) -> None:
        self.last = None
        judged = self.last = self._judge.judge(call)
        with self.totals.lock:
            self._calls.append(judged)
            self.totals.add(judged)
        if self._on_call is not None:
            self._on_call(judged)

    def summary(self, *, quick: bool = False) -> WatchSummary:
        """The sums of all calls so far. Comparing the costs of many calls takes time: a quick one
        compares only a few that wait, and does not group the calls."""
        compared = self.savings.result(quick=quick)
        with self.totals.lock:
            return summary_of(self.totals, compared, self._judge.unpriced, grouped=not quick)


def _raise(problem: Exception) -> None:
    """The step of a call that failed earlier."""
    raise problem


def _redacted(verdict: Verdict, redact: Redactor) -> Verdict:
    """The text without the call's own key, in case the prompt contains it."""
    change = verdict.change
    if change is None:
        return verdict
    texts = {name: redact(getattr(change, name)) for name in _TEXTS}
    causes = tuple([replace(cause, text=redact(cause.text)) for cause in verdict.causes])
    return replace(verdict, change=replace(change, **texts), causes=causes)
