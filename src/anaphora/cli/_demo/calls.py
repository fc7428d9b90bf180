"""The story as calls: what an app would hand to the library, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator

from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.prompt.tools import ToolRegistry
from anaphora.values import Conversation, Message, ToolCall

from . import story
from .story import Step
from .workspace import Workspace

MODEL = "claude-sonnet-4-5"

_STABLE = (
    PromptBlock.cached_long("identity", story.IDENTITY),
    PromptBlock.cached_short("knowledge", story.KNOWLEDGE),
)


def calls() -> Iterator[tuple[str, Call]]:
    """Each call of the conversation, with a few words on what led to it."""
    workspace = Workspace()
    registry = workspace.tools()
    conversation, frozen_through = Conversation(), None
    for turn, step in enumerate(story.STEPS, 1):
        if step.freezes:
            frozen_through = conversation[-1].id
        event, said = _take(step, turn, registry)
        conversation = conversation.append(*said)
        state = story.state(step, turn, workspace.failing(), workspace.edited)
        ir = PromptIR.chat(
            conversation,
            system=_system(step, turn),
            tail=[Message.user(state)],
            cache=PromptCachePlan(frozen_through=frozen_through),
        )
        params = Params(max_tokens=4096)
        yield event, Call(ir=ir, model=MODEL, tools=registry.tools(), params=params)


def _system(step: Step, turn: int) -> tuple[PromptBlock, ...]:
    if step.clock_in != "identity":
        return _STABLE
    with_clock = story.identity_with(story.clock(turn))
    return (PromptBlock.cached_long("identity", with_clock), *_STABLE[1:])


def _take(step: Step, turn: int, registry: ToolRegistry) -> tuple[str, list[Message]]:
    """What happened since the last call: the model answered, and a tool or the user replied."""
    if step.user:
        answered = [Message.assistant(step.says)] if step.says else []
        event, said = "user asks", [*answered, Message.user(step.user)]
    else:
        call = ToolCall(f"toolu_{turn:02}", step.tool, step.arguments)
        result: str = registry.bind(call)()
        said = [Message.assistant(step.says, call), Message.tool(call.id, result)]
        event = f"{step.tool} → {_size(result)}"
    if step.freezes:
        event += ", history frozen"
    if step.clock_in:
        event += f", clock in {step.clock_in}"
    return event, said


def _size(text: str) -> str:
    size = len(text.encode())
    return f"{size} B" if size < 1000 else f"{size / 1000:.1f} kB"
