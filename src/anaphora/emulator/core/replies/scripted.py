"""A written reply as the wire that it goes out on would have it."""

from __future__ import annotations

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.core.billing import count_text
from anaphora.values import Part, Refusal, StopReason, Text, Thinking, ToolCall

from .dice import Dice, seed_of
from .heard import Heard
from .said import Said, limited


class Called(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str = "{}"
    id: str | None = None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a script replies, in the order it is said."""

    thinking: str | None = None
    text: str | None = None
    refusal: str | None = None
    tool_calls: tuple[Called, ...] = ()
    stop: StopReason | None = None
    """None: as what is said has it."""
    stop_sequence: str | None = None
    pace: float | None = None


def said_as(written: Written, heard: Heard) -> Said:
    """Cut at the request's own limits, unless the script says why it stops."""
    dice = Dice(seed_of(b"script") + heard.seed)
    thought, hidden = _thought(written, heard, dice)
    parts: list[Part] = [] if thought is None else [thought]
    if written.text is not None:
        parts.append(Text(written.text))
    if written.refusal is not None:
        parts.append(Refusal(written.refusal))
    parts += [_call(call, heard.wire, dice) for call in written.tool_calls]
    said = Said(
        parts=tuple(parts),
        stop=written.stop or _stop(written, heard.wire),
        stop_sequence=written.stop_sequence,
        hidden=hidden,
        pace=written.pace,
    )
    if written.stop is not None:
        return said
    params = heard.call.params
    return limited(said, params.max_tokens, params.stop, heard.profile)


def _stop(written: Written, wire: str) -> StopReason:
    if written.tool_calls:
        return "tool_calls"
    # OpenAI tells a refusal in a field of its own, and ends as ever.
    refused = written.refusal is not None and wire not in ("openai_chat", "openai_responses")
    return "refusal" if refused else "end"


def _call(call: Called, wire: str, dice: Dice) -> ToolCall:
    prefix = "toolu_" if wire == "anthropic" else "call_"
    return ToolCall(call.id or prefix + dice.name(), call.name, call.arguments)


def _thought(written: Written, heard: Heard, dice: Dice) -> tuple[Thinking | None, int]:
    """The reasoning in the wire's form; where it shows none, the tokens that it costs."""
    text, wire = written.thinking, heard.wire
    if text is None:
        return None, 0
    if wire == "anthropic":
        return Thinking(text, signature=dice.name(64), provider=wire), 0
    if wire == "openai_responses":
        extras = {wire: dumps({"id": f"rs_{dice.name()}"}).decode()}
        return Thinking(text, data=dice.name(64), provider=wire, extras=extras), 0
    if wire != "openai_chat":
        return Thinking(text, provider=wire), 0
    field = heard.profile.reasoning_field
    if field is None or not field.value:
        return None, max(1, count_text(text, heard.profile))
    return Thinking(text, provider=wire, extras={wire: dumps({"field": field.value}).decode()}), 0
