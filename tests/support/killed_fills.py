"""Fills the sums of an audit log in processes that are killed.

    python -m support.killed_fills FOLDER

Each round appends calls to `FOLDER/audit`, and fills `FOLDER/dashboard.db` in a child process,
which is killed at the point of `KILLS`.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count, islice
from pathlib import Path

from support.audit_logs import envelope

from anaphora.audit import AuditEnvelope, AuditLog
from anaphora.audit.envelope import AuditBlock, AuditUsage
from anaphora.dashboard.past_calls.source import LogCalls

KILLS = (0, None, 3, None, 1, 5)
"""The points of the work at which a process is killed: one after each 100 rows, and the last one,
3 and 5, when all is written and not committed. None: it completes."""
_ROUND = 250


def all_calls() -> list[AuditEnvelope]:
    blocks = (AuditBlock(label="identity", kind="system", tokens=10),)
    usage = AuditUsage(uncached=10, output=2)
    return [
        envelope(
            number,
            app=f"app-{number % 3}",
            conversation=f"c{number // 40}",
            usage=usage,
            blocks=blocks,
        )
        for number in range(len(KILLS) * _ROUND)
    ]


def _fill(folder: Path, kill: int | None) -> None:
    points = count() if kill is None else iter(range(kill))

    def pause(_: float) -> None:
        if next(points, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    LogCalls(folder / "dashboard.db", folder / "audit").fill(pause)


def main() -> None:
    folder, calls = Path(sys.argv[1]), iter(all_calls())
    for kill in KILLS:
        with AuditLog(folder / "audit") as audit:
            for call in islice(calls, _ROUND):
                audit.append(call)
        child = os.fork()
        if not child:
            _fill(folder, kill)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "complete")


if __name__ == "__main__":
    main()
