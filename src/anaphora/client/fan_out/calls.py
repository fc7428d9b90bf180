"""One call of a fan-out: planned with its group, and watched while it is answered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.cache.plan import SingleCallPlanner, reuse_requested
from anaphora.cache.plan.groups import (
    PrefixGroup,
    group_prompts,
    group_ttl,
    shared_plan,
    warming_pays,
)
from anaphora.cache.verdict.judgement import ComparedCalls
from anaphora.catalog import Price
from anaphora.client.in_flight import InFlight, PreparedRequest, TurnRequest
from anaphora.client.observe import Watchers
from anaphora.client.oneshot import OneShot
from anaphora.client.response import Response
from anaphora.client.structured import Structured
from anaphora.client.target import Target
from anaphora.client.turn import Turn
from anaphora.errors import AnaphoraError, Throttled, Unavailable
from anaphora.prompt import Call
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Ttl, Usage, UsageUpdate

#: Seconds at most between two attempts of a call that rate limits keep from starting.
_MOST_WAIT = 30.0
#: How often a call waits for an open circuit breaker.
_BREAKER_WAITS = 3
#: Output tokens that are expected of a call without a limit, before any reply was seen.
_USUAL_OUTPUT = 1024


class CallWatch:
    """Tells when a response began, and when it is known to have read enough of the cache."""

    def __init__(self, enough: float) -> None:
        self.began = asyncio.Event()
        self.proved = asyncio.Event()
        """It has read at least `enough` tokens."""
        self.news = asyncio.Event()
        """That is known, or the call has ended."""
        self.prewarm = False
        """It has no reply."""
        self._enough = enough

    def reads(self, usage: Usage) -> None:
        if (usage.read or 0) >= self._enough:
            self.proved.set()
            self.news.set()

    def ended(self) -> None:
        self.began.set()
        self.news.set()


class MappedCall(OneShot):
    """A call whose prompt may begin like others that are sent together."""

    def __init__(
        self,
        call: Call,
        targets: Sequence[Target],
        *,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
        compared: ComparedCalls | None = None,
        output: Structured[Any] | None = None,
        timeout: float | None = None,
        prewarm: bool = False,
    ) -> None:
        super().__init__(call, targets, on_wait=on_wait, watchers=watchers, compared=compared)
        self._request = TurnRequest(output=output, timeout=timeout, prewarm=prewarm)
        self._began: Callable[[], None] | None = None
        self.group: PrefixGroup | None = None
        """The group whose beginning it marks; None: it is planned like any single call."""
        self.ttl: Ttl | None = None
        self.lost_usd: Decimal | None = None
        """The cost of a reply that could not be used."""

    @property
    def target(self) -> Target:
        return self._targets[0]

    @property
    def output(self) -> Structured[Any] | None:
        return self._request.output

    @property
    def timeout(self) -> float | None:
        """Seconds that it may take."""
        given = self._request.timeout
        return self.target.endpoint.config.timeouts.total if given is None else given

    def render(self) -> Rendered:
        """The call as its first provider gets it."""
        return self.target.render(self._call_at(self.target, self.output, stream=False))

    def assembled(self) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
        """Path, headers and body of the request: for a batch."""
        rendered = self.render()
        plan = self._plan(0, rendered, time.time())
        request = self.target.endpoint.wire.assemble(rendered, plan)
        return request.path, request.headers, request.body.join()

    def read_batched(self, body: bytes, *, at: float) -> Response[Any]:
        """The response of a request that ran in a batch, which was submitted at that time."""
        flight = InFlight(self._request, self._targets[:1], False)
        flight.batch, flight.began, flight.sent_at, flight.first_at = True, at, at, time.time()
        rendered = self.render()
        flight.prepared[0] = PreparedRequest(
            call=self._call_at(self.target, self.output, stream=False),
            rendered=rendered,
            plan=self._plan(0, rendered, at),
            at=at,
        )
        try:
            flight.reply = self.target.endpoint.wire.read_reply(body)
            flight.body, flight.raw_hash = body, blake3(body).hexdigest()
            return self._respond(flight)
        except AnaphoraError as problem:
            self._failed(flight, problem)
            raise

    def prewarm(self) -> MappedCall:
        """A call that writes the shared beginning and gets no reply. Raises `InvalidRequest` if
        a parameter does not allow that."""
        cache, endpoint = self._call.ir.cache, self.target.endpoint
        explicit = endpoint.features.adds_breakpoints and cache.mode is None
        mode = "explicit" if explicit else cache.mode
        cache = msgspec.structs.replace(cache, prewarm=True, mode=mode)
        ir = msgspec.structs.replace(self._call.ir, cache=cache)
        call = MappedCall(
            msgspec.structs.replace(self._call, ir=ir),
            self._targets[:1],
            on_wait=self._on_wait,
            watchers=self._watchers,
            output=self.output,
            timeout=self._request.timeout,
            prewarm=True,
        )
        call.group, call.ttl = self.group, self.ttl
        call.render()
        return call

    async def send(self, watch: CallWatch | None = None) -> Response[Any]:
        """The response. A call that rate limits keep from starting waits for them, however long
        that takes."""
        waits = 0
        while True:
            try:
                return await self._send_once(watch)
            except Throttled as problem:
                if not math.isfinite(problem.wait):  # no minute has room for it
                    raise
                await asyncio.sleep(min(max(problem.wait, 1.0), _MOST_WAIT))
            except Unavailable as problem:
                waits += 1
                if waits > _BREAKER_WAITS:
                    raise
                await asyncio.sleep(problem.wait)

    async def _send_once(self, watch: CallWatch | None) -> Response[Any]:
        turn: Turn[Any] = Turn(self, self._request)
        if watch is None or self._request.prewarm:
            return await turn
        self._began = watch.began.set
        async for event in turn:
            if isinstance(event, UsageUpdate):
                watch.reads(event.usage)
        assert turn.response is not None
        watch.reads(turn.response.usage)
        return turn.response

    def response_began(self) -> None:
        if self._began is not None:
            self._began()

    def _plan(self, index: int, rendered: Rendered, at: float) -> Plan:
        if self.group is None or index:
            return super()._plan(index, rendered, at)
        planner = SingleCallPlanner(self.target.memory, rendered)
        self._planners[index] = planner
        planned = planner.plan(rendered, at=at, reuse_expected=reuse_requested(rendered))
        return shared_plan(rendered, planned, self.group, self.target.rules, self.ttl)

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        self.lost_usd = flight.cost_usd
        super()._failed(flight, problem)

    def most_tokens(self, rendered: Rendered) -> int:
        """About the most input tokens that the call is billed for."""
        return Counts(rendered).bounds(self.target.profile.token_error.value)[1]

    def bound_usd(self, tokens: int, price: Price, usual_output: int) -> Decimal | None:
        """About the most that the call costs; None if the price lacks a rate. Without a limit
        of output tokens, about as many as usual are expected."""
        limit = self._call_at(self.target, None, stream=False).params.max_tokens
        output = max(usual_output, _USUAL_OUTPUT) if limit is None else limit
        usage = Usage(uncached=tokens, read=0, output=output)
        if self.ttl is not None:
            usage = Usage(uncached=0, read=0, written={self.ttl: tokens}, output=output)
        return price.of(usage, marked=self.ttl is not None)


def assign_groups(
    calls: Sequence[MappedCall],
    prompts: Mapping[int, Rendered],
    *,
    seconds: float,
    mark: bool = True,
    found: Callable[[list[Rendered], list[PrefixGroup | None], Target], None] | None = None,
) -> dict[int, PrefixGroup | None]:
    """The group of each call, by its position, if its beginning is worth writing; the call
    marks it. `seconds` are those between two calls of a group; `found` gets all groups of a
    target."""
    by_target: dict[int, list[int]] = {}
    for index in prompts:
        by_target.setdefault(id(calls[index].target), []).append(index)
    groups: dict[int, PrefixGroup | None] = dict.fromkeys(prompts)
    for members in by_target.values():
        target = calls[members[0]].target
        rendered = [prompts[index] for index in members]
        grouped = group_prompts(rendered, target.rules)
        if found is not None:
            found(rendered, grouped, target)
        seen: set[int] = set()
        for group in grouped:
            for each in () if group is None else group.line():
                if id(each) not in seen:
                    seen.add(id(each))
                    each.members = [members[place] for place in each.members]
        for index, group in zip(members, grouped, strict=True):
            if group is None or not mark:
                continue
            ttl = group_ttl(prompts[index], target.rules, seconds)
            if any(warming_pays(each, target.rules, ttl) for each in group.line()):
                groups[index] = calls[index].group = group
                calls[index].ttl = ttl
    return groups


def content_key(rendered: Rendered) -> str:
    """Identifies a request by its content, without markers: the same in every run."""
    envelope = rendered.envelope
    digest = blake3(rendered.digest(len(rendered)))
    for part in (rendered.wire, rendered.model, envelope.path):
        digest.update(part.encode() + b"\0")
    digest.update(envelope.head + b"\0" + envelope.tail)
    return digest.hexdigest(length=16)
