"""What if: the same calls on another model or provider, with another TTL, or without caching."""

from __future__ import annotations

import datetime
import itertools
import string
from collections.abc import Iterator, Sequence
from functools import partial

import htpy

from anaphora import catalog
from anaphora.dashboard.figures import NOTHING, count, percent, usd
from anaphora.dashboard.layout import view_fields
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.plot import Column, Scale, Series, axis_labels, chart
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import Heading, card, numbers, table
from anaphora.dashboard.what_if import ProviderModel, ScenarioRow, TtlChoice, WhatIf, what_if
from anaphora.dashboard.what_if.wording import left_out_sentence, range_text, sentences
from anaphora.errors import InvalidRequest
from anaphora.values import TTL_SECONDS
from anaphora.wording import counted

from .overview import no_calls

#: Newest calls of a view that are read, and how many of them are simulated at most.
MOST_READ, MOST_PLAYED = 5_000, 400
_TTLS: tuple[TtlChoice, ...] = (*TTL_SECONDS, "none")


class WhatIfPage:
    """`on` in the query is another model, as `provider/model`; `ttl` a TTL or `none`."""

    def __init__(self, source: PastCalls, *, start: htpy.Node = None) -> None:
        """`start` says how to send a first call."""
        self._source = source
        self._start = start

    def content(self, request: PageRequest, site: Site) -> PageContent:
        request.refuse_below()
        view = request.view
        model = _model(request.query.get("on", ""))
        ttl = _ttl(request.query.get("ttl", ""))
        calls = list(self._source.history(view, MOST_READ))
        main: list[htpy.Node] = [htpy.div(".title")[htpy.h1["What if"]]]
        if calls:
            result = what_if(calls, model=model, ttl=ttl, most_played=MOST_PLAYED)
            chosen = "" if model is None else f"{model.provider}/{model.model}"
            main += [
                _form(site, request, chosen, ttl),
                _compared(result) if result.calls else None,
                _basis(result, full=len(calls) == MOST_READ),
            ]
        else:
            main.append(no_calls(site, view, self._start, request.path))
        return PageContent(title="What if", main=main)


def _compared(result: WhatIf) -> htpy.Element:
    shown = [row for row in result.rows if row.cost is not None]
    letters = _letters()
    rows: list[Sequence[htpy.Node]] = [
        [
            [htpy.b[next(letters)], " As billed"],
            usd(result.billed_nano_usd),
            NOTHING,
            NOTHING,
            percent(result.read_share),
            f"the bills of {counted(result.calls, 'call')}",
        ]
    ]
    rows += [_row(next(letters), row) for row in shown]
    rows += [
        [row.scenario.title, NOTHING, NOTHING, NOTHING, NOTHING, row.unavailable]
        for row in result.rows
        if row.cost is None
    ]
    headings = [
        Heading("The same calls"),
        *numbers("Cost", "Range", "Difference", "Input read"),
        Heading("Basis"),
    ]
    return card(
        "The same calls",
        _chart(result, shown),
        table("What the same calls would have cost", headings, rows),
    )


def _row(letter: str, row: ScenarioRow) -> list[htpy.Node]:
    assert row.cost is not None
    assert row.difference is not None
    more = row.difference.estimate
    certain = row.cost.low == row.cost.high
    counts = "the billed tokens at the listed prices"
    basis = counts if row.scenario.caching == "none" else "a simulation"
    return [
        [htpy.b[letter], " ", row.scenario.title],
        usd(row.cost.estimate),
        "certain" if certain else range_text(row.cost),
        f"{'+' if more > 0 else ''}{usd(more)}",
        percent(row.read_share),
        "; ".join((basis, *row.notes)),
    ]


def _chart(result: WhatIf, shown: Sequence[ScenarioRow]) -> htpy.Element:
    letters = _letters()
    billed = result.billed_nano_usd
    columns = [
        Column(
            label=f"{next(letters)} As billed",
            title=f"As billed: {usd(billed)}",
            above=[("spent", billed)],
            cells=[usd(billed), usd(billed), usd(billed)],
        )
    ]
    for row in shown:
        cost, title = row.cost, row.scenario.title
        assert cost is not None
        certain = cost.low == cost.high
        columns.append(
            Column(
                label=f"{next(letters)} {title}",
                title=f"{title}: {usd(cost.estimate)}, {range_text(cost)}",
                above=[("saved" if cost.estimate < billed else "lost", cost.estimate)],
                ticks=[] if certain else [cost.low, cost.high],
                cells=[usd(cost.low), usd(cost.estimate), usd(cost.high)],
            )
        )
    highest = max(billed, *(row.cost.high for row in shown if row.cost is not None), 1)
    labels = itertools.islice(_letters(), len(columns))
    return chart(
        "Cost of the same calls",
        f"{usd(billed)} as billed",
        [
            Series("spent", "As billed"),
            Series("saved", "Cheaper"),
            Series("lost", "More expensive"),
            Series("tick", "Range"),
        ],
        columns,
        scale=Scale(float(highest)),
        written=lambda nano: usd(round(nano)),
        headings=["The same calls", "From", "Estimate", "To"],
        axis=axis_labels([partial(str, letter) for letter in labels]),
    )


def _basis(result: WhatIf, *, full: bool) -> htpy.Element:
    left_out = left_out_sentence(result)
    return card(
        "Basis of the amounts",
        [htpy.p[sentence] for sentence in sentences(result)],
        left_out and htpy.p[left_out],
        full and htpy.p[f"Of the calls in this range, the newest {count(MOST_READ)} are read."],
        about="The calls are played in the simulator of provider caches, from their counts, times"
        " and digests. Prices are the listed ones; without a known price there is no amount.",
    )


def _form(site: Site, request: PageRequest, on: str, ttl: TtlChoice | None) -> htpy.Element:
    groups = [
        htpy.optgroup(label=provider)[
            [
                htpy.option(value=value, selected=value == on)[value.partition("/")[2]]
                for value in values
            ]
        ]
        for provider, values in _priced_models(request.now)
    ]
    as_called = htpy.option(value="")["as called"]
    each_offered = htpy.option(value="")["all that are offered"]
    ttls = [
        htpy.option(value=each, selected=each == ttl)["without caching" if each == "none" else each]
        for each in _TTLS
    ]
    return card(
        "Compare with",
        htpy.div(".filters")[
            htpy.form(".choices", method="get", action=site.url(request.path))[
                view_fields(request.view),
                htpy.label["Model", htpy.select(name="on")[as_called, groups]],
                htpy.label["TTL", htpy.select(name="ttl")[each_offered, ttls]],
                htpy.button(type="submit")["Compare"],
            ]
        ],
    )


def _priced_models(now: float) -> Iterator[tuple[str, list[str]]]:
    """Models with a known price, by provider."""
    when = datetime.datetime.fromtimestamp(now, datetime.UTC)
    for provider, models in itertools.groupby(catalog.models(), key=lambda one: one.provider):
        priced = [
            f"{provider}/{model.id}"
            for model in models
            if catalog.price(provider, model.id, when) is not None
        ]
        if priced:
            yield provider, priced


def _model(text: str) -> ProviderModel | None:
    if not text:
        return None
    try:
        return ProviderModel(*catalog.known_model(text))
    except InvalidRequest as problem:
        raise InvalidRequest(problem.reason, path="on") from None


def _ttl(text: str) -> TtlChoice | None:
    for each in _TTLS:
        if text == each:
            return each
    if text:
        raise InvalidRequest(f"{text[:60]!r} is none of {', '.join(_TTLS)}", path="ttl")
    return None


def _letters() -> Iterator[str]:
    return iter(string.ascii_uppercase)
