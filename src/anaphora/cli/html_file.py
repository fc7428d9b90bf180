"""The file of `--html`: checked before the work begins, written when it has ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import click

from anaphora.errors import Io

F = TypeVar("F", bound=Callable[..., Any])

#: The name that stands for standard output.
STDOUT = Path("-")


def html_option(help: str) -> Callable[[F], F]:
    return click.option(
        "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help
    )


class HtmlFile:
    """A report that only its owner may read. A temporary file beside it is opened when the block
    begins, so that an error is reported before the work; `write` replaces the old file atomically.
    Anything but a regular file, such as a pipe, is written directly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._target = path
        self._unfinished: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self._open()
        except OSError as problem:
            raise self._failed(problem) from None
        return self

    def _open(self) -> int:
        if self.path == STDOUT:
            return -1
        self._target = self.path.resolve()
        if self._target.exists() and not self._target.is_file():
            return os.open(self._target, os.O_WRONLY | os.O_CLOEXEC)
        name = f".{self._target.name}.{secrets.token_hex(4)}"
        unfinished = self._target.with_name(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(unfinished, flags, 0o600)
        self._unfinished = unfinished
        return file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        if self._unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._unfinished)

    def write(self, content: bytes) -> None:
        if self._file < 0:
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
            return
        try:
            with open(self._file, "wb", closefd=False) as file:
                file.write(content)
            if self._unfinished is not None:
                os.replace(self._unfinished, self._target)
                self._unfinished = None
        except OSError as problem:
            raise self._failed(problem) from None

    def _failed(self, problem: OSError) -> Io:
        return Io(f"{self.path}: cannot be written: {problem.strerror or problem}")


def write_html(path: Path, make: Callable[[], bytes]) -> None:
    """Writes the report that `make` returns, and prints its path."""
    with HtmlFile(path) as file:
        file.write(make())
    if path != STDOUT:
        click.echo(f"the report is in {path}", err=True)
