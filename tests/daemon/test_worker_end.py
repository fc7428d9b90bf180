"""A worker ends with the process that started it."""

from __future__ import annotations

import socket
import subprocess
import sys

from support.audit_logs import with_tests
from support.waiting import PATIENCE

_WORKER = """
import os, sys, time
from anaphora.daemon.workers.__main__ import end_with

channel = int(sys.argv[1])
end_with(channel)
os.dup2(os.open(os.devnull, os.O_RDONLY), channel)
print("ready", flush=True)
time.sleep(3600)
"""


def test_worker_ends_although_its_channel_has_the_number_of_another_file() -> None:
    """As when the event loop sees first that the channel is closed, and accepts a connection."""
    other, channel = socket.socketpair()
    with (
        other,
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(channel.fileno())],
            pass_fds=[channel.fileno()], stdout=subprocess.PIPE, env=with_tests(),
        ) as worker,
    ):  # fmt: skip
        channel.close()
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == b"ready\n"
            other.close()
            assert worker.wait(PATIENCE) == 1
        finally:
            worker.kill()
