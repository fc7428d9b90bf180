"""What the commands of `anaphora audit` share: the log, the filters, the progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from anaphora.audit.chain import RowKey
from anaphora.audit.envelope import AuditEnvelope, StoredRow
from anaphora.errors import InvalidConfig
from anaphora.wording import counted

from .parameters import past_moment

if TYPE_CHECKING:
    from anaphora.daemon.home import Home

T = TypeVar("T", bound=Callable[..., Any])

#: Rows after which a terminal shows how far the work is.
_LONG = 20_000


class _LogParameter(click.Path):
    """A log, or the home of a daemon, which has one."""

    name = "log"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(str(super().convert(value, param, ctx)))
        return path / "audit" if (path / "llm.yaml").is_file() else path


def _home_of(log: Path) -> Home | None:
    """The home of a daemon's log; None for another log, and if only its chain can be checked."""
    if log.name != "audit" or not (log.parent / "llm.yaml").is_file():
        return None
    from anaphora.daemon.home import Home

    try:
        return Home.open(log.parent)
    except InvalidConfig:
        return None  # of another user, for example


def key_to_check(log: Path) -> RowKey | None:
    """Key of the log's MACs; None if only the chain can be checked."""
    if (home := _home_of(log)) is None:
        return None
    from anaphora.daemon.audit import checked_rows

    return checked_rows(home)


def key_to_write(log: Path) -> bytes:
    """Key for rows that a command adds to the log of a home."""
    if (home := _home_of(log)) is None:
        return b""
    from anaphora.daemon.audit import row_key

    return row_key(home)


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
