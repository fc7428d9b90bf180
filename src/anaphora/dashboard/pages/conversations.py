"""The list of conversations, the newest first."""

from __future__ import annotations

from collections.abc import Sequence

import htpy

from anaphora.dashboard.figures import (
    NOTHING,
    count,
    lost_usd,
    moment,
    name,
    plain_name,
    spent,
    unless_zero,
)
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import (
    Heading,
    card,
    conversation_url,
    numbers,
    share_cell,
    table,
    tag,
    unpriced_note,
)
from anaphora.dashboard.values import ConversationRow

from .overview import no_calls

_MOST_ROWS = 100


class ConversationsPage:
    def __init__(self, source: PastCalls, *, start: htpy.Node = None) -> None:
        """`start` says how to send a first call."""
        self._source = source
        self._start = start

    def content(self, request: PageRequest, site: Site) -> PageContent:
        request.refuse_below()
        rows = self._source.conversations(request.view, _MOST_ROWS)
        shown: htpy.Node = no_calls(site, request.view, self._start, request.path)
        if rows:
            shown = _conversations(rows, site)
        main = [
            htpy.div(".title")[htpy.h1["Conversations"]],
            htpy.div("#conversations")[shown],
        ]
        return PageContent(title="Conversations", main=main, live=("conversations",))


def _conversations(rows: Sequence[ConversationRow], site: Site) -> htpy.Element:
    apps = any(row.app for row in rows)
    headings = [Heading("Conversation"), Heading("Last call")]
    headings += [Heading("App")] * apps + [Heading("Model")]
    headings += numbers("Calls", "Input", "Read", "Spent", "Breaks", "Lost", "Errors")
    cells = [_cells(row, site, apps) for row in rows]
    about = f"The newest {_MOST_ROWS}." if len(rows) >= _MOST_ROWS else None
    return card(
        "Conversations",
        table("Conversations", headings, cells),
        unpriced_note(row.sums for row in rows),
        about=about,
    )


def _cells(row: ConversationRow, site: Site, apps: bool) -> list[htpy.Node]:
    sums = row.sums
    cells: list[htpy.Node] = [
        [
            htpy.a(href=conversation_url(site, row.id))[htpy.bdi[plain_name(row.id, 16)]],
            row.side_call and [" ", tag("side call")],
        ],
        moment(row.ended),
    ]
    if apps:
        cells.append(name(row.app))
    return [
        *cells,
        [name(row.model), htpy.div(".dim")[name(row.provider)]],
        count(sums.calls),
        count(sums.input),
        share_cell(sums.read_share),
        spent(sums),
        unless_zero(sums.breaks),
        lost_usd(sums) if sums.lost else NOTHING,
        unless_zero(sums.failed),
    ]
