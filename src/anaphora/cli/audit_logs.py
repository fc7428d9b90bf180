"""What the commands of `anaphora audit` share: the log, the filters, the progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.audit.log_postgres import PostgresLog
from anaphora.errors import InvalidConfig
from anaphora.wording import counted

from .parameters import past_moment

T = TypeVar("T", bound=Callable[..., Any])
AnyLog: TypeAlias = Path | PostgresLog

#: The home whose log a command was given, in its context.
_HOME = "anaphora.audit.home"

#: Rows after which a terminal shows how far the work is.
_LONG = 20_000


class _LogParameter(click.Path):
    """A log of files, or that of a daemon's home."""

    name = "log"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if not isinstance(path, Path):
            return path
        named = (path / "llm.yaml").is_file()
        if not named and not _is_in_a_home(path):
            return path
        from anaphora.daemon.audit import audit_place
        from anaphora.daemon.home import Home
        from anaphora.daemon.home.config import daemon_config

        try:
            home = Home.open(path if named else path.parent)
            place = audit_place(home, daemon_config(home.config()))
        except InvalidConfig:
            if named:
                raise
            return path  # a home of another user, for example: only the chain can be checked
        if isinstance(place, PostgresLog):
            if not named:  # the folder of a log that was moved to PostgreSQL
                place.close()
                return path
            if ctx is not None:
                ctx.call_on_close(place.close)
        elif ctx is not None:
            ctx.meta[_HOME] = home
        return place


def _is_in_a_home(path: Path) -> bool:
    return path.name == "audit" and (path.parent / "llm.yaml").is_file()


def key_to_check() -> RowKey | None:
    """Key of the log's MACs; None if only the chain can be checked."""
    home = click.get_current_context().meta.get(_HOME)
    if home is None:
        return None
    from anaphora.daemon.audit import checked_rows

    return checked_rows(home)


def key_to_write() -> bytes:
    """Key for rows that a command adds to the log of a home."""
    home = click.get_current_context().meta.get(_HOME)
    if home is None:
        return b""
    from anaphora.daemon.audit import row_key

    return row_key(home)


class RowParameter(click.ParamType[tuple[int, int]]):
    """The number of a row; of a log with several chains, `CHAIN:ROW`."""

    name = "row"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        chain, _, row = value.rpartition(":")
        for text in (chain or "1", row):
            if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 62):
                self.fail(f"{value!r} is not a row number: write 17, or CHAIN:17", param, ctx)
        return int(chain or 0), int(row)


LOG = _LogParameter(exists=True, path_type=Path)


def call_filters(command: T) -> T:
    for option in (
        click.option("--until", callback=past_moment, help="Only calls before this time."),
        click.option(
            "--since", callback=past_moment, help="Only calls since this time: 2026-11-30, 7d."
        ),
        click.option("--outcome", help="Only calls with this outcome: ok, RateLimited."),
        click.option("--label", help="Only calls or blocks with this label; may contain *."),
        click.option("--model", help="Only calls of this model; may contain *."),
    ):
        command = option(command)
    return command


@contextmanager
def row_progress(title: str) -> Iterator[Callable[[int], None] | None]:
    """A function that shows how many rows were read, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    status = Console(stderr=True).status(f"{title} …")
    running = False

    def show(count: int) -> None:
        nonlocal running
        if count < _LONG:
            return
        if not running:
            running = True
            status.start()
        status.update(f"{title}: {counted(count, 'row')}")

    try:
        yield show
    finally:
        if running:
            status.stop()


def tracked(
    items: Iterator[tuple[StoredRow, AuditEnvelope]], progress: Callable[[int], None] | None
) -> Iterator[tuple[StoredRow, AuditEnvelope]]:
    for index, item in enumerate(items):
        if progress is not None and not index % 1000:
            progress(index)
        yield item
