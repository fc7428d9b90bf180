"""Audit logs for tests: rows, logs, and writers that are killed.

A killed writer is a real process: a child that a small server forks, so that a test of many kills
imports the package once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from support.waiting import PATIENCE

from anaphora.audit import AuditEnvelope, AuditLog, rows, verify
from anaphora.audit.envelope import RecoveryRow, StartRow, StoredRow
from anaphora.errors import ChainBroken, Io

CANARY = "CANARY-prompt-text"


def envelope(number: int = 0, **fields: object) -> AuditEnvelope:
    defaults: dict[str, object] = {
        "at": 1_800_000_000.0 + number,
        "model": "claude-sonnet-5-5",
        "request_id": f"req-{number}",
        "cost_nano_usd": 1_000_000,
    }
    return AuditEnvelope(**(defaults | fields))  # type: ignore[arg-type]


def written(path: Path, count: int = 5, **options: object) -> Path:
    """A closed log with so many calls."""
    with AuditLog(path, **options) as log:  # type: ignore[arg-type]
        for number in range(count):
            log.append(envelope(number))
    return path


def settle(log: AuditLog) -> None:
    """Waits for the rows of a log that can be written again; an attempt may still be failing."""
    for _ in range(100):
        with suppress(Io):
            log.flush(30)
            return
    raise AssertionError("the rows were never written")


# ── Killed writers ───────────────────────────────────────────────────────────────────────────────

#: Forks a writer for each path on standard input, and prints its process id. The writer appends
#: rows of all sizes and prints the number of each once it is committed.
_SERVER = """
import os, random, sys
from anaphora.audit import AuditLog
from support.audit_logs import envelope

def write(path, seed):
    draw = random.Random(seed)
    with AuditLog(path, segment_bytes=200_000) as log:
        number = 0
        while True:
            for _ in range(draw.choice((1, 1, 3, 30))):
                number += 1
                log.append(envelope(number, notices=("some_code",) * draw.choice((0, 10, 3000))))
            log.flush()
            os.write(1, b"%d\\n" % number)

for line in sys.stdin:
    path, seed = line.split()
    child = os.fork()
    if not child:
        write(path, int(seed))
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""


def with_tests() -> dict[str, str]:
    """The environment of a process that imports this package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def _server() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_tests(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdin, process.stdout
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()


def kill_writers(path: Path, kills: int, seed: int) -> int:
    """Kills so many writers of one log at random moments, and checks the log after each: what was
    acknowledged is there, nothing is invalid but an unfinished last row, and the next start marks
    it. Returns how often a row was unfinished."""
    draw = random.Random(seed)
    torn = 0
    acknowledged: dict[int, int] = {}
    with _server() as (requests, answers):
        for number in range(kills):
            requests.write(f"{path} {draw.randrange(1 << 30)}\n".encode())
            requests.flush()
            last, child = 0, 0
            # Half of them at any moment from the start on, half after a commit.
            while not child or (number % 2 and not last):
                word, _, rest = answers.readline().decode().partition(" ")
                if word == "child":
                    child = int(rest)
                else:
                    last = int(word)
            time.sleep(draw.choice((0.0, 0.002, 0.01, 0.03)) * draw.random() * 2)
            os.kill(child, signal.SIGKILL)
            while (line := answers.readline()) != b"ended\n":
                last = int(line)
            torn += _check_killed(path, acknowledged)
            epoch = _last_epoch(path)
            if last:
                acknowledged[epoch] = last
            _check_acknowledged(path, acknowledged)
    assert len(acknowledged) >= kills // 2
    # The last one is recovered by a start that is not killed.
    AuditLog(path).close()
    verify(path)
    recoveries = sum(isinstance(row.content, RecoveryRow) for row in rows(path))
    starts = sum(isinstance(row.content, StartRow) for row in rows(path))
    assert recoveries == starts - 1, "each start after a kill marks it"
    return torn


def _check_killed(path: Path, acknowledged: dict[int, int]) -> bool:
    """Whether the last row is unfinished; nothing else may be wrong."""
    try:
        verify(path)
    except Io:  # killed before the first row
        assert not acknowledged
        return False
    except ChainBroken as problem:
        if problem.reason != "the row is cut off":
            raise
        return True
    return False


def _rows(path: Path) -> Iterator[StoredRow]:
    with suppress(Io):  # killed before the first row
        yield from rows(path)


def _last_epoch(path: Path) -> int:
    return max((row.content.epoch for row in _rows(path)), default=0)


def _check_acknowledged(path: Path, acknowledged: dict[int, int]) -> None:
    """The calls of each writer are those from 1 on without a gap, at least to the last that was
    acknowledged."""
    found: dict[int, list[int]] = {}
    for row in _rows(path):
        if isinstance(row.content, AuditEnvelope):
            assert row.content.request_id is not None
            number = int(row.content.request_id.removeprefix("req-"))
            found.setdefault(row.content.epoch, []).append(number)
    for numbers in found.values():
        assert numbers == list(range(1, len(numbers) + 1))
    for epoch, last in acknowledged.items():
        assert len(found.get(epoch, ())) >= last, f"acknowledged rows of writer {epoch} are lost"
