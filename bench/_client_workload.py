"""The call that everybody makes: 42 messages, about 40 KB, with tools and a system prompt. Only the
standard library, because the clients live in several environments.

A message is (role, text, call): `call` is the id of the tool call that an assistant's message
makes, or that a tool's message answers.
"""

from __future__ import annotations

import functools
import random
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
Line: TypeAlias = tuple[str, str, str]

MODELS = {
    "anthropic": "claude-sonnet-4-6",
    "openai_chat": "gpt-5.1",
    "openai_responses": "gpt-5.1",
}
PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}
MAX_TOKENS = 1000

_WORDS = (
    "the order was sent on Monday and the parcel is with the carrier since; it says so.".split()
)


def prose(size: int, seed: int) -> str:
    """Text of about so many characters, another one for every seed."""
    chance = random.Random(seed)
    words = [str(seed)]
    length = len(words[0])
    while length < size:
        words.append(chance.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)


SYSTEM = prose(3600, 1)
SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "description": "The order's number, as the customer has it"},
        "detail": {"type": "boolean", "description": "Whether every item is wanted"},
    },
    "required": ["order"],
}
TOOLS = [(f"look_up_{at}", prose(180, 100 + at)) for at in range(6)]


def arguments(call: str) -> Json:
    return {"order": call, "detail": True}


def tool_of(call: str) -> str:
    return f"look_up_{int(call[5:]) % len(TOOLS)}"


@functools.cache
def script(count: int = 42) -> list[Line]:
    """A shop's assistant at work: what a customer asks, a tool call, its result; and at the end six
    messages of text alone, the last one the customer's."""
    lines: list[Line] = []
    for at in range(12):
        call = f"call_{at:03}"
        lines += [
            ("user", prose(800, 1000 + at), ""),
            ("assistant", prose(700, 2000 + at), call),
            ("tool", prose(750, 3000 + at), call),
        ]
    lines += [("user" if at % 2 else "assistant", prose(760, 4000 + at), "") for at in range(6)]
    return lines[:count]
