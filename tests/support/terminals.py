"""`anaphora` at a terminal of a given width."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def on_terminal(
    arguments: list[str], columns: int, environment: dict[str, str], *, most: int = 0
) -> str:
    """What a terminal of that width is sent. `most`: the highest status that is expected."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "anaphora", *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError as problem:  # Linux raises EIO at the end
                if problem.errno != errno.EIO:
                    raise
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert 0 <= process.returncode <= most
    return shown.decode().replace("\r\n", "\n")
