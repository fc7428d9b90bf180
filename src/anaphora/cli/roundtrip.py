"""`anaphora roundtrip`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._wires import WireName

if TYPE_CHECKING:
    from anaphora.analysis.roundtrip import Exchange, Outcome
    from anaphora.analysis.trace.sources import Problem


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--wire", "only", type=WireName(), help="Only the exchanges of this wire.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(files: tuple[Path, ...], only: str | None, as_json: bool) -> None:
    """Check that recorded exchanges survive parsing and rendering.

    Each line of FILES (JSON lines, gzipped or not) is one exchange: `id`, `wire`, `status`,
    `stream`, `request` and `response`, both bodies as text. Every request is parsed and rendered
    again, every answer is read and written again; the result must mean the same. Wires that do not
    exist here are counted and skipped. A line that cannot be read is reported on standard error,
    and the others are checked.

    Exit code 1 when something was lost or could not be read, 2 when nothing could be read.
    """
    from anaphora import wire
    from anaphora.analysis.roundtrip import check

    outcomes: list[Outcome] = []
    passed_over: Counter[str] = Counter()
    problems = 0
    for exchange in _exchanges(files):
        if isinstance(exchange, str):
            click.echo(f"anaphora: {exchange}", err=True)
            problems += 1
            continue
        if only is not None and exchange.wire != only:
            continue
        if exchange.wire in wire.WIRES:
            outcomes.append(check(exchange))
        else:
            passed_over[exchange.wire] += 1
    if problems and not outcomes and not passed_over:
        raise click.exceptions.Exit(2)
    if as_json:
        _print_json(outcomes, passed_over)
    else:
        _print_table(outcomes, passed_over)
    if problems or not all(outcome.good for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _exchanges(files: tuple[Path, ...]) -> Iterator[Exchange | str]:
    """The exchanges, and in place of one that cannot be read the reason."""
    import msgspec

    from anaphora.analysis.roundtrip import Exchange
    from anaphora.wire.reading import DECODE_ERRORS

    from ._simulate.files import lines_of

    decode = msgspec.json.Decoder(Exchange).decode
    for file in files:
        damaged: list[Problem] = []
        for line in lines_of(file, damaged):
            try:
                yield decode(line.data)
            except DECODE_ERRORS as problem:
                yield f"{line.place}: {problem}"
        yield from map(str, damaged)


def _print_json(outcomes: list[Outcome], passed_over: Counter[str]) -> None:
    import msgspec

    told = {"outcomes": outcomes, "passed_over": dict(passed_over)}
    click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))


def _print_table(outcomes: list[Outcome], passed_over: Counter[str]) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ._console import Terminal

    table = Table(box=None, pad_edge=False)
    table.add_column("wire")
    for title in ("exchanges", "parsed", "same meaning", "read", "losses"):
        table.add_column(title, justify="right")
    for name in sorted({outcome.wire for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.wire == name]
        table.add_row(
            name,
            str(len(mine)),
            str(sum(not outcome.unparsed for outcome in mine)),
            str(sum(not outcome.unparsed and not outcome.changed for outcome in mine)),
            str(sum(not outcome.unreadable for outcome in mine)),
            str(sum(bool(outcome.lost) for outcome in mine)),
        )
    lines: list[Table | Text] = [table]
    overlooked: Counter[str] = Counter()
    for outcome in outcomes:
        overlooked.update({f"{outcome.wire}: {name}": n for name, n in outcome.overlooked.items()})
    if overlooked:
        lines.append(Text("\nOverlooked on the way, and how often"))
        lines += [Text(f"  {count:6}  {name}") for name, count in sorted(overlooked.items())]
    bad = [outcome for outcome in outcomes if not outcome.good]
    if bad:
        lines.append(Text("\nNot as it should be"))
        lines += [Text(f"  {o.wire} {o.id}: {_trouble(o)}") for o in bad]
    if passed_over:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(passed_over.items()))
        lines.append(Text(f"\nPassed over, no such wire here: {named}"))
    Terminal().page(Group(*lines))


def _trouble(outcome: Outcome) -> str:
    told = []
    if outcome.unparsed:
        told.append(f"request not read: {outcome.unparsed}")
    if outcome.changed:
        told.append(f"request changed at {outcome.changed}")
    if outcome.unreadable:
        told.append(f"answer not read: {outcome.unreadable}")
    if outcome.lost:
        told.append(f"answer lost {outcome.lost}")
    return "; ".join(told)
