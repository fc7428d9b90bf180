"""What happened to the cache at a call, why, and what that cost: one value and one sentence.

    earlier, later = SentCall(rendered=a, at=0, usage=x), SentCall(rendered=b, at=60, usage=y)
    verdict = judge(earlier, later, catalog.rules("anthropic", model))
    verdict.result, verdict.cause, verdict.change, verdict.cost_usd, str(verdict)

    preflight(a, b)         losses and rejections, before anything is sent

Requests come from `render`, or from `split` for requests of other programs. Two turns of one
conversation are compared without reading their common part.
"""

from __future__ import annotations

from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator.outcome import Prediction

from .avoiding import with_remedy
from .changes import find_change
from .diagnosis import CauseKind, Diagnosis, diagnosis_of
from .judgement import as_side_call, comparable, judge, judge_matched, saved_usd, side_call
from .prediction import predict_after, predict_usage, predicted_usage
from .preflight import preflight
from .remedy import Remedy, RemedyKind
from .values import VOLATILE, Cause, Change, Result, Verdict

__all__ = [
    "VOLATILE",
    "Cause",
    "CauseKind",
    "Change",
    "Diagnosis",
    "Prediction",
    "Remedy",
    "RemedyKind",
    "Result",
    "SentCall",
    "Verdict",
    "as_side_call",
    "comparable",
    "diagnosis_of",
    "find_change",
    "judge",
    "judge_matched",
    "predict_after",
    "predict_usage",
    "predicted_usage",
    "preflight",
    "saved_usd",
    "side_call",
    "with_remedy",
]
