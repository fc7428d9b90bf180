"""Made-up conversations, one family of them after the other; and those of recorded traces."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.values import Conversation, Message, Tool, ToolCall, ToolResult

Pair = tuple[int, int]


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a family's conversations look like."""

    calls: int
    tools: int
    tool_words: int
    system_words: int
    user_words: Pair
    answer_words: Pair
    result_words: Pair
    results: Pair
    pause: Pair
    loop: Pair
    idle: Pair
    conversations: int = 1
    starts: Pair = (0, 0)
    state_words: int = 0
    moved_words: int = 0
    """The size of a message that moves behind each turn: files, a reminder."""
    compact_every: int = 0
    tool_added_at: int = 0
    single: bool = False
    """Each call stands alone, outside any session."""
    unrelated: bool = False
    """No two conversations begin alike."""
    apart: bool = False


class Sent(msgspec.Struct, frozen=True):
    """One call of a family: when, by which conversation, and its content."""

    at: float
    conversation: int
    call: Call
    single: bool = False


def families() -> tuple[list[int], dict[str, Shape]]:
    data = tomllib.loads((Path(__file__).parent / "families.toml").read_text())
    shapes = {
        name: msgspec.convert({**data["defaults"], **row}, Shape)
        for name, row in data["family"].items()
    }
    return data["seeds"], shapes


def calls(shape: Shape, seed: int, model: str) -> list[Sent]:
    """All calls of a family in the order they are made."""
    chance = random.Random(seed)
    tools = tuple(_tool(chance, at, shape) for at in range(shape.tools + 1))
    system = (PromptBlock.plain("identity", _words(chance, shape.system_words)),)
    sent: list[Sent] = []
    start = 0.0
    for conversation in range(shape.conversations):
        if shape.unrelated:
            system = (PromptBlock.plain("identity", _words(chance, shape.system_words)),)
        sent += _conversation(chance, shape, model, tools, system, conversation, start)
        start += chance.uniform(*shape.starts)
    return sorted(sent, key=lambda each: each.at)


def _conversation(
    chance: random.Random,
    shape: Shape,
    model: str,
    tools: tuple[Tool, ...],
    system: tuple[PromptBlock, ...],
    conversation: int,
    at: float,
) -> Iterator[Sent]:
    history = Conversation().append(_user(chance, shape))
    moved = [Message.user(_words(chance, shape.moved_words))] if shape.moved_words else []
    left = chance.randint(*shape.loop)
    for turn in range(shape.calls):
        offered = tools if shape.tool_added_at and turn >= shape.tool_added_at else tools[:-1]
        if shape.unrelated:
            offered = ()
        tail = [Message.user(_words(chance, shape.state_words))] if shape.state_words else []
        ir = PromptIR.chat(history, system=system, tail=[*moved, *tail])
        params = Params(max_tokens=1000)
        call = Call(ir=ir, model=model, tools=offered, params=params)
        yield Sent(at, conversation, call, shape.single)
        left -= 1
        if left > 0:
            calls = [
                ToolCall(f"c{turn}_{n}", tools[n % shape.tools].name, f'{{"a":{n}}}')
                for n in range(chance.randint(*shape.results))
            ]
            history = history.append(Message.assistant(*calls))
            results = [
                ToolResult(c.id, _words(chance, chance.randint(*shape.result_words))) for c in calls
            ]
            history = history.append(Message(role="tool", parts=tuple(results)))
            at += chance.uniform(*shape.pause)
        else:
            left = chance.randint(*shape.loop)
            history = history.append(
                Message.assistant(_words(chance, chance.randint(*shape.answer_words)))
            )
            if shape.compact_every and (turn + 1) % shape.compact_every < shape.loop[1]:
                history = Conversation().append(Message.user(_words(chance, 400)))
                history = history.append(Message.assistant("Understood."))
            history = history.append(_user(chance, shape))
            at += chance.uniform(*shape.idle)


def _tool(chance: random.Random, at: int, shape: Shape) -> Tool:
    return Tool(f"tool_{at:02}", _words(chance, shape.tool_words))


def _user(chance: random.Random, shape: Shape) -> Message:
    return Message.user(_words(chance, chance.randint(*shape.user_words)))


def _words(chance: random.Random, count: int) -> str:
    return " ".join(
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(count)
    )
