"""Simulate a provider's cache: what a call reads, writes and pays for in full.

    simulator = Simulator(catalog.rules("anthropic", model))
    outcome = simulator.call(RenderedPrompt(rendered, plan), at=now)
    outcome.read, outcome.written, outcome.uncached, outcome.spans

Time is an argument. State is bounded, and the cost of a call does not grow with earlier calls.
"""

from __future__ import annotations

from anaphora.rendered import Mark

from .chances import Chance, ExpectedUsage
from .outcome import Fate, Outcome, Reason, Span
from .prompt import RenderedPrompt
from .simulator import OpenCall, Simulator
from .view import PlayedBlocks, PromptView, TokenBlock, TokenRuns

__all__ = [
    "Chance",
    "ExpectedUsage",
    "Fate",
    "Mark",
    "OpenCall",
    "Outcome",
    "PlayedBlocks",
    "PromptView",
    "Reason",
    "RenderedPrompt",
    "Simulator",
    "Span",
    "TokenBlock",
    "TokenRuns",
]
