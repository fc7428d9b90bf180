"""Blocks of prompts by label: their cost, the share of them read from the cache, and breaks."""

from __future__ import annotations

from collections.abc import Sequence

import htpy

from anaphora.cache.verdict.advice import cause_name, what_to_do
from anaphora.dashboard.figures import (
    NOTHING,
    UNKNOWN,
    count,
    name,
    plain_name,
    tokens,
    unless_zero,
    usd,
)
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.past_calls.sums import BlockSums
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import (
    Heading,
    card,
    filter_link,
    more,
    numbers,
    share_cell,
    table,
    tag,
)
from anaphora.dashboard.values import View
from anaphora.dashboard.view import query_of
from anaphora.wording import counted

from .overview import no_calls

_MOST_ROWS = 100
_WORST = 5


class BlocksPage:
    def __init__(self, source: PastCalls, *, start: htpy.Node = None) -> None:
        """`start` says how to send a first call."""
        self._source = source
        self._start = start

    def content(self, request: PageRequest, site: Site) -> PageContent:
        request.refuse_below()
        view = request.view
        rows = [row for row in self._source.blocks(view) if row.calls or row.breaks]
        shown = [worst_blocks(rows), all_blocks(rows, site, view)] if rows else None
        main = [
            htpy.div(".title")[htpy.h1["Blocks"]],
            htpy.div("#blocks")[shown or no_calls(site, view, self._start, request.path)],
        ]
        return PageContent(title="Blocks", main=main, live=("blocks",))


def worst_blocks(rows: Sequence[BlockSums]) -> htpy.Element:
    """The blocks whose changes cost most, with advice; also in reports."""
    broke = sorted((row for row in rows if row.breaks), key=_loss, reverse=True)
    if not broke:
        return card(
            "Blocks that break the prefix",
            htpy.p(".dim")["None: no change of a block broke a cached prefix in this view."],
        )
    return card(
        "Blocks that break the prefix",
        htpy.div(".grid")[[_offender(row) for row in broke[:_WORST]]],
        more(len(broke) - _WORST, "in the table", "in the table"),
        about="A change in a block makes a provider write everything after it again. "
        "The most expensive blocks come first.",
    )


def _offender(row: BlockSums) -> htpy.Element:
    kinds = sorted(row.changes.items(), key=lambda item: -item[1])
    advice = list(dict.fromkeys(text for kind, _ in kinds if (text := what_to_do(kind))))
    return htpy.article(".card.break", aria_label=f"Block {plain_name(row.label)}")[
        htpy.h3[name(row.label)],
        htpy.p[
            htpy.b[f"{usd(row.lost_nano_usd)} lost"],
            f" in {counted(row.breaks, 'break')}, {tokens(row.lost)} billed again",
        ],
        htpy.ul[
            [
                htpy.li[name(cause_name(kind)), f" ({counted(times, 'time')})"]
                for kind, times in kinds[:4]
            ],
            more(len(kinds) - 4, "kind of change", "kinds of change"),
        ],
        [htpy.p[htpy.b["What to do: "], text] for text in advice[:2]],
    ]


def all_blocks(
    rows: Sequence[BlockSums], site: Site | None = None, view: View | None = None
) -> htpy.Element:
    """The blocks with their figures; on a site, each name links to the view filtered by it."""

    def link(label: str) -> htpy.Node:
        if site is None or view is None:
            return name(label)
        return filter_link(label, site.url("blocks", query_of(view, label=label)))

    ordered = sorted(rows, key=lambda row: (_loss(row), row.cost_nano_usd), reverse=True)
    headings = [Heading("Block"), Heading("Kind"), *numbers("Calls", "Tokens", "Read", "Cost")]
    headings += [*numbers("Breaks", "Lost"), Heading("Marker")]
    cells = [
        [
            link(row.label),
            name(row.kind),
            count(row.calls),
            count(row.tokens),
            share_cell(row.read_share),
            _cost(row),
            unless_zero(row.breaks),
            usd(row.lost_nano_usd) if row.breaks else NOTHING,
            tag(row.ttl) if row.ttl else NOTHING,
        ]
        for row in ordered[:_MOST_ROWS]
    ]
    return card(
        "All blocks",
        table("Blocks of prompts", headings, cells),
        more(len(ordered) - _MOST_ROWS, "block"),
        about="Billed calls only. Tokens of blocks are estimates; their reads and their cost"
        " are their share of the bill for input. A + marks a sum without calls of unknown"
        " cost.",
    )


def _cost(row: BlockSums) -> str:
    if row.unpriced and not row.cost_nano_usd:
        return UNKNOWN
    return usd(row.cost_nano_usd) + ("+" if row.unpriced else "")


def _loss(row: BlockSums) -> tuple[int, int]:
    return row.lost_nano_usd, row.lost
