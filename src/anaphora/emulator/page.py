"""The pages of a running emulator: its calls with their verdicts, its clock."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import htpy

from anaphora.dashboard.figures import local_time
from anaphora.dashboard.layout import STATIC
from anaphora.dashboard.page_site import EVENTS, PROGRAM_SECTIONS, PageSite, program_pages
from anaphora.dashboard.pages.overview import OverviewPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.site import PageContent, PageRequest, Site

if TYPE_CHECKING:
    from anaphora.serving.exchange import HttpExchange

    from .engine import Engine
    from .journal import Journal

_START = "Point a client at this address; any key will do."


class EmulatorCalls:
    """The calls of the journal. New entries are copied when a page is opened."""

    def __init__(self, engine: Engine) -> None:
        self.source = MemoryCalls(update=self.update)
        self._engine = engine
        self._updating = threading.Lock()
        self._journal: Journal | None = None
        self._taken = 0

    def update(self) -> None:
        with self._updating:
            journal = self._engine.journal
            if journal is not self._journal:
                self._journal, self._taken = journal, 0
                self.source.clear()
            self._taken, added = journal.shown(self._taken)
            for shown in added:
                self.source.add(shown)


class EmulatorPages:
    """The pages below `root`."""

    def __init__(self, engine: Engine, root: str) -> None:
        self._engine = engine
        self._calls = calls = EmulatorCalls(engine)
        pages = program_pages(EmulatorOverview(engine, calls.source), calls.source, _START)
        self._names = {*pages, STATIC, EVENTS}
        site = Site(root=root, title="Emulator", sections=PROGRAM_SECTIONS)
        self._site = PageSite(site, pages, calls.source, clock=lambda: time.time() + engine.offset)
        self._root = root

    def serves(self, path: str) -> bool:
        rest = path.removeprefix(self._root).strip("/")
        return path.startswith(self._root) and rest.partition("/")[0] in self._names

    async def answer(self, exchange: HttpExchange) -> None:
        await asyncio.to_thread(self._calls.update)
        await self._site.answer(exchange, exchange.path.removeprefix(self._root))


class EmulatorOverview:
    """The overview, and the clock."""

    def __init__(self, engine: Engine, calls: MemoryCalls) -> None:
        self._engine = engine
        self._overview = OverviewPage(calls, start=_START, newest=50)

    def content(self, request: PageRequest, site: Site) -> PageContent:
        content = self._overview.content(request, site)
        content.main = [self._clock(request, site), content.main]
        content.live = ("clock", *content.live)
        return content

    def _clock(self, request: PageRequest, site: Site) -> htpy.Element:
        ahead = f", {self._engine.offset:,.0f} s ahead" if round(self._engine.offset) else ""
        buttons = [
            _form(site, "clock", "Advance 5 min", 300),
            _form(site, "clock", "Advance 1 h", 3_600),
            _form(site, "reset", "Reset"),
        ]
        return htpy.div(".controls", role="group", aria_label="Clock of the emulator")[
            htpy.p("#clock")["Clock: ", local_time(request.now, "second"), ahead], buttons
        ]


def _form(site: Site, action: str, title: str, advance: int | None = None) -> htpy.Element:
    return htpy.form(method="post", action=site.url(f"forms/{action}"))[
        advance is not None and htpy.input(type="hidden", name="advance", value=str(advance)),
        htpy.button(type="submit")[title],
    ]
