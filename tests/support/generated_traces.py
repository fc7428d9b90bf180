"""Generated recordings: conversations with an automatic cache, billed by a model of their own.

The cache here is a list of prompts and the time of their last use. It shares no code with the
simulator, and its lifetime, losses, sharing and replies need not be those of the catalog.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from anaphora import catalog
from anaphora.analysis.trace.format import Trace, TraceCall, TraceMessage, TraceUsage
from anaphora.analysis.trace.predict import Predictor

MODELS = [
    ("mistral", "mistral-large-latest"),
    ("xai", "grok-4"),
    ("zai", "glm-4.6"),
    ("openai", "gpt-4o"),
    ("openai", "gpt-5.2"),
    ("moonshot", "kimi-k2"),
    ("google", "gemini-2.5-pro"),
    ("deepseek", "deepseek-chat"),
]
GAPS = {"short": (5.0, 20.0), "all long": (900.0,), "mixed": (10.0, 20.0, 400.0, 900.0)}
LIVES = {"two minutes": 120.0, "an hour": 3600.0, "for ever": math.inf}
BEGINNINGS = ("shared", "partly", "own", "none")

#: A piece of a prompt: its identity and its tokens.
Piece = tuple[int, int]

_WORDS = ("alpha", "beta", "of", "the", "function", "returns", "value", "error", "file", "line")


class Kind(NamedTuple):
    """What a recording is like."""

    provider: str
    model: str
    life: float
    """Seconds after its last use in which a prompt can be read."""
    gaps: tuple[float, ...]
    """Seconds between calls."""
    beginning: str
    """The unrecorded beginning: `shared` by all conversations, `partly` so, each has its `own`, or
    `none`."""
    missed: float = 0.0
    """The share of calls that read nothing for no reason."""
    replies: bool = False
    """Whether replies are cached with their prompts."""


class _Cache:
    def __init__(self, kind: Kind, draw: random.Random) -> None:
        rules = catalog.rules(kind.provider, kind.model)
        self._granule, self._offset = rules.granule_tokens.value, rules.offset
        self._minimum = rules.minimum_tokens.value
        self._kind, self._draw = kind, draw
        self._kept: dict[tuple[Piece, ...], float] = {}

    def read(self, prompt: list[Piece], at: float) -> int:
        found = 0
        for kept, used in self._kept.items():
            if at - used <= self._kind.life:
                pairs = zip(kept, prompt, strict=False)
                same = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
                found = max(found, sum(piece[1] for piece, _ in same))
        found = (found + self._offset) // self._granule * self._granule - self._offset
        lost = found < self._minimum or self._draw.random() < self._kind.missed
        return 0 if lost else found

    def keep(self, prompt: list[Piece], at: float) -> None:
        for kept, used in self._kept.items():
            if at - used <= self._kind.life and list(kept) == prompt[: len(kept)]:
                self._kept[kept] = at
        self._kept[tuple(prompt)] = at


def recording(kind: Kind, seed: int, conversations: int = 6, most_turns: int = 8) -> list[Trace]:
    """Conversations that follow each other, as one account's file."""
    draw = random.Random(f"{kind} {seed}")
    cache, ids, now = _Cache(kind, draw), itertools.count(), 1e9
    tokens_a_word = draw.uniform(1.1, 1.9)
    shared = next(ids), draw.randrange(1500, 4000)

    def piece(words: int) -> Piece:
        return next(ids), int(words * tokens_a_word) + 7

    traces = []
    for number in range(conversations):
        own = next(ids), draw.randrange(1500, 4000)
        beginnings = {"shared": [shared], "partly": [shared, own], "own": [own], "none": []}
        prompt = beginnings[kind.beginning]
        messages: list[TraceMessage] = []
        calls: list[TraceCall] = []
        for words, from_tool in _inputs(draw, draw.randrange(2, most_turns + 1)):
            messages.append(_input(draw, words, len(messages), from_tool=from_tool))
            prompt.append(piece(words))
            now += draw.choice(kind.gaps)
            total, read = sum(tokens for _, tokens in prompt), cache.read(prompt, now)
            words = draw.randrange(15, 150)
            reply = piece(words)
            usage = TraceUsage(input=total - read, cache_read=read, output=reply[1])
            calls.append(TraceCall(t=now, messages=len(messages), usage=usage))
            cache.keep([*prompt, reply] if kind.replies else prompt, now)
            prompt.append(reply)
            messages.append(_reply(draw, words, len(messages)))
        trace = Trace(
            id=f"conversation {number}",
            provider=kind.provider,
            model=kind.model,
            messages=tuple(messages),
            calls=tuple(calls),
            system_tokens_unknown=kind.beginning != "none",
            group=f"group {number // 2}",
        )
        traces.append(trace)
    return traces


class Gain(NamedTuple):
    """How much better than the baseline the predictions of a recording are."""

    pairs: int
    exact: int
    classes: int


def gain(traces: list[Trace]) -> Gain:
    pairs = [call for call in Predictor().play(traces) if call.is_pair]
    exact = classes = 0
    for call in pairs:
        assert call.billed is not None
        exact += call.exact - (call.baseline == call.billed.cache_read)
        baseline = "hit" if call.baseline else "miss"
        classes += (call.expected == call.happened) - (baseline == call.happened)
    return Gain(len(pairs), exact, classes)


def _inputs(draw: random.Random, turns: int) -> Iterator[tuple[int, bool]]:
    """The words of questions and tool results."""
    for _ in range(turns):
        yield draw.randrange(30, 300), False
        while draw.random() < 0.4:
            yield draw.randrange(10, 200), True


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=words))


def _input(draw: random.Random, words: int, at: int, *, from_tool: bool) -> TraceMessage:
    text = f"{at} {_text(draw, words)}"
    if from_tool:
        return TraceMessage(role="tool", content=text, tool_call_id=f"call {at - 1}")
    return TraceMessage(role="user", content=text)


def _reply(draw: random.Random, words: int, at: int) -> TraceMessage:
    calls = [{"id": f"call {at}", "name": "look"}]
    return TraceMessage(role="assistant", content=_text(draw, words), tool_calls=calls)
