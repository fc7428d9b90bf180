"""The pages of a watched program. Their address has a random token, and without that there is
nothing: other users of the machine can reach the port too."""

from __future__ import annotations

import secrets

import htpy

from anaphora.dashboard.page_site import PAGE_HEADERS, PROGRAM_SECTIONS, PageSite, program_pages
from anaphora.dashboard.pages.overview import OverviewPage
from anaphora.dashboard.site import PageContent, PageRequest, Site
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.traffic.judging import Judge

from .watched_calls import WatchedCalls

_ROOT = "/_watch"
_START = "Calls appear here when they have ended."
_NOT_FOUND = CompleteResponse(
    404,
    {**PAGE_HEADERS, "content-type": "text/plain; charset=utf-8"},
    b"not found: open the address that `anaphora watch` has printed\n",
)


class WatchPage:
    """The pages of a proxy (`relay.Pages`)."""

    def __init__(self, judge: Judge, calls: WatchedCalls) -> None:
        self.path = f"{_ROOT}/{secrets.token_urlsafe(24)}"
        """The address of the overview, with the token."""
        source = calls.source
        pages = program_pages(WatchOverview(judge, calls), source, _START)
        site = Site(root=self.path, title="Watch", sections=PROGRAM_SECTIONS, range="hour")
        self._pages = PageSite(site, pages, source)

    def __repr__(self) -> str:
        return "<WatchPage>"

    def serves(self, path: str) -> bool:
        return path == _ROOT or path.startswith(f"{_ROOT}/")

    async def answer(self, exchange: HttpExchange) -> None:
        root, _, rest = exchange.path[len(_ROOT) + 1 :].partition("/")
        if not secrets.compare_digest(f"{_ROOT}/{root}".encode(), self.path.encode()):
            await exchange.respond(_NOT_FOUND)
            return
        await self._pages.answer(exchange, rest)


class WatchOverview:
    """The overview with the sums of the command's summary, and notices."""

    def __init__(self, judge: Judge, calls: WatchedCalls) -> None:
        self._judge = judge
        self._calls = calls
        self._overview = OverviewPage(calls.source, start=_START, newest=50)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        content = self._overview.content(request, site)
        content.main = [htpy.div("#watched")[self._summary()], content.main]
        content.live = ("watched", *content.live)
        return content

    def _summary(self) -> htpy.Node:
        summary = self._judge.summary(savings=False)
        if not summary.calls:
            return None
        notices = [htpy.li[f"Call {number}: {text}"] for number, text in tuple(self._calls.notices)]
        return [
            htpy.p(".headline")[f"Since the start: {summary.headline}."],
            summary.savings.calls > 0 and htpy.p(".dim")[str(summary.savings)],
            notices and htpy.ul(".notice", aria_label="Notices")[notices],
        ]
