"""Stops a program's calls at a limit in dollars: `anaphora watch --max-usd`.

    judge, limit = Judge(), ProgramLimit(Decimal("0.50"))
    with running(routes, observers=[judge, SpendCheck(judge, limit)]) as proxy: ...

A refusal is an error 402 in the format of the program's wire, which no SDK repeats. A call is sent
while bills and the upper ends of the calls in flight are below the limit, so that only the last
call can exceed it. While bills alone are below, other calls wait for those in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from anaphora import wire as wires
from anaphora.catalog import Price, Profile, profile
from anaphora.catalog.api_limits import fastest_tokens, stops_when_cut
from anaphora.catalog.pricing import PriceBook
from anaphora.client.costs import NANO
from anaphora.client.costs.settling import (
    FailedOutput,
    cost_of_failure,
    dearest_usd,
    nano_usd_up,
    thinks_unseen,
)
from anaphora.client.provider_errors import partial_of
from anaphora.errors import AnaphoraError, Denied, SpendLimitReached, Transport
from anaphora.rendered import Plan
from anaphora.tokens import Counts
from anaphora.traffic.calls import (
    KEPT_BYTES,
    RelayedCall,
    UpstreamRequest,
    counts_tokens,
    decoded_path,
    whole_answer,
    wire_at,
)
from anaphora.traffic.judging import Judge
from anaphora.traffic.sent_requests import unsent_request
from anaphora.traffic.sums import JudgedCall
from anaphora.values import ReplyEnd, Usage
from anaphora.wire import cloud_paths
from anaphora.wire.known_requests import MOST_BYTES, KnownRequests
from anaphora.wire.permissions.fields import read_facts
from anaphora.wording import counted, format_usd

#: Seconds between two looks at the calls in flight, and until a call that waits for them is
#: refused: they might wait for it.
_LOOK, _PATIENCE = 0.01, 600.0


class SpendCheck:
    """An observer that also checks requests. It must come after the judge, which reads the
    bills."""

    def __init__(self, judge: Judge, limit: ProgramLimit) -> None:
        self._judge = judge
        self.limit = limit
        self._lock = threading.Lock()
        self._reading = ThreadPoolExecutor(1, "anaphora-limit")

    async def check(self, request: UpstreamRequest) -> Denied | None:
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(self._reading, self.limit.read, request)
        until = time.monotonic() + _PATIENCE
        while call is not None:
            with self._lock:
                refused = self.limit.admit(call)
                if not call.waits:
                    return refused
                if time.monotonic() > until:
                    return self.limit.refuse("the calls in flight may use what is left")
            await asyncio.sleep(_LOOK)
        return None

    def call_ended(self, call: RelayedCall) -> None:
        with self._lock:
            self.limit.ended(call, self._judge.last)


#: Ends of paths whose calls are billed, and whose bills are not read.
_UNREAD = (
    "/batches",
    "/cachedcontents",
    "/complete",
    "/completions",
    "/embeddings",
    "/images/edits",
    "/images/generations",
    "/images/variations",
    "/interactions",
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
    "/videos",
    ":asyncbatchembedcontent",
    ":batchembedcontents",
    ":batchgeneratecontent",
    ":embedcontent",
    ":predict",
    ":predictlongrunning",
)
#: A path below one that prompts are posted to, with the same request and bill.
_COMPACT = ("/responses/compact", "/compact")
_FIRST_ERROR = 400


class LimitedCall(msgspec.Struct, kw_only=True, eq=False):
    """A call before it is sent."""

    number: int
    upper_usd: Decimal = Decimal(0)
    """The upper end of its predicted cost."""
    problem: str = ""
    """Why that is unknown."""
    waits: bool = False
    """It may be sent when a call in flight has cost less than predicted."""
    price: Price | None = None
    profile: Profile | None = None
    provider: str = ""
    wire: str = ""
    usage: Usage = Usage()
    """The upper ends of its tokens."""


class ProgramLimit:
    """Counts what a program spends. Not for several threads at once."""

    def __init__(self, usd: Decimal) -> None:
        self.usd = usd
        self.spent_usd = Decimal(0)
        self.calls = self.refused = 0
        """Calls that were sent, and those that were not."""
        self._open: dict[int, LimitedCall] = {}
        self._requests = KnownRequests(MOST_BYTES)
        self._prices: PriceBook | None = None

    @property
    def held_usd(self) -> Decimal:
        """The upper ends of the calls in flight."""
        return sum((call.upper_usd for call in self._open.values()), Decimal(0))

    @property
    def headline(self) -> str:
        text = f"limit of {format_usd(self.usd)}: {format_usd(self.spent_usd)} spent in"
        refused = f"{counted(self.refused, 'call')} refused"
        return f"{text} {counted(self.calls, 'call')}, {refused}"

    def read(self, request: UpstreamRequest) -> LimitedCall | None:
        """The call with the upper end of its cost; None if it is free."""
        path = decoded_path(request.path).rstrip("/")
        if request.method != "POST" or counts_tokens(path):
            return None
        if path.endswith(_COMPACT[0]):
            path = path.removesuffix(_COMPACT[1])
        if wire_at(path) is None and not cloud_paths.unread_model(path):
            if not path.lower().endswith(_UNREAD):
                return None
            problem = f"the cost of {path[:100]} is not known here"
            return LimitedCall(number=request.number, problem=problem)
        if not isinstance(request.body, bytes):
            problem = f"its body is larger than {KEPT_BYTES >> 20} MB, so its cost is unknown"
            return LimitedCall(number=request.number, problem=problem)
        try:
            return self._read(replace(request, path=path), path)
        except Exception as problem:
            known = isinstance(problem, AnaphoraError)
            kind = str(problem) if known else type(problem).__name__
            reason = f"it cannot be read, so its cost is unknown: {kind}"
            return LimitedCall(number=request.number, problem=reason)

    def admit(self, call: LimitedCall) -> SpendLimitReached | None:
        """The error of a call that is not sent; otherwise it is in flight, or `waits`."""
        reason, call.waits = "", False
        if self.spent_usd >= self.usd:
            spent = f"{format_usd(self.spent_usd)} spent in {counted(self.calls, 'call')}"
            reason = f"it is used up, with {spent}"
        elif call.problem:
            reason = call.problem
        elif self.spent_usd + self.held_usd >= self.usd:
            call.waits = True
            return None
        if not reason:
            self.calls += 1
            self._open[call.number] = call
            return None
        return self.refuse(reason)

    def refuse(self, reason: str) -> SpendLimitReached:
        self.refused += 1
        text = f"stopped by anaphora watch at its limit of {format_usd(self.usd)} (--max-usd)"
        return SpendLimitReached(f"{text}: {reason}. This call was not sent.")

    def ended(self, call: RelayedCall, judged: JudgedCall | None) -> None:
        """Replaces the upper end of a call by its bill; without one, by the daemon's rules."""
        sent = self._open.pop(call.number, None)
        if sent is None:
            return
        if call.outcome == "refused":  # by another check
            self.calls -= 1
        elif judged is not None and judged.cost_usd is not None:
            self.spent_usd += judged.cost_usd
        elif sent.price is not None and call.status < _FIRST_ERROR:
            try:
                self.spent_usd += _unbilled_usd(call, sent, sent.price)
            except Exception:
                self.spent_usd += sent.upper_usd
                raise

    def _read(self, request: UpstreamRequest, path: str) -> LimitedCall:
        call = LimitedCall(number=request.number, provider=request.route.provider)
        if self._prices is None:
            self._prices = PriceBook(request.started)
        max_tokens: int | None = None
        stored = False
        if model := cloud_paths.unread_model(path):
            size = len(request.body) if isinstance(request.body, bytes) else 0
            call.wire = wire_at(path) or ""
            call.profile = profile(call.provider, model)
            call.price = self._prices.price(call.provider, model, request.started)
        else:
            found = unsent_request(request, self._requests)
            if found is None:
                call.problem = "its provider is not known, and so is its price"
                return call
            read, members = found
            model, call.wire, call.profile = read.model, read.wire, read.profile
            size = Counts(read.sent.rendered).bounds(read.profile.token_error.value)[1]
            with contextlib.suppress(AnaphoraError):  # then the longest output counts
                facts = read_facts(read.wire, members, path=path)
                max_tokens = facts.max_tokens and facts.max_tokens * facts.n
            stored = not read.sent.complete
            call.price = self._prices.price(
                read.provider, model, request.started, read.wire, read.service_tier
            )
        window, longest = call.profile.context_tokens, call.profile.output_tokens
        if stored and window is not None:  # the history at the provider counts as well
            size = max(size, window.value)
        if max_tokens is None and longest is not None:
            max_tokens = longest.value
        call.usage = Usage(uncached=size, output=max_tokens or 0)
        upper = None if call.price is None else dearest_usd(call.usage, call.price)
        if upper is None:
            call.price, call.problem = None, f"no price is known for {model}"
        else:
            call.upper_usd = upper
        return call


def _unbilled_usd(call: RelayedCall, sent: LimitedCall, price: Price) -> Decimal:
    """The cost of a call without a bill: that of what arrived, if the answer is complete or the
    provider stops billing a stream that is cut; else the upper end."""
    arrived, complete = None, False
    model = sent.profile
    assert model is not None
    if not call.status and call.outcome == "failed":  # no connection, or none that answered
        return Decimal(0)
    if call.pieces:
        reader = wires.get(sent.wire).reader(call.path)
        events = [*reader.feed(whole_answer(call)), *reader.close()]
        if isinstance(last := events[-1], ReplyEnd):
            arrived, complete = last.reply, True
            if not arrived.message.parts and arrived.usage.input is None:
                return sent.upper_usd  # it is answered in the background, and billed later
        else:
            arrived = partial_of(events)
    unseen = 0
    if thinks_unseen(sent.wire, model, arrived):
        unseen = math.ceil(call.ended * fastest_tokens(sent.provider, model.id))
    broke = call.outcome == "failed"
    cost = cost_of_failure(
        Transport("the connection broke", phase="body") if broke else None,
        arrived,
        price=price,
        plan=Plan(),
        bound=nano_usd_up(sent.upper_usd),
        input_tokens=sent.usage.uncached or 0,
        output=FailedOutput(
            most=sent.usage.output or 0,
            stops=complete or (arrived is not None and stops_when_cut(sent.provider)),
            unseen=unseen,
        ),
        bytes_per_token=model.bytes_per_token.value,
    )
    return Decimal(cost.nano_usd) / NANO
