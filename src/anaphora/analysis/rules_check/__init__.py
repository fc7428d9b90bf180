"""Check the catalog's figures against bills: which figure does a billed call support, and which
does it contradict?

    for row in rules_check.check_rules(rules_check.billed_calls(traces)):
        row.figure, row.contradicting, row.looked_at, row.examples

A prediction may be wrong for many reasons; here each figure is tested alone, and a call counts only
where it is conclusive for that figure.
"""

from __future__ import annotations

from .billed_calls import BilledTraceCall, billed_calls
from .rows import THRESHOLD, CheckedFigure, DisputedFigure, Example, check_rules

__all__ = [
    "THRESHOLD",
    "BilledTraceCall",
    "CheckedFigure",
    "DisputedFigure",
    "Example",
    "billed_calls",
    "check_rules",
]
