"""The parts of pages: cards, headline figures, tags, and tables of any rows, of sums by name, and
of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote, urlencode

import htpy
import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.cache.verdict.advice import cause_name
from anaphora.dashboard.past_calls.sums import CallTotals
from anaphora.wording import counted

from .figures import (
    NOTHING,
    call_cost,
    count,
    local_time,
    lost,
    lost_usd,
    name,
    percent,
    plain_name,
    reported,
    spent,
    unless_zero,
    usd,
)
from .plot import bar
from .site import Site
from .values import ShownCall, View
from .view import query_of

Tone: TypeAlias = Literal["", "good", "warn", "bad"]


class Stat(msgspec.Struct, frozen=True):
    """A headline figure."""

    title: str
    value: str
    detail: str = ""
    tone: Tone = ""


def stats(figures: Sequence[Stat]) -> htpy.Element:
    return htpy.dl(".stats")[
        [
            htpy.div(class_=["stat", each.tone])[
                htpy.dt[each.title],
                htpy.dd(".value")[each.value],
                each.detail and htpy.dd(".detail")[each.detail],
            ]
            for each in figures
        ]
    ]


def card(title: str, *content: htpy.Node, about: htpy.Node = None) -> htpy.Element:
    """A part of a page with a heading."""
    return htpy.section(".card")[htpy.h2[title], about and htpy.p(".about")[about], content]


def empty(title: str, *content: htpy.Node) -> htpy.Element:
    """Shown if there are no calls, with what to do next."""
    return htpy.div(".empty")[
        htpy.p(".empty-title")[title], [htpy.p[each] for each in content if each]
    ]


def tag(text: htpy.Node, tone: Tone = "") -> htpy.Element:
    return htpy.span(class_=["tag", tone])[text]


def facts(pairs: Iterable[tuple[str, htpy.Node]]) -> htpy.Element:
    """Names and values, one pair per line."""
    return htpy.dl(".facts")[[[htpy.dt[title], htpy.dd[value]] for title, value in pairs]]


def more(left_out: int, noun: str, plural: str = "") -> htpy.Node:
    """How many rows a table left out; for `plural` see `counted`."""
    text = counted(left_out, f"more {noun}", plural and f"more {plural}")
    return left_out > 0 and htpy.p(".dim")[f"and {text}"]


#: Rows of a table of sums.
_MOST_ROWS = 20
#: Columns that fit on a narrow screen.
_MOST_COLUMNS = 3
_RESULTS: Mapping[str, tuple[str, Tone]] = {
    "first": ("First call", ""),
    "hit": ("Hit", "good"),
    "partial": ("Partial hit", "warn"),
    "miss": ("Miss", "bad"),
    "not_cacheable": ("Not cached", ""),
    "unknown": ("Unknown", ""),
}


class Heading(msgspec.Struct, frozen=True):
    title: str
    number: bool = False
    """Numbers are right-aligned."""


def numbers(*titles: str) -> list[Heading]:
    return [Heading(title, number=True) for title in titles]


def table(
    caption: str,
    headings: Sequence[Heading],
    rows: Iterable[Sequence[htpy.Node]],
    *,
    ids: Sequence[str] = (),
) -> htpy.Element:
    """Rows under headings; the first cell of a row names it. A wide table scrolls within the page;
    on a narrow screen, each row of a table with more than three columns becomes a list. `ids` are
    those of the rows."""
    stacked = len(headings) > _MOST_COLUMNS
    # Without their role, elements laid out as a list are not a table to a screen reader.
    role = (lambda name: name) if stacked else (lambda _: None)
    # Built once per column: attributes take most of the time of an element.
    own = htpy.th(scope="row", role=role("rowheader"))
    columns = [
        htpy.td(
            role=role("cell"),
            class_="number" if heading.number else None,
            data_label=heading.title if stacked else None,
        )
        for heading in headings[1:]
    ]
    body = []
    for at, (first, *rest) in enumerate(rows):
        cells = [column[cell] for column, cell in zip(columns, rest, strict=True)]
        body.append(htpy.tr(id=ids[at] if ids else None, role=role("row"))[own[first], cells])
    head = [
        htpy.th(
            scope="col", role=role("columnheader"), class_="number" if heading.number else None
        )[heading.title]
        for heading in headings
    ]
    return htpy.div(".scroll", tabindex=0, role="region", aria_label=caption)[
        htpy.table(class_="stacked" if stacked else None, role=role("table"))[
            htpy.caption(".hidden")[caption],
            htpy.thead(role=role("rowgroup"))[htpy.tr(role=role("row"))[head]],
            htpy.tbody(role=role("rowgroup"))[body],
        ]
    ]


def sums_table(
    kind: str,
    groups: Mapping[str, CallTotals],
    site: Site | None = None,
    view: View | None = None,
    path: str = "",
) -> htpy.Node:
    """Sums by `app`, `provider` or `model`, the most expensive first; on a site, each name links to
    the view filtered by it."""

    def link(each: str) -> htpy.Node:
        if site is None or view is None:
            return name(each)
        return filter_link(each, site.url(path, query_of(view, **{kind: each})))

    ordered = sorted(groups.items(), key=lambda item: -item[1].cost_nano_usd)
    headings = [Heading(kind.capitalize()), *numbers("Calls", "Failed", "Input", "Read")]
    headings += numbers("Spent", "Saved", "Breaks", "Lost")
    rows = [
        [
            link(each),
            count(sums.calls),
            unless_zero(sums.failed),
            count(sums.input),
            share_cell(sums.read_share),
            spent(sums),
            usd(sums.saved_nano_usd),
            unless_zero(sums.breaks),
            lost_usd(sums) if sums.lost else NOTHING,
        ]
        for each, sums in ordered[:_MOST_ROWS]
    ]
    return [
        table(f"Calls by {kind}", headings, rows),
        more(len(ordered) - _MOST_ROWS, kind),
        unpriced_note(groups.values()),
    ]


def unpriced_note(sums: Iterable[CallTotals]) -> htpy.Node:
    """Explains the plus and the `unknown` of `figures.spent`."""
    unpriced = sum(each.unpriced for each in sums)
    sentence = f"The cost of {counted(unpriced, 'call')} is unknown, and in no amount (+)."
    return unpriced > 0 and htpy.p(".dim")[sentence]


def calls_table(
    caption: str, calls: Sequence[ShownCall], site: Site, *, apps: bool = True
) -> htpy.Element:
    """Calls with their reads, costs and verdicts."""
    headings = [Heading("Time"), *([Heading("App")] if apps else []), Heading("Model")]
    headings += [Heading("Input: read, written, fresh")]
    headings += [*numbers("Output", "Cost"), Heading("Result")]
    rows = []
    for shown in calls:
        call = shown.call
        row: list[htpy.Node] = [local_time(call.at, "second")]
        if apps:
            row.append(name(call.app))
        row += [
            [name(call.billed_model), htpy.div(".dim")[name(call.provider)]],
            usage_cell(call),
            reported(call.usage.output),
            call_cost(call),
            result_cell(shown, site),
        ]
        rows.append(row)
    return table(caption, headings, rows)


def filter_link(text: str, address: str) -> htpy.Element:
    return htpy.a(href=address, title="Show only these calls")[name(text)]


def conversation_url(site: Site, id: str, call: ShownCall | None = None) -> str:
    """The URL of a conversation, or of a call within it."""
    address = site.url(f"conversation/{quote(id, safe='')}")
    return address if call is None else f"{address}#{quote(anchor(call))}"


def app_url(site: Site, app: str, action: str = "", **query: str) -> str:
    """The URL of an app, or of an action on it."""
    path = f"apps/{quote(app, safe='')}" + (f"/{action}" if action else "")
    return site.url(path, urlencode(query))


def anchor(call: ShownCall) -> str:
    """The id of a call's row in the page of its conversation."""
    return f"call-{call.id}"


def share_cell(share: float | None) -> htpy.Node:
    """A share as a number and a bar."""
    if share is None:
        return NOTHING
    return htpy.div(".share")[htpy.span[percent(share)], bar([("read", share)], whole=1)]


def usage_cell(call: AuditEnvelope) -> htpy.Node:
    """The input of a call: a bar, and the numbers in the same order."""
    usage = call.usage
    if not usage.input:
        return NOTHING
    parts = [("read", usage.read or 0), ("written", usage.written_total)]
    parts.append(("fresh", usage.uncached or 0))
    title = ", ".join(f"{count(value)} {key}" for key, value in parts)
    return htpy.div(".usage", title=title)[
        bar(parts), htpy.span[" · ".join(count(value) for _, value in parts)]
    ]


def result_tag(call: AuditEnvelope) -> htpy.Element:
    """The result of a call in a word or two: failed, broke the prefix, or what it read."""
    if call.outcome != "ok":
        status = f" ({call.status})" if call.status else ""
        return tag([name(call.outcome, 40), status], "bad")
    if call.broke:
        return tag("Break", "bad")
    if call.changed if call.verdict == "first" else call.verdict == "miss" and not call.lost:
        return tag("Not cached")
    words, tone = _RESULTS.get(call.verdict or "", ("", ""))
    return tag(words or name(call.verdict or "Answered", 40), tone)


def result_cell(shown: ShownCall, site: Site) -> htpy.Node:
    call = shown.call
    verdict: htpy.Node = shown.sentence and name(shown.sentence, 400)
    if not verdict and call.cause and call.lost:
        verdict = [
            name(cause_name(call.change or call.cause)),
            call.changed and [" in ", name(call.changed)],
        ]
    again = ""
    if call.lost:
        again = f"Billed again: {lost(call.lost, call.lost_nano_usd)}"
    link = (
        call.conversation
        and htpy.a(
            href=conversation_url(site, call.conversation, shown),
            aria_label=f"Conversation {plain_name(call.conversation, 16)}, turn {call.turn}",
        )[f"turn {count(call.turn)}"]
    )
    return htpy.div(".result")[
        htpy.div[result_tag(call), " ", link],
        verdict and htpy.div[verdict],
        htpy.div(".dim")[again] if again and not shown.sentence else None,
    ]
