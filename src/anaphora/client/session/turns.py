"""The turns of a conversation: each is rendered as an extension of the last one, planned, checked
against its prefix, sent, and compared with its bill."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

import msgspec

from anaphora.client.in_flight import InFlight, PreparedRequest, TurnRequest
from anaphora.client.observe import EndedCall, Watchers
from anaphora.client.options import OnPrefixBreak
from anaphora.client.preview import Preview
from anaphora.client.response import Record, Response
from anaphora.client.routing import SessionRoute, conversation_key, release
from anaphora.client.target import Target
from anaphora.client.turn import Caller
from anaphora.errors import ContextOverflow, InvalidRequest
from anaphora.values import Notice, SegmentRole

from .call_builder import CallBuilder, check_prewarms, reasons_to_prepare_again
from .handles import Handles
from .history import SessionHistory
from .keeper import NOT_LOADED, ConversationKeeper
from .preview import check_prefix, preview_of
from .provider_state import ProviderState
from .saved import SavedConversation
from .turn_prompt import TurnPrompt

# Bound once: looking up an enum member is slow, and every turn needs it.
_HISTORY = SegmentRole.CONVERSATION


class SessionTurns(Caller):
    """The turns of a session, and its state between them: the history, and the state at each
    provider. A conversation with an id is loaded from a store before the first turn, and saved
    there after each."""

    def __init__(
        self,
        route: SessionRoute,
        builder: CallBuilder,
        history: SessionHistory,
        *,
        on_prefix_break: OnPrefixBreak,
        timeout: float | None,
        on_wait: Callable[[float], None] | None,
        watchers: Watchers,
        holders: set[Handles],
    ) -> None:
        """`holders` are all live handles, which the client releases when it closes."""
        super().__init__(timeout=timeout, on_wait=on_wait, watchers=watchers)
        self.route = route
        self.builder = builder
        self.history = history
        self._on_prefix_break: OnPrefixBreak = on_prefix_break
        self.states: dict[Target, ProviderState] = {}
        self.handles: dict[Target, Handles] = {}
        self._holders = holders
        self.keeper: ConversationKeeper | None = None
        self._turn: TurnPrompt | None = None
        """The prompt of the turn in flight: the app's function is called once for all attempts."""
        self.load_notices: tuple[Notice, ...] = ()
        """Notices from loading the conversation, for the next response."""
        self.last_turn: tuple[TurnPrompt, TurnRequest] | None = None
        """The prompt and the request of the last call."""
        self._audit_id, self._audited = "", 0
        """The conversation's id in an audit log, if it has no name, and the number of its calls."""
        self.running = False
        self.last: Response | None = None
        self.cost_usd: Decimal | None = Decimal(0)
        """The cost of the conversation so far; None once a price was unknown."""

    def fork(self, name: str | None) -> SessionTurns:
        """A copy with the same past; later turns are separate."""
        other = copy.copy(self)
        if self.keeper is not None:
            past = any(state.past is not None for state in self.states.values())
            other.keep_with(self.keeper.forked(name, past=past))
        other.history = self.history.fork(stored=other.keeper is not None)
        other.states = {target: state.fork() for target, state in self.states.items()}
        other.handles = {}
        other._turn = None
        other._audit_id, other._audited = "", 0
        other.in_flight = other.running = False
        other.route = self.route.fork()
        return other

    # ── A turn ───────────────────────────────────────────────────────────────────────────────────

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:
        if self.in_flight:
            self.check_idle()
        self._turn = None
        self.history.check_turn(request)
        targets = self.order(request, self._prompt)
        if request.prewarm:
            check_prewarms(targets[0].endpoint)
        self.in_flight = True
        return targets if request.instruction is None else targets[:1]

    def order(self, request: TurnRequest, prompt: Callable[[], TurnPrompt]) -> tuple[Target, ...]:
        if self.route.only is not None:
            return self.route.only

        def key() -> bytes:
            state = self.state(self.route.current)
            return conversation_key(self.builder.call(state, prompt(), request))

        return self.route.order(key, time.monotonic(), self.states, time.time())

    def _prompt(self) -> TurnPrompt:
        if self._turn is None:
            self.history.sent_from = self.history.messages
            self._turn = self.history.next_prompt()
        return self._turn

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        target, request = flight.targets[index], flight.request
        state, prompt = self.state(target), self._prompt()
        if state.past is not None and self.keeper is not None:
            call = self.builder.call(state, prompt, request, stream=flight.stream, whole=again)
            if not await self.keeper.load_past(state, state.past, call):  # then it is dropped
                self.load_notices = self.keeper.notices
                self.states[target] = state = ProviderState(state.target)
                self.handles.pop(target, None)
        handles = self.handles.get(target)
        # Prepared again: compacted, without the pin to a host that failed, or a stored object.
        too_long = again and flight.attempts[-1].error == ContextOverflow.__name__
        whole = again and not too_long and not release(state, flight.attempts[-1].error)
        if whole and handles is not None:
            handles.forget()
        prepared = self.builder.prepare(
            state, prompt, request, stream=flight.stream, whole=whole, too_long=too_long
        )
        if too_long and prepared.turn is prompt:
            last = flight.attempts[-1]
            raise ContextOverflow(last.reason, status=last.status, request_id=last.request_id)
        if self._on_prefix_break != "off" and not state.extends_last(prepared):
            compacted = prepared.compacted or state.prefix_change_expected
            mode = "notice" if compacted else self._on_prefix_break
            prepared.notices += check_prefix(state, prepared, mode, request)
        prepared.notices += self.load_notices + self.history.notices
        pays = flight.guard is None or flight.guard.pays_handles(target, prepared)
        if whole or not pays:
            prepared.plan = msgspec.structs.replace(prepared.plan, held=None, preludes=())
        elif prepared.plan.preludes:
            if handles is None:
                handles = self.handles[target] = Handles(state, self._holders)
            await handles.run_preludes(prepared)
        assembled = state.endpoint.wire.assemble(prepared.rendered, prepared.plan)
        prepared.outgoing = state.endpoint.outgoing(assembled)
        compacts = bool(self.builder.compact_at) and request.operation == "chat"
        prepared.prepare_again_on = reasons_to_prepare_again(state, prepared, compacts=compacts)
        return prepared

    def prepared_now(
        self, prompt: TurnPrompt, request: TurnRequest
    ) -> tuple[ProviderState, PreparedRequest]:
        """A call as it would be sent now, and its target."""
        state = self.state(self.order(request, lambda: prompt)[0])
        notices = self.load_notices
        if state.past is not None and self.keeper is not None:
            call = self.builder.call(state, prompt, request, whole=False)
            if not self.keeper.load_past_now(state, state.past, call):
                state, notices = ProviderState(state.target), (*notices, NOT_LOADED)
        prepared = self.builder.prepare(state, prompt, request)
        prepared.notices += notices
        return state, prepared

    async def preview(self, flight: InFlight) -> Preview:
        """The turn in flight, as it would be sent now to its first target."""
        prompt, state = self._prompt(), self.state(flight.targets[0])
        if state.past is not None and self.keeper is not None:
            call = self.builder.call(state, prompt, flight.request, whole=False)
            await self.keeper.load_past(state, state.past, call)
        return preview_of(*self.prepared_now(prompt, flight.request))

    def count_tokens(self, target: Target, prepared: PreparedRequest) -> int:
        return self.state(target).tokens(prepared)

    def stored_tokens(self, target: Target, prepared: PreparedRequest) -> int | None:
        if prepared.call.ir.continuation is None:
            return None
        billed = self.state(target).billed
        return None if billed is None else billed[1].total

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared, target = flight.reply, flight.prepared[flight.index], flight.target
        assert reply is not None
        state, request = self.states[target], flight.request
        moved: tuple[Notice, ...] = ()
        if self.route.only is None or target.endpoint.router is not None:
            moved = flight.guarded("routing_failed", (), self.route.answered, flight, self.states)
        price = flight.charge(prepared, reply.usage)
        judgement = flight.judge(state.account, prepared, price)
        flight.judgement = None if judgement is None else judgement.complete
        rendered, plan = prepared.rendered.notices, prepared.plan.notices
        notices = (*rendered, *plan, *prepared.notices, *moved, *reply.notices)
        record = flight.build_record(prepared, notices, observed=bool(self.watchers))
        # Before it is saved and parsed, which may fail: the reply was paid for.
        self.last = Response(
            reply=reply, record=record, raw_hash=flight.raw_hash, judgement=flight.judgement
        )
        self.add_cost(flight.cost_usd)
        if request.operation == "chat":
            if prepared.turn is not None:
                self.last_turn = prepared.turn, request
            state.reply.id = reply.id or None
            flight.guarded("conversation_failed", None, self._continue, flight, prepared, state)
            if late := flight.take_notices():
                self.last = self.last.with_notices(late)
                flight.record = msgspec.structs.replace(record, notices=(*record.notices, *late))
        output = request.output
        if output is not None and request.instruction is None:
            called = {call.name for call in reply.tool_calls}
            if not called or output.name in called:
                self.last = self.last.with_parsed(output.parse_reply(reply))
        return self.last

    def _continue(self, flight: InFlight, prepared: PreparedRequest, state: ProviderState) -> None:
        """Adds the reply to the conversation: without a copy, unless the app changed the
        conversation meanwhile."""
        assert flight.reply is not None
        added, reply = flight.request.messages, flight.reply.message
        turn = prepared.turn if self.history.messages is self.history.sent_from else None
        if turn is not None:
            if turn is not self._turn:
                self.expect_prefix_changes()  # it was compacted
                if self._turn is not None and self.keeper is not None:
                    self.history.note_compaction(self._turn.history, turn.history)
            state.prefix_change_expected = False
            self.history.memory = turn.memory
            conversation = prepared.call.ir.run(_HISTORY).append(reply)
        else:
            assert self._turn is not None
            whole, sent_from = self._turn.history, self.history.sent_from
            opening = whole.prefix(len(whole) - len(sent_from))  # of the first prompt
            conversation = opening.append(*self.history.messages, *added, reply)
            self.history.memory = msgspec.structs.replace(
                self.history.memory, opening=self._turn.memory.opening
            )
        unsaved = self.history.answer(conversation, len(added) + 1)
        # A stored response is continued if it holds the beginning of the prompt.
        state.reply.committed = conversation if turn is not None else None
        state.reply.prompt = turn.ir if turn is not None else None
        if unsaved:
            flight.guarded("save_failed", None, self.history.save_pending)

    def _failed(self, flight: InFlight, problem: BaseException) -> None:
        prepared = flight.prepared.get(flight.index)
        if prepared is not None and prepared.plan.host and flight.reply is None:
            release(self.state(flight.target), type(problem).__name__, problem)
        super()._failed(flight, problem)

    def _noted(self, response: Response, notices: tuple[Notice, ...]) -> Response:
        noted = super()._noted(response, notices)
        if self.last is response:
            self.last = noted
        return noted

    def _end(self) -> None:
        self.in_flight = False
        self._turn = None

    def add_cost(self, cost_usd: Decimal | None) -> None:
        """Adds to the cost of the conversation; after an unknown cost, the sum stays unknown."""
        if self.cost_usd is not None and cost_usd is not None:
            self.cost_usd += cost_usd
        else:
            self.cost_usd = None

    def state(self, target: Target) -> ProviderState:
        state = self.states.get(target)
        if state is None:
            state = self.states[target] = ProviderState(target.endpoint.begun(target))
        return state

    @property
    def busy(self) -> bool:
        """Whether a call is in flight, or a run, which may be running tools."""
        return self.in_flight or self.running

    def check_idle(self) -> None:
        if self.busy:
            raise InvalidRequest(
                "this conversation already has a turn in flight; use fork() for parallel turns",
                path="session",
            )

    def check_unfinished(self) -> None:
        """Raises if a run without content has nothing to continue."""
        last = self.last
        self.history.check_unfinished(paused=last is not None and last.stop_reason == "pause")

    def expect_prefix_changes(self) -> None:
        for state in self.states.values():
            state.prefix_change_expected = True

    # ── A conversation with an id ────────────────────────────────────────────────────────────────

    def keep_with(self, keeper: ConversationKeeper | None) -> None:
        self.keeper = keeper
        self._is_kept = keeper is not None

    def _ended(self, flight: InFlight, record: Record) -> EndedCall:
        """The ended call with its conversation, for an audit log."""
        ended = super()._ended(flight, record)
        self._audit_id = self._audit_id or secrets.token_hex(8)
        self._audited += 1
        name = None if self.keeper is None else self.keeper.saved_as
        return msgspec.structs.replace(
            ended, conversation=self._audit_id, turn=self._audited, session=name or ""
        )

    async def load(self) -> None:
        """Loads the conversation, once. Never fails."""
        keeper = self.keeper
        if keeper is None or keeper.loaded:
            return
        async with keeper.loading:
            if not keeper.loaded:
                self._restore(keeper, await keeper.load())
                keeper.loaded, self.load_notices = True, keeper.notices

    def load_now(self) -> None:
        """The same for methods that cannot wait, as far as the store allows."""
        keeper = self.keeper
        if keeper is not None and not keeper.loaded:
            self._restore(keeper, keeper.load_now())
            self.load_notices = keeper.notices if keeper.loaded else (NOT_LOADED,)

    def _restore(self, keeper: ConversationKeeper, saved: SavedConversation | None) -> None:
        """Continues from the saved state of an earlier session."""
        if saved is None:
            return
        restored = keeper.restore_states(saved, self.route, self._holders)
        if restored is None:
            return
        states, handles = restored
        compacted = self.history.memory.boundary is not None  # before it was loaded
        self.states |= states
        self.handles |= handles
        current = self.route.find(*saved.current)
        if current in states:
            self.route.settle(current, self.states)
        self.cost_usd = None if saved.cost_usd is None else Decimal(saved.cost_usd)
        if compacted:
            self.expect_prefix_changes()
        else:
            self.history.restore(saved)

    async def _stored(self, response: Response) -> Response:
        keeper, history = self.keeper, self.history
        assert keeper is not None
        keeper.notices = self.load_notices = ()
        conversation = history.saved(keeper.process, self.route.current, self.cost_usd)
        chained = bool(self.builder.store) or history.memory.continuation is not None
        notices = await keeper.save(conversation, self.states, chained=chained)
        return self._noted(response, notices) if notices else response
