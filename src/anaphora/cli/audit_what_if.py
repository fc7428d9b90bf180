"""`anaphora audit what-if`"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anaphora.values import TTL_SECONDS

from .common import ModelName
from .terminal import Line, print_report, table

if TYPE_CHECKING:
    from anaphora.audit.log_postgres import PostgresLog
    from anaphora.dashboard.what_if import TtlChoice, WhatIf

#: Calls that are read, the newest, and how many of them are simulated at most.
_MOST_READ, _MOST_PLAYED = 100_000, 20_000


def play(
    log: Path | PostgresLog,
    on: tuple[str, str] | None,
    ttl: TtlChoice | None,
    as_json: bool,
    **filters: Any,
) -> None:
    from anaphora.audit.envelope import AuditEnvelope
    from anaphora.audit.reading import CallFilter, calls
    from anaphora.dashboard.what_if import ProviderModel, what_if

    model = None if on is None else ProviderModel(*on)
    count, newest = 0, deque[AuditEnvelope](maxlen=_MOST_READ)
    for _, call in calls(log, CallFilter(**filters)):
        newest.append(call)
        count += 1
    result = what_if(newest, model=model, ttl=ttl, most_played=_MOST_PLAYED)
    print_report(result, _lines(result, count), as_json=as_json)


model_option = click.option(
    "--as", "on", type=ModelName(), help="Also estimate the calls on another model."
)
ttl_option = click.option(
    "--ttl",
    type=click.Choice((*TTL_SECONDS, "none")),
    help="Only with this TTL for all markers; none: without caching.",
)


def _lines(result: WhatIf, found: int) -> Iterator[Line]:
    from anaphora.dashboard.figures import percent, usd
    from anaphora.dashboard.what_if.wording import left_out_sentence, range_text, sentences

    left_out = left_out_sentence(result)
    if not result.calls:
        yield "no calls to estimate from"
        if left_out:
            yield left_out, "dim"
        return
    figures = ("$", "range", "difference", "read")
    rows = table("the same calls", *figures, right=figures)
    billed = usd(result.billed_nano_usd)
    rows.add_row("As billed", billed, "", "", percent(result.read_share))
    notes: list[str] = []
    for row in result.rows:
        title = row.scenario.title
        if row.cost is None or row.difference is None:
            notes.append(f"{title}: {row.unavailable}")
            continue
        difference = row.difference.estimate
        rows.add_row(
            title,
            usd(row.cost.estimate),
            range_text(row.cost),
            f"{'+' if difference > 0 else ''}{usd(difference)}",
            percent(row.read_share),
        )
        notes += [f"{title}: {note}" for note in row.notes]
    yield rows
    yield ""
    yield from ((sentence, "dim") for sentence in sentences(result))
    if left_out:
        yield left_out, "dim"
    if found > _MOST_READ:
        yield f"Of {found:,} calls, the newest {_MOST_READ:,} are read: see --since.", "dim"
    yield from ((note, "dim") for note in notes)
