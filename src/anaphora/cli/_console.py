"""Where commands print: with colours on a terminal, as plain text everywhere else."""

from __future__ import annotations

import os
from typing import NoReturn

from rich.console import Console, RenderableType

#: Nobody wraps what is piped, so a row may be one line.
_PIPED_WIDTH = 140


class Terminal(Console):
    """Standard output. NO_COLOR takes every escape code away, FORCE_COLOR brings them to a pipe."""

    def __init__(self) -> None:
        super().__init__(
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            highlight=False,
            markup=False,
            emoji=False,
        )
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def page(self, content: RenderableType) -> None:
        """Prints it; in plain text, no line ends with blanks."""
        if self.is_terminal:
            self.print(content)
            return
        with self.capture() as captured:
            self.print(content)
        lines = (line.rstrip() for line in captured.get().splitlines())
        self.file.write("\n".join(lines).rstrip() + "\n")

    def on_broken_pipe(self) -> NoReturn:
        # Called while the error is handled; the entry point knows what to do with it.
        raise  # noqa: PLE0704
