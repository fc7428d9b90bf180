"""The program of a worker: see `worker`. Imports little before it watches the process that started
it, since the lock of the home is held until both have ended."""

from __future__ import annotations

import os
import select
import sys
import threading


def _end_with(channel: int) -> None:
    """Ends this process at once when the other end of the channel is closed. The holds of this
    worker are recovered when the next daemon starts."""
    closed = select.poll()
    closed.register(channel, 0)
    closed.poll()
    os._exit(1)


def main() -> None:
    descriptors = [int(word) for word in sys.argv[1:]]
    threading.Thread(target=_end_with, args=descriptors[:1], daemon=True).start()

    from .worker import run

    run(*descriptors)
    os._exit(0)


if __name__ == "__main__":
    main()
