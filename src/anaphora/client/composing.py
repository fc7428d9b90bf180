"""The call of a turn: the turn's prompt with the session's tools and parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from anaphora.prompt import (
    Call,
    Continuation,
    Earlier,
    Params,
    PromptCachePlan,
    PromptIR,
    Segment,
    ToolChoice,
)
from anaphora.tools import ToolRegistry
from anaphora.values import AnyTool, Extras, Message, Reply, SegmentRole

from .asking import Asked
from .config.values import ProviderConfig
from .given import params_of, tools_of
from .structured import Structured, output_of

if TYPE_CHECKING:
    from .session.place import Place
    from .session.prompt_source import TurnPrompt

# Looked up once: a member of an enum is found slowly, and every turn asks.
_HISTORY = SegmentRole.CONVERSATION
_TAIL = SegmentRole.VOLATILE_TAIL
_STABLE = SegmentRole.STABLE_PREFIX
_PASSING = (_TAIL, SegmentRole.DYNAMIC_CONTEXT)


class Composing:
    """Makes the call of a turn. Shared by all branches of a conversation."""

    def __init__(
        self,
        *,
        tools: ToolRegistry | Iterable[AnyTool] | None = None,
        params: Params | None = None,
        extras: Extras | None = None,
        store: bool | None = None,
        diagnose: bool = False,
    ) -> None:
        self.registry: ToolRegistry | None = None
        self._tools: tuple[AnyTool, ...] = ()
        if isinstance(tools, ToolRegistry):
            self.registry = tools
        elif tools is not None:
            self._tools = tools_of(tools)
        self._params = params or Params()
        if self._params.stream:
            self._params = msgspec.structs.replace(self._params, stream=False)
        self._extras = extras
        self._diagnose = diagnose
        self._store = store
        self._structured: dict[type, Structured[Any]] = {}

    @property
    def tool_choice(self) -> ToolChoice | None:
        return self._params.tool_choice

    def tools(self) -> tuple[AnyTool, ...]:
        return self.registry.tools() if self.registry is not None else self._tools

    def call(
        self,
        place: Place,
        turn: TurnPrompt,
        asked: Asked,
        *,
        stream: bool,
        whole: bool,
    ) -> Call:
        """The call of one turn at one place; with `whole`, it continues no stored response."""
        said, prompt = asked.messages, turn.ir
        history = turn.history.append(*said) if said else turn.history
        segments = (Segment(_HISTORY, history), *prompt.segments)
        if asked.prewarm and not any(segment.role is _TAIL for segment in prompt.segments):
            # A prompt ends with the user; what stands there is neither written nor read again.
            segments = (*segments, Segment.of(_TAIL, Message.user(".")))
        alone = whole or asked.prewarm
        ir = PromptIR(
            system_text=prompt.system_text,
            system_blocks=prompt.system_blocks,
            segments=segments,
            cache=self._cache_plan(place, asked, prompt.cache),
            continuation=None if alone else self._continuation(place, turn),
            state_position=prompt.state_position,
            dynamic_position=prompt.dynamic_position,
        )
        changes: dict[str, Any] = {}
        if stream:
            changes["stream"] = True
        if self._store is not None and place.endpoint.home == "openai_responses":
            # Nobody goes on from what only wrote the cache.
            changes["store"] = self._store and not asked.prewarm
        if asked.output is not None:
            changes["output"] = asked.output.output
        if asked.changes:
            changes.update(params_of(asked.changes))
        endpoint, name = place.endpoint, place.model.name
        call = Call(ir=ir, model=name, tools=self.tools(), params=self._params, extras=self._extras)
        return fitted(call, endpoint.config, endpoint.home, name, changes)

    def read(self, asked: Asked, reply: Reply) -> Any:
        """The answer in the form that was asked for."""
        form = asked.output
        if form is None:
            return None
        named = any(call.name == form.output.name for call in reply.tool_calls)
        return None if reply.tool_calls and not named else form.parse_reply(reply)

    def form(self, output: Any) -> Structured[Any] | None:
        """The form that an answer must have. A type's is made once; whoever asks for a schema again
        and again makes its form himself, with `output_of`."""
        if output is None or isinstance(output, Structured):
            return output
        if not isinstance(output, type):
            return output_of(output)
        known = self._structured.get(output)
        if known is None:
            known = self._structured[output] = output_of(output)
        return known

    def _cache_plan(self, place: Place, asked: Asked, plan: PromptCachePlan) -> PromptCachePlan:
        if asked.prewarm:
            # Where a provider adds breakpoints of its own, it would add one behind the last word.
            only_ours = place.endpoint.home == "openai_responses" and plan.mode is None
            mode = "explicit" if only_ours else plan.mode
            plan = msgspec.structs.replace(plan, prewarm=True, mode=mode)
        if self._diagnose and place.reply is not None:
            earlier = Earlier(place.endpoint.system, place.reply.id)
            plan = msgspec.structs.replace(plan, diagnose=True, compare_with=earlier)
        elif self._diagnose:
            plan = msgspec.structs.replace(plan, diagnose=True)
        return plan

    def _continuation(self, place: Place, turn: TurnPrompt) -> Continuation | None:
        """The prompt's own, the first time it is given; then the last answer here, where it is
        stored and the prompt still begins with what is stored."""
        if turn.ir.continuation is not None:
            return turn.ir.continuation
        stored = self._store or (self._store is None and turn.continues)
        committed = place.committed
        if not stored or place.reply is None or place.endpoint.home != "openai_responses":
            return None
        if not committed or turn.history.common_prefix(committed, ids=True) < len(committed):
            return None
        if turn.is_whole and (place.stored is None or not _begins_alike(place.stored, turn.ir)):
            return None
        return Continuation(place.reply.id, committed[-1].id)


def _begins_alike(stored: PromptIR, prompt: PromptIR) -> bool:
    """Whether system prompt and stable prefix are those that a stored response holds: they are not
    sent again, so the model would go on with the old ones."""
    if stored.system_field() != prompt.system_field():
        return False
    before, now = stored.run(_STABLE), prompt.run(_STABLE)
    return len(before) == len(now) == now.common_prefix(before)


def fitted(
    call: Call, config: ProviderConfig, wire: str, model: str, changes: dict[str, Any]
) -> Call:
    """The call as it is made at one provider: with its defaults where the app said nothing."""
    params = call.params
    if wire == "anthropic" and params.max_tokens is None:
        changes.setdefault("max_tokens", config.max_tokens)
    if config.temperature is not None and params.temperature is None:
        changes.setdefault("temperature", config.temperature)
    if changes:
        params = msgspec.structs.replace(params, **changes)
    if params is call.params and model == call.model:
        return call
    return msgspec.structs.replace(call, params=params, model=model)


def beginning(call: Call) -> bytes:
    """What a call begins with: it decides where a conversation is at home. Messages that change
    from turn to turn do not count."""
    lasting = (run for run in call.ir.body_runs() if run.role not in _PASSING)
    first = next((message for run in lasting for message in run.messages), None)
    said = blake3(call.ir.system_field().encode(errors="replace"))
    for tool in call.tools:
        said.update(b"\0" + tool.name.encode(errors="replace"))
    if first is not None:
        said.update(b"\0" + repr(first.parts).encode(errors="replace"))
    return said.digest(16)
