"""The report for people: a table, the break by name, and what it all comes to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .report import Break, Marker, Report, Turn

#: From here on the verdict has words,
_ROOMY = 98
#: and from here on the markers a column of their own; below, they stand under the event.
_WIDE = 132
_PROSE = 88


def page(report: Report, width: int) -> Group:
    """Everything there is to see, for a page of that width."""
    return Group(
        *_intro(report),
        _table(report, width),
        "",
        *_lesson(report),
        *_section("Work", _totals(report)),
        *_section(
            "Next",
            _fields(
                ("anaphora demo --json", "the same as data, with every figure"),
                ("anaphora --help", "what else there is"),
                ("python bench/render.py", "what a turn costs after 2,000 turns"),
            ),
        ),
    )


def _intro(report: Report) -> Iterator[RenderableType]:
    yield Text("A prompt that keeps its beginning", style="bold")
    yield _prose(
        f"An agent fixes a bug in {len(report.turns)} turns, and every turn sends the whole prompt."
        f" It is rendered for {report.wire.title()} ({report.model}); nothing leaves this machine."
    )
    yield _fields(
        ("markers", "cache breakpoints, and how long the provider keeps what ends there"),
        ("added", "bytes that the provider has to write into its cache"),
        ("reused", "bytes it can read instead: up to a breakpoint of an earlier turn"),
        ("share", "of the request that is reused"),
    )
    yield ""


def _table(report: Report, width: int) -> Table:
    wide, roomy = width >= _WIDE, width >= _ROOMY
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, int(roomy), 0, 0))
    table.add_column("#", justify="right")
    table.add_column("what happened" if wide else "what happened, and the markers")
    if wide:
        table.add_column("markers")
    for name in ("added", "reused", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fingerprint", no_wrap=True)
    table.add_column("prefix" if roomy else "", no_wrap=True)
    for turn in report.turns:
        event, markers = Text(turn.event), Text(_markers(turn.markers), style="dim")
        table.add_row(
            str(turn.turn),
            *([event, markers] if wide else [Text("\n").join([event, markers])]),
            f"{turn.added_bytes:,}",
            f"{turn.reused_bytes:,}",
            f"{turn.share:.0%}",
            Text(turn.fingerprint[:12], style="cyan"),
            _verdict(turn, words=roomy),
            style="bold" if turn.broken else "",
        )
    return table


def _markers(markers: tuple[Marker, ...]) -> str:
    """`identity 1h · knowledge 5m · m7, m9 5m`: messages that live equally long share the TTL."""
    groups = groupby(markers, key=lambda m: (m.path.startswith("messages") or m.on, m.ttl))
    return " · ".join(f"{', '.join(m.on for m in group)} {ttl}" for (_, ttl), group in groups)


def _verdict(turn: Turn, *, words: bool) -> Text:
    if turn.broken:
        verdict, style = "✗ broken", "red"
    elif turn.extends is None:
        verdict, style = "· first", "dim"
    elif turn.extends == turn.turn - 1:
        verdict, style = "✓ kept", "green"
    else:
        verdict, style = f"✓ kept from {turn.extends}", "green"
    return Text(verdict if words else verdict[0], style=style)


def _lesson(report: Report) -> Iterator[RenderableType]:
    """The turn that broke the prefix, what broke it, and how the next one got it back."""
    for turn in report.turns:
        for notice in turn.notices:
            yield _prose(f"Turn {turn.turn}: {notice}")
        if turn.broken:
            title = f"Turn {turn.turn} broke the prefix"
            yield from _section(title, _named(turn, turn.broken, report), style="red")
        elif turn.extends is not None and turn.extends < turn.turn - 1:
            title = f"Turn {turn.turn} has the clock in the tail"
            yield from _section(title, _recovered(turn), style="green")


def _named(turn: Turn, broken: Break, report: Report) -> Table:
    writes = sorted(report.write_prices.values())
    left = "and can still be read up to the last breakpoint among them."
    if not turn.reused_bytes:
        left = "but no breakpoint ends among them, so they cannot be read either."
    return _fields(
        ("where", f"byte {broken.offset:,} of the prompt, block {broken.label}, {broken.path}"),
        (f"turn {broken.since_turn}", f"…{broken.before}…"),
        (f"turn {turn.turn}", f"…{broken.after}…"),
        (
            "cost",
            f"{broken.rewritten_bytes:,} bytes, about {broken.rewritten_tokens:,} tokens"
            f" (±{broken.tokens_error:.0%}), are written again at {writes[0]:g} to"
            f" {writes[-1]:g} times the input price; reading them costs {report.read_price:g}.",
        ),
        ("", f"The {broken.offset:,} bytes before it are the same, {left}"),
    )


def _recovered(turn: Turn) -> Table:
    return _fields(
        (
            f"turn {turn.turn}",
            f"The system prompt is what it was: turn {turn.turn} extends turn {turn.extends} and"
            f" reuses its {turn.reused_bytes:,} bytes, if the provider still holds them.",
        ),
        (
            "tail",
            f"{turn.volatile_bytes:,} bytes behind the last breakpoint, with a clock that moves at"
            " every turn. It breaks nothing: nothing comes after it.",
        ),
    )


def _totals(report: Report) -> Table:
    times = report.body_bytes / report.serialised_bytes
    return _fields(
        ("serialised by Anaphora", f"{report.serialised_bytes:>8,} bytes"),
        ("every request anew", f"{report.body_bytes:>8,} bytes, {times:.1f} times as much"),
    )


def _section(title: str, body: Table, style: str = "") -> Iterator[RenderableType]:
    yield Text(title, style=f"bold {style}")
    yield body
    yield ""


def _prose(text: str) -> Table:
    grid = Table.grid()
    grid.add_column(max_width=_PROSE)
    grid.add_row(text)
    return grid


def _fields(*rows: tuple[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(max_width=_PROSE - 12)
    for name, text in rows:
        grid.add_row(f"  {name}", text)
    return grid
