"""Recorded conversations with their bills, and predictions compared with them."""

from __future__ import annotations

from .format import Trace, TraceCall, TraceMessage, TraceUsage, read_line, unsupported
from .predict import CAUSE_TEXTS, HitClass, LikelyCause, Predicted, Predictor

__all__ = [
    "CAUSE_TEXTS",
    "HitClass",
    "LikelyCause",
    "Predicted",
    "Predictor",
    "Trace",
    "TraceCall",
    "TraceMessage",
    "TraceUsage",
    "read_line",
    "unsupported",
]
