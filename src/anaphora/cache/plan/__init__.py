"""Where cache breakpoints go, decided at every call from the prompt, the rules and the history.

    memory = AppMemory(catalog.rules("anthropic", model))     # shared by all calls of an app
    planner = Planner(memory)                                 # one per conversation
    plan = planner.plan(rendered, at=now)
    planner.sent(rendered, plan, at=now)

A marker on a prefix that is already cached costs nothing. What matters is what gets written, for
how long, and that the next call finds it: within the look-back, and before it expires.
"""

from __future__ import annotations

from .advice import Advice, at_compaction, before_fan_out, refresh_margin, refreshes, until_next
from .memory import AppMemory, Gaps
from .planner import Planner, reuse_requested
from .single_calls import MatchedCallPlanner, SingleCallPlanner, is_conversation, plan_once

__all__ = [
    "Advice",
    "AppMemory",
    "Gaps",
    "MatchedCallPlanner",
    "Planner",
    "SingleCallPlanner",
    "at_compaction",
    "before_fan_out",
    "is_conversation",
    "plan_once",
    "refresh_margin",
    "refreshes",
    "reuse_requested",
    "until_next",
]
