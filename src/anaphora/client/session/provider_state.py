"""A conversation at one provider: what was rendered, sent and billed there.

    prepared = state.prepare(call, at)          rendered and planned; nothing is sent yet
    verdict, predicted = state.account(...)     once it was answered

A conversation that moves to another provider gets another state, and is rendered anew there.
"""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from anaphora.cache.plan import Planner, refreshes
from anaphora.cache.sent_call import begins_with
from anaphora.cache.simulator import Chance, Outcome, RenderedPrompt
from anaphora.cache.simulator.handles import StoredHandle
from anaphora.cache.simulator.saved import SavedCache
from anaphora.cache.verdict import Prediction, SentCall, Verdict, diagnosis_of, judge
from anaphora.cache.verdict.prediction import predict_read, predict_slot_read, updated_bills
from anaphora.catalog import Price
from anaphora.client.endpoint import Target
from anaphora.client.in_flight import PreparedRequest
from anaphora.prompt import Call, PromptIR
from anaphora.rendered import Rendered
from anaphora.rendered.stored import NewPiece
from anaphora.tokens import Bills
from anaphora.values import TTL_SECONDS, Conversation, Reply, Thinking, Ttl, Usage

from .saved import (
    PastCall,
    SavedChain,
    SavedHandle,
    SavedState,
    beginning_digest,
    messages_digest,
    save_call,
)

if TYPE_CHECKING:
    from .handles import Handles
    from .turn_prompt import TurnPrompt


#: A refresh that would read less than this share of the prefix is not sent; none follows one that
#: did.
NEARLY = 0.9


class CachedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """What the last call of a conversation left in the cache, where reading it keeps it alive."""

    tokens: int
    expiring: int
    """Those of them that expire first; the others were written for longer."""
    ttl: Ttl
    expires: float


class ProviderState:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.endpoint = target.endpoint
        self.sent: SentCall | None = None
        self.outcome: Outcome | None = None
        """What the simulator makes of that call."""
        self.reply_id: str | None = None
        """The provider's id of the last reply."""
        self.committed: Conversation | None = None
        """The conversation that ends with that reply."""
        self.stored: PromptIR | None = None
        """The rest of the prompt of that reply."""
        self.handles: Handles | None = None
        self.prefix_change_expected = False
        """The history was compacted: the next call begins differently."""
        self.past: PastCall | None = None
        """The last call, where an earlier session made it, until this one was answered."""
        self.chain: SavedChain | None = None
        """The response that it is stored in, until the prompt was compared with it."""
        self._bills: Bills = ()
        """Corrects the token estimate of the next prompt."""
        self._planner: Planner | None = None
        self._predictor = target.memory.simulator.slot_predictor()

    @property
    def billed(self) -> tuple[float, Usage] | None:
        """When the last call was sent, and its bill; also of a call of an earlier session."""
        last = self.sent if self.past is None else self.past.saved.call
        if last is None or last.at is None or last.usage is None:
            return None
        return last.at, last.usage

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
            rendered = self._continue_past(self.past, call)
        if self._bills:
            rendered = msgspec.structs.replace(rendered, bills=self._bills)
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
        return self._prediction(prepared.rendered, outcome)

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
        expected = self._prediction(rendered, outcome)
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
        if self._predictor is not None:
            self._learn(rendered, outcome, reply)
        self._bills = updated_bills(sent, target.rules, outcome.kept, planner.counts(rendered))
        self.sent, self.outcome, self.past = sent, outcome, None
        return verdict, expected.read

    def cached_prefix(self, at: float) -> CachedPrefix | None:
        """What the last call left in the cache; None where it is gone, or reading it would not keep
        it alive."""
        rules, sent = self.target.rules, self.sent
        if sent is None or sent.at is None or not rules.reads_refresh.value:
            return None
        usage, plan = sent.usage, sent.marks
        if usage is None or plan.held is not None:
            return None
        ttl = plan.marks[-1].ttl if plan.marks else plan.automatic
        if ttl is None and rules.default_ttl is not None:
            ttl = rules.default_ttl.value
        tokens = (usage.read or 0) + (usage.written_total or 0)
        if rules.mechanism.value != "explicit" and not plan.marks:
            tokens = max(tokens, rules.whole_granules(usage.input or 0))
        if ttl is None or tokens < max(1, rules.minimum_tokens.value):
            return None
        expires = sent.at + TTL_SECONDS[ttl]
        if at >= expires:
            return None
        longer = [mark for mark in plan.marks if TTL_SECONDS[mark.ttl] > TTL_SECONDS[ttl]]
        kept = 0
        if longer:
            kept = self.planner(at).counts(sent.rendered).tokens(longer[-1].chunk + 1)
        expiring = max(0, tokens - kept)
        return CachedPrefix(tokens=tokens, expiring=expiring, ttl=ttl, expires=expires)

    def goes_on(self, at: float) -> float:
        """How likely the conversation has another call."""
        assert self.sent is not None
        return self.planner(at).goes_on(self.sent.rendered)

    def refresh_pays(self, prefix: CachedPrefix, at: float, *, done: int, most: int) -> bool:
        """Whether to keep the prefix alive now, by the pauses so far. `done` refreshes of this
        pause were sent, and `most` may be."""
        planner = self.planner(at)
        pauses, last = planner.pauses, planner.state.gaps.last
        if at >= prefix.expires or last is None or not len(pauses) or done >= most:
            return False
        count, _ = refreshes(
            self.target.rules,
            prefix.ttl,
            pauses,
            idle=at - last,
            share=prefix.expiring / prefix.tokens,
            goes_on=self.goes_on(at),
            done=done,
        )
        return count > 0

    def refresh_usd(self, prefix: CachedPrefix, at: float) -> Decimal | None:
        """What a refresh should cost; None where no price is known."""
        price = self.target.price(at)
        return None if price is None else price.of(Usage(uncached=0, read=prefix.tokens, output=0))

    def refreshed(
        self,
        prepared: PreparedRequest,
        reply: Reply,
        *,
        at: float,
        first: float,
        price: Price | None,
    ) -> tuple[Verdict, int]:
        """The verdict on a call that kept the prefix of the last one alive, which it then did."""
        before = self.cached_prefix(at)
        planner, rules = self.planner(at), self.target.rules
        outcome = planner.refreshed(prepared.rendered, prepared.plan, at=at, began=first)
        expected = self._prediction(prepared.rendered, outcome)
        usage = reply.usage
        refresh = SentCall(
            rendered=prepared.rendered, plan=prepared.plan, at=at, began=first, usage=usage
        )
        verdict = judge(
            self.sent,
            refresh,
            rules,
            expected=expected,
            price=price,
            profile=self.target.profile,
        )
        if before is not None and (usage.read or 0) >= NEARLY * before.tokens:
            assert self.sent is not None
            self.sent = msgspec.structs.replace(self.sent, at=at, began=first)
        return verdict, expected.read

    def restore(self, saved: SavedState, *, here: bool) -> None:
        """Continues what an earlier session saved; `here`: with the same client."""
        target, call = self.target, saved.call
        self.past = PastCall(saved)
        self.outcome = Outcome(call.spans)
        self.reply_id, self.chain = saved.reply_id, saved.chain
        self.prefix_change_expected = saved.prefix_change_expected
        self._bills = saved.bills
        planner = self.planner(call.at)
        planner.state = target.memory.restore(saved.planner, here=here)
        if saved.handle is not None:
            held = saved.handle
            stored = StoredHandle(held.tokens, held.since, held.expires)
            target.memory.simulator.restore_handle(held.handle.handle, stored)
            planner.handles.hold(held.handle, held.expires)

    def render_past(self, past: PastCall, call: Call) -> Rendered:
        """The prompt of a call that follows one of an earlier session."""
        past.rendered = self.target.render(call, past.rendered)
        return past.rendered

    def save(
        self, before: SavedState | None, *, keep_pieces: bool, chained: bool
    ) -> tuple[SavedState, dict[int, NewPiece]]:
        """For a later session: the state, and the pieces of its prompt that are not stored yet.
        `before` is what was stored after the last call."""
        sent, outcome, planner = self.sent, self.outcome, self._planner
        assert sent is not None
        assert outcome is not None
        assert planner is not None
        known = before.call if before is not None and keep_pieces else None
        call, pieces = save_call(sent, outcome.spans, known)
        cache = SavedCache() if before is None else before.cache
        state = SavedState(
            provider=self.endpoint.id,
            model=self.target.model,
            call=call,
            planner=planner.save(sent.rendered),
            cache=planner.save_cache(sent.rendered, sent.marks, cache),
            bills=self._bills,
            slot=None if self._predictor is None else self._predictor.save(),
            handle=self._saved_handle(planner),
            reply_id=self.reply_id,
            chain=self._saved_chain() if chained else None,
            prefix_change_expected=self.prefix_change_expected,
        )
        return state, pieces

    def follows(self, turn: TurnPrompt) -> None:
        """Compares a prompt with the stored response of an earlier session."""
        chain, self.chain = self.chain, None
        if chain is None or len(turn.history) < chain.messages:
            return
        history = turn.history.prefix(chain.messages)
        if messages_digest(history) == chain.digest:
            self.committed = history
            self.stored = turn.ir if beginning_digest(turn.ir) == chain.begins else None

    def _saved_handle(self, planner: Planner) -> SavedHandle | None:
        held = planner.handles.held
        if held is None:
            return None
        stored = self.target.memory.simulator.saved_handle(held[0].handle)
        if stored is None:
            return None
        return SavedHandle(held[0], stored.tokens, stored.since, held[1])

    def _saved_chain(self) -> SavedChain | None:
        committed, stored = self.committed, self.stored
        if not self.endpoint.features.stores_responses or committed is None:
            return None
        begins = b"" if stored is None else beginning_digest(stored)
        return SavedChain(len(committed), messages_digest(committed), begins)

    def _continue_past(self, past: PastCall, call: Call) -> Rendered:
        rendered = self.render_past(past, call)
        if self.sent is None:
            self.sent = past.resolve(rendered)
            prompt = RenderedPrompt(self.sent.rendered, self.sent.marks)
            self.target.memory.simulator.restore(prompt, past.saved.cache)
            if self._predictor is not None and past.saved.slot is not None:
                self._predictor.restore(past.saved.slot, self.sent.rendered)
        return past.limited(rendered)

    def fork(self) -> ProviderState:
        """The same past; what follows is separate."""
        other = copy.copy(self)
        other.handles = None
        other._planner = None if self._planner is None else self._planner.fork()
        other._predictor = None if self._predictor is None else self._predictor.fork()
        return other

    def _learn(self, rendered: Rendered, outcome: Outcome, reply: Reply) -> None:
        """A self-hosted server shows by its bills what it keeps."""
        assert self._predictor is not None
        usage = reply.usage
        thought = any(isinstance(part, Thinking) for part in reply.message.parts)
        self._predictor.billed(rendered, outcome, usage, thought=thought)
        if usage.input and usage.read is not None:
            self.target.memory.simulator.billed(usage.read / usage.input)

    def _prediction(self, rendered: Rendered, outcome: Outcome) -> Prediction:
        if self._predictor is not None:
            return predict_slot_read(self._predictor, rendered, outcome)
        if self.sent is None or self.outcome is None:
            return Prediction(left=0, read=outcome.read, outcome=outcome, exact=True)
        return predict_read(self.outcome, self.sent.usage, outcome, self.target.rules)
