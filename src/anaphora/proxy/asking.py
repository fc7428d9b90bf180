"""Asks a person on the terminal that a program runs in, while a call of the program waits.

The terminal is only used if it is free: this process is in the foreground, and the terminal is in
its normal mode. A program that draws on it or edits a line has switched that off; then there is no
answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time

from anaphora.wording import visible

#: Seconds to wait for an answer, and between two looks at whether the program still waits.
_PATIENCE, _LOOK = 300.0, 0.1
_LONGEST_ANSWER = 1024
_TERMINAL = "/dev/tty"


def has_terminal() -> bool:
    """Whether there is a terminal to ask on."""
    if sys.platform == "win32":
        return False
    with contextlib.suppress(OSError):
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
        return True
    return False


def ask_on_terminal(text: str, ended: threading.Event) -> bool | None:
    """Whether the answer is yes; None if there is none. Ends when `ended` is set."""
    if sys.platform == "win32":
        return None
    import termios

    try:
        terminal = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if not _is_free(terminal):
            return None
        termios.tcflush(terminal, termios.TCIFLUSH)  # what was typed before is no answer
        _write(terminal, f"\nanaphora: {visible(text)}\nanaphora: send it? [y/N] ")
        answer = _read_line(terminal, ended)
        if answer is None:
            _write(terminal, "\nanaphora: no answer; not sent\n")
            return None
        return answer.strip().lower() in ("y", "yes")
    except (OSError, termios.error):
        return None  # the terminal is gone
    finally:
        os.close(terminal)


def _write(terminal: int, text: str) -> None:
    os.write(terminal, text.encode(errors="replace"))


def _read_line(terminal: int, ended: threading.Event) -> str | None:
    until, line = time.monotonic() + _PATIENCE, b""
    while time.monotonic() < until and not ended.is_set() and _is_free(terminal):
        if select.select([terminal], [], [], _LOOK)[0]:
            data = os.read(terminal, _LONGEST_ANSWER)
            line += data
            if not data or b"\n" in data:
                return line.decode(errors="replace")
    return None


def _is_free(terminal: int) -> bool:
    if sys.platform == "win32":
        return False
    import termios

    lines = termios.tcgetattr(terminal)[3] & termios.ICANON
    return bool(lines) and os.tcgetpgrp(terminal) == os.getpgrp()
