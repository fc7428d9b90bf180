"""Tasks whose process is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def killed_once(number: int, folder: str) -> int:
    """A task whose process is killed the first time that the task with number 2 runs."""
    mark = Path(folder, "killed")
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def killed_always(number: int, folder: str) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
