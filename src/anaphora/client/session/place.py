"""A conversation at one provider: what was rendered and left there, and what that costs.

    prepared = place.prepare(call, at)          rendered, planned, predicted; nothing sent yet
    verdict = place.account(prepared, ...)      once it was answered

Where a conversation moves to another provider it gets another place, and is rendered anew there.
"""

from __future__ import annotations

import copy
from decimal import Decimal

import msgspec

from anaphora.cache.plan import Planner
from anaphora.cache.simulator import Outcome
from anaphora.cache.verdict import SentCall, diagnosis_of, judge
from anaphora.cache.verdict.judgement import (
    Prediction,
    predict_read,
    predict_slot_read,
    updated_bills,
)
from anaphora.catalog import Price
from anaphora.client.endpoint import Stop
from anaphora.client.writing import Account, Written
from anaphora.prompt import Call, PromptIR
from anaphora.rendered import Rendered
from anaphora.tokens import Bills
from anaphora.values import Conversation, Reply, Thinking


class Past(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The call before: what was sent and billed, and what a simulator makes of it."""

    sent: SentCall
    outcome: Outcome


class Place:
    """One conversation at one stop."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.endpoint = stop.endpoint
        self.model = stop.model
        self.rendered: Rendered | None = None
        """The last that was rendered: the next turn goes on from it."""
        self.past: Past | None = None
        self.reply: Reply | None = None
        """The last answer,"""
        self.committed: Conversation | None = None
        """the conversation that ends with it,"""
        self.stored: PromptIR | None = None
        """and the rest of the prompt that it answered."""
        self.bills: Bills = ()
        """What the bills so far teach of how many tokens the next prompt is."""
        self._planner: Planner | None = None
        self._following = self.model.memory.simulator.slot_predictor()

    def planner(self, at: float) -> Planner:
        if self._planner is None:
            price = self.price(at) if self.model.rules.storage_price is not None else None
            self._planner = Planner(self.model.memory, None if price is None else price.input)
        return self._planner

    def price(self, at: float, tier: str | None = None) -> Price | None:
        return self.endpoint.price(self.model.name, at, tier or "")

    def write(self, call: Call, at: float) -> Written:
        """The call as this provider would be told it; nothing is sent, and nothing noted."""
        rendered = self.endpoint.wire.render(call, self.model.profile, self.rendered)
        if self.bills:
            rendered = msgspec.structs.replace(rendered, bills=self.bills)
        plan = self.planner(at).plan(rendered, at=at)
        return Written(call=call, rendered=rendered, plan=plan, at=at)

    def foresee(self, written: Written) -> Prediction:
        """What it would read and write, in the provider's tokens."""
        outcome = self.planner(written.at).predict(written.rendered, written.plan, at=written.at)
        return self._expected(written.rendered, outcome)

    def tokens(self, written: Written) -> int:
        """About how many tokens count against the provider's limits."""
        total = self.planner(written.at).tokens(written.rendered)
        usage = self.past.sent.usage if self.past is not None else None
        if usage is None or self.model.gate.counts_reads:
            return total
        return max(0, total - (usage.read or 0) - (usage.written_total or 0))

    def account(
        self,
        written: Written,
        reply: Reply,
        *,
        at: float,
        first: float,
        price: Price | None,
        cost_usd: Decimal | None = None,
    ) -> Account:
        """Compares the bill with what was predicted, and remembers both."""
        planner = self.planner(at)
        outcome = planner.sent(written.rendered, written.plan, at=at, began=first)
        expected = self._expected(written.rendered, outcome)
        sent = SentCall(
            rendered=written.rendered, plan=written.plan, at=at, began=first, usage=reply.usage
        )
        verdict = judge(
            self.past.sent if self.past is not None else None,
            sent,
            self.model.rules,
            expected=expected,
            price=price,
            profile=self.model.profile,
            diagnosis=diagnosis_of(reply) if written.call.ir.cache.diagnose else None,
        )
        if self._following is not None:
            self._learn(written.rendered, outcome, reply)
        counts = planner.counts(written.rendered)
        self.bills = updated_bills(sent, self.model.rules, outcome.kept, counts)
        self.rendered = written.rendered
        self.past = Past(sent=sent, outcome=outcome)
        return Account(
            verdict=verdict, predicted=expected.read, cost_usd=cost_usd, saved=verdict.saved
        )

    def fork(self) -> Place:
        """The same past, another future."""
        other = copy.copy(self)
        other._planner = None if self._planner is None else self._planner.fork()
        other._following = None if self._following is None else self._following.fork()
        return other

    def _learn(self, rendered: Rendered, outcome: Outcome, reply: Reply) -> None:
        """A server of one's own shows by its bills what it keeps."""
        assert self._following is not None
        usage = reply.usage
        thought = any(isinstance(part, Thinking) for part in reply.message.parts)
        self._following.billed(rendered, outcome, usage, thought=thought)
        if usage.input and usage.read is not None:
            self.model.memory.simulator.billed(usage.read / usage.input)

    def _expected(self, rendered: Rendered, outcome: Outcome) -> Prediction:
        if self._following is not None:
            return predict_slot_read(self._following, rendered, outcome)
        past = self.past
        if past is None:
            return Prediction(left=0, read=outcome.read, outcome=outcome, exact=True)
        return predict_read(past.outcome, past.sent.usage, outcome, self.model.rules)
