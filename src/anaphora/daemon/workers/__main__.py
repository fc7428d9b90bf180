"""The program of a worker: see `worker`. Imports little before it watches the process that started
it, since the lock of the home is held until both have ended."""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with(channel: int) -> None:
    """Ends this process at once when the other end of the channel is closed. The holds of this
    worker are recovered when the next daemon starts."""
    # The event loop closes the channel as well: its number may then be that of another file.
    own = os.dup(channel)
    threading.Thread(target=_end_when_closed, args=(own,), daemon=True).start()


def _end_when_closed(channel: int) -> None:
    closed = select.poll()
    closed.register(channel, 0)
    closed.poll()
    os._exit(1)


def main() -> None:
    descriptors = [int(word) for word in sys.argv[1:]]
    end_with(descriptors[0])

    from .worker import run

    run(*descriptors)
    os._exit(0)


if __name__ == "__main__":
    main()
