"""What a part of cachebench reports while it runs: the step, how many there are, the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """The progress of one part, a line a step.

    progress.total(40)                      the number of steps, when the part knows it
    progress.step("LiteLLM, Anthropic")     one step is done
    progress.note("…")                      a line beside the steps
    """

    def __init__(
        self,
        part: str,
        later: float = 0.0,
        *,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`later` is how many seconds the parts after this one usually take."""
        self._part, self._later = part, later
        self._out, self._clock = out or sys.stderr, clock
        self._began = clock()
        self._done = self._total = 0

    def total(self, steps: int) -> None:
        self._total = steps

    def step(self, label: str) -> None:
        self._done += 1
        self._say(f"{self._done} of {self._total}  {label}{self._left()}")

    def note(self, text: str) -> None:
        self._say(text)

    def _left(self) -> str:
        remaining = self._total - self._done
        if remaining < 0 or not self._total:
            return ""
        spent = self._clock() - self._began
        seconds = spent / self._done * remaining + self._later
        return f"  (about {seconds / 60:.1f} min left)"

    def _say(self, text: str) -> None:
        print(f"{self._part:10}{text}", file=self._out, flush=True)
