"""Providers as seen by the daemon's calls: breaker, latency, retries, limits, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import htpy

from anaphora.dashboard.figures import NOTHING, count, name, percent, seconds, unless_zero
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.dashboard.tables import Heading, Tone, empty, numbers, table, tag
from anaphora.dashboard.values import ProviderRow, View

_BREAKERS: dict[str, Tone] = {"closed": "good", "open": "bad", "half open": "warn", "unused": ""}
_ABOUT = (
    "Breakers and rate limits are current. An open breaker: the provider failed"
    " repeatedly, and gets no calls for a while; half open: a few calls test whether it has"
    " recovered. Rate limits are shown if they are configured, or if the provider reports that"
    " less than half is left."
)


class ProvidersPage:
    def __init__(self, rows: Callable[[View], Sequence[ProviderRow]]) -> None:
        self._rows = rows

    def content(self, request: PageRequest, site: Site) -> PageContent:  # noqa: ARG002
        request.refuse_below()
        rows = self._rows(request.view)
        headings = [Heading("Provider"), Heading("Breaker")]
        headings += numbers("Calls", "Failed", "Retries", "First byte p50", "p99")
        headings += [Heading("Left of rate limits"), Heading("Refusals")]
        shown = empty("llm.yaml has no provider")
        if rows:
            listed = table("Providers", headings, [_line(row) for row in rows])
            shown = htpy.section(".card")[listed, htpy.p(".about")[_ABOUT]]
        main = [htpy.div(".title")[htpy.h1["Providers"]], htpy.div("#providers")[shown]]
        return PageContent(title="Providers", main=main, live=("providers",))


def _line(row: ProviderRow) -> list[htpy.Node]:
    refusals = sorted(row.refusals.items(), key=lambda item: (-item[1], item[0]))
    return [
        name(row.name),
        tag(row.breaker, _BREAKERS.get(row.breaker, "")),
        count(row.calls),
        unless_zero(row.failed),
        unless_zero(row.retries),
        NOTHING if row.first_p50 is None else seconds(row.first_p50),
        NOTHING if row.first_p99 is None else seconds(row.first_p99),
        _lines((what, percent(share)) for what, share in sorted(row.headroom.items())),
        _lines((kind, count(calls)) for kind, calls in refusals),
    ]


def _lines(pairs: Iterable[tuple[str, str]]) -> htpy.Node:
    items = [htpy.div[name(what), f":\N{NO-BREAK SPACE}{value}"] for what, value in pairs]
    return htpy.div[items] if items else NOTHING
