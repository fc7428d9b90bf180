"""The report of cachebench as one HTML page, and the picture of one conversation, from the results.

Charts and colours are those of the dashboard.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Sequence

import htpy
from figure_tables import (
    Json,
    Results,
    ahead,
    dollars,
    gateways_does,
    machine,
    measured,
    percent,
    unanswered,
)
from figure_tables import versions as version_line
from markupsafe import Markup, escape

from anaphora.dashboard.figures import count
from anaphora.dashboard.layout import static_content
from anaphora.dashboard.plot import (
    HEIGHT,
    Column,
    Scale,
    Series,
    axis_labels,
    bar,
    chart,
    rect,
    scale_of,
)
from anaphora.dashboard.report import report_file
from anaphora.dashboard.tables import card
from anaphora.wording import compact

_TURN_KINDS = (
    ("read", "Read from cache"),
    ("written", "Written to cache"),
    ("fresh", "Fresh input"),
)
_SERIES = [Series(key, title) for key, title in _TURN_KINDS]


# ── The page ─────────────────────────────────────────────────────────────────────────────────────


def report(found: Json) -> str:
    results = Results(found)
    made = calendar.timegm(time.strptime(found["date"], "%Y-%m-%d"))
    sections: list[tuple[str, htpy.Node]] = [
        ("Measured on", card("Machine and versions", htpy.p[machine(results)],
                             htpy.p(".dim")[version_line(results)])),
        ("One conversation", _conversation(results)),
        ("Bills by provider", _peers(results)),
        ("Gateways", _gateways(results)),
        ("A real engine", _engine(results)),
        ("Anaphora itself", _ourselves(results)),
        ("Where another is ahead", card("Computed from the results", _list(ahead(results)))),
    ]  # fmt: skip
    return report_file("cachebench", sections, made).decode()


def _list(lines: str) -> htpy.Element:
    return htpy.ul[[htpy.li[_code(line.removeprefix("- "))] for line in lines.split("\n")]]


def _code(text: str) -> Markup:
    """Text whose code is between backticks, as in Markdown."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[htpy.Node]], *, text: bool = False
) -> htpy.Element:
    """The first column names the row, others are numbers, or text."""
    number = None if text else "number"
    return htpy.div(".scroll", tabindex=0, role="region", aria_label=title)[
        htpy.table(class_="stacked" if text else "numbers")[
            htpy.thead[
                htpy.tr[[htpy.th(scope="col", class_=number if at else None)[head]
                         for at, head in enumerate(heads)]]
            ],
            htpy.tbody[
                [
                    htpy.tr[
                        htpy.th(scope="row")[row[0]],
                        [htpy.td(class_=number, data_label=head)[cell]
                         for head, cell in zip(heads[1:], row[1:], strict=True)],
                    ]
                    for row in rows
                ]
            ],
        ]
    ]  # fmt: skip


def _bar(key: str, value: float, most: float, text: str) -> htpy.Node:
    """A number with a bar below it."""
    return [text, htpy.div[bar([(key, value)], whole=most)]]


def _conversation(results: Results) -> htpy.Node:
    part = results.part("picture")
    if part is None:
        return card("One conversation", htpy.p[results.why("picture")])
    scale = _turn_scale(part)
    names = {"usual": "As usual", "ours": "With Anaphora"}
    drawn = [
        chart(
            name,
            _about(part, key),
            _SERIES,
            _turn_columns(part[key]),
            scale=scale,
            written=compact,
            headings=["Turn", *(title for _, title in _TURN_KINDS)],
            axis=_turn_axis(len(part[key])),
        )
        for key, name in names.items()
    ]
    return htpy.div(".grid.charts")[drawn]


def _about(part: Json, key: str) -> str:
    return (
        f"{dollars(part['dollars'][key])}, {percent(part['read_share'][key])} read from the cache"
    )


def _turn_columns(turns: Sequence[Sequence[int]]) -> list[Column]:
    return [
        Column(
            label=str(number),
            title=f"Turn {number}: {read:,} read, {written:,} written, {fresh:,} fresh",
            above=[("read", read), ("written", written), ("fresh", fresh)],
            cells=[count(read), count(written), count(fresh)],
        )
        for number, (read, written, fresh) in enumerate(turns, 1)
    ]


def _turn_axis(turns: int) -> htpy.Node:
    return axis_labels([lambda number=number: str(number) for number in range(1, turns + 1)])


def _turn_scale(part: Json) -> Scale:
    return scale_of([*_turn_columns(part["usual"]), *_turn_columns(part["ours"])])


def _peers(results: Results) -> htpy.Node:
    peers = results.part("peers")
    if peers is None:
        return card("Bills by provider", htpy.p[results.why("peers")])
    by, cards = measured(peers), []
    for key, provider in peers["providers"].items():
        rows = {peer: by[peer, key] for peer in peers["peers"] if (peer, key) in by}
        if not rows:
            continue
        most = max(each[lay]["dollars"] for each in rows.values() for lay in ("stable", "careless"))
        shown = [
            [
                _code(peers["peers"][peer]["title"] + unanswered(each)),
                _bar("spent", each["stable"]["dollars"], most, dollars(each["stable"]["dollars"])),
                percent(each["stable"]["read_share"]),
                _bar(
                    "lost", each["careless"]["dollars"], most, dollars(each["careless"]["dollars"])
                ),
                percent(each["careless"]["read_share"]),
            ]
            for peer, each in rows.items()
        ]
        heads = ["", "Stable layout", "Read", "Careless layout", "Read"]
        cards.append(card(f"{provider['title']}, {provider['model']}",
                          _table(provider["title"], heads, shown)))  # fmt: skip
    return htpy.div(".grid.wide")[cards]


def _gateways(results: Results) -> htpy.Node:
    part = results.part("gateways")
    if part is None:
        return card("Gateways", htpy.p[results.why("gateways")])
    cards = []
    gateways = part["gateways"].values()
    for size in ("1", "40"):
        loads = [each["sizes"][size] for each in gateways]
        most = [max(load[at]["per_core"] for load in loads) for at in ("8", "64")]
        rows = []
        for each in gateways:
            load = each["sizes"][size]
            first = load["first_byte_ms"]
            cells = [
                _bar("calls", load[at]["per_core"], most[index], f"{load[at]['per_core']:,.0f}")
                for index, at in enumerate(("8", "64"))
            ]
            added = "–" if first is None else f"{first:.1f} ms"
            rows.append([_code(each["title"]), *cells, added, f"{each['memory_mb']:.0f} MB"])
        heads = [
            "Requests a second a core",
            "8 connections",
            "64 connections",
            "First byte",
            "Memory",
        ]
        title = f"Requests of {size} KB"
        cards.append(card(title, _table(title, heads, rows)))
    does = [[_code(cell.strip()) for cell in line.strip("| ").split(" | ")]
            for line in gateways_does(results).split("\n")[2:]]  # fmt: skip
    heads = ["", "Auth", "Limits", "Cache", "Audit"]
    cards.append(
        card("What each does in that time", _table("What each does", heads, does, text=True))
    )
    if part["skipped_gateways"]:
        lines = "\n".join(f"- Without {t}: {why}." for t, why in part["skipped_gateways"].items())
        cards.append(card("Not measured", _list(lines)))
    return cards


def _engine(results: Results) -> htpy.Node:
    part = results.part("engine")
    if part is None:
        return card("A real engine", htpy.p[results.why("engine")])
    names = {"careless": "Careless layout", "ours": "With Anaphora"}
    columns = {name: _engine_columns(part["layouts"][name]) for name in names}
    scale = scale_of([each for every in columns.values() for each in every])
    waiting = {
        name: [
            Column(label=str(at), title=f"Turn {at}: {ms:,.0f} ms", above=[("spent", ms)],
                   cells=[f"{ms:,.0f} ms"])
            for at, ms in enumerate(part["layouts"][name]["first_token_ms"], 1)
        ]
        for name in names
    }  # fmt: skip
    wait_scale = scale_of([each for every in waiting.values() for each in every])
    drawn = [
        chart(
            f"{title}: tokens of each prompt",
            f"{part['layouts'][name]['prefilled_total']:,} computed",
            [Series("read", "Read from cache"), Series("fresh", "Computed (prefilled)")],
            columns[name],
            scale=scale,
            written=compact,
            headings=["Turn", "Read", "Computed"],
            axis=_turn_axis(len(columns[name])),
        )
        for name, title in names.items()
    ]
    drawn += [
        chart(
            f"{title}: time to first token",
            f"{part['layouts'][name]['first_token_median_ms']:,.0f} ms after turn 1",
            [Series("spent", "Milliseconds")],
            waiting[name],
            scale=wait_scale,
            written=compact,
            headings=["Turn", "First token"],
            axis=_turn_axis(len(waiting[name])),
        )
        for name, title in names.items()
    ]
    return htpy.div(".grid.charts")[drawn]


def _engine_columns(layout: Json) -> list[Column]:
    pairs = zip(layout["tokens"], layout["prefilled"], strict=True)
    return [
        Column(
            label=str(at),
            title=f"Turn {at}: {total - computed:,} read, {computed:,} computed",
            above=[("read", total - computed), ("fresh", computed)],
            cells=[count(total - computed), count(computed)],
        )
        for at, (total, computed) in enumerate(pairs, 1)
    ]


def _ourselves(results: Results) -> htpy.Node:
    part = results.part("ourselves")
    if part is None:
        return card("Anaphora itself", htpy.p[results.why("ourselves")])
    cards = []
    for wire, callers in part["calls"].items():
        most = max(each["us"] for each in callers.values())
        rows = [
            [who, _bar("calls", each["us"], most, f"{each['us']:,} µs"), f"{each['vs_raw']:.2f}"]
            for who, each in callers.items()
        ]
        title = f"CPU of a call of 40 KB, {wire}"
        cards.append(card(title, _table(title, ["", "CPU", "Times a raw POST"], rows)))
    streams = {name: each for name, each in part["streams"].items() if name != "events"}
    rows = [
        [
            f"{name} SDK",
            f"{each['ours_ms']:.1f} ms",
            _bar(
                "calls",
                each["sdk_ms"],
                max(e["sdk_ms"] for e in streams.values()),
                f"{each['sdk_ms']:.1f} ms",
            ),
            f"{each['times']:.1f}",
        ]
        for name, each in streams.items()
    ]
    title = f"CPU of a stream of {part['streams']['events']:,} events"
    cards.append(card(title, _table(title, ["", "Anaphora", "SDK", "Times"], rows)))
    render = part["render"]
    rows = [
        [
            f"turn {int(turn):,}, {each['kilobytes']:,} KB",
            f"{each['turn_us']:,} µs",
            _bar(
                "calls",
                each["dumps_us"],
                max(e["dumps_us"] for e in render.values()),
                f"{each['dumps_us']:,} µs",
            ),
        ]
        for turn, each in render.items()
    ]
    title = "A turn by the size of the conversation"
    cards.append(card(title, _table(title, ["", "Anaphora's turn", "json.dumps of it"], rows)))
    return htpy.div(".grid.wide")[cards]  # fmt: skip


# ── The picture ──────────────────────────────────────────────────────────────────────────────────

_WIDTH, _TOP, _LEFT, _GAP, _PLOT = 880, 64, 46, 38, 386
_TALL = _TOP + HEIGHT + 56


def pictures(found: Json) -> dict[str, str]:
    """One conversation's tokens by turn, by theme; empty if it was not measured."""
    part = Results(found).part("picture")
    if part is None:
        return {}
    return {theme: _picture(part, colors) for theme, colors in _themes().items()}


def _themes() -> dict[str, dict[str, str]]:
    """The colours of the dashboard's style, light and dark."""
    style = static_content("dashboard.css").decode()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    return {
        theme: dict(re.findall(r"--([\w-]+): (#\w+);", text))
        for theme, text in (("light", light), ("dark", dark))
    }


def _picture(part: Json, colors: dict[str, str]) -> str:
    scale = _turn_scale(part)
    title = (
        f"Tokens of {part['turns']} turns: as usual {_about(part, 'usual')},"
        f" with Anaphora {_about(part, 'ours')}"
    )
    font = "font:13px system-ui,-apple-system,'Segoe UI',sans-serif"
    style = f"text{{{font};fill:{colors['ink']}}}.dim{{fill:{colors['dim']}}}"
    style += ".strong{font-size:16px;font-weight:600}"
    style += "".join(f".{key}{{fill:{colors[key]}}}" for key, _ in _TURN_KINDS)
    style += f".grid{{fill:{colors['line']}}}.zero{{fill:{colors['fresh']}}}"
    second = _LEFT + _PLOT + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_TALL}"'
            f' width="{_WIDTH}" height="{_TALL}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            *_axis(scale),
            *_panel(part, "usual", "As usual", _LEFT, scale),
            *_panel(part, "ours", "With Anaphora", second, scale),
            *_legend(),
            "</svg>",
            "",
        ]
    )


def _axis(scale: Scale) -> Iterator[str]:
    for value in scale.lines:
        y = _TOP + scale.pixel(value) + 4
        place = f'x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end"'
        yield f'<text class="dim" {place}>{compact(value)}</text>'


def _panel(part: Json, key: str, name: str, left: int, scale: Scale) -> Iterator[str]:
    turns = part[key]
    yield f'<text class="strong" x="{left}" y="22">{name}</text>'
    yield f'<text class="dim" x="{left}" y="44">{escape(_about(part, key))}</text>'
    # Positions within are in percent of it.
    yield f'<svg x="{left}" y="{_TOP}" width="{_PLOT}" height="{HEIGHT}">'
    for value in scale.lines:
        yield rect("grid" if value else "zero", 0, 100, scale.pixel(value) - 0.5, 1)
    place = 100 / len(turns)
    for at, turn in enumerate(turns):
        reached = 0
        for (kind, _), tokens in zip(_TURN_KINDS, turn, strict=True):
            if tokens:
                top = scale.pixel(reached + tokens)
                tall = max(scale.pixel(reached) - top, 1)
                yield rect(kind, (at + 0.11) * place, 0.78 * place, top, tall)
            reached += tokens
    yield "</svg>"
    y = _TOP + HEIGHT + 14
    for number in (1, len(turns)):
        x = left + (number - 0.5) * _PLOT / len(turns)
        yield f'<text class="dim" x="{x:.1f}" y="{y}" text-anchor="middle">{number}</text>'
    yield f'<text class="dim" x="{left + _PLOT / 2}" y="{y}" text-anchor="middle">turn</text>'


def _legend() -> Iterator[str]:
    x, y = float(_LEFT), _TALL - 12
    for key, title in _TURN_KINDS:
        yield f'<rect class="{key}" x="{x}" y="{y - 10}" width="11" height="11"/>'
        yield f'<text x="{x + 17}" y="{y}">{title}</text>'
        x += 40 + 7.2 * len(title)
    place = f'x="{_WIDTH - 24}" y="{y}" text-anchor="end"'
    yield f'<text class="dim" {place}>tokens of each request</text>'
