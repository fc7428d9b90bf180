"""Draws a chart: columns, axes, a legend, and the same numbers as a table.

Horizontal positions are percentages and vertical positions are pixels, so that a chart fills any
width without stretching its text. Colours come from classes. Negative, NaN and oversized values are
clamped here. Shapes are formatted as strings, not as elements: a page has thousands of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import TypeAlias

import htpy
import msgspec
from markupsafe import Markup, escape

#: The height of a plot in pixels, the same as in `dashboard.css`, and the space above the highest
#: value, for signs.
HEIGHT, _ABOVE = 180, 18
#: Space below the lowest value, so that its label is not cut.
_BELOW = 8
#: The share of a column's width that its bar takes, and the widest bar in percent of the plot.
_FILLED, _WIDEST = 0.78, 7.0
_LARGEST = 1e24
#: Number of labels below many columns, and up to how many columns each has its own.
_LABELS, _MOST_LABELS = 5, 12

#: Signs above bars, for readers who do not see colours.
_SIGNS = MappingProxyType({"broke": "▼", "no_answer": "×"})

Parts: TypeAlias = Sequence[tuple[str, float]]
"""Values that are stacked, each with the class of its series."""


class Series(msgspec.Struct, frozen=True):
    """One colour of a chart: the class that colours it, and its name in the legend."""

    key: str
    title: str


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One place of a chart."""

    label: str
    """In the table; a time is `Markup`."""
    title: str
    """Shown on hover."""
    above: Parts = ()
    """From zero upwards."""
    below: Parts = ()
    """From zero downwards, as positive values."""
    beside: Parts = ()
    """A narrow bar in front of the main one, for what was predicted."""
    ticks: Sequence[float] = ()
    """Values at which a line crosses the bar."""
    mark: str = ""
    """A key of the signs above bars: `broke`, `no_answer`."""
    cells: Sequence[str] = ()
    """Cells of the table, after the label."""


class Scale(msgspec.Struct, frozen=True):
    """The highest and the lowest value of an axis, the lowest as a positive number."""

    high: float
    low: float = 0.0

    def pixel(self, value: float) -> float:
        """Height of a value; negative for values below zero."""
        inside = min(max(value, -self.low), self.high)
        space = HEIGHT - _ABOVE - _BELOW
        return _ABOVE + space * (self.high - inside) / ((self.high + self.low) or 1)

    @property
    def lines(self) -> list[float]:
        """Values that get a line and a label."""
        if self.low and self.high:
            # Keep lines apart if one side is much smaller than the other.
            small = min(self.high, self.low) < max(self.high, self.low) / 6
            return [self.high, 0.0] if small and self.high > self.low else [self.high, 0, -self.low]
        return [self.high, self.high / 2, 0.0] if self.high else [0.0, -self.low / 2, -self.low]


def drawable(value: float) -> float:
    """A value that a bar can show: not negative, and finite."""
    return 0.0 if value != value else float(min(max(value, 0), _LARGEST))


def scale_of(columns: Iterable[Column], *, least: float = 0) -> Scale:
    """The scale from the highest to the lowest value, rounded. It reaches at least to `least`, so
    that labels fit if all values are zero or very small."""
    high = low = 0.0
    for column in columns:
        high = max(high, _sum(column.above), _sum(column.beside))
        low = max(low, _sum(column.below))
    if not high and not low:
        return Scale(least or 1.0)
    if not high:
        return Scale(0.0, _rounded(max(low, least)))
    return Scale(_rounded(max(high, least)), _rounded(low))


def chart(
    title: str,
    about: str,
    series: Sequence[Series],
    columns: Sequence[Column],
    *,
    scale: Scale,
    written: Callable[[float], str],
    headings: Sequence[str],
    axis: htpy.Node,
    stepped: bool = False,
) -> htpy.Element:
    """The figure. `written` formats values at the lines, `about` summarizes the chart in one line;
    `stepped` draws levels instead of bars."""
    plot = htpy.svg(".plot", role="img", width="100%", height=HEIGHT)[
        htpy.title[f"{title}: {about}"],
        htpy.desc["The numbers are in the table below the chart."],
        [
            rect("grid" if value else "zero", 0, 100, scale.pixel(value) - 0.5, 1)
            for value in scale.lines
        ],
        _joined(
            _drawn(column, at, len(columns), scale, stepped) for at, column in enumerate(columns)
        ),
    ]
    return htpy.figure(".chart")[
        htpy.figcaption[
            htpy.span(".chart-title")[title],
            htpy.span(".chart-about", data_about=about)[about],
        ],
        htpy.div(".plot-area")[
            htpy.svg(".scale", aria_hidden="true", width=64, height=HEIGHT)[
                [
                    _text("label", written(value), "56", scale.pixel(value) + 4, "end")
                    for value in scale.lines
                ]
            ],
            plot,
            htpy.div(".axis", aria_hidden="true")[axis],
        ],
        htpy.ul(".legend")[[htpy.li[swatch(one.key), one.title] for one in series]],
        _numbers(title, headings, columns),
    ]


def axis_labels(labels: Sequence[Callable[[], htpy.Node]]) -> list[htpy.Element]:
    """Labels below the plot: all of a few columns; of many columns the first, the last, and some
    between."""
    last = len(labels) - 1
    if last < _MOST_LABELS:
        return [htpy.span(".each")[label()] for label in labels]
    return [htpy.span[labels[last * at // (_LABELS - 1)]()] for at in range(_LABELS)]


def swatch(key: str) -> htpy.Element:
    """The colour of a series beside its name, or its sign."""
    sign = _SIGNS.get(key)
    shape = rect(key, 0, 100, 0, 12) if sign is None else _text("mark", sign, "50%", 10, "middle")
    return htpy.svg(".swatch", aria_hidden="true", width=12, height=12)[shape]


def bar(parts: Iterable[tuple[str, float]], *, whole: float = 0) -> htpy.Element:
    """A bar of one line, for table cells that also show the numbers as text."""
    sizes = [(key, drawable(value)) for key, value in parts]
    most = max(drawable(whole), sum(size for _, size in sizes)) or 1.0
    at, drawn = 0.0, [rect("track", 0, 100, 0, 8)]
    for key, size in sizes:
        if size:
            drawn.append(rect(key, at, 100 * size / most, 0, 8))
        at += 100 * size / most
    return htpy.svg(".bar", aria_hidden="true", width="100%", height=8)[drawn]


def rect(key: str, x: float, width: float, y: float, height: float) -> Markup:
    """A rectangle: x and width in percent, y and height in pixels."""
    return Markup(
        f'<rect class="{key}" x="{x:.3f}%" width="{width:.3f}%" y="{y:.2f}" height="{height:.2f}"/>'
    )


def _drawn(column: Column, at: int, among: int, scale: Scale, stepped: bool) -> Markup:
    place = 100 / among
    left, middle = at * place, (at + 0.5) * place
    shapes = [rect("hit", left, place, 0, HEIGHT), _title(column.title)]
    if stepped:
        for key, value in column.above:
            y = scale.pixel(drawable(value))
            shapes += [
                rect(f"{key} level", left, place, y, scale.pixel(0) - y),
                rect(key, left, place, y - 1, 2.5),
            ]
        return _group(shapes)
    width = min(place * _FILLED, _WIDEST)
    start = middle - width / 2
    if column.beside:
        narrow = width * 0.26
        shapes += _stacked(column.beside, start, narrow * 0.85, scale, 1)
        start, width = start + narrow, width - narrow
    shapes += _stacked(column.above, start, width, scale, 1)
    shapes += _stacked(column.below, start, width, scale, -1)
    for value in column.ticks:
        y = scale.pixel(drawable(value))
        shapes.append(rect("tick-halo", start - width * 0.1, width * 1.2, y - 2, 4))
        shapes.append(rect("tick", start - width * 0.1, width * 1.2, y - 1, 2))
    if column.mark:
        y = scale.pixel(_sum(column.above)) - 5
        sign = _SIGNS[column.mark]
        shapes.append(_text("mark", sign, f"{start + width / 2:.3f}%", y, "middle"))
    return _group(shapes)


def _stacked(parts: Parts, x: float, width: float, scale: Scale, sign: int) -> list[Markup]:
    drawn, reached = list[Markup](), 0.0
    for key, value in parts:
        size = drawable(value)
        if not size:
            continue
        near, far = scale.pixel(sign * reached), scale.pixel(sign * (reached + size))
        # A value above zero is at least one pixel high.
        drawn.append(rect(key, x, width, min(near, far), max(abs(near - far), 1)))
        reached += size
    return drawn


def _numbers(title: str, headings: Sequence[str], columns: Sequence[Column]) -> htpy.Element:
    head = [
        htpy.th(scope="col", class_=None if at == 0 else "number")[heading]
        for at, heading in enumerate(headings)
    ]
    return htpy.details(".numbers", data_key=f"numbers of {title}")[
        htpy.summary["Show the numbers"],
        htpy.div(".scroll", tabindex=0, role="region", aria_label=f"{title}: the numbers")[
            htpy.table[
                htpy.caption(".hidden")[f"{title}: the numbers"],
                htpy.thead[htpy.tr[head]],
                htpy.tbody[_joined(_row(column) for column in columns)],
            ]
        ],
    ]


def _row(column: Column) -> Markup:
    cells = "".join(f'<td class="number">{escape(cell)}</td>' for cell in column.cells)
    return Markup(f'<tr><th scope="row">{escape(column.label)}</th>{cells}</tr>')


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def _group(shapes: Iterable[Markup]) -> Markup:
    return Markup(f'<g class="col">{"".join(shapes)}</g>')


def _title(text: str) -> Markup:
    return Markup(f"<title>{escape(text)}</title>")


def _text(key: str, text: str, x: str, y: float, anchor: str) -> Markup:
    start = f'<text class="{key}" text-anchor="{anchor}" x="{x}" y="{y:.2f}">'
    return Markup(f"{start}{escape(text)}</text>")


def _sum(parts: Parts) -> float:
    return min(sum(drawable(value) for _, value in parts), _LARGEST)


def _rounded(value: float) -> float:
    """The next value with one significant digit; small ones are even, so that half of it is round
    as well."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    digits = (1, 2, 3, 4, 5, 6, 8, 10) if value > 10 else (1, 2, 4, 6, 8, 10)
    return next((each * power for each in digits if each * power >= value * 0.999999), 10 * power)
