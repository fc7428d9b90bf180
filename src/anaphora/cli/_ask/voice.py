"""What is heard: the answer on standard output as it comes, everything about it dimly beside it."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

#: What moves a cursor or changes a terminal; a model's words shall do neither.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Beside an answer nobody wants to read more than that.
_LONGEST = 1000


class Voice:
    """Standard output has the answer and nothing else; standard error has the rest."""

    def __init__(self, *, quiet: bool = False, silent: bool = False) -> None:
        """`quiet` leaves out what is said beside the answer, `silent` the answer, too: it is only
        gathered."""
        self._quiet = quiet
        self._silent = silent
        self._said: list[str] = []
        self._midline = False

    @property
    def said(self) -> str:
        """The answer, as far as it was heard."""
        return "".join(self._said)

    def say(self, text: str) -> None:
        if not text:
            return
        self._said.append(text)
        if self._silent:
            return
        out = sys.stdout
        shown = _CONTROL.sub("", text) if out.isatty() else text
        out.write(shown)
        out.flush()
        self._midline = not shown.endswith("\n") if shown else self._midline

    def end_line(self) -> None:
        """Whatever comes next begins a line."""
        if self._midline:
            self._midline = False
            sys.stdout.write("\n")
            sys.stdout.flush()

    def aside(self, text: str) -> None:
        """Something beside the answer, dimly."""
        if not self._quiet:
            line = one_line(text)
            self._tell(f"\x1b[2m{line}\x1b[0m" if _coloured(sys.stderr) else line)

    def warn(self, text: str) -> None:
        """What went wrong: said even when quiet."""
        self._tell(f"anaphora: {one_line(text)}")

    def _tell(self, line: str) -> None:
        self.end_line()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def one_line(text: str, longest: int = _LONGEST) -> str:
    line = _CONTROL.sub("", " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _coloured(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
