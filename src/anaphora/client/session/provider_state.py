"""A conversation at one provider: what was rendered, sent and billed there.

    prepared = state.prepare(call, at)          rendered and planned; nothing is sent yet
    verdict, predicted = state.account(...)     once it was answered

A conversation that moves to another provider gets another state, and is rendered anew there.
"""

from __future__ import annotations

import msgspec

from anaphora.cache.plan import Planner
from anaphora.cache.sent_call import begins_with, updated_bills
from anaphora.cache.simulator import Chance, Outcome
from anaphora.cache.simulator.outcome import predict_read
from anaphora.cache.verdict import Prediction, SentCall, Verdict, diagnosis_of, judge
from anaphora.cache.verdict.prediction import predict_slot_read
from anaphora.catalog import Price
from anaphora.client.in_flight import PreparedRequest
from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.values import Reply

from .saved_state import ProviderMemory, continue_past


class ProviderState(ProviderMemory):
    """The calls of a conversation at one provider."""

    def planner(self, at: float) -> Planner:
        if self._planner is None:
            target = self.target
            price = target.price(at) if target.rules.storage_price is not None else None
            self._planner = Planner(target.memory, None if price is None else price.input)
        return self._planner

    def prepare(self, call: Call, at: float) -> PreparedRequest:
        """The call as this provider gets it. Nothing is sent or remembered."""
        if self.past is None:
            last = self.sent.rendered if self.sent is not None else None
            rendered = self.target.render(call, last)
        else:
            rendered = continue_past(self, self.past, call)
        if self.bills:
            rendered = msgspec.structs.replace(rendered, bills=self.bills)
        plan = self.planner(at).plan(rendered, at=at)
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
        return self.prediction(prepared.rendered, outcome)

    def chances(self, prepared: PreparedRequest) -> tuple[Chance, ...]:
        """What else may become of the call, where the provider misses reads at random."""
        planner = self.planner(prepared.at)
        return planner.chances(prepared.rendered, prepared.plan, at=prepared.at)

    def tokens(self, prepared: PreparedRequest) -> int:
        """About how many tokens count against the provider's rate limits."""
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
    ) -> tuple[Verdict, int]:
        """The verdict on a call that was answered, and how many tokens were predicted to be read.
        Remembers the call."""
        rendered, target = prepared.rendered, self.target
        planner = self.planner(at)
        outcome = planner.sent(
            rendered, prepared.plan, at=at, began=first, reasoning=reply.usage.reasoning
        )
        expected = self.prediction(rendered, outcome)
        sent = SentCall(
            rendered=rendered, plan=prepared.plan, at=at, began=first, usage=reply.usage
        )
        verdict = judge(
            self.sent,
            sent,
            target.rules,
            expected=expected,
            price=price,
            profile=target.profile,
            diagnosis=diagnosis_of(reply) if prepared.call.ir.cache.diagnose else None,
        )
        if self.predictor is not None:
            self.learn(self.predictor, rendered, outcome, reply)
        self.bills = updated_bills(sent, target.rules, outcome.kept, planner.counts(rendered))
        self.sent, self.outcome, self.past = sent, outcome, None
        return verdict, expected.read

    def prediction(self, rendered: Rendered, outcome: Outcome) -> Prediction:
        if self.predictor is not None:
            return predict_slot_read(self.predictor, rendered, outcome)
        if self.sent is None or self.outcome is None:
            return Prediction(left=0, read=outcome.read, outcome=outcome, exact=True)
        return predict_read(self.outcome, self.sent.usage, outcome, self.target.rules)
