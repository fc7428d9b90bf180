"""What will break a cached prefix, before it does.

lint_text(text, "system.md")                   volatile things in a prompt, or a template of one
lint_request(rendered, "call.json", costs)     the same in a request's tools and system prompt,
                                               and markers that cache nothing
lint_samples([("a", one), ("b", two)])         what differs where nothing should
"""

from __future__ import annotations

from .costs import Costs
from .requests import lint_request
from .samples import lint_samples, lint_text_samples
from .sarif import sarif
from .suppressing import Config, Ignore, suppressed
from .texts import lint_text
from .values import RULES, SEVERITIES, Finding, Rule, RuleId, Severity, at_least

__all__ = [
    "RULES",
    "SEVERITIES",
    "Config",
    "Costs",
    "Finding",
    "Ignore",
    "Rule",
    "RuleId",
    "Severity",
    "at_least",
    "lint_request",
    "lint_samples",
    "lint_text",
    "lint_text_samples",
    "sarif",
    "suppressed",
]
