"""Who may start when, at one provider. Pure: every method is told the time.

    lane = limiter.lane("claude-sonnet-5-5")
    limiter.wait(lane, tokens, at)             how long one that came now would wait
    held = limiter.reserve(lane, tokens, at)   its place; `held.at` is its start
    limiter.advance(at)                        those whose turn it is now; they have started
    limiter.settle(held, usage, at)            over; corrected by what was billed
    limiter.cancel(held, at)                   it never happened

Fair: the calls of a model start in the order in which they came, and so do those of several models
as far as they wait for what these share. A model that waits for limits of its own is overtaken by
the others, and goes first when its turn has come; what they took of the shared minute meanwhile may
make it later than it was told.
"""

from __future__ import annotations

from heapq import merge

from anaphora.client.config.values import Limits
from anaphora.errors import Throttled
from anaphora.values import Usage

from .lane import Lane
from .plan import Plan
from .reservation import Reservation
from .scope import SPAN, Scope

_INF = float("inf")
#: So many may wait that the plan is made anew at every change; with more, once a second.
_FEW = 64
_PLAN_SECONDS = 1.0
#: A start that is later than planned by more than this changes the plan.
_LATE = 0.05


class Limiter:
    """One provider's; the configuration's limits and what each lane has heard."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        shared = Scope(limits)
        self._shared = shared if shared.binds else None
        self._lanes: dict[str, Lane] = {}
        self._number = 0
        self.waiting = 0
        self._plan: Plan | None = None
        self._planned_at = -_INF
        self._outdated = False

    def lane(self, model: str, *, counts_reads: bool = True) -> Lane:
        """The model's; the same one each time."""
        found = self._lanes.get(model)
        if found is None:
            rate = self._limits.models.get(model)
            found = self._lanes[model] = Lane(model, rate, counts_reads=counts_reads)
        return found

    def counts_tokens(self, lane: Lane, at: float) -> bool:
        """Whether anything that may hold the lane's calls back counts their tokens, or may by the
        time that one starts which has to wait."""
        if self._shared is not None or lane.own is not None or lane.stated:
            return True
        return self.waiting > 0 or at < lane.stopped

    def wait(self, lane: Lane, tokens: int, at: float) -> float:
        """Seconds until a call would start, if it came now; 0.0 too where only a place is missing.
        Infinite for one that is larger than a whole minute may be."""
        if tokens > self._largest(lane):
            return _INF
        if self._may_start(lane, tokens, at):
            return 0.0
        return max(0.0, self._future(at).ask(lane, tokens, at) - at)

    def reserve(self, lane: Lane, tokens: int, at: float) -> Reservation:
        """A place in the queue; started already when there is nothing to wait for."""
        self._number += 1
        held = Reservation(lane, self._number, tokens, at)
        if self._may_start(lane, tokens, at):
            self._start(held, at)
            if self._plan is not None:
                self._outdated = True
            return held
        if tokens > (largest := self._largest(lane)):
            said = f"the call has about {tokens:,} tokens, and a minute may have {largest:,.0f}"
            raise Throttled(said, wait=_INF)
        held.at = self._future(at).book(lane, tokens, at)
        lane.queue[held] = None
        self.waiting += 1
        return held

    def advance(self, at: float) -> list[Reservation]:
        """Starts everybody whose turn it is, in order."""
        started: list[Reservation] = []
        lanes = [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []
        while lanes:
            lane = min(lanes, key=_number_of_first)
            held = lane.first
            if not lane.open(held.tokens, at):
                lanes.remove(lane)
                continue
            if self._shared is not None and not self._shared.open(held.tokens, at):
                break
            self._unqueue(held)
            if at > held.at + _LATE:
                self._outdated = True
            self._start(held, at)
            started.append(held)
            if not lane.queue:
                lanes.remove(lane)
        return started

    def next_at(self, at: float) -> float:
        """When `advance` may have something to do again; infinite when only the end of a running
        call can change that, or nobody waits."""
        soonest = _INF
        lanes = [lane for lane in self._lanes.values() if lane.queue] if self.waiting else []
        for lane in sorted(lanes, key=_number_of_first):
            tokens = lane.first.tokens
            if not lane.open(tokens, at):
                soonest = min(soonest, lane.opens(tokens, at))
                continue
            # Everybody behind waits for this one.
            shared = at if self._shared is None else self._shared.opens(tokens, at)
            return min(soonest, shared)
        return soonest

    def settle(self, held: Reservation, usage: Usage | None, at: float) -> None:
        """The call is over. Without a usage it counts as what was expected. What it was billed for
        counts from its start on, as long as that is not a minute ago."""
        if held.state != "started":
            return
        if self._shared is None and held.lane.own is None:
            held.state = "over"
            return
        billed = held.lane.counted(usage) if usage is not None else None
        self._end(held, at, held.requests, held.tokens if billed is None else billed)

    def cancel(self, held: Reservation, at: float) -> None:
        """It never happened: nothing was sent. May be told again."""
        if held.state == "waiting":
            held.state = "over"
            self._unqueue(held)
            self._outdated = True
        elif held.state == "started":
            held.lane.take(-held.tokens, -held.requests, at)
            self._end(held, at, 0, 0)

    def changed(self) -> None:
        """Something was heard that may change who starts when."""
        self._outdated = True

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────

    def _may_start(self, lane: Lane, tokens: int, at: float) -> bool:
        if self.waiting:
            if lane.queue:
                return False
            # Who waits only for what is shared goes first.
            for other in self._lanes.values():
                if other.queue and other.open(other.first.tokens, at):
                    return False
        if self._shared is not None and not self._shared.open(tokens, at):
            return False
        return lane.open(tokens, at)

    def _start(self, held: Reservation, at: float) -> None:
        held.at = at
        held.state = "started"
        lane = held.lane
        if self._shared is not None:
            self._shared.enter(held)
        if lane.own is not None:
            lane.own.enter(held)
        if lane.stated:
            lane.take(held.tokens, 1, at)

    def _end(self, held: Reservation, at: float, requests: int, tokens: int) -> None:
        held.state = "over"
        fewer, less = held.requests - requests, held.tokens - tokens
        for scope in (self._shared, held.lane.own):
            if scope is None:
                continue
            scope.running -= 1
            if scope.windowed and (fewer or less):
                scope.forget(at)
                if held.at + SPAN > at:
                    scope.used_requests -= fewer
                    scope.used_tokens -= less
        held.requests, held.tokens = requests, tokens
        if fewer or less:
            self._outdated = True

    def _unqueue(self, held: Reservation) -> None:
        del held.lane.queue[held]
        self.waiting -= 1
        if not self.waiting:
            self._plan = None

    def _largest(self, lane: Lane) -> float:
        """How many tokens a call may have at all."""
        scopes = (scope for scope in (self._shared, lane.own) if scope is not None)
        return min((scope.tokens for scope in scopes), default=_INF)

    def _future(self, at: float) -> Plan:
        due = self.waiting <= _FEW or at >= self._planned_at + _PLAN_SECONDS
        if self._plan is None or (self._outdated and due):
            self._plan, self._planned_at, self._outdated = Plan(self._shared), at, False
            queues = (lane.queue for lane in self._lanes.values() if lane.queue)
            for held in merge(*queues, key=lambda held: held.number):
                held.at = self._plan.book(held.lane, held.tokens, at)
        return self._plan


def _number_of_first(lane: Lane) -> int:
    return lane.first.number
