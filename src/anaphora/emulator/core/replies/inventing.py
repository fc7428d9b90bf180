"""An answer to any request: a tool call where tools are offered, JSON where a schema asks for it,
otherwise a few sentences. The same request and seed give the same answer."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.catalog import Profile
from anaphora.errors import RequestRejected
from anaphora.prompt import Call
from anaphora.values import Message, Part, Text, Tool, ToolCall, ToolResult

from .conforming import Unfit, conforming
from .dice import Dice, seed_of
from .heard import since_assistant
from .said import Said, limited
from .thinking import thinking
from .words import sentences

#: How each provider's ids of calls begin.
_IDS = {"anthropic": "toolu_", "openai_chat": "call_", "openai_responses": "call_"}


def invent(call: Call, wire: str, profile: Profile, seed: bytes) -> Said:
    dice = Dice(seed)
    if call.ir.cache.prewarm or call.params.max_tokens == 0:
        return Said(stop="length" if wire == "anthropic" else "end")
    thought, hidden = thinking(call, wire, profile, dice)
    parts: list[Part] = [] if thought is None else [thought]
    calls = _calls(call, wire, dice, seed)
    if calls:
        said = Said(parts=(*parts, *calls), stop="tool_calls", hidden=hidden)
    else:
        said = Said(parts=(*parts, Text(_text(call, dice, seed))), hidden=hidden)
    return limited(said, call.params.max_tokens, call.params.stop, profile)


def wants_json(call: Call) -> bool:
    """Whether JSON is asked for without saying of what form."""
    for text in (call.extras or {}).values():
        said: dict[str, Any] = msgspec.json.decode(text)
        forms = _inside(said, "response_format", "type"), _inside(said, "text", "format", "type")
        if "json_object" in forms or said.get("format") == "json":
            return True
        if _inside(said, "generationConfig", "responseMimeType") == "application/json":
            return True
    return False


def _inside(said: Any, *names: str) -> Any:
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    return said


def _text(call: Call, dice: Dice, seed: bytes) -> str:
    output = call.params.output
    if output is not None:
        try:
            return conforming(output.schema, seed)
        except Unfit as problem:
            reason = f"no answer of that form can be made: {problem}"
            raise RequestRejected(reason, status=400) from None
    if wants_json(call):
        return msgspec.json.encode({"answer": sentences(dice, 4, 10)}).decode()
    return sentences(dice)


def _calls(call: Call, wire: str, dice: Dice, seed: bytes) -> list[ToolCall]:
    """The tools to call: the forced one, those that the user's turn names, or one of them.

    With tool results in the turn there are none, whatever text follows the results: a state that
    the client adds behind them, or a date, asks for no further call.
    """
    tools = [tool for tool in call.tools if isinstance(tool, Tool)]
    choice = call.params.tool_choice
    mode = choice.mode if choice is not None else "auto"
    if not tools or mode == "none":
        return []
    if mode == "tool":
        wanted = [tool for tool in tools if choice is not None and tool.name == choice.name]
    else:
        turn = since_assistant(call)
        results = any(isinstance(part, ToolResult) for message in turn for part in message.parts)
        empty = not call.ir.body_runs()
        if mode == "auto" and (results or empty or call.params.output is not None):
            return []
        wanted = _wanted(tools, turn, dice)
        if choice is not None and choice.parallel is False:
            wanted = wanted[:1]
    made = []
    for tool in wanted:
        try:
            arguments = conforming(tool.schema, seed + seed_of(tool.name.encode()))
        except Unfit as problem:
            if mode == "auto":
                continue
            reason = f"no arguments that fit the schema of {tool.name} can be made: {problem}"
            raise RequestRejected(reason, status=400, param="tools") from None
        made.append(ToolCall(_IDS.get(wire, "") + dice.name(), tool.name, arguments))
    return made


def _wanted(tools: list[Tool], turn: tuple[Message, ...], dice: Dice) -> list[Tool]:
    text = "\n".join(message.text for message in turn if message.role != "system")
    named = [tool for tool in tools if tool.name in text]
    return named or [dice.one_of(tools)]
