"""The chart of `anaphora simulate --plot`, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple
from xml.sax.saxutils import escape

from anaphora import catalog
from anaphora.wording import counted

from .simulate_output import CallRow, SimulationReport

WIDTH, HEIGHT = 960, 560
_LEFT, _RIGHT = 78, 936
#: The top and the bottom of the bars, and of the lines below them.
_BARS = (70, 300)
_LINES = (356, 510)

#: With more turns than this, several share a bar.
_MOST_BARS = 240

_STYLE = """
svg { font: 13px system-ui, sans-serif; --ink: #1b1f24; --faint: #8a929c; --line: #d8dde3;
  --paper: #ffffff; --read: #2f81b7; --written: #e08a1e; --fresh: #b9c2cc; --uncached: #c03a3a; }
@media (prefers-color-scheme: dark) { svg { --ink: #e6eaef; --faint: #9aa4af; --line: #39424d;
  --paper: #12161b; --read: #58a9dd; --written: #f0a94a; --fresh: #55606c; --uncached: #ef7b7b; } }
.paper { fill: var(--paper); } text { fill: var(--ink); } .faint { fill: var(--faint); }
.title { font-size: 17px; font-weight: 600; } .grid { stroke: var(--line); }
.read { fill: var(--read); } .written { fill: var(--written); } .fresh { fill: var(--fresh); }
.bill, .full { fill: none; stroke-width: 2; } .bill { stroke: var(--read); }
.full { stroke: var(--uncached); stroke-dasharray: 5 4; }
"""


class PlottedTurn(NamedTuple):
    read: float
    written: float
    fresh: float
    bill: float
    full: float


def draw(report: SimulationReport) -> str:
    rows = report.rows
    in_usd = all(
        row.without_cache is not None and (row.billed or row.predicted).cost_usd is not None
        for row in rows
    )
    turns = [_turn(row, in_usd) for row in rows]
    share = max(1, math.ceil(len(turns) / _MOST_BARS))
    bars = [turns[start : start + share] for start in range(0, len(turns), share)]
    count = len(report.conversations)
    name = report.conversations[0].conversation if count == 1 else f"{count} conversations"
    where = report.elsewhere or f"{report.total.provider} {report.total.model}"
    title = escape(f"{name}, {counted(len(rows), 'call')}: {where}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="title" x="{_LEFT}" y="28">{title}</text>',
            *_legend(),
            *_bars(bars, share),
            *_costs(bars, in_usd),
            *_turns_axis(len(rows)),
            "</svg>",
            "",
        ]
    )


def _turn(row: CallRow, in_usd: bool) -> PlottedTurn:
    """The bill, or the prediction if there is none. If the price is unknown, costs are input tokens
    at full price."""
    cost = row.billed or row.predicted
    paid, full = float(cost.cost_usd or 0), float(row.without_cache or 0)
    if not in_usd:
        rules = catalog.rules(row.provider, row.model)
        write = max((figure.value for figure in rules.write_price.values()), default=1.0)
        paid = cost.read * rules.read_price.value + cost.written * write + cost.uncached
        full = float(cost.input)
    return PlottedTurn(cost.read, cost.written, cost.uncached, paid, full)


def _bars(bars: list[list[PlottedTurn]], share: int) -> Iterator[str]:
    """Means of the turns that share a bar."""
    means = [
        [sum(turn[kind] for turn in turns) / len(turns) for kind in range(3)] for turns in bars
    ]
    top, bottom = _BARS
    high = _ceiling(max(map(sum, means), default=0.0))
    unit = "tokens by turn" if share == 1 else f"tokens by turn, {share} turns a bar"
    yield from _axis(top, bottom, high, unit)
    step = (_RIGHT - _LEFT) / max(1, len(bars))
    for index, mean in enumerate(means):
        base = float(bottom)
        for kind, tokens in zip(("read", "written", "fresh"), mean, strict=True):
            size = tokens / high * (bottom - top)
            base -= size
            if size > 0:
                yield (
                    f'<rect class="{kind}" x="{_LEFT + index * step:.2f}" y="{base:.2f}"'
                    f' width="{max(0.5, step * 0.86):.2f}" height="{size:.2f}"/>'
                )


def _costs(bars: list[list[PlottedTurn]], in_usd: bool) -> Iterator[str]:
    bill = list(accumulate((sum(turn.bill for turn in turns) for turns in bars), initial=0.0))
    full = list(accumulate((sum(turn.full for turn in turns) for turns in bars), initial=0.0))
    top, bottom = _LINES
    high = _ceiling(max(*bill, *full))
    unit = "dollars so far" if in_usd else "input tokens at full price so far"
    yield from _axis(top, bottom, high, unit)
    step = (_RIGHT - _LEFT) / max(1, len(bars))
    for kind, values in (("full", full), ("bill", bill)):
        points = " ".join(
            f"{_LEFT + index * step:.2f},{bottom - value / high * (bottom - top):.2f}"
            for index, value in enumerate(values)
        )
        yield f'<polyline class="{kind}" points="{points}"/>'


def _axis(top: int, bottom: int, high: float, unit: str) -> Iterator[str]:
    yield f'<text class="faint" x="{_LEFT}" y="{top - 10}">{unit}</text>'
    for part in range(5):
        y = bottom - part / 4 * (bottom - top)
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_number(high * part / 4)}</text>"
        )


def _turns_axis(count: int) -> Iterator[str]:
    bottom = _LINES[1]
    for part, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        x = _LEFT + part / 4 * (_RIGHT - _LEFT)
        yield (
            f'<text class="faint" x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">'
            f"{round(count * part / 4):,}</text>"
        )
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text class="faint" x="{middle}" y="{bottom + 40}" text-anchor="middle">turn</text>'


def _legend() -> Iterator[str]:
    x = float(_LEFT)
    for kind in ("read", "written", "fresh"):
        yield f'<rect class="{kind}" x="{x}" y="38" width="11" height="11"/>'
        yield f'<text x="{x + 16}" y="48">{kind}</text>'
        x += 36 + 7.5 * len(kind)
    for kind, label in (("bill", "the bill"), ("full", "the bill without a cache")):
        yield f'<line class="{kind}" x1="{x}" x2="{x + 22}" y1="44" y2="44"/>'
        yield f'<text x="{x + 28}" y="48">{label}</text>'
        x += 46 + 7.5 * len(label)


def _ceiling(most: float) -> float:
    if most <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * step for step in (1, 2, 2.5, 4, 5, 8, 10) if unit * step >= most * 0.9999)


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"
