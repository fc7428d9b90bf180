"""What a command costs, as the number of functions that it calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.predict import Predictor
from anaphora.analysis.trace.verdicts import judge_traces

COMMANDS: dict[str, Callable[[list[Trace]], object]] = {
    "simulate": lambda traces: list(Predictor().play(traces)),
    "explain": lambda traces: list(judge_traces(traces)),
}


def python_calls(run: Callable[[], object]) -> int:
    """How many functions are called."""
    count = 0

    def profile(_: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count
