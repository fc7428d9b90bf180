"""Replies independent of a wire: generated here, or scripted (`script`).

A generated reply is a tool call if tools are offered, JSON if a schema is given, and otherwise a
few sentences. The same request and seed give the same reply.
"""

from __future__ import annotations

import math

import msgspec

from anaphora.catalog import Profile
from anaphora.emulator.exchange import decode_value, nested
from anaphora.errors import RequestRejected
from anaphora.prompt import Call, OutputSchema
from anaphora.tokens import bytes_in, tokens_in
from anaphora.values import (
    Message,
    Part,
    Refusal,
    StopReason,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

from .schema_value import SchemaGenerator, UnsatisfiableSchema
from .text import SeededRandom, join_seed, sentences

#: Characters at the end of the last turn that are searched for names of tools, and how many tools
#: are called at most.
_SEARCHED, _MOST_CALLS = 20_000, 32


class GeneratedReply(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[Part, ...] = ()
    stop_reason: StopReason = "end"
    stop_sequence: str | None = None
    hidden: int = 0
    """Tokens of reasoning that is billed and not shown."""
    pace: float | None = None
    """Seconds between two chunks of a stream; None: the emulator's latency."""

    def tokens(self, profile: Profile) -> tuple[int, int]:
        """Output tokens in all, and how many of them are reasoning."""
        tokens = reasoning = self.hidden
        for part in self.parts:
            size = _part_tokens(part, profile)
            tokens += size
            if isinstance(part, Thinking):
                reasoning += size
        return tokens, reasoning

    def limited(
        self, max_tokens: int | None, stops: tuple[str, ...], profile: Profile
    ) -> GeneratedReply:
        """The reply cut at its first stop sequence, or at `max_tokens`."""
        parts: list[Part] = []
        if max_tokens is None and not stops:
            return self
        left = math.inf if max_tokens is None else max_tokens - self.hidden
        hidden = self.hidden if max_tokens is None else min(self.hidden, max_tokens)
        for part in self.parts:
            text = part.text if isinstance(part, Text) else ""
            found = [(text.index(s), s) for s in stops if s and s in text] if stops else []
            if found:
                end, sequence = min(found)
                parts.append(Text(text[:end]))
                return self._cut(parts, hidden, "stop_sequence", sequence)
            size = _part_tokens(part, profile)
            if size > left:
                kept = bytes_in(max(0, int(left)), profile.bytes_per_token.value)
                if isinstance(part, Text) and left > 0:
                    parts.append(Text(_first_bytes(part.text, kept)))
                elif isinstance(part, Thinking):
                    # The signature is empty: the real one would come after the reasoning.
                    signature = None if part.signature is None else ""
                    shown = _first_bytes(part.text, kept)
                    parts.append(msgspec.structs.replace(part, text=shown, signature=signature))
                    if left <= 0:
                        hidden = max(0, hidden - 1)  # an empty part also has a token
                return self._cut(parts, hidden, "length")
            left -= size
            parts.append(part)
        # Negative if the limit was reached in hidden reasoning.
        return self._cut(parts, hidden, "length") if left < 0 else self

    def _cut(
        self, parts: list[Part], hidden: int, stop: StopReason, sequence: str | None = None
    ) -> GeneratedReply:
        return msgspec.structs.replace(
            self, parts=tuple(parts), hidden=hidden, stop_reason=stop, stop_sequence=sequence
        )


def count_text(text: str, profile: Profile) -> int:
    return tokens_in(len(text.encode()), profile.bytes_per_token.value)


def _part_tokens(part: Part, profile: Profile) -> int:
    if isinstance(part, ToolCall):
        text = part.name + part.arguments
    elif isinstance(part, Text | Refusal | Thinking):
        text = part.text
    else:
        return 0
    least = 1 if isinstance(part, Thinking) else 0
    return max(least, tokens_in(len(text.encode()), profile.bytes_per_token.value))


def _first_bytes(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


# ── Generating ───────────────────────────────────────────────────────────────────────────────────


def last_turn(call: Call) -> tuple[Message, ...]:
    """The messages after the assistant's last one. Reads from the end."""
    turn: list[Message] = []
    for segment in reversed(call.ir.body_runs()):
        for message in reversed(segment.messages[:]):
            if message.role == "assistant":
                return tuple(reversed(turn))
            turn.append(message)
    return tuple(reversed(turn))


def generate_text(call: Call, schemas: SchemaGenerator, random: SeededRandom, seed: bytes) -> str:
    output = call.params.output
    if output == "json" or (output is None and _wants_json(call)):
        return msgspec.json.encode({"answer": sentences(random, 4, 10)}).decode()
    if output is not None:
        try:
            return schemas.generate(output.schema, seed)
        except UnsatisfiableSchema as problem:
            reason = f"no reply for the output schema can be generated: {problem}"
            raise RequestRejected(reason, status=400) from None
    return sentences(random)


def _wants_json(call: Call) -> bool:
    """Whether fields without a parameter request JSON: some hosts take a schema beside
    `json_object`."""
    for text in (call.extras or {}).values():
        extras = decode_value(text.encode(), "the body")
        if (
            nested(extras, "response_format", "type") == "json_object"
            or nested(extras, "text", "format", "type") == "json_object"
            or nested(extras, "generationConfig", "responseMimeType") == "application/json"
        ):
            return True
    return False


def generate_tool_calls(
    call: Call, id_prefix: str, schemas: SchemaGenerator, random: SeededRandom, seed: bytes
) -> list[ToolCall]:
    """The tools to call: the forced one, those that the last turn names, or any one of them.

    None are called if the last turn holds tool results, whatever text follows them.
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
        results = ToolResult in {type(part) for message in turn for part in message.parts}
        empty = not call.ir.body_runs()
        formed = isinstance(call.params.output, OutputSchema)
        if mode == "auto" and (results or empty or formed):
            return []
        text = "\n".join([message.text for message in turn if message.role != "system"])
        end = text[-_SEARCHED:]
        wanted = [tool for tool in tools if tool.name in end][:_MOST_CALLS]
        wanted = wanted or [random.choice(tools)]
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
