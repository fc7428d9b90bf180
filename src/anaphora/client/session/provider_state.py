"""A conversation at one provider: what was rendered, sent and billed there.

    prepared = state.prepare(call, at)          rendered and planned; nothing is sent yet
    judgement = state.account(...)              once it was answered

A conversation that moves to another provider gets a new state, and is rendered again there.
"""

from __future__ import annotations

import copy
from typing import Self
from weakref import ref

from msgspec.structs import force_setattr, replace

from anaphora.cache.plan import Planner
from anaphora.cache.plan.deferred import SentTurn
from anaphora.cache.sent_call import (
    begins_with,
    is_alive,
    may_be_cached,
    prefix_expiry,
    updated_bills,
)
from anaphora.cache.simulator import Chance, Outcome
from anaphora.cache.verdict import Prediction, SentCall, diagnosis_of
from anaphora.catalog import Price
from anaphora.client.in_flight import PreparedRequest
from anaphora.client.target import Target
from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.tokens import Bills
from anaphora.values import Reply, Usage
from anaphora.wire.dialect.routers import with_host

from .judgement import Judgement, TurnFacts, predict_turn
from .saved import LastReply, PastCall


class ProviderState:
    """A conversation at one provider: its last call, the planner's memory, and the bills."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.endpoint = target.endpoint
        self._conversation = object()
        """Separates its bills from those of other conversations."""
        self.sent: SentCall | None = None
        self.simulated: SentTurn | None = None
        """The last call for the simulator."""
        self.reply = LastReply()
        self.prefix_change_expected = False
        """The history was compacted: the next call begins differently."""
        self.past: PastCall | None = None
        """The last call of an earlier session, until a call of this one is answered."""
        self.bills: Bills = ()
        """Corrects the token estimate of the next prompt."""
        self._planner: Planner | None = None
        self.released = ""
        """Why the next call is not pinned to the host that answered the last one."""

    @property
    def outcome(self) -> Outcome | None:
        """The simulated outcome of the last call; empty if the simulation failed."""
        return None if self.simulated is None else self.simulated.left

    @property
    def billed(self) -> tuple[float, Usage] | None:
        """When the last call was sent, and its bill; it may be of an earlier session."""
        last = self.sent if self.past is None else self.past.saved.call
        if last is None or last.at is None or last.usage is None:
            return None
        return last.at, last.usage

    @property
    def host(self) -> str:
        """The host behind a router that answered the last call."""
        return "" if self.sent is None else self.sent.host

    def has_expired(self, at: float) -> bool:
        """Whether nothing of the last call is cached any more, by the rules."""
        sent = self.sent
        return sent is not None and not is_alive(prefix_expiry(sent, self.target.rules), at)

    def pin(self, rendered: Rendered, at: float) -> str:
        """The host that a call is pinned to: the one that has the prefix cached, unless it failed,
        the prefix has expired, or the request chooses its hosts itself."""
        sent, router = self.sent, self.endpoint.router
        if router is None or sent is None or not sent.host or self.released:
            return ""
        if self.has_expired(at) or not may_be_cached(sent, self.target.rules):
            return ""
        return sent.host if with_host(rendered, sent.host, router) is not None else ""

    def fork(self) -> Self:
        """A copy with the same past; later calls are separate."""
        other = copy.copy(self)
        other.reply = copy.copy(self.reply)
        other._planner = None if self._planner is None else self._planner.fork()
        return other

    def planner(self, at: float) -> Planner:
        if self._planner is None:
            target = self.target
            price = target.price(at) if target.rules.storage_price is not None else None
            self._planner = Planner(target.memory, None if price is None else price.input)
        return self._planner

    def prepare(self, call: Call, at: float, *, is_last: bool = False) -> PreparedRequest:
        """The call, rendered and planned; `is_last`: as in `Planner.plan`. Nothing is sent or
        remembered."""
        if self.past is None:
            last = self.sent.rendered if self.sent is not None else None
            rendered = self.target.render(call, last)
            force_setattr(rendered, "bills", self.bills)  # no one has it yet
        else:
            rendered = self.past.render(self.target, call)
            if self.sent is None:
                self.sent = self.past.restore(rendered, self.target)
            rendered = replace(self.past.limited(rendered), bills=self.bills)
        plan = self.planner(at).plan(rendered, at=at, is_last=is_last)
        if host := self.pin(rendered, at):
            plan = replace(plan, host=host)
        return PreparedRequest(call=call, rendered=rendered, plan=plan, at=at)

    def extends_last(self, prepared: PreparedRequest) -> bool:
        """Whether a call begins with the last one, byte by byte."""
        if self.sent is None:
            return True
        last, later = self.sent.rendered, prepared.rendered
        if not begins_with(later, last):
            return False
        return later.envelope.cache_params == last.envelope.cache_params

    def predict(self, prepared: PreparedRequest) -> Prediction:
        """What the call would read and write, in the provider's tokens."""
        planner = self.planner(prepared.at)
        outcome = planner.predict(prepared.rendered, prepared.plan, at=prepared.at)
        return self.prediction(outcome)

    def chances(self, prepared: PreparedRequest) -> tuple[Chance, ...]:
        """Other outcomes of the call, if the provider misses reads at random."""
        planner = self.planner(prepared.at)
        return planner.chances(prepared.rendered, prepared.plan, at=prepared.at)

    def tokens(self, prepared: PreparedRequest) -> int:
        """The estimated tokens that count against the provider's rate limits."""
        total = self.planner(prepared.at).tokens(prepared.rendered)
        usage = self.sent.usage if self.sent is not None else None
        if usage is None or self.target.gate.lane.counts_reads:
            return total
        return max(0, total - (usage.read or 0) - (usage.written_total or 0))

    def account(
        self,
        prepared: PreparedRequest,
        reply: Reply,
        *,
        at: float,
        first: float,
        price: Price | None,
    ) -> Judgement:
        """Remembers an answered call. Its verdict is computed on first read."""
        rendered, plan, rules = prepared.rendered, prepared.plan, self.target.rules
        planner, usage = self.planner(at), reply.usage
        made = planner.sent(
            rendered, plan, at=at, began=first, reasoning=usage.reasoning, before=self.simulated
        )
        sent = SentCall(
            rendered=rendered,
            plan=plan,
            at=at,
            began=first,
            usage=usage,
            reply=reply.message,
            host=prepared.host,
            compacted=prepared.compacted or self.prefix_change_expected,
        )
        diagnosis = diagnosis_of(reply) if prepared.call.ir.cache.diagnose else None
        facts = TurnFacts(self.target, self.sent, self.simulated, sent, made, price, diagnosis)
        facts.pauses, facts.count = planner.gaps, planner.gaps.count
        if rules.automatic_breakpoint.value == "slots" and usage.input and usage.read is not None:
            with self.target.memory.lock:
                self.target.memory.current().billed(usage.read / usage.input)
        kept = planner.kept(rendered, plan) if rules.slots.value else None
        if rules.slots.value and kept is None:
            kept = made.outcome.kept
        self.bills = updated_bills(sent, rules, kept, planner.counts(rendered))
        self.sent, self.simulated, self.past, self.released = sent, made, None, ""
        self.target.learn(usage.read, conversation=self._conversation)
        judgement = Judgement(facts)
        made.reader = ref(judgement)
        if made.waiting is None:
            judgement()
        return judgement

    def prediction(self, outcome: Outcome) -> Prediction:
        return predict_turn(self.sent, self.simulated, outcome, self.target.rules)
