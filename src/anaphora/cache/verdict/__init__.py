"""What happened to the cache at a call, why, and what that cost: one value and one sentence.

    found = verdict.judge(Sent(rendered=a, at=0, usage=first), Sent(rendered=b, at=60, usage=then),
                          catalog.rules("anthropic", model))
    found.result, found.cause, found.change, found.cost_usd, str(found)

    verdict.preflight(a, b)         what will be lost, or refused, before anything is sent

Requests come from `render`, or from `split` when somebody else made them. Two turns of one
conversation are compared without looking at what they share.
"""

from __future__ import annotations

from .diagnosis import diagnosis_of
from .judging import find_change, judge
from .preflight import preflight
from .values import (
    VOLATILE,
    Cause,
    CauseKind,
    Change,
    ChangeKind,
    Diagnosis,
    Result,
    Sent,
    Verdict,
)

__all__ = [
    "VOLATILE",
    "Cause",
    "CauseKind",
    "Change",
    "ChangeKind",
    "Diagnosis",
    "Result",
    "Sent",
    "Verdict",
    "diagnosis_of",
    "find_change",
    "judge",
    "preflight",
]
