"""Real conversations with what they were billed, and the simulator held against them."""

from __future__ import annotations

from .form import Trace, TraceCall, TraceMessage, TraceUsage, read_line
from .predict import Predicted, Predictor, Verdict

__all__ = [
    "Predicted",
    "Predictor",
    "Trace",
    "TraceCall",
    "TraceMessage",
    "TraceUsage",
    "Verdict",
    "read_line",
]
