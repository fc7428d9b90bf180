"""`pytest --processes N`: files of tests in several processes.

Each process is a fork, takes one file after the other, and collects only the files that it runs. With
pytest-xdist every process collects all tests, which takes longer than all tests of most folders.
A file's tests stay together, and fixtures of the session live as long as a process does.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import queue
import random
import resource
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

Node: TypeAlias = pytest.Item | pytest.Collector

#: What most processes would import: once, before the forks.
SHARED_MODULES = """
    aiohttp.web anaphora.cli.common anaphora.client anaphora.daemon.server anaphora.dashboard.site
    anthropic asyncpg click.testing google.genai jsonschema_rs openai pydantic rich.console yaml
""".split()
_PLACE = struct.Struct("I")


class FileProcesses:
    """A plugin: instead of collecting and running tests, has other processes do so."""

    def __init__(self, config: pytest.Config, key: Callable[[Path], Any]) -> None:
        """Files with the same `key` are run by one process; those with small ones come first."""
        self._config = config
        self._key = key
        self._groups: list[list[Node]] = []
        """What one process runs together, in the order in which it begins."""
        self._processes: dict[int, IO[bytes]] = {}
        self._said: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        self._times: list[tuple[float, float, int, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Only files are found here: each process imports those that it runs. Folders must be
        collected once: the fixtures of a conftest.py are those of its folder."""
        for name in SHARED_MODULES:
            with suppress(ImportError):
                importlib.import_module(name)
        groups: dict[Any, list[Node]] = {}
        for node in session.perform_collect(self._arguments(), genitems=False):
            groups.setdefault(self._key(node.path), []).append(node)
        self._groups = [groups[key] for key in sorted(groups)]
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        groups = self._groups
        places, fill = os.pipe()
        os.write(fill, b"".join(map(_PLACE.pack, range(len(groups)))))
        os.close(fill)
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        number: int = self._config.getoption("processes")
        try:
            for name in range(min(number, len(groups))):
                self._start(session, name, places, groups)
            for pid, messages in self._processes.items():
                threading.Thread(target=self._hear, args=(pid, messages), daemon=True).start()
            self._listen(session, sum(map(len, groups)))
        finally:
            for pid in self._processes:
                os.kill(pid, signal.SIGTERM)
            for pid in self._processes:
                os.waitpid(pid, 0)
        return True

    def _arguments(self) -> list[str]:
        """Those of the command line, with the files of each folder."""
        found: list[str] = []
        for argument in self._config.args:
            path = self._config.invocation_params.dir / argument
            found += map(str, sorted(path.rglob("test_*.py"))) if path.is_dir() else [argument]
        return found

    def _start(
        self, session: pytest.Session, name: int, places: int, groups: Sequence[list[Node]]
    ) -> None:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            _Process(session, name, open(write, "wb")).run(places, groups)  # noqa: SIM115
        os.close(write)
        self._processes[pid] = open(read, "rb")  # noqa: SIM115

    # ── What the processes say ───────────────────────────────────────────────────────────────────

    def _hear(self, pid: int, messages: IO[bytes]) -> None:
        with messages, suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._said.put((pid, *pickle.load(messages)))
        self._said.put((pid, "ended", None))

    def _listen(self, session: pytest.Session, files: int) -> None:
        tests, problems = 0, dict.fromkeys(self._processes, "it began no test")
        while self._processes:
            pid, kind, value = self._said.get()
            if kind == "test":
                tests, problems[pid] = tests + 1, f"it was in {value}, or just after it"
                # So many as there will be, by the files that have ended.
                session.testscollected = max(tests, tests * files // (len(self._times) or 1))
            elif kind == "report":
                self._report(value)
            elif kind == "file":
                self._times.append(value)
            elif kind == "problem":
                problems[pid] = value
            else:
                self._ended(pid, problems[pid])
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        session.testscollected = tests

    def _report(self, data: dict[str, Any]) -> None:
        hook = self._config.hook
        report = hook.pytest_report_from_serializable(config=self._config, data=data)
        if isinstance(report, pytest.CollectReport):
            hook.pytest_collectreport(report=report)
            return
        hook.pytest_runtest_logreport(report=report)
        if report.when == "call" or report.skipped:
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)

    def _ended(self, pid: int, problem: str) -> None:
        del self._processes[pid]
        _, status = os.waitpid(pid, 0)
        if problem:
            why = f"a process ended with {os.waitstatus_to_exitcode(status)}: {problem}"
            where = ("tests", None, "tests")
            report = pytest.TestReport("a process", where, {}, "failed", why, "call")
            self._config.hook.pytest_runtest_logreport(report=report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if count := self._config.getoption("durations"):
            terminalreporter.section("slowest files: seconds, those of the processor, tests")
            for wall, cpu, tests, name in sorted(self._times, reverse=True)[:count]:
                terminalreporter.write_line(f"{wall:7.1f} {cpu:7.1f} {tests:5} {name}")


class _Process:
    """Runs the tests of files, in a fork."""

    def __init__(self, session: pytest.Session, name: int, messages: IO[bytes]) -> None:
        self._session, self._config, self._messages = session, session.config, messages
        self._name = f"process-{name}"

    def run(self, places: int, groups: Sequence[list[Node]]) -> NoReturn:
        code = 1
        try:
            self._prepare()
            while place := os.read(places, _PLACE.size):
                self._run(groups[_PLACE.unpack(place)[0]])
            self._session._setupstate.teardown_exact(None)
            self._send("problem", "")
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException:
            self._send("problem", traceback.format_exc())
        finally:
            self._messages.close()
            os._exit(code)

    def _prepare(self) -> None:
        manager = self._config.pluginmanager
        capture: Any = manager.get_plugin("capturemanager")
        capture.stop_global_capturing()  # into files that all forks share
        capture.start_global_capturing()
        manager.unregister(name="terminalreporter")
        manager.register(_Reports(self._config, self._send), "file process")
        factory: Any = self._config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / self._name
        factory._basetemp.mkdir(mode=0o700)
        random.seed()

    def _run(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            began, cpu = time.perf_counter(), _cpu()
            gc.disable()
            items = list(self._session.genitems(node))
            gc.enable()
            self._config.hook.pytest_collection_modifyitems(
                session=self._session, config=self._config, items=items
            )
            # The last one is followed by the session: its fixtures are kept.
            for item, after in zip(items, (*items[1:], self._session), strict=False):
                self._send("test", item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            took = time.perf_counter() - began, _cpu() - cpu
            self._send("file", (*took, len(items), node.nodeid))

    def _send(self, kind: str, value: object) -> None:
        pickle.dump((kind, value), self._messages)
        self._messages.flush()


class _Reports:
    """Sends the reports of tests and of files that cannot be collected. Of a test that passes one is
    enough."""

    def __init__(self, config: pytest.Config, send: Callable[[str, object], None]) -> None:
        self._config, self._send = config, send

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.passed:
                report.keywords = {}
            if report.when == "call" or not report.passed:
                self._report(report)
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report(report)

    def _report(self, report: object) -> None:
        make = self._config.hook.pytest_report_to_serializable
        self._send("report", make(config=self._config, report=report))


def _cpu() -> float:
    """Seconds of this process and of those that it waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
