"""The cost of a program's traffic with Anaphora's markers.

    savings = Savings()
    savings.add(call, request, members, earlier, price)     each call, when it was judged
    print(savings.result())

A verdict does not need the comparison: calls are compared when the sums are read, or when many
wait.

The simulator plays the same requests twice, at the times they were made: as the program sent them,
and with the planner's markers (`Placer` places the same). Both scale tokens to the bill of each
call, so all three are comparable. A call costs what it adds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from anaphora.bounded import BoundedMap
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator
from anaphora.catalog import CacheRules, Price
from anaphora.catalog.prices import cost_of
from anaphora.client.failures import log_error
from anaphora.errors import AnaphoraError
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Usage
from anaphora.wire.reading import Members
from anaphora.wording import counted, format_share, format_usd

from .calls import RelayedCall, decoded_path, header_of
from .matching import same_cache
from .planning import (
    STORED_FIELDS,
    ConversationPlans,
    OwnMarkers,
    PlannedCall,
    ReadRequest,
    is_encoded,
    may_take_markers,
    read_request,
    read_split,
)
from .sent_requests import SentRequest

T = TypeVar("T")

#: Maximum number of models with simulated caches, and of prefixes that each one remembers.
_MOST_MODELS, _MOST_PREFIXES = 64, 10_000
_ENCODING = "content-encoding"
#: Fields of a request that the planner uses.
_FIELDS = (*STORED_FIELDS, "prompt_cache_key", "prompt_cache_options")
#: Maximum number of calls that wait to be compared, and bytes of their prompts; and how many of
#: them are compared for a quick result.
_MOST_WAITING, _MOST_WAITING_BYTES, _FEW = 1024, 32 * 1024 * 1024, 16


class TokenCosts(msgspec.Struct):
    """The input of several calls, and their cost with output."""

    uncached: int = 0
    read: int = 0
    written: int = 0
    cost_usd: Decimal = Decimal(0)

    def add(self, usage: Usage, cost_usd: Decimal) -> None:
        self.uncached += usage.uncached or 0
        self.read += usage.read or 0
        self.written += usage.written_total or 0
        self.cost_usd += cost_usd


class SavingsResult(msgspec.Struct, frozen=True, kw_only=True):
    calls: int
    """The compared calls: with a bill and a known price."""
    left_out: int
    """Calls without a bill or a price, or with an unknown prompt."""
    placed: int
    """Calls that were sent with Anaphora's markers."""
    billed: TokenCosts
    """The provider's bills."""
    simulated: TokenCosts
    """The same requests as sent by the program, simulated."""
    with_markers: TokenCosts
    """The same requests with Anaphora's markers, simulated."""

    @property
    def saved_usd(self) -> Decimal:
        """Savings by Anaphora's markers, both sides simulated; negative if they cost more."""
        return self.simulated.cost_usd - self.with_markers.cost_usd

    @property
    def share(self) -> float:
        """The same as a share of the cost without them."""
        cost_usd = self.simulated.cost_usd
        return float(self.saved_usd / cost_usd) if cost_usd else 0.0

    def __str__(self) -> str:
        if not self.calls:
            return (
                "Anaphora's markers: nothing to compare, since no call has a bill and a known"
                " price."
            )
        without, having = (
            format_usd(self.simulated.cost_usd),
            format_usd(self.with_markers.cost_usd),
        )
        costs = f"{having} instead of {without} for the same {counted(self.calls, 'call')}"
        how = f"(both simulated; billed: {format_usd(self.billed.cost_usd)})"
        would = "" if self.placed else "would have "
        if self.saved_usd < 0:
            amount = f"{would}cost {format_usd(-self.saved_usd)} more ({format_share(-self.share)})"
        else:
            amount = f"{would}saved {format_usd(self.saved_usd)} ({format_share(self.share)})"
        advice = " --fix places them." if not self.placed and self.share >= WORTH_SAYING else ""
        return f"Anaphora's markers {amount}: {costs} {how}.{advice}"


#: What saves less than this share is not named.
WORTH_SAYING = 0.01


class _Simulators(msgspec.Struct, frozen=True, eq=False):
    """Simulated caches of one model, for the program's requests and for ours."""

    as_sent: Simulator
    with_markers: Simulator
    """The same object if no request of the model accepts markers."""


class _Waiting(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A judged call, as far as needed to compare its costs."""

    request: SentRequest
    read: ReadRequest | None
    """As sent by the program, if markers were placed in it."""
    fields: Members
    """Fields of the body that decide where markers may be placed."""
    continued: SentRequest | None
    """The request that it continues in the same cache."""
    chunks: int
    """How many leading chunks the two share."""
    started: float
    ended: float
    placed: bool
    price: Price | None


class Savings:
    """Adds up calls one by one. Bounded and thread-safe."""

    def __init__(self, own_markers: OwnMarkers = "keep") -> None:
        self._plans = ConversationPlans(own_markers, fix=True)
        self._simulators = BoundedMap[tuple[str, str, str], _Simulators](_MOST_MODELS)
        self._billed, self._simulated, self._with_markers = TokenCosts(), TokenCosts(), TokenCosts()
        self._calls = self._left_out = self._placed = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0

    @property
    def waiting(self) -> int:
        """Number of calls not compared yet."""
        return len(self._waiting)

    def add(
        self,
        call: RelayedCall,
        request: SentRequest,
        members: Members,
        earlier: EarlierCall[SentRequest] | None,
        price: Price | None,
    ) -> None:
        """Adds an answered call as the judge read it: the request and the members of its body, and
        the call before it."""
        placed = call.sent_body is not None
        encoded = is_encoded({"content-encoding": header_of(call.request_headers, _ENCODING)})
        known = request.sent.complete and call.request_body is not None and not encoded
        read = _attempt(lambda: _read_unplaced(call)) if known and placed else None
        with self._lock:
            self._placed += placed
            if not known or (placed and read is None):
                self._left_out += 1
                return
            continued, chunks = None, 0
            if earlier is not None and earlier.continues and same_cache(earlier.call, request):
                continued, chunks = earlier.call, earlier.chunks
            self._waiting.append(
                _Waiting(
                    request=request,
                    read=read,
                    fields={name: members[name].copy() for name in _FIELDS if name in members},
                    continued=continued,
                    chunks=chunks,
                    started=call.started,
                    ended=call.ended,
                    placed=placed,
                    price=price,
                )
            )
            self._waiting_bytes += _size(request)
            while len(self._waiting) > _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
                self._compare_first()

    def result(self, *, quick: bool = False) -> SavingsResult:
        """The sums of all calls; a quick one compares only a few of those that wait."""
        with self._lock:
            for _ in range(min(len(self._waiting), _FEW) if quick else len(self._waiting)):
                self._compare_first()
            return SavingsResult(
                calls=self._calls,
                left_out=self._left_out,
                placed=self._placed,
                billed=replace(self._billed),
                simulated=replace(self._simulated),
                with_markers=replace(self._with_markers),
            )

    def _compare_first(self) -> None:
        waiting = self._waiting.popleft()
        self._waiting_bytes -= _size(waiting.request)
        if not _attempt(lambda: self._compare(waiting)):
            self._left_out += 1

    def _compare(self, call: _Waiting) -> bool:
        request, sent = call.request, call.request.sent
        read = call.read or _read_split(request, call.fields)
        planned = self._plan(call, read)
        rendered = _billed_prompt(read.rendered, planned, sent.usage)
        if call.placed:
            own = Plan(marks=rendered.marks, automatic=rendered.automatic)
            ours = sent.marks  # the markers that were actually placed
        else:
            own = sent.marks
            ours = own if planned.plan is None else planned.plan
        simulators = self._simulators_of(request, read.rules)
        prompt = RenderedPrompt(rendered, own)
        as_sent = with_markers = _simulate(simulators.as_sent, prompt, call)
        if simulators.with_markers is not simulators.as_sent:
            prompt.mark(ours)
            with_markers = _simulate(simulators.with_markers, prompt, call)
        return self._add_up(request, call.price, (own, as_sent), (ours, with_markers))

    def _plan(self, call: _Waiting, read: ReadRequest) -> PlannedCall:
        """The planner's markers, given the previous call that the judge found."""
        found, before = None, None if call.continued is None else call.continued.planned
        if before is not None:
            found = EarlierCall(call=before, continues=True, chunks=call.chunks, latest=before)
        scope = call.request.sent.route
        planned = self._plans.add_found(read, found, scope=scope, at=call.started)
        call.request.planned = planned
        return planned

    def _add_up(
        self,
        request: SentRequest,
        price: Price | None,
        as_sent: tuple[Plan, Outcome],
        with_markers: tuple[Plan, Outcome],
    ) -> bool:
        """Adds the call to the sums; False if one of its costs is unknown."""
        billed = request.sent.usage
        if billed is None:
            return False
        costs = [(self._billed, billed, cost_of(billed, price, request.sent.marks))]
        (own, outcome), (ours, other) = as_sent, with_markers
        usage = outcome.usage(billed.output)
        cost_usd = cost_of(usage, price, own)
        costs.append((self._simulated, usage, cost_usd))
        if other != outcome or ours.marks != own.marks:
            usage = other.usage(billed.output)
            cost_usd = cost_of(usage, price, ours)
        costs.append((self._with_markers, usage, cost_usd))
        if any(cost_usd is None for _, _, cost_usd in costs):
            return False
        self._calls += 1
        for sums, usage, cost_usd in costs:
            assert cost_usd is not None
            sums.add(usage, cost_usd)
        return True

    def _simulators_of(self, request: SentRequest, rules: CacheRules) -> _Simulators:
        key = request.provider, request.wire, request.model
        known = self._simulators.use(key)
        if known is None:
            one = two = Simulator(rules, most=_MOST_PREFIXES)
            if may_take_markers(rules):
                two = Simulator(rules, most=_MOST_PREFIXES)
            known = self._simulators[key] = _Simulators(one, two)
        return known


def _attempt(step: Callable[[], T]) -> T | None:
    """The result of a comparison step; None if it fails: a failed comparison must not lose the
    verdict."""
    try:
        return step()
    except AnaphoraError:
        return None  # the judge says what is wrong with it
    except Exception as problem:
        log_error(f"comparing costs failed: {type(problem).__name__}", problem)
        return None


def _read_unplaced(call: RelayedCall) -> ReadRequest | None:
    """The request as the program sent it, before markers were placed, for the planner."""
    path, headers = decoded_path(call.path), dict(call.request_headers)
    return read_request(call.method, call.route.provider, path, headers, call.request_body or b"")


def _read_split(request: SentRequest, fields: Members) -> ReadRequest:
    """The same if no markers were placed."""
    rendered, provider = request.sent.rendered, request.provider
    return read_split(
        rendered, fields, request.hints, request.catalog_rules, provider, request.dialect
    )


def _size(request: SentRequest) -> int:
    """Approximate bytes that a waiting request keeps in memory."""
    return request.sent.rendered.size


def _billed_prompt(rendered: Rendered, planned: PlannedCall, usage: Usage | None) -> Rendered:
    """The prompt scaled to the billed tokens; the next call begins with these counts."""
    rendered = replace(rendered, bills=planned.bills)
    if usage is None or not usage.input:
        return rendered
    planned.bills = Counts(rendered).billed(usage.input)
    return replace(rendered, bills=planned.bills)


def _simulate(simulator: Simulator, prompt: RenderedPrompt, call: _Waiting) -> Outcome:
    sent = call.request.sent
    return simulator.call(
        prompt,
        at=call.started,
        began=sent.began,
        ended=call.started + call.ended,
        reasoning=None if sent.usage is None else sent.usage.reasoning,
        scope=sent.route,
    )
