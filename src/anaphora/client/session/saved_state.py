"""What is known of a conversation at one provider, saved for a later session and restored by it;
and responses that the provider stores, which the next call continues."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

from anaphora.cache.plan import Planner
from anaphora.cache.plan.deferred import SentTurn
from anaphora.cache.plan.saved import restore_conversation
from anaphora.cache.simulator import Outcome, RenderedPrompt, SlotPredictor
from anaphora.cache.simulator.simulator import StoredHandle
from anaphora.cache.simulator.view import SavedCache
from anaphora.cache.verdict import SentCall
from anaphora.client.target import Target
from anaphora.prompt import Call, Continuation, PromptIR
from anaphora.rendered import Rendered
from anaphora.rendered.stored import NewPiece
from anaphora.tokens import Bills
from anaphora.values import Conversation, Reply, SegmentRole, Thinking, Usage

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
    from .provider_state import ProviderState
    from .turn_prompt import TurnPrompt


_STABLE = SegmentRole.STABLE_PREFIX


class ProviderMemory:
    """What is known of a conversation at one provider from one call to the next."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.endpoint = target.endpoint
        self._conversation = object()
        """Tells its bills from those of other conversations."""
        self.sent: SentCall | None = None
        self.simulated: SentTurn | None = None
        """The same for the simulator."""
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
        self.bills: Bills = ()
        """Corrects the token estimate of the next prompt."""
        self._planner: Planner | None = None
        self.predictor = target.memory.simulator.slot_predictor()

    @property
    def outcome(self) -> Outcome | None:
        """What the simulator makes of the last call; empty where that failed."""
        return None if self.simulated is None else self.simulated.left

    @property
    def billed(self) -> tuple[float, Usage] | None:
        """When the last call was sent, and its bill; also of a call of an earlier session."""
        last = self.sent if self.past is None else self.past.saved.call
        if last is None or last.at is None or last.usage is None:
            return None
        return last.at, last.usage

    def fork(self) -> Self:
        """The same past; what follows is separate."""
        other = copy.copy(self)
        other.handles = None
        other._planner = None if self._planner is None else self._planner.fork()
        other.predictor = None if self.predictor is None else self.predictor.fork()
        return other

    def learn(
        self, predictor: SlotPredictor, rendered: Rendered, outcome: Outcome, reply: Reply
    ) -> None:
        """A self-hosted server shows by its bills what it keeps."""
        usage = reply.usage
        thought = any(isinstance(part, Thinking) for part in reply.message.parts)
        predictor.billed(rendered, outcome, usage, thought=thought)
        if usage.input and usage.read is not None:
            with self.target.memory.lock:
                self.target.memory.current().billed(usage.read / usage.input)


def save_state(
    state: ProviderState, before: SavedState | None, *, keep_pieces: bool, chained: bool
) -> tuple[SavedState, dict[int, NewPiece]]:
    """For a later session: the state, and the pieces of its prompt that are not stored yet.
    `before` is what was stored after the last call."""
    sent, outcome = state.sent, state.outcome
    assert sent is not None
    assert outcome is not None
    planner = state.planner(sent.at or 0.0)
    known = before.call if before is not None and keep_pieces else None
    call, pieces = save_call(sent, outcome.spans, known)
    cache = SavedCache() if before is None else before.cache
    saved = SavedState(
        provider=state.endpoint.id,
        model=state.target.model,
        call=call,
        planner=planner.save(sent.rendered),
        cache=planner.save_cache(sent.rendered, sent.marks, cache),
        bills=state.bills,
        slot=None if state.predictor is None else state.predictor.save(),
        handle=_saved_handle(state, planner),
        reply_id=state.reply_id,
        chain=_saved_chain(state) if chained else None,
        prefix_change_expected=state.prefix_change_expected,
    )
    return saved, pieces


def restore_state(state: ProviderState, saved: SavedState, *, here: bool) -> None:
    """Continues what an earlier session saved; `here`: with the same client."""
    target, call = state.target, saved.call
    state.past = PastCall(saved)
    state.simulated = SentTurn(Outcome(call.spans))
    state.reply_id, state.chain = saved.reply_id, saved.chain
    state.prefix_change_expected = saved.prefix_change_expected
    state.bills = saved.bills
    planner = state.planner(call.at)
    planner.state = restore_conversation(target.memory, saved.planner, here=here)
    if saved.handle is not None:
        held = saved.handle
        stored = StoredHandle(held.tokens, held.since, held.expires)
        with target.memory.lock:
            target.memory.current().restore_handle(held.handle.handle, stored)
        planner.handles.hold(held.handle, held.expires)


def render_past(state: ProviderState, past: PastCall, call: Call) -> Rendered:
    """The prompt of a call that follows one of an earlier session."""
    past.rendered = state.target.render(call, past.rendered)
    return past.rendered


def continue_past(state: ProviderState, past: PastCall, call: Call) -> Rendered:
    """The same as the provider would cache it; the first time, what the call left is restored."""
    rendered = render_past(state, past, call)
    if state.sent is None:
        state.sent = past.resolve(rendered)
        prompt = RenderedPrompt(state.sent.rendered, state.sent.marks)
        with state.target.memory.lock:
            state.target.memory.current().restore(prompt, past.saved.cache)
        if state.predictor is not None and past.saved.slot is not None:
            state.predictor.restore(past.saved.slot, state.sent.rendered)
    return past.limited(rendered)


def stored_response(
    state: ProviderState, turn: TurnPrompt, store: bool | None
) -> Continuation | None:
    """Continues the last reply here, where the provider has stored it and the prompt still begins
    with the stored one. `store` is the app's choice; None: as its prompt did."""
    if state.reply_id is None or not (store or (store is None and turn.continues)):
        return None
    if state.chain is not None:
        _follow(state, turn)
    committed = state.committed
    if not committed or turn.history.common_prefix(committed, ids=True) < len(committed):
        return None
    if turn.is_whole and (state.stored is None or not _begins_alike(state.stored, turn.ir)):
        return None
    return Continuation(state.reply_id, committed[-1].id)


def _follow(state: ProviderState, turn: TurnPrompt) -> None:
    """Compares a prompt with the stored response of an earlier session."""
    chain, state.chain = state.chain, None
    if chain is None or len(turn.history) < chain.messages:
        return
    history = turn.history.prefix(chain.messages)
    if messages_digest(history) == chain.digest:
        state.committed = history
        state.stored = turn.ir if beginning_digest(turn.ir) == chain.begins else None


def _begins_alike(stored: PromptIR, prompt: PromptIR) -> bool:
    """Whether system prompt and stable prefix are those of a stored response. They are not sent
    again, so the model would continue with the stored ones."""
    if stored.system_field() != prompt.system_field():
        return False
    before, now = stored.run(_STABLE), prompt.run(_STABLE)
    return len(before) == len(now) == now.common_prefix(before)


def _saved_handle(state: ProviderState, planner: Planner) -> SavedHandle | None:
    held = planner.handles.held
    if held is None:
        return None
    with state.target.memory.lock:
        stored = state.target.memory.current().saved_handle(held[0].handle)
    if stored is None:
        return None
    return SavedHandle(held[0], stored.tokens, stored.since, held[1])


def _saved_chain(state: ProviderState) -> SavedChain | None:
    committed, stored = state.committed, state.stored
    if not state.endpoint.features.stores_responses or committed is None:
        return None
    begins = b"" if stored is None else beginning_digest(stored)
    return SavedChain(len(committed), messages_digest(committed), begins)
