"""Calls with a forced tool choice, for models that refuse one.

Some models refuse `required` and a named tool (`forced_tools` in the catalog), others refuse them
while they think (`forced_tools_while_thinking`). They get `auto` and an instruction instead.

The instruction is added to the end of the system prompt: it is cached there, and signed thinking
stays valid while the choice stays the same. So it is only added to a conversation that begins with
a forced choice; later it would change the cached prefix and invalidate signatures.
"""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.catalog import Profile
from anaphora.prompt import Call, Params, PromptBlock, PromptIR, ToolChoice
from anaphora.rendered import Rendered
from anaphora.values import Notice, SegmentRole
from anaphora.wire.params import forces_tools, has_thinking_budget

#: Codes of the notices: with the instruction, and without.
ASKED, LEFT_OUT = "tool_choice_asked", "tool_choice_left_out"
_PATH = "params.tool_choice"
_BLOCK = "tool_choice"


def refuses_choice(profile: Profile, params: Params) -> bool:
    """Whether the model refuses a forced tool choice in a call with these parameters."""
    if profile.refuses("forced_tools"):
        return True
    return has_thinking_budget(params) and profile.refuses("forced_tools_while_thinking")


def without_forced_choice(
    call: Call, profile: Profile, previous: Rendered | None = None
) -> tuple[Call, tuple[Notice, ...]]:
    """The call in a form that the model accepts, and a notice if it was changed. `previous` is the
    last call of the conversation."""
    choice = call.params.tool_choice
    if choice is None or not forces_tools(call.params) or not refuses_choice(profile, call.params):
        return call, ()
    # `auto` is the default; written out, it would be another request than one without a choice.
    auto = None if choice.parallel is None else ToolChoice("auto", parallel=choice.parallel)
    params = replace(call.params, tool_choice=auto)
    thinking = "" if profile.refuses("forced_tools") else " while it thinks"
    reason = f"{call.model} refuses a forced tool choice{thinking}; it gets auto"
    if not _begins_forced(call, previous) or not call.tools or call.ir.cache.prewarm:
        text = f"{reason} and may answer without a tool call"
        return replace(call, params=params), (Notice(LEFT_OUT, text, _PATH),)
    text = f"{reason} and an instruction at the end of the system prompt"
    ir = _instructed(call.ir, _instruction(choice))
    return replace(call, params=params, ir=ir), (Notice(ASKED, text, _PATH),)


def _begins_forced(call: Call, previous: Rendered | None) -> bool:
    """Whether the call begins a conversation, or its last call had the instruction."""
    if previous is None or any(notice.code == ASKED for notice in previous.notices):
        return True
    history = call.ir.run(SegmentRole.CONVERSATION)
    return all(message.role != "assistant" for message in history)


def _instruction(choice: ToolChoice) -> str:
    if choice.mode == "tool":
        return f"Answer by calling the tool {choice.name}. Do not answer in text."
    return "Answer by calling at least one of the tools. Do not answer in text."


def _instructed(ir: PromptIR, text: str) -> PromptIR:
    blocks = ir.system_blocks
    if blocks or not ir.system_text:
        blocks = (*blocks, PromptBlock(_BLOCK, text))
    whole = f"{ir.system_text}\n\n{text}" if ir.system_text else ""
    return replace(ir, system_blocks=blocks, system_text=whole)
