"""What `dashboard.js` and `dashboard.css` do in a browser: live elements are replaced without taking
the focus or closing open details, and names do not change the direction of other text."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from playwright.sync_api import expect
from support.browser import Chromium, Tab, needs_chromium
from support.dashboard_data import BIDI, varied_calls

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.page_site import PageSite
from anaphora.dashboard.pages.blocks import BlocksPage
from anaphora.dashboard.pages.conversations import ConversationPage
from anaphora.dashboard.pages.overview import OverviewPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.site import Page, Section, Site
from anaphora.dashboard.values import ShownCall
from anaphora.errors import Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.serving.server import running

pytestmark = needs_chromium

SITE = Site(root="/ui", title="Tested", sections=(Section("", "Overview"), Section("blocks", "B")))


class ServedPages:
    """The pages of calls in memory at a real server."""

    def __init__(self) -> None:
        self.source = MemoryCalls()
        self.allowed = True
        self.added = 0
        pages: dict[str, Page] = {
            "": OverviewPage(self.source),
            "blocks": BlocksPage(self.source),
            "conversation": ConversationPage(self.source),
        }
        self.pages = PageSite(SITE, pages, self.source)
        self.app = ServedApp(self, HostGuard("127.0.0.1"))
        self.url = ""

    async def handle(self, exchange: HttpExchange) -> None:
        path = exchange.path.removeprefix("/ui")
        await self.pages.answer(exchange, path, allowed=lambda: self.allowed)

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        return CompleteResponse(problem.status or 500, {}, str(problem).encode())

    def add(self, *calls: AuditEnvelope) -> None:
        for call in calls:
            self.added += 1
            self.source.add(ShownCall(id=str(self.added), call=call))


@pytest.fixture(scope="module")
def running_pages(chromium: Chromium, tab: Tab) -> Iterator[ServedPages]:
    served = ServedPages()
    with running(served.app, host="127.0.0.1", extra="proxy") as address:
        served.url = f"{address.url}/ui"
        yield served
        chromium.run(tab.leave)


@pytest.fixture
def served(running_pages: ServedPages) -> ServedPages:
    running_pages.source.clear()
    running_pages.allowed, running_pages.added = True, 0
    return running_pages


@pytest.mark.long
def test_an_update_keeps_the_focus_and_what_is_open(
    chromium: Chromium, tab: Tab, served: ServedPages
) -> None:
    served.add(*varied_calls(time.time(), conversations=3))
    page = tab.visit(f"{served.url}?range=week")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.get_by_text("Show the numbers").nth(1).click()
    link = page.locator("#overview a[href*='model=']").last
    link.focus()
    address = link.get_attribute("href")
    served.add(AuditEnvelope(at=time.time(), model="arrived"))
    expect(page.locator("#newest tbody tr").first).to_contain_text("arrived")
    assert page.locator("#overview details").nth(1).evaluate("element => element.open")
    assert page.evaluate("document.activeElement.getAttribute('href')") == address
    assert "UTC" not in page.locator("#newest time").first.inner_text()
    assert not tab.problems
    served.allowed = False
    expect(page.locator("#live")).to_have_text("Not connected")


def test_the_call_that_an_address_names_stays_marked(
    chromium: Chromium, tab: Tab, served: ServedPages
) -> None:
    now = time.time()
    served.add(*(AuditEnvelope(at=now, model="m", conversation="c", turn=n) for n in (1, 2)))
    page = tab.visit(f"{served.url}/conversation/c#call-1")
    served.add(AuditEnvelope(at=now, model="m", conversation="c", turn=3))
    expect(page.locator("#conversation tbody tr[id]")).to_have_count(3)
    expect(page.locator(".target")).to_have_id("call-1")
    assert not tab.problems


#: Where the text behind a name is, which is not to the left of the name.
MISPLACED = """() => [...document.querySelectorAll("bdi")].filter((name) => {
  const next = name.nextSibling;
  if (!next || next.nodeType !== Node.TEXT_NODE || !next.data.trim()) return false;
  const range = document.createRange();
  range.selectNodeContents(next);
  const behind = range.getClientRects()[0], own = name.getBoundingClientRect();
  return behind.top < own.bottom - 4 && behind.left < own.right - 1;
}).map((name) => name.parentElement.textContent)"""
#: A name that ends within an isolate, and one that ends the isolate around it.
NAMES = (BIDI, "\u202eabc\u2067x", "\u2069\u202eabc")


def test_names_do_not_change_the_direction_of_what_follows(
    chromium: Chromium, tab: Tab, served: ServedPages
) -> None:
    call = AuditEnvelope(at=time.time(), model="m", broke=True, lost=20)
    served.add(*(replace(call, change=name, changed=name) for name in NAMES))
    page = tab.visit(f"{served.url}/blocks")
    expect(page.locator(".break")).to_have_count(len(NAMES))
    assert page.locator(".break li", has_text="(1 time)").count() == len(NAMES)
    assert page.evaluate(MISPLACED) == []
    assert not tab.problems
