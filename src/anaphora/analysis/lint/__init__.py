"""Find what will break a cached prefix, before it does.

lint_text(text, "system.md")                   volatile content of a prompt or template
lint_request(rendered, "call.json", costs)     the same in a request's tools and system prompt,
                                               and markers that cache nothing
lint_samples([("a", one), ("b", two)])         differences where there should be none
"""

from __future__ import annotations

from .checks import lint_request, lint_samples, lint_text, lint_text_samples
from .findings import RULES, SEVERITIES, Costs, Finding, LintRule, RuleId, Severity, at_least
from .reports import Ignore, LintConfig, sarif, suppressed

__all__ = [
    "RULES",
    "SEVERITIES",
    "Costs",
    "Finding",
    "Ignore",
    "LintConfig",
    "LintRule",
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
