"""A reply to any request: a tool call where tools are offered, JSON where a schema is given,
otherwise a few sentences. The same request and seed give the same reply."""

from __future__ import annotations

import msgspec

from anaphora.catalog import Profile
from anaphora.emulator.exchange import nested
from anaphora.emulator.hosts.host import Host
from anaphora.errors import RequestRejected
from anaphora.prompt import Call
from anaphora.values import Message, Part, Text, Tool, ToolCall, ToolResult

from . import GeneratedReply
from .schema_value import SchemaGenerator, UnsatisfiableSchema
from .text import SeededRandom, join_seed, sentences


def generate_reply(
    call: Call, host: Host, profile: Profile, schemas: SchemaGenerator, seed: bytes
) -> GeneratedReply:
    if call.ir.cache.prewarm or call.params.max_tokens == 0:
        return GeneratedReply(stop_reason=host.prewarm_stop)
    random = SeededRandom(seed)
    thinking, hidden = host.generate_thinking(call, profile, random)
    parts: list[Part] = [] if thinking is None else [thinking]
    calls = _tool_calls(call, host.call_id_prefix, schemas, random, seed)
    parts += calls or [Text(_text(call, schemas, random, seed))]
    reply = GeneratedReply(
        parts=tuple(parts), stop_reason="tool_calls" if calls else "end", hidden=hidden
    )
    return reply.limited(call.params.max_tokens, call.params.stop, profile)


def last_turn(call: Call) -> tuple[Message, ...]:
    """The messages after the assistant's last one. Reads from the end."""
    turn: list[Message] = []
    for segment in reversed(call.ir.body_runs()):
        messages = segment.messages
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.role == "assistant":
                return tuple(reversed(turn))
            turn.append(message)
    return tuple(reversed(turn))


def _text(call: Call, schemas: SchemaGenerator, random: SeededRandom, seed: bytes) -> str:
    output = call.params.output
    if output is not None:
        try:
            return schemas.generate(output.schema, seed)
        except UnsatisfiableSchema as problem:
            reason = f"no reply for the output schema can be generated: {problem}"
            raise RequestRejected(reason, status=400) from None
    if _wants_json(call):
        return msgspec.json.encode({"answer": sentences(random, 4, 10)}).decode()
    return sentences(random)


def _wants_json(call: Call) -> bool:
    """Whether JSON is requested without a schema."""
    for text in (call.extras or {}).values():
        extras = msgspec.json.decode(text)
        if (
            nested(extras, "response_format", "type") == "json_object"
            or nested(extras, "text", "format", "type") == "json_object"
            or nested(extras, "generationConfig", "responseMimeType") == "application/json"
            or extras.get("format") == "json"
        ):
            return True
    return False


def _tool_calls(
    call: Call, id_prefix: str, schemas: SchemaGenerator, random: SeededRandom, seed: bytes
) -> list[ToolCall]:
    """The tools to call: the forced one, those that the last turn names, or any one of them.

    None are called where the last turn holds tool results, whatever text follows them.
    """
    tools = [tool for tool in call.tools if isinstance(tool, Tool)]
    choice = call.params.tool_choice
    mode = choice.mode if choice is not None else "auto"
    if not tools or mode == "none":
        return []
    if mode == "tool":
        wanted = [tool for tool in tools if choice is not None and tool.name == choice.name]
    else:
        turn = last_turn(call)
        results = any(isinstance(part, ToolResult) for message in turn for part in message.parts)
        empty = not call.ir.body_runs()
        if mode == "auto" and (results or empty or call.params.output is not None):
            return []
        text = "\n".join(message.text for message in turn if message.role != "system")
        wanted = [tool for tool in tools if tool.name in text] or [random.choice(tools)]
        if choice is not None and choice.parallel is False:
            wanted = wanted[:1]
    calls = []
    for tool in wanted:
        try:
            arguments = schemas.generate(tool.schema, seed + join_seed(tool.name.encode()))
        except UnsatisfiableSchema as problem:
            if mode == "auto":
                continue
            reason = f"no arguments for the schema of {tool.name} can be generated: {problem}"
            raise RequestRejected(reason, status=400, param="tools") from None
        calls.append(ToolCall(id_prefix + random.id(), tool.name, arguments))
    return calls
