"""The chart of `anaphora simulate --plot`: tokens read, written and uncached in each turn, and the
cost so far with and without a cache, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from anaphora import catalog

from .simulate_report import CallRow, SimulationReport, TokenCost

WIDTH, HEIGHT = 960, 560
_LEFT, _RIGHT = 78, 24
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

    @property
    def tokens(self) -> float:
        return self.read + self.written + self.fresh


def draw(report: SimulationReport) -> str:
    """The SVG."""
    in_usd = all(
        row.without_cache is not None and _shown(row).cost_usd is not None for row in report.rows
    )
    turns = _binned([_turn(row, in_usd) for row in report.rows])
    share = math.ceil(len(report.rows) / max(1, len(turns)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(_title(report))}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            f'<text class="title" x="{_LEFT}" y="28">{escape(_title(report))}</text>',
            *_legend(),
            *_bars(turns, share),
            *_costs(turns, in_usd),
            *_turns_axis(len(report.rows)),
            "</svg>",
            "",
        ]
    )


def _title(report: SimulationReport) -> str:
    count = len(report.conversations)
    where = report.elsewhere or f"{report.total.provider} {report.total.model}"
    name = report.conversations[0].conversation if count == 1 else f"{count} conversations"
    return f"{name}, {len(report.rows):,} calls: {where}"


def _shown(row: CallRow) -> TokenCost:
    """The bill, or the prediction where there is none."""
    return row.predicted if row.billed is None else row.billed


def _turn(row: CallRow, in_usd: bool) -> PlottedTurn:
    cost = _shown(row)
    if in_usd:
        paid, full = float(cost.cost_usd or 0), float(row.without_cache or 0)
    else:
        paid, full = _weighted(row, cost), float(cost.input)
    return PlottedTurn(cost.read, cost.written, cost.uncached, paid, full)


def _weighted(row: CallRow, cost: TokenCost) -> float:
    """The input in tokens at full price, where the price is unknown."""
    rules = catalog.rules(row.provider, row.model)
    write = max((figure.value for figure in rules.write_price.values()), default=1.0)
    return cost.read * rules.read_price.value + cost.written * write + cost.uncached


def _binned(turns: list[PlottedTurn]) -> list[PlottedTurn]:
    """At most `_MOST_BARS`: tokens are means of the turns that share a bar, costs are sums."""
    size = math.ceil(len(turns) / _MOST_BARS)
    if size <= 1:
        return turns
    bins = [turns[start : start + size] for start in range(0, len(turns), size)]
    return [
        PlottedTurn(
            *(sum(turn[field] for turn in some) / len(some) for field in range(3)),
            *(sum(turn[field] for turn in some) for field in (3, 4)),
        )
        for some in bins
    ]


def _bars(turns: Sequence[PlottedTurn], share: int) -> Iterator[str]:
    top, bottom = _BARS
    most = max((turn.tokens for turn in turns), default=0.0)
    unit = "tokens by turn" if share == 1 else f"tokens by turn, {share} turns a bar"
    yield from _axis(top, bottom, most, unit)
    high = _ceiling(most)
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(turns))
    for index, turn in enumerate(turns):
        base = float(bottom)
        for kind, tokens in zip(("read", "written", "fresh"), turn[:3], strict=True):
            size = tokens / high * (bottom - top)
            if size <= 0:
                continue
            base -= size
            left, width = _LEFT + index * step, max(0.5, step * 0.86)
            yield (
                f'<rect class="{kind}" x="{left:.2f}" y="{base:.2f}"'
                f' width="{width:.2f}" height="{size:.2f}"/>'
            )


def _costs(turns: Sequence[PlottedTurn], in_usd: bool) -> Iterator[str]:
    top, bottom = _LINES
    bill, full = _summed(turns, 3), _summed(turns, 4)
    most = max([*bill, *full])
    unit = "dollars so far" if in_usd else "input tokens at full price so far"
    yield from _axis(top, bottom, most, unit)
    high = _ceiling(most)
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(turns))
    for kind, values in (("full", full), ("bill", bill)):
        points = " ".join(
            f"{_LEFT + index * step:.2f},{bottom - value / high * (bottom - top):.2f}"
            for index, value in enumerate(values)
        )
        yield f'<polyline class="{kind}" points="{points}"/>'


def _summed(turns: Sequence[PlottedTurn], field: int) -> list[float]:
    values = [0.0]
    for turn in turns:
        values.append(values[-1] + turn[field])
    return values


def _axis(top: int, bottom: int, most: float, unit: str) -> Iterator[str]:
    yield f'<text class="faint" x="{_LEFT}" y="{top - 10}">{escape(unit)}</text>'
    high = _ceiling(most)
    for part in range(5):
        y = bottom - part / 4 * (bottom - top)
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="faint" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_number(high * part / 4)}</text>"
        )


def _turns_axis(count: int) -> Iterator[str]:
    bottom = _LINES[1]
    for part in range(5):
        x = _LEFT + part / 4 * (WIDTH - _LEFT - _RIGHT)
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        yield (
            f'<text class="faint" x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">'
            f"{round(count * part / 4):,}</text>"
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    yield f'<text class="faint" x="{middle}" y="{bottom + 40}" text-anchor="middle">turn</text>'


def _legend() -> Iterator[str]:
    x = float(_LEFT)
    for kind, label in (("read", "read"), ("written", "written"), ("fresh", "fresh")):
        yield f'<rect class="{kind}" x="{x}" y="38" width="11" height="11"/>'
        yield f'<text x="{x + 16}" y="48">{label}</text>'
        x += 36 + 7.5 * len(label)
    for kind, label in (("bill", "the bill"), ("full", "the bill without a cache")):
        yield f'<line class="{kind}" x1="{x}" x2="{x + 22}" y1="44" y2="44"/>'
        yield f'<text x="{x + 28}" y="48">{label}</text>'
        x += 46 + 7.5 * len(label)


def _ceiling(most: float) -> float:
    """The next round number."""
    if most <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * step for step in (1, 2, 2.5, 4, 5, 8, 10) if unit * step >= most * 0.9999)


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    if value >= 1000:
        return f"{value / 1000:g} k"
    return f"{value:g}"
