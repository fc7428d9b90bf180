"""The same beginning twice at llama.cpp's own server: how long the first words take each time.

    measured = await cold_and_warm()
    measured.tokens, measured.cached, measured.cold, measured.warm

Two conversations of one app: the same instructions, another question each. The server computes the
instructions for the first and has them for the second.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from anaphora.client.client import AsyncClient
from anaphora.values import PartDelta

from .engine_server import MODEL, running, why_not

__all__ = ["Measured", "cold_and_warm", "why_not"]

#: About so many tokens; the tiny model has one for each byte.
_PREFIX = 12_000
_RULE = "Rule {}: look before you answer, answer in one word, and end it with a full stop. "


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int
    """How long the second conversation's prompt is,"""
    cached: int
    """how much of that the server had, by its own word,"""
    predicted: int
    """and how much it should have had, as it was said before sending."""
    cold: float
    """Seconds until the first words came: of the first conversation,"""
    warm: float
    """and of the second."""


async def cold_and_warm(tokens: int = _PREFIX) -> Measured:
    """Starts the server for it. `why_not()` says whether that is possible."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder)) as address,
    ):
        provider = {"dialect": "llamacpp/openai_chat", "base_url": address, "model": MODEL}
        async with AsyncClient.from_config(
            {"providers": {"llama": provider}}, environ={}
        ) as client:
            rules = "".join(_RULE.format(at) for at in range(-(-tokens // len(_RULE))))
            cold, _ = await _asked(client, rules, "What is the capital of Italy?")
            warm, (total, cached, predicted) = await _asked(client, rules, "And of Greece?")
    return Measured(tokens=total, cached=cached, predicted=predicted, cold=cold, warm=warm)


async def _asked(
    client: AsyncClient, rules: str, question: str
) -> tuple[float, tuple[int, int, int]]:
    """Seconds until the model's first words, and what was billed."""
    chat = client.session("llama", system=rules, max_tokens=20)
    begun, first = time.perf_counter(), 0.0
    async for event in chat.send(question):
        if not first and isinstance(event, PartDelta):
            first = time.perf_counter() - begun
    assert chat.last is not None
    record = chat.last.record
    usage = record.usage
    return first, (usage.input or 0, usage.read or 0, record.predicted or 0)
