"""Run by usage.py: one run in a process of its own, measured without its start and imports.

    python bench/_usage_run.py decode FILES
    python bench/_usage_run.py totals|causes FILES INDEX PROCESSES

FILES is a file with a path on each line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage import collect
from anaphora.usage.places import SessionFile
from anaphora.usage.processes import WorkProcesses
from anaphora.usage.sums import UsageQuery

_workers: list[_CountedWorkers] = []


class _CountedWorkers(WorkProcesses):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.peak_mb = 0.0
        _workers.append(self)

    def stop(self) -> None:
        alive = [str(process.pid) for process in self._processes if process.poll() is None]
        self.peak_mb = max(map(_peak_mb, alive), default=0.0)
        super().stop()


def _peak_mb(process: str) -> float:
    """The most memory that a process had. `ru_maxrss` is of no use: a process that is started
    inherits the peak of the one that starts it."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def decode(paths: list[str]) -> dict[str, Any]:
    """Every line decoded without a type."""
    lines = 0
    for path in paths:
        with open(path, "rb") as file:
            for line in file:
                msgspec.json.decode(line)
                lines += 1
    return {"lines": lines}


def run(paths: list[str], index: str, processes: int, *, causes: bool) -> dict[str, Any]:
    vars(collect)["WorkProcesses"] = _CountedWorkers
    report = collect.usage(
        UsageQuery(),
        [_file(Path(path)) for path in paths],
        causes=causes,
        processes=processes,
        index=Path(index),
    )
    total = report.total
    return {"calls": total.calls, "usd": str(total.usd), "lost_usd": str(total.lost_usd)}


def _file(path: Path) -> SessionFile:
    program: ProgramName = path.parts[-3]  # type: ignore[assignment]
    found = path.stat()
    return SessionFile(path, program, found.st_mtime, found.st_size, path.parent)


def main() -> None:
    what, listed, *rest = sys.argv[1:]
    paths = Path(listed).read_text().splitlines()
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "decode":
        result = decode(paths)
    else:
        result = run(paths, rest[0], int(rest[1]), causes=what == "causes")
    result["cpu"] = time.process_time() - cpu + sum(workers.cpu for workers in _workers)
    result["wall"] = time.perf_counter() - wall
    result["mb"] = max([_peak_mb("self"), *(workers.peak_mb for workers in _workers)])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
