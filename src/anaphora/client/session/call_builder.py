"""The source of a session's prompts, and the call of a turn: its prompt with the session's tools
and parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.client.arguments import seconds_of, state_text
from anaphora.client.cold_guard import ColdGuard, cold_guard_of
from anaphora.client.content import Content, ToolSet, messages_of
from anaphora.client.in_flight import PreparedRequest, TurnRequest
from anaphora.client.options import Prompt, StateText, TurnOptions
from anaphora.client.parameters import params_of
from anaphora.client.routing import errors_of_host
from anaphora.client.structured import Structured, output_of
from anaphora.client.target import Endpoint, Target
from anaphora.errors import AnaphoraError, ContextOverflow, Forbidden, InvalidRequest, NotFound
from anaphora.prompt import (
    Call,
    Earlier,
    Params,
    PromptCachePlan,
    PromptIR,
    RenderedContext,
    Segment,
)
from anaphora.values import Extras, Message, SegmentRole, Text

from .compaction import PromptSizes, shortened, token_limit
from .provider_state import ProviderState
from .turn_prompt import TurnPrompt, returned_prompt

# Bound once: looking up an enum member is slow, and every turn needs it.
_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL
_PROMPTS = (PromptIR, RenderedContext)


class PromptSource(msgspec.Struct, frozen=True, eq=False):
    """The source of a session's prompts: a `PromptIR`, a `RenderedContext`, or a function that
    returns one and is called once a turn. The keywords `system=`, `state=` and `cache=` are a short
    form of a `PromptIR`. Shared by forks."""

    prompt: Prompt | Callable[[], Prompt]
    state: StateText = None
    """Text at the end of every call; only with a prompt from keywords."""
    from_keywords: bool = False

    def current(self) -> Prompt:
        """The prompt of the next turn. Calls the app's function, if there is one."""
        prompt = self.prompt
        if not isinstance(prompt, _PROMPTS):
            prompt = returned_prompt(prompt())
        state = self.state
        text = state_text(state()) if callable(state) else state
        if not text:
            return prompt
        tail = Segment.of(_TAIL, Message.user(text))
        return msgspec.structs.replace(prompt, segments=(tail,))


def is_plain(prompt: PromptIR) -> bool:
    """Whether a prompt does not affect the history: it has no conversation, boundary or
    continuation."""
    if prompt.continuation is not None or prompt.cache.frozen_through is not None:
        return False
    return not prompt.segments or all(each.role is not _HISTORY for each in prompt.segments)


class CallBuilder(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The fixed part of all calls of a conversation. Shared by its forks."""

    tools: ToolSet
    params: Params
    extras: Extras | None
    store: bool | None
    diagnose: bool
    compact_at: int | float | None
    cold: ColdGuard | None = None
    outputs: dict[Any, Structured[Any]] = {}
    """The output forms that were requested so far."""
    usual_params: dict[tuple[Target, bool], Params] = {}
    """The parameters of turns that set none, streamed and not."""

    def prepare(
        self,
        state: ProviderState,
        turn: TurnPrompt,
        request: TurnRequest,
        *,
        stream: bool = False,
        whole: bool = False,
        too_long: bool = False,
    ) -> PreparedRequest:
        """The request of a turn for one provider. Its history is compacted if the prompt exceeds
        `compact_at`, or was `too_long` for the provider."""
        call = self.call(state, turn, request, stream=stream, whole=whole)
        is_last = request.instruction is not None
        prepared = state.prepare(call, time.time(), is_last=is_last)
        prepared.turn = turn
        if self.compact_at is None or request.prewarm or is_last or not turn.history:
            return prepared
        limit = token_limit(self.compact_at, state.target.profile)
        sizes = PromptSizes(prepared.rendered)
        if sizes.total <= limit and not too_long:
            return prepared
        if prepared.call.ir.continuation is not None:
            # The stored part of the history also has to be measured.
            call = self.call(state, turn, request, stream=stream)
            sizes = PromptSizes(state.prepare(call, prepared.at).rendered)
        after, done = shortened(turn, sizes, limit, too_long=too_long)
        notices = (*prepared.notices, *done.notices)
        if after is not turn:
            call = self.call(state, after, request, stream=stream, whole=whole)
            prepared = state.prepare(call, prepared.at)
            prepared.compacted = True
        prepared.turn, prepared.notices = after, notices
        return prepared

    def call(
        self,
        state: ProviderState,
        turn: TurnPrompt,
        request: TurnRequest,
        *,
        stream: bool = False,
        whole: bool = True,
    ) -> Call:
        """The call of a turn for one provider; with `whole`, it continues no stored response."""
        prompt, added = turn.ir, request.messages
        if request.instruction is not None and prompt.state_position == "head":
            added = (*added, request.instruction)
        history = turn.history.append(*added) if added else turn.history
        segments = (Segment(_HISTORY, history), *prompt.segments)
        if request.prewarm and not any(segment.role is _TAIL for segment in prompt.segments):
            # A prompt has to end with a user message; this one is not cached.
            segments = (*segments, Segment.of(_TAIL, Message.user(".")))
        if request.instruction is not None and prompt.state_position == "tail":
            # Behind the state: the next call has neither, and begins with all that is before.
            segments = (*segments, Segment.of(_TAIL, request.instruction))
        continuation = None
        if not whole and not request.prewarm:
            continuation = prompt.continuation  # the prompt's own, until it was used
            if continuation is None and state.endpoint.features.stores_responses:
                continuation = state.reply.continued(turn, self.store)
        ir = PromptIR(
            system_text=prompt.system_text,
            system_blocks=prompt.system_blocks,
            segments=segments,
            cache=self._cache_plan(state, request, prompt.cache),
            continuation=continuation,
            state_position=prompt.state_position,
            dynamic_position=prompt.dynamic_position,
        )
        return Call(
            ir=ir,
            model=state.target.model,
            tools=self.tools.source.current,
            params=self._params_of(state, request, stream=stream),
            extras=self.extras,
        )

    def _params_of(self, state: ProviderState, request: TurnRequest, *, stream: bool) -> Params:
        """The parameters of a turn; the same object for all turns that set none."""
        own = bool(request.params) or request.output is not None or request.prewarm
        known = None if own else self.usual_params.get((state.target, stream))
        if known is not None:
            return known
        changes: dict[str, Any] = {}
        if stream:
            changes["stream"] = True
        if self.store is not None and state.endpoint.features.stores_responses:
            changes["store"] = self.store and not request.prewarm
        if request.output is not None:
            changes["output"] = request.output.output
        if request.params:
            changes.update(request.params)
        params = state.target.params(self.params, changes)
        if not own:
            self.usual_params[state.target, stream] = params
        return params

    def request(self, content: Content | None, output: Any, options: TurnOptions) -> TurnRequest:
        """A turn with this content; `options` are parameters of this call alone."""
        timeout, cold = None, self.cold
        if options:
            timeout, cold = options.pop("timeout", None), cold_guard_of(options, cold)
        # Nearly every turn is a text.
        text = content if isinstance(content, str) and not content.isspace() else ""
        return TurnRequest(
            messages=(Message(role="user", parts=(Text(text),)),) if text else messages_of(content),
            params=params_of(options, tools=self.tools.source.current) if options else {},
            output=None if output is None else self.output(output),
            timeout=None if timeout is None else seconds_of(timeout, "timeout"),
            cold=cold,
        )

    def output(self, output: Any) -> Structured[Any] | None:
        """The form of a reply. Built once for a type; for a schema that is used again, pass the
        result of `output_of`."""
        if output is None or isinstance(output, Structured):
            return output
        if isinstance(output, dict):
            return output_of(output)
        try:
            known = self.outputs.get(output)
        except TypeError:  # an instance that is not hashable, so not a form
            return output_of(output)
        if known is None:
            known = self.outputs[output] = output_of(output)
        return known

    def _cache_plan(
        self, state: ProviderState, request: TurnRequest, plan: PromptCachePlan
    ) -> PromptCachePlan:
        if request.prewarm and state.endpoint.features.prewarms:
            explicit = state.endpoint.features.adds_breakpoints and plan.mode is None
            mode = "explicit" if explicit else plan.mode
            plan = msgspec.structs.replace(plan, prewarm=True, mode=mode)
        if self.diagnose and state.reply.id is not None:
            earlier = Earlier(state.endpoint.system, state.reply.id)
            plan = msgspec.structs.replace(plan, diagnose=True, compare_with=earlier)
        elif self.diagnose:
            plan = msgspec.structs.replace(plan, diagnose=True)
        return plan


def check_prewarms(endpoint: Endpoint) -> None:
    """Raises if no call of the provider only writes the cache."""
    if not endpoint.features.prewarms:
        raise InvalidRequest(
            f"{endpoint.id} speaks {endpoint.base_wire}, which has no call that only writes the"
            " cache",
            path="prewarm",
        )


def reasons_to_prepare_again(
    state: ProviderState, prepared: PreparedRequest, *, compacts: bool
) -> tuple[type[AnaphoraError], ...]:
    """Errors after which a call is prepared again: `PreparedRequest.prepare_again_on`. `compacts`:
    the history may be compacted."""
    errors: tuple[type[AnaphoraError], ...] = ()
    if prepared.plan.held is not None:
        # Google answers the same for a handle that is gone and for one that is forbidden.
        errors = (NotFound, Forbidden)
    elif prepared.call.ir.continuation is not None:
        assert prepared.turn is not None
        errors = (NotFound,) if prepared.turn.is_whole else ()
    if compacts:
        errors += (ContextOverflow,)
    return errors + errors_of_host(state) if prepared.plan.host else errors
