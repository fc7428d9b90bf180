"""The turns of a conversation: each is rendered from where the last one ended, planned, checked
against the prefix sent before, sent, and compared with its bill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Unpack, overload

import msgspec

from anaphora.client.arguments import missing_result, seconds_of
from anaphora.client.content import Content, messages_of
from anaphora.client.in_flight import InFlight, PreparedRequest
from anaphora.client.mcp import ADDED
from anaphora.client.options import TurnOptions
from anaphora.client.parameters import params_of
from anaphora.client.response import Output, Response
from anaphora.client.routing import conversation_key
from anaphora.client.structured import Structured
from anaphora.client.target import Target
from anaphora.client.turn import Turn, TurnRequest
from anaphora.errors import ContextOverflow, Forbidden, InvalidRequest, NotFound
from anaphora.prompt import PromptIR
from anaphora.values import Message, Notice, Opaque, SegmentRole, ToolResult
from anaphora.values.conversation import unanswered

from .call_builder import is_plain
from .handles import Handles
from .kept import KeptConversation
from .preview import check_prefix
from .provider_state import ProviderState
from .turn_prompt import TurnPrompt, turn_prompt

# Bound once: looking up an enum member is slow, and every turn needs it.
_HISTORY = SegmentRole.CONVERSATION


class SessionTurns(KeptConversation):
    """The turns of a session."""

    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn[None]: ...
    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: type[Output] | Structured[Output],
        **options: Unpack[TurnOptions],
    ) -> Turn[Output]: ...
    @overload
    def send(
        self,
        content: Content | None = None,
        *,
        output: object,
        **options: Unpack[TurnOptions],
    ) -> Turn[Any]: ...
    def send(
        self,
        content: Content | None = None,
        *,
        output: Any = None,
        **options: Unpack[TurnOptions],
    ) -> Turn[Any]:
        """A turn. Await it for the response, or iterate over it to stream.

        `output` is the form that the reply must have (a struct, dataclass, pydantic model or JSON
        schema); other keywords are parameters of this call alone: `max_tokens`, `tool_choice`, ….
        The conversation grows only when the reply is complete; a call that fails leaves it as it
        was.
        """
        return Turn(self, self._request(content, output, options))

    def _request(self, content: Content | None, output: Any, options: TurnOptions) -> TurnRequest:
        timeout = options.pop("timeout", None) if options else None
        # Nearly every turn is a text.
        text = content if isinstance(content, str) and not content.isspace() else ""
        return TurnRequest(
            messages=(Message.user(text),) if text else messages_of(content),
            params=params_of(options, tools=self._builder.tools.source.current) if options else {},
            output=None if output is None else self._builder.output(output),
            timeout=None if timeout is None else seconds_of(timeout, "timeout"),
        )

    def _targets_for(self, request: TurnRequest) -> Sequence[Target]:
        if self._busy:
            self.check_idle()
        self._turn = None
        self._check_turn(request)
        targets = self._order(request, self._prompt)
        if request.prewarm and not targets[0].endpoint.features.prewarms:
            endpoint = targets[0].endpoint
            raise InvalidRequest(
                f"{endpoint.id} speaks {endpoint.base_wire}, which has no call that only writes the"
                " cache",
                path="prewarm",
            )
        self._busy = True
        if self._refresher is not None:
            self._refresher.turn_began()
        return targets

    def _check_turn(self, request: TurnRequest) -> None:
        """Raises where every provider would refuse the messages. A prompt from the app may bring
        what the history lacks."""
        if request.prewarm or not self._source.from_keywords:
            return
        history, added = self._conversation, request.messages
        if not added and not history and not self._source.state:
            raise InvalidRequest("there is nothing to send yet; give a text", path="content")
        if not (calls := unanswered(history)):
            return
        parts = (part for message in added for part in message.parts)
        results = {part.call_id for part in parts if isinstance(part, ToolResult)}
        missing = [call for call in calls if call.id not in results]
        if missing:
            raise missing_result(missing[0])

    def check_unfinished(self) -> None:
        """Raises where the model has answered, so that a run without content has nothing to
        continue. A reply that the provider paused ends with what it is to go on with."""
        history = self._conversation
        if not self._source.from_keywords or self._source.state or not history:
            return
        last = history[-1]
        if last.role != "assistant" or unanswered(history):
            return
        paused = self.last is not None and self.last.stop_reason == "pause"
        if not paused and not (last.parts and isinstance(last.parts[-1], Opaque)):
            reason = "the conversation ends with the model's answer: there is nothing to continue"
            raise InvalidRequest(f"{reason}; give a text", path="content")

    def _order(self, request: TurnRequest, prompt: Callable[[], TurnPrompt]) -> tuple[Target, ...]:
        if self._route.only is not None:
            return self._route.only

        def key() -> bytes:
            state = self._state(self._route.current)
            return conversation_key(self._builder.call(state, prompt(), request))

        return self._route.order(key, time.monotonic(), self._states)

    def _prompt(self) -> TurnPrompt:
        if self._turn is None:
            self._sent_from = self._conversation
            self._turn = self._next_prompt()
        return self._turn

    def _next_prompt(self) -> TurnPrompt:
        """The prompt of the next turn. Nothing of it is kept before the turn was answered."""
        prompt, memory = self._source.current(), self._memory
        if self._is_kept:
            memory = self._with_compaction(prompt, memory)
        if memory.boundary is None and isinstance(prompt, PromptIR) and is_plain(prompt):
            return TurnPrompt(ir=prompt, history=self._conversation, memory=memory)
        return turn_prompt(prompt, self._conversation, self._answered, memory)

    async def prepare(self, flight: InFlight, index: int, again: bool) -> PreparedRequest:
        state, request = self._state(flight.targets[index]), flight.request
        prompt = self._prompt()
        if state.past is not None:
            call = self._builder.call(state, prompt, request, stream=flight.stream, whole=again)
            state = await self._load_past(state, call)
        # A prompt that was too long is compacted; otherwise what it referred to is gone.
        too_long = again and flight.attempts[-1].error == ContextOverflow.__name__
        whole = again and not too_long
        if whole and state.handles is not None:
            state.handles.forget()
        prepared = self._builder.prepare(
            state, prompt, request, stream=flight.stream, whole=whole, too_long=too_long
        )
        if too_long and prepared.turn is prompt:
            last = flight.attempts[-1]
            raise ContextOverflow(last.reason, status=last.status, request_id=last.request_id)
        listed = () if self._servers is None else self._servers.take_notices()
        if self._on_prefix_break != "off" and not state.extends_last(prepared):
            compacted = prepared.turn is not prompt or state.prefix_change_expected
            expected = compacted or any(each.code == ADDED for each in listed)
            mode = "notice" if expected else self._on_prefix_break
            prepared.notices += check_prefix(state, prepared, mode)
        prepared.notices += self._load_notices + listed
        if whole:
            prepared.plan = msgspec.structs.replace(prepared.plan, held=None, preludes=())
        elif prepared.plan.preludes:
            if state.handles is None:
                state.handles = Handles(state, self._holders)
            await state.handles.run_preludes(prepared)
        assembled = state.endpoint.wire.assemble(prepared.rendered, prepared.plan)
        prepared.outgoing = state.endpoint.outgoing(assembled)
        if prepared.plan.held is not None:
            # Google answers the same for a handle that is gone and for one that is forbidden.
            prepared.prepare_again_on = (NotFound, Forbidden)
        elif prepared.call.ir.continuation is not None:
            assert prepared.turn is not None
            prepared.prepare_again_on = (NotFound,) if prepared.turn.is_whole else ()
        if self._builder.compact_at and not request.prewarm:
            prepared.prepare_again_on += (ContextOverflow,)
        return prepared

    def count_tokens(self, target: Target, prepared: PreparedRequest) -> int:
        return self._state(target).tokens(prepared)

    def _finish(self, flight: InFlight) -> Response:
        reply, prepared, target = flight.reply, flight.prepared[flight.index], flight.target
        assert reply is not None
        state, request = self._states[target], flight.request
        moved: tuple[Notice, ...] = ()
        if self._route.only is None:
            moved = flight.guarded("routing_failed", (), self._route.settle, target, self._states)
        price = flight.charge(prepared, reply.usage)
        judgement = flight.judge(state.account, prepared, price)
        flight.judgement = None if judgement is None else judgement.complete
        warm: tuple[Notice, ...] = ()
        if self._refresher is not None and not request.prewarm:
            paid, warm = self._refresher.pause.cost()
            if judgement is not None:
                judgement.kept_warm_usd = paid
        rendered, plan = prepared.rendered.notices, prepared.plan.notices
        notices = (*rendered, *plan, *prepared.notices, *moved, *warm, *reply.notices)
        record = flight.build_record(prepared, notices, observed=bool(self._watchers))
        # Before it is saved and parsed, which may fail: the reply was paid for.
        self.last = Response(
            reply=reply, record=record, raw_hash=flight.raw_hash, judgement=flight.judgement
        )
        self.add_cost(flight.cost_usd)
        if not request.prewarm:
            if prepared.turn is not None:
                self._last_turn = prepared.turn, request
            state.reply_id = reply.id or None
            flight.guarded("conversation_failed", None, self._continue, flight, prepared, state)
            if late := flight.take_notices():
                self.last = self.last.with_notices(late)
                flight.record = msgspec.structs.replace(record, notices=(*record.notices, *late))
        output = request.output
        if output is not None:
            called = {call.name for call in reply.tool_calls}
            if not called or output.name in called:
                self.last = self.last.with_parsed(output.parse_reply(reply))
        return self.last

    def _continue(self, flight: InFlight, prepared: PreparedRequest, state: ProviderState) -> None:
        """Adds the reply to the conversation: to what was sent, without a copy, unless the app
        changed the conversation meanwhile."""
        assert flight.reply is not None
        added, reply = flight.request.messages, flight.reply.message
        turn = prepared.turn if self._conversation is self._sent_from else None
        if turn is not None:
            if turn is not self._turn:
                self._expect_prefix_changes()  # it was compacted
                if self._turn is not None:
                    self._note_compaction(self._turn.history, turn.history)
            state.prefix_change_expected = False
            self._memory = turn.memory
            conversation = prepared.call.ir.run(_HISTORY).append(reply)
        else:
            conversation = self._conversation.append(*added, reply)
        self._conversation = self._answered = conversation
        # A stored response is continued where it holds the beginning of the prompt.
        state.committed = conversation if turn is not None else None
        state.stored = turn.ir if turn is not None else None
        if self._save is not None:
            self._unsaved += conversation[-len(added) - 1 :]
            flight.guarded("save_failed", None, self._save_pending)

    def _noted(self, response: Response, notices: tuple[Notice, ...]) -> Response:
        noted = super()._noted(response, notices)
        if self.last is response:
            self.last = noted
        return noted

    def _end(self) -> None:
        self._busy = False
        self._turn = None
        if self._refresher is not None:
            self._refresher.turn_ended()

    def add_cost(self, cost_usd: Decimal | None) -> None:
        """To that of the conversation, which is unknown from then on where this is."""
        if self.cost_usd is not None and cost_usd is not None:
            self.cost_usd += cost_usd
        else:
            self.cost_usd = None

    def _state(self, target: Target) -> ProviderState:
        state = self._states.get(target)
        if state is None:
            state = self._states[target] = ProviderState(target.begun())
        return state
