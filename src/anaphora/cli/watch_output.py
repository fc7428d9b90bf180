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
from anaphora.proxy.judged_call import JudgedCall
from anaphora.proxy.summary import WatchSummary

from .common import report_problems, user_folder
from .terminal import Line, Terminal, print_lines
from .watch_lines import call_lines, json_line, summary_fields, summary_lines


class WatchOutput:
    """Lines of calls go to `lines`, as JSON or for people. The summary goes there too, and to
    standard error where that is not the same."""

    def __init__(self, lines: IO[str], *, as_json: bool) -> None:
        self._file = lines
        self._as_json = as_json
        self._lock = threading.Lock()
        on_terminal = lines in (sys.stdout, sys.stderr)
        self._terminal = Terminal(file=None if on_terminal else lines, stderr=lines is sys.stderr)
        self._summary_apart = not on_terminal

    def start(self, url: str, page: str | None, exports: Mapping[str, str]) -> None:
        """Tells a machine where the proxy is."""
        if self._as_json:
            self._write("start", {"url": url, "page": page, "exports": dict(exports)})

    def call(self, call: JudgedCall) -> None:
        if self._as_json:
            self._write("call", call.fields())
        else:
            self.print(call_lines(call))

    def summary(self, summary: WatchSummary) -> None:
        if self._as_json:
            self._write("summary", summary_fields(summary))
        else:
            self.print(summary_lines(summary))
        if self._summary_apart:
            print_lines(Terminal(stderr=True), summary_lines(summary))

    def print(self, lines: Iterator[Line]) -> None:
        with self._lock:
            print_lines(self._terminal, lines)

    def _write(self, kind: str, fields: dict[str, object]) -> None:
        with self._lock:
            self._file.write(json_line(kind, fields) + "\n")
            self._file.flush()


@contextlib.contextmanager
def opened_log(path: Path) -> Iterator[IO[str]]:
    """A file that is appended to. Only its owner may read it: it has excerpts of prompts."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as problem:
        raise Io(f"{path}: cannot be written: {problem.strerror or problem}") from None
    with open(descriptor, "a", encoding="utf-8", errors="replace") as file:
        yield file


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
