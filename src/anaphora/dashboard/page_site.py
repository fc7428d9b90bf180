"""The pages of one host: the daemon, `anaphora watch` or the emulator.

    site = Site(root="/ui", title="Daemon", sections=(Section("", "Overview"),))
    pages = PageSite(site, {"": OverviewPage(source)}, source)
    response = await pages.respond(page_request("GET", "", query_string, now))

A host checks access before it calls `respond` or `answer`. `answer` also serves the stream of
changed elements at `events` (see `live`). Files below `static/` hold no data and need no login.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping

import htpy

from anaphora.dashboard.pages.blocks import BlocksPage
from anaphora.dashboard.pages.conversations import ConversationPage, ConversationsPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.errors import InvalidRequest, NotFound, RequestRejected, Upstream
from anaphora.serving.exchange import CompleteResponse, HttpExchange

from .layout import SPAN, STATIC, document, page_bytes, static_file, time_span
from .live import LiveStreams, elements_of
from .site import Page, PageContent, PageRequest, Section, Site, page_request
from .values import Names
from .view import view_from_query

#: The path of the stream below the root.
EVENTS = "events"

_NOT_ALLOWED = 405

#: No inline scripts or styles, nothing from other origins, no frames.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Sent with every response except static files.
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    # With `no-referrer`, a submitted form would have `Origin: null`.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
HTML_HEADERS = {**PAGE_HEADERS, "content-type": "text/html; charset=utf-8"}
#: Headers of the stream at `events`; reverse proxies must not buffer it.
EVENT_HEADERS = {
    **PAGE_HEADERS,
    "content-type": "text/event-stream; charset=utf-8",
    "x-accel-buffering": "no",
}


class PageSite:
    """Answers the requests for pages."""

    def __init__(
        self,
        site: Site,
        pages: Mapping[str, Page],
        source: PastCalls | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`pages` by section name; `source` lists the filter options, and says when something has
        changed. `clock` is that of the calls."""
        self.site = site
        self._pages = pages
        self._source = source
        self._clock = clock
        self._live = LiveStreams(lambda: 0 if source is None else source.version())

    async def answer(
        self,
        exchange: HttpExchange,
        path: str,
        site: Site | None = None,
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Answers a request for a path below the root: a page, a static file or `events`. Pages are
        read-only. For `allowed` see `events`."""
        try:
            if exchange.method not in ("GET", "HEAD"):
                raise RequestRejected("Pages can only be read.", status=_NOT_ALLOWED)
            query = exchange.query_string.decode("latin-1")
            now, shown = self._clock(), site or self.site
            request = page_request(exchange.method, path, query, now, shown.range)
            if request.path == EVENTS:
                await self._send_events(exchange, self.events(request, site, allowed))
                return
            response = await self.respond(request, site)
        except (InvalidRequest, Upstream) as problem:
            status = problem.status or 500 if isinstance(problem, Upstream) else 400
            response = self.failure(status, str(problem), self._clock(), site)
            if status == _NOT_ALLOWED:
                response.headers["allow"] = "GET, HEAD"
        if exchange.method != "HEAD":
            await exchange.respond(response)
            return
        size = str(len(response.body))
        await exchange.start(response.status, {**response.headers, "content-length": size})
        await exchange.write(b"")

    async def _send_events(self, exchange: HttpExchange, events: AsyncGenerator[bytes]) -> None:
        async def send() -> None:
            async with contextlib.aclosing(events):
                async for data in events:
                    await exchange.write(data, more=True)
            await exchange.write(b"")

        await exchange.start(200, EVENT_HEADERS)
        if exchange.method == "HEAD":
            await exchange.write(b"")
            return
        exchange.watch()
        await exchange.run(send())

    async def respond(self, request: PageRequest, site: Site | None = None) -> CompleteResponse:
        """A page or a static file; `site` is the one that this viewer sees."""
        if request.path.startswith(f"{STATIC}/"):
            return static_file(request.path.removeprefix(f"{STATIC}/"))
        return await asyncio.to_thread(self._page, request, site or self.site)

    def failure(
        self, status: int, reason: str, now: float, site: Site | None = None
    ) -> CompleteResponse:
        """An error page."""
        return self.show(_failed(status, reason), page_request("GET", "", "", now), site)

    def show(
        self, content: PageContent, request: PageRequest, site: Site | None = None
    ) -> CompleteResponse:
        """A page with content made by the host: a login, the result of a write."""
        return _html(site or self.site, content, request, None)

    def _page(self, request: PageRequest, site: Site) -> CompleteResponse:
        content = self._content(request, site)
        names = None if self._source is None else self._source.names(request.view)
        return _html(site, content, request, names)

    def _content(self, request: PageRequest, site: Site) -> PageContent:
        page = self._pages.get(request.path) or self._pages.get(request.path.partition("/")[0])
        if page is None:
            return _failed(404, "There is no page at this address.")
        try:
            return page.content(request, site)
        except NotFound:
            return _failed(404, "There is no page at this address.")
        except InvalidRequest as problem:
            return _failed(400, str(problem))

    def events(
        self,
        request: PageRequest,
        site: Site | None = None,
        allowed: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes]:
        """The stream of a page's changed elements (`EVENT_HEADERS`); the query's `page` names the
        page. It ends soon after `allowed` returns False: a login may expire while its pages are
        open. Raises `Overloaded` if too many are open."""
        query, path = request.query, request.query.get("page", "").strip("/")

        def render() -> Mapping[str, str]:
            now = self._clock()
            view = view_from_query(query, now, (site or self.site).range)
            of = PageRequest(method="GET", path=path, query=query, now=now, view=view)
            content = self._content(of, site or self.site)
            above = time_span(view) if content.filters else None
            page = "".join(htpy.fragment[above, content.main].iter_chunks())
            return elements_of(page_bytes(page).decode(), (*content.live, SPAN))

        return self._live.stream(render, allowed)


def _failed(status: int, reason: str) -> PageContent:
    title = {400: "Not a valid address", 404: "Not found"}.get(status, "Error")
    main = [htpy.div(".title")[htpy.h1[title]], htpy.p[reason]]
    return PageContent(title=title, main=main, status=status, filters=False)


def _html(
    site: Site, content: PageContent, request: PageRequest, names: Names | None
) -> CompleteResponse:
    body = document(site, content, request.view, names or Names(), request.path)
    return CompleteResponse(content.status, dict(HTML_HEADERS), body)


PROGRAM_SECTIONS = (
    Section("", "Overview"),
    Section("conversations", "Conversations"),
    Section("blocks", "Blocks"),
)


def program_pages(overview: Page, source: MemoryCalls, start: str) -> dict[str, Page]:
    """Pages of a program's calls, by section name. `start` says how to send a first call."""
    return {
        "": overview,
        "conversations": ConversationsPage(source, start=start),
        "conversation": ConversationPage(source, no_text="no one text changed"),
        "blocks": BlocksPage(source, start=start),
    }
