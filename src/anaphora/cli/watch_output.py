"""Where `anaphora watch` writes: lines to the terminal or a file, the rest to standard error."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import click

from anaphora.errors import Io
from anaphora.traffic.calls import JudgedCall
from anaphora.traffic.sums import WatchSummary

from .common import report_problems, user_folder
from .terminal import Line, Terminal, print_lines
from .watch_lines import call_lines, json_line, summary_fields, summary_lines


class WatchOutput:
    """Lines of calls go to `lines`, as JSON or for people. The summary goes there too, and to
    standard error where that is not the same.

    Where they cannot be written any more (a full disk, a closed pipe), the command is not
    disturbed: the reason is reported with the summary.
    """

    def __init__(self, lines: IO[str], name: str, *, as_json: bool) -> None:
        """`name` is that of the file."""
        self._file = lines
        self._name = name
        self._as_json = as_json
        self._lock = threading.Lock()
        on_terminal = lines in (sys.stdout, sys.stderr)
        self._terminal = Terminal(file=None if on_terminal else lines, stderr=lines is sys.stderr)
        self._summary_apart = not on_terminal
        self._failure = ""

    def start(self, url: str, page: str | None, exports: Mapping[str, str]) -> None:
        """Tells a machine where the proxy is. Raises where it cannot be written."""
        if self._as_json:
            self._write(self._json("start", {"url": url, "page": page, "exports": dict(exports)}))
        if self._failure:
            raise Io(self._failure)

    def call(self, call: JudgedCall) -> None:
        self._write(self._json("call", call.fields()) if self._as_json else call_lines(call))

    def summary(self, summary: WatchSummary) -> None:
        fields, lines = summary_fields(summary), summary_lines(summary)
        self._write(self._json("summary", fields) if self._as_json else lines)
        if self._failure:
            announce(self._failure)
        if self._summary_apart or (self._failure and self._file is not sys.stderr):
            with contextlib.suppress(OSError):
                print_lines(Terminal(stderr=True), summary_lines(summary))

    @staticmethod
    def _json(kind: str, fields: dict[str, object]) -> str:
        return json_line(kind, fields) + "\n"

    def _write(self, written: str | Iterator[Line]) -> None:
        with self._lock:
            if self._failure:
                return
            try:
                if isinstance(written, str):
                    self._file.write(written)
                    self._file.flush()
                else:
                    print_lines(self._terminal, written)
            except OSError as problem:
                self._failure = f"{self._name}: cannot be written: {problem.strerror or problem}"


@contextlib.contextmanager
def opened_log(path: Path) -> Iterator[IO[str]]:
    """A file that is appended to. Only its owner may read it: it has excerpts of prompts."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as problem:
        raise Io(f"{path}: cannot be written: {problem.strerror or problem}") from None
    file = open(descriptor, "a", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        yield file
    finally:
        # Every line was flushed: what could not be written was reported then.
        with contextlib.suppress(OSError):
            file.close()


def default_log() -> Path:
    """A new file in the user's folder for state."""
    folder = user_folder("XDG_STATE_HOME", ".local/state") / "watch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise Io(f"{folder}: cannot be made: {problem.strerror or problem}") from None
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def announce(text: object) -> None:
    """A line on standard error, before or after the command."""
    report_problems([text])


def export_lines(exports: Mapping[str, str], shell: str) -> Iterator[str]:
    """How variables are set in a shell, which is given by its name or path."""
    name = os.path.basename(shell)
    for variable, value in exports.items():
        if name == "fish":
            yield f"set -gx {variable} {shlex.quote(value)}"
        elif name in ("pwsh", "powershell"):
            yield f"$env:{variable} = '{value}'"
        elif name in ("csh", "tcsh"):
            yield f"setenv {variable} {shlex.quote(value)}"
        else:
            yield f"export {variable}={shlex.quote(value)}"


def echo_exports(exports: Mapping[str, str], *, err: bool) -> None:
    shell = os.environ.get("SHELL", "pwsh" if sys.platform == "win32" else "sh")
    for line in export_lines(exports, shell):
        click.echo(line, err=err)
