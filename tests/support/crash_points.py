"""Daemons that kill themselves at one step of a call, or of the recovery after it.

    python -m support.crash_points

Reads lines of JSON, `{"home": HOME, "point": NAME}`, and forks a daemon for each, which prints `ready`
when it serves and ends by SIGKILL where it comes to that step; an empty name: at none. Prints the id of
each process, and how it ended. The package is imported once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from support.audit_logs import with_tests

#: Steps of a call, in their order.
CALL_POINTS = ("held", "written", "answered", "behind", "settled", "audited")
#: Steps of a recovery.
RECOVERY_POINTS = ("recovered", "marks", "rows_wait", "audited")


def _die(*_args: object, **_options: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def _after(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **options: Any) -> Any:
        method(*args, **options)
        _die()

    return called


def _arm(point: str) -> None:
    """Lets this process die at a step."""
    from anaphora.audit import log, writer
    from anaphora.client.transport import exchange
    from anaphora.daemon import audit
    from anaphora.daemon.calls.behind import AnsweredCalls
    from anaphora.daemon.money import ledger, sent_marks
    from anaphora.daemon.store.batch_queue import BatchQueue, SqliteCommits

    queues: list[BatchQueue] = []
    made = BatchQueue.__init__

    def make(self: BatchQueue, **options: Any) -> None:
        made(self, **options)
        queues.append(self)

    def is_busy(queue: BatchQueue) -> bool:
        writer: Any = queue._thread if isinstance(queue, SqliteCommits) else queue
        return bool(queue._later or queue._busy or not writer._queue.empty())

    def when_settled(*_: object) -> None:
        while any(map(is_busy, queues)):
            time.sleep(0.001)
        _die()

    def finish(self: AnsweredCalls) -> None:
        """Without blocking: delayed settlements are written by the event loop's timers."""
        if len(self):
            if not any(map(is_busy, queues)):
                _die()
            asyncio.get_running_loop().call_later(0.001, self.finish)

    def follow(self: log.AuditLog, durable: object) -> None:
        self._writer.on_durable = _die

    places: dict[str, tuple[Any, str, Any]] = {
        "held": (exchange, "_connect", _die),
        "written": (exchange.NetworkExchange, "_write", _after(exchange.NetworkExchange._write)),
        "answered": (ledger.OpenHold, "_settlement", _die),
        "behind": (AnsweredCalls, "finish", finish),
        "settled": (writer.LogWriter, "_commit", when_settled),
        "audited": (log.AuditLog, "follow_calls", follow),
        "recovered": (sent_marks.SentMarks, "create", _die),
        "marks": (audit.AuditRecovery, "begin", _die),
        "rows_wait": (writer.LogWriter, "_commit", when_settled),
    }
    if point:
        BatchQueue.__init__ = make  # type: ignore[method-assign]
        owner, name, replacement = places[point]
        setattr(owner, name, replacement)


def _serve(home: Path, point: str) -> None:
    from anaphora.daemon.home.settings import ServeOptions
    from anaphora.daemon.server import Daemon, serve

    _arm(point)
    output = os.dup(1)
    log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)

    def ready(_: Daemon) -> None:
        os.write(output, b"ready\n")

    serve(ServeOptions(home=home, port=0), ready)


def main() -> None:
    for name in (
        "aiohttp.web", "asyncpg", "prometheus_client", "yaml", "ctypes", "encodings.idna",
        "anaphora.client.observe.prometheus", "anaphora.client.transport.over_aiohttp",
        "anaphora.daemon.calls.delegation", "anaphora.daemon.endpoints.service",
        "anaphora.daemon.endpoints.stored", "anaphora.daemon.rpc.service",
        "anaphora.daemon.nodes.administration", "anaphora.daemon.nodes.membership",
        "anaphora.daemon.store.sqlite",
        "anaphora.daemon.store.postgres", "anaphora.daemon.ui.mount",
        "anaphora.serving.listening",
    ):  # fmt: skip
        importlib.import_module(name)
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if not child:
            try:
                _serve(Path(command["home"]), command["point"])
                os._exit(0)
            except BaseException:
                traceback.print_exc()  # to its log
            finally:
                os._exit(1)
        os.write(1, b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        os.write(1, b"ended %d\n" % os.waitstatus_to_exitcode(status))


class CrashingDaemons:
    """One daemon after the other."""

    def __init__(self, commands: IO[bytes], output: IO[bytes]) -> None:
        self._commands = commands
        self._output = output
        self._process = 0

    def start(self, home: Path, point: str = "") -> bool:
        """Whether it serves; for a step of the recovery, it may have died there."""
        command = {"home": str(home), "point": point}
        self._commands.write(json.dumps(command).encode() + b"\n")
        self._commands.flush()
        self._process = int(self._output.readline())
        line = self._output.readline()
        if line == b"ended -9\n" and point in RECOVERY_POINTS:
            return False
        log = (home / "log").read_text() if (home / "log").exists() else ""
        assert line == b"ready\n", f"{line!r}: {log}"
        return True

    def wait(self) -> None:
        """Until it has died."""
        assert self._output.readline() == b"ended -9\n"

    def kill(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process, number)

    def stop(self) -> None:
        os.kill(self._process, signal.SIGTERM)
        assert self._output.readline() == b"ended 0\n"


@contextlib.contextmanager
def crashing_daemons() -> Iterator[CrashingDaemons]:
    with subprocess.Popen(
        [sys.executable, "-m", "support.crash_points"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=with_tests(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield CrashingDaemons(server.stdin, server.stdout)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
