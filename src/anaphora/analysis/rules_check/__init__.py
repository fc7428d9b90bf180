"""The rules held against bills, row by row: which figure does a billed call support, which does it
contradict?

    for row in rules_check.held(rules_check.seen(traces)):
        row.figure, row.contradicting, row.looked_at, row.examples

A prediction may be wrong for many reasons; here each figure is asked alone, and a call counts only
where it could have spoken for the figure or against it. What is not conclusive is not counted.
"""

from __future__ import annotations

from .rows import THRESHOLD, Example, Other, Row, held
from .seen import Seen, seen

__all__ = ["THRESHOLD", "Example", "Other", "Row", "Seen", "held", "seen"]
