"""`anaphora spend`"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from anaphora.daemon.access.grants import exact_usd
from anaphora.daemon.store import SpendQuery, SpendRow
from anaphora.daemon.store.reading import FIELDS, day_of, held, hour_rows, spend_rows
from anaphora.daemon.store.schema import connect_to_read, has_store
from anaphora.errors import Io
from anaphora.sqlite_files import transaction
from anaphora.wording import counted

from .audit_report import LoggedLosses, cost, share
from .common import CommandGroup, html_option, write_html
from .daemon_connection import (
    groups_of,
    has_other_nodes,
    home_option,
    json_option,
    open_home,
    store_address_of,
)
from .parameters import past_moment
from .spend_entries import correct, entries
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.postgres.address import PostgresAddress


class SpendReport(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of settled calls and of open holds."""

    by: tuple[str, ...]
    since: str
    until: str
    app: str | None
    rows: tuple[SpendRow, ...]
    total: SpendRow
    held: int


class SpendGroup(CommandGroup):
    """Without a subcommand, the sums."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        by_user = click.core.ParameterSource.COMMANDLINE
        for one in self.params:
            if one.name is not None and ctx.get_parameter_source(one.name) is by_user:
                ctx.fail(f"write {one.opts[0]} after {args[0]!r}.")
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS] | SUBCOMMAND ..."]


@click.group(cls=SpendGroup, invoke_without_command=True)
@click.option(
    "--by",
    default="app,model",
    show_default=True,
    metavar="FIELDS",
    help=f"Fields to sum by, separated by commas: {', '.join(FIELDS)}.",
)
@click.option("--app", help="Only this app.")
@click.option("--since", callback=past_moment, help="Only from this day on: 2026-11-30, 7d.")
@click.option("--until", callback=past_moment, help="Only up to and including this day.")
@html_option("Write a report with charts to FILE, a self-contained page; - is standard output.")
@home_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    by: str,
    app: str | None,
    since: float | None,
    until: float | None,
    html: Path | None,
    home: Path,
    as_json: bool,
) -> None:
    """Show what apps have spent, by group, app, model, block label, budget and day.

    Calls are charged to the UTC day on which they began. `estimated` is the part that no bill
    confirms: streams that were aborted, calls that were sent and never answered, and bills that
    cannot be true. `corrected` is the sum of `anaphora spend correct`. `calls` are charged
    attempts: a retry after an attempt that may have been charged counts as well. `lost` is what
    cache misses cost, as the audit log says: `anaphora audit report` names their causes. Several
    nodes on one store have a log each, so `lost` is left out: `anaphora audit report` takes all
    their folders. In `--by label`, output and unlabelled text are in the row without a label. A
    group is the field `group` that an app has in extensions.yaml now. In `--by budget`, calls of
    narrowed tokens (`anaphora apps narrow`) are summed by token, from the entries that were not
    pruned.

    \b
    anaphora spend --since 7d --by day,app
    anaphora spend --by label --app marketing
    anaphora spend --by budget --app marketing
    anaphora spend --since 30d --html spend.html

    With --json, amounts are nano-dollars.
    """
    if context.invoked_subcommand is not None:
        return
    fields = _fields(by)
    if html is not None and as_json:
        raise click.UsageError("--html writes one report: leave --json out")
    opened = open_home(home)
    query = _Query(
        store_address_of(opened) or opened.store,
        fields,
        SpendQuery(
            app=app,
            groups=groups_of(opened) if html or "group" in fields else {},
            since="" if since is None else day_of(since),
            until="" if until is None else day_of(until),
        ),
        None if has_other_nodes(opened) else LoggedLosses.of(opened.audit, since),
    )
    if html is not None:
        write_html(html, lambda: _html(query))
    else:
        report = query.report()
        print_report(_json(report), _lines(report), as_json=as_json)


def _fields(by: str) -> tuple[str, ...]:
    fields = tuple(name.strip() for name in by.split(",") if name.strip())
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise click.BadParameter(
            f"{unknown[0]!r} is none of {', '.join(FIELDS)}", param_hint="'--by'"
        )
    if {"label", "budget"} <= set(fields):
        raise click.BadParameter("label and budget cannot be combined", param_hint="'--by'")
    return fields


command.add_command(entries)
command.add_command(correct)


class _Query:
    def __init__(
        self,
        store: Path | PostgresAddress,
        by: tuple[str, ...],
        of: SpendQuery,
        losses: LoggedLosses | None,
    ) -> None:
        self.store, self.by, self.of, self.losses = store, by, of, losses

    def report(self) -> SpendReport:
        if not isinstance(self.store, Path):
            return asyncio.run(self._in_postgres(self.store))
        if not has_store(self.store):  # no daemon has run here
            return self._made((), (), 0)
        with closing(connect_to_read(self.store)) as database:
            try:
                with transaction(database, "BEGIN"):  # a snapshot, while a daemon writes
                    rows, total = (spend_rows(database, by, self.of) for by in (self.by, ()))
                    return self._made(rows, total, held(database, self.of))
            except sqlite3.Error as error:
                raise Io(f"{self.store}: cannot be read: {error}") from None

    async def _in_postgres(self, address: PostgresAddress) -> SpendReport:
        from anaphora.daemon.store.postgres import PostgresStore

        store = await PostgresStore.open(address)
        try:
            rows, total = [await store.spend(by, self.of) for by in (self.by, ())]
            return self._made(rows, total, await store.held(self.of))
        finally:
            await store.close()

    def hours(self, day: str) -> dict[float, SpendRow]:
        """The hours of one day; empty if its entries were pruned."""
        if not isinstance(self.store, Path):
            return asyncio.run(self._hours_in_postgres(self.store, day))
        with closing(connect_to_read(self.store)) as database:
            return hour_rows(database, day, self.of)

    async def _hours_in_postgres(self, address: PostgresAddress, day: str) -> dict[float, SpendRow]:
        from anaphora.daemon.store.postgres import PostgresStore

        store = await PostgresStore.open(address)
        try:
            return await store.spend_by_hour(day, self.of)
        finally:
            await store.close()

    def grouped(self, *fields: str) -> _Query:
        """The same query, summed by other fields."""
        return _Query(self.store, fields, self.of, self.losses)

    def _made(self, rows: Sequence[SpendRow], total: Sequence[SpendRow], held: int) -> SpendReport:
        if self.losses is not None:
            rows, total = (
                self.losses.added(each, by, self.of) for each, by in ((rows, self.by), (total, ()))
            )
        return SpendReport(
            by=self.by,
            since=self.of.since,
            until=self.of.until,
            app=self.of.app,
            rows=tuple(rows),
            total=total[0] if total else SpendRow(),
            held=held,
        )


def _html(query: _Query) -> bytes:
    from .spend_html import spend_report

    report = query.report()
    groups = dict.fromkeys(
        [query.by, ("group",), ("app",), ("provider", "model"), ("label",), ("day",)]
    )
    rows = {by: query.grouped(*by).report().rows for by in groups if by}
    if query.by != ("group",) and not any(row.group for row in rows["group",]):
        del rows["group",]
    days = rows["day",]
    hours = query.hours(days[0].day) if len(days) == 1 else {}
    return spend_report(report.total, report.held, hours or days, rows, time.time())


# ── Output ────────────────────────────────────────────────────────────────────────────────────────

_AMOUNTS = ("billed", "estimated", "saved", "corrected", "lost")


def _json(report: SpendReport) -> dict[str, Any]:
    by_label = "label" in report.by
    return {
        "by": report.by,
        "since": report.since or None,
        "until": report.until or None,
        "app": report.app,
        "rows": [_json_row(row, report.by, tokens=not by_label) for row in report.rows],
        "total": _json_row(report.total, (), tokens=True),
        "held_nano_usd": report.held,
    }


def _json_row(row: SpendRow, by: Sequence[str], *, tokens: bool) -> dict[str, Any]:
    value: dict[str, Any] = {name: getattr(row, name) for name in by}
    if "budget" in by:
        value["budget_label"] = row.budget_label
    value["calls"] = row.calls
    value |= {f"{name}_nano_usd": getattr(row, name) for name in _AMOUNTS}
    if tokens:
        value |= {name: getattr(row, name) for name in ("input", "read", "written", "output")}
    return value


def _lines(report: SpendReport) -> Iterator[Line]:
    if not report.rows:
        yield "nothing was spent"
    else:
        tokens = "label" not in report.by
        counts = ("input", "read", "output") if tokens else ()
        has_corrections = any(row.corrected for row in report.rows)
        corrected = ("corrected",) if has_corrections else ()
        lost = ("lost",) if any(row.lost for row in report.rows) else ()
        figures = ("calls", *counts, "spent", "estimated", "saved", *lost, *corrected)
        rows = table(*report.by, *figures, right=figures)
        for row in report.rows:
            cells = [*_figures(row, tokens=tokens)]
            cells += [cost(row.lost) if row.lost else "" for _ in lost]
            cells += [exact_usd(row.corrected) if row.corrected else ""] * has_corrections
            rows.add_row(*(_name(row, field) for field in report.by), *cells)
        yield rows
    total = report.total
    text = f"{cost(total.billed)}, {counted(total.calls, 'call')}"
    if total.lost:
        text += f"; {cost(total.lost)} lost to cache misses"
    if report.held:
        text += f"; {cost(report.held)} held for calls that are running"
    yield f"\n{text}", "bold"


def _name(row: SpendRow, field: str) -> str:
    name: str = getattr(row, field)
    return f"{row.budget_label} ({name})" if field == "budget" and row.budget_label else name


def _figures(row: SpendRow, *, tokens: bool) -> Iterator[str]:
    yield f"{row.calls:,}"
    if tokens:
        yield f"{row.input:,}"
        yield share(row.read, row.input)
        yield f"{row.output:,}"
    yield cost(row.billed)
    yield cost(row.estimated) if row.estimated else ""
    yield cost(row.saved) if row.saved else ""
