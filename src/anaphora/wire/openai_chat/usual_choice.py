"""Choices of the usual kind, read in one go: an answer has one, and in its message is nothing that
has no name here. Every other is read field by field, which gives the same for these."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.values import Part, Refusal, Text, Thinking, ToolCall

from .incoming import told_in
from .parts import WIRE


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing but the fields that are named; those that are always null say nothing."""


class _Function(_Strict, frozen=True):
    name: str
    arguments: str


class _Call(_Strict, frozen=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"


class _Message(_Strict, frozen=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None
    annotations: list[None] | None = None
    audio: None = None
    function_call: None = None


class _Choice(_Strict, frozen=True):
    message: _Message
    index: int = 0
    finish_reason: str | None = None
    logprobs: None = None
    stop_reason: None = None


_decode = msgspec.json.Decoder(tuple[_Choice]).decode


def read_usual(choices: msgspec.Raw) -> tuple[tuple[Part, ...], str | None] | None:
    """The parts of the only choice and why it ended; None when there is more to it than can be read
    in one go. Raises what decoding raises when it is another kind altogether."""
    (choice,) = _decode(choices)
    said = choice.message
    parts: list[Part] = []
    if said.reasoning_content:
        if said.reasoning is not None:
            return None  # the second is no reasoning then, but a field like any other
        parts.append(_thinking("reasoning_content", said.reasoning_content))
    elif said.reasoning:
        parts.append(_thinking("reasoning", said.reasoning))
    if said.content:
        parts.append(Text(said.content))
    if said.refusal:
        parts.append(Refusal(said.refusal))
    if said.tool_calls:
        parts += [ToolCall(c.id, c.function.name, c.function.arguments) for c in said.tool_calls]
    return tuple(parts), choice.finish_reason


def _thinking(field: str, text: str) -> Thinking:
    return Thinking(text, provider=WIRE, extras=told_in(field))
