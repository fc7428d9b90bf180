"""Real conversations with what they were billed, and the simulator held against them."""

from __future__ import annotations

from .causes import MEANING, Cause
from .form import Trace, TraceCall, TraceMessage, TraceUsage, read_line
from .places import provider_named, unplayable
from .predict import Predicted, Predictor, Verdict

__all__ = [
    "MEANING",
    "Cause",
    "Predicted",
    "Predictor",
    "Trace",
    "TraceCall",
    "TraceMessage",
    "TraceUsage",
    "Verdict",
    "provider_named",
    "read_line",
    "unplayable",
]
