"""The pages of a site through a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import htpy
import httpx
import msgspec
import pytest
from support.waiting import wait_until

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.layout import static_url
from anaphora.dashboard.page_site import POLICY, PageSite
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.site import PageContent, PageRequest, Section, Site, page_request
from anaphora.dashboard.values import ShownCall
from anaphora.dashboard.view import query_of, view_from_query
from anaphora.errors import InvalidRequest, Upstream
from anaphora.serving.app import HostGuard, ServedApp
from anaphora.serving.exchange import CompleteResponse, HttpExchange
from anaphora.serving.server import running

HOSTILE = "<script>document.title='owned'</script>"
SECTIONS = (Section("", "Overview"), Section("blocks", "Blocks"))
SITE = Site(root="/ui", title="Tested", sections=SECTIONS)
NOW = 1_794_837_600.0


class CountPage:
    """Says how many calls there are, and what was asked for."""

    def __init__(self, source: MemoryCalls) -> None:
        self._source = source

    def content(self, request: PageRequest, site: Site) -> PageContent:
        if "bad" in request.query:
            raise InvalidRequest("must not be there", path="bad")
        calls = self._source.overview(request.view).total.calls
        return PageContent(
            title="Overview",
            main=[
                htpy.p(id="count")[f"{calls} calls"],
                htpy.p(id="asked")[f"{request.path}, {request.view.range}, {site.title}"],
            ],
            live=("count",),
        )


class TestedSite:
    """The handler of a server, and what the test may change."""

    __test__ = False

    def __init__(self) -> None:
        self.source = MemoryCalls()
        self.allowed = True
        self.now = NOW
        pages = {"": CountPage(self.source), "blocks": CountPage(self.source)}
        self.pages = PageSite(SITE, pages, self.source, clock=lambda: self.now)
        self.app = ServedApp(self, HostGuard("127.0.0.1"))
        self.url = ""
        self.client = httpx.Client()

    async def handle(self, exchange: HttpExchange) -> None:
        path = exchange.path.removeprefix("/ui")
        await self.pages.answer(exchange, path, allowed=lambda: self.allowed)

    def error(self, exchange: HttpExchange, problem: Upstream) -> CompleteResponse:
        return CompleteResponse(problem.status or 500, {}, str(problem).encode())

    def add_call(self) -> None:
        id = str(self.source.version())
        self.source.add(ShownCall(id=id, call=AuditEnvelope(at=NOW - 1, model=HOSTILE)))

    def get(self, path: str = "", method: str = "GET") -> httpx.Response:
        return self.client.request(method, f"{self.url}/ui{path}")


@pytest.fixture(scope="module")
def running_site() -> Iterator[TestedSite]:
    tested = TestedSite()
    with running(tested.app, host="127.0.0.1", extra="proxy") as address:
        tested.url = address.url
        with tested.client:
            yield tested


@pytest.fixture
def site(running_site: TestedSite) -> TestedSite:
    running_site.source.clear()
    running_site.allowed, running_site.now = True, NOW
    return running_site


def test_page_has_its_view_and_a_strict_policy(site: TestedSite) -> None:
    response = site.get("?range=week")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert response.headers["cache-control"] == "no-store"
    assert "0 calls" in response.text
    assert ", week, Tested" in response.text
    assert "<title>Overview · Tested · Anaphora</title>" in response.text
    assert re.search(r"\sstyle=|\son[a-z]+=|<style|<script>", response.text) is None


def test_addresses_leave_out_the_range_of_the_site() -> None:
    site = msgspec.structs.replace(SITE, range="hour")
    views = [view_from_query({"range": name, "app": "shop"}, NOW) for name in ("hour", "day")]
    hour, day = (site.url("blocks", query_of(view)) for view in views)
    assert (hour, day) == ("/ui/blocks?app=shop", "/ui/blocks?range=day&app=shop")
    for view, address in zip(views, (hour, day), strict=True):
        query = address.partition("?")[2]
        assert page_request("GET", "blocks", query, NOW, site.range).view == view
    assert site.url("", query_of(view_from_query({}, NOW, "hour"))) == "/ui"


@pytest.mark.parametrize(
    ("path", "asked"), [("/", ", day"), ("/blocks", "blocks, day"), ("/blocks/x", "blocks/x, day")]
)
def test_section_serves_the_paths_below_it(site: TestedSite, path: str, asked: str) -> None:
    assert f'<p id="asked">{asked}, Tested</p>' in site.get(path).text


@pytest.mark.parametrize(
    ("path", "method", "status", "reason"),
    [
        ("/nowhere", "GET", 404, "There is no page at this address."),
        ("?range=decade", "GET", 400, "is none of hour, day, week, month, custom"),
        ("?bad=1", "GET", 400, "bad: must not be there"),
        ("/events?range=decade", "GET", 400, "is none of hour, day, week, month, custom"),
        ("", "POST", 405, "Pages can only be read."),
        ("/blocks", "DELETE", 405, "Pages can only be read."),
    ],
)
def test_wrong_addresses_get_a_page_that_says_why(
    site: TestedSite, path: str, method: str, status: int, reason: str
) -> None:
    response = site.get(path, method)
    assert response.status_code == status
    assert reason in response.text
    assert response.headers["content-security-policy"] == POLICY
    assert response.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


def test_head_has_no_body(site: TestedSite) -> None:
    response = site.get(method="HEAD")
    assert response.status_code == 200
    assert int(response.headers["content-length"]) == len(site.get().content)
    assert site.get("/events", method="HEAD").headers["content-type"].startswith("text/event")


@pytest.mark.parametrize(
    ("name", "content_type"), [("dashboard.css", "text/css"), ("dashboard.js", "text/javascript")]
)
def test_static_files_are_kept_by_browsers_under_the_name_of_their_content(
    site: TestedSite, name: str, content_type: str
) -> None:
    address = static_url("", name)
    response = site.get(address)
    assert response.status_code == 200
    assert response.headers["content-type"] == f"{content_type}; charset=utf-8"
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    stem, ending = address.rsplit(".", 2)[0], name.rsplit(".", 1)[1]
    for other in (f"{stem}.{ending}", f"{stem}.000000000000.{ending}", "/static/"):
        assert site.get(other).status_code == 404


# ── Live updates ─────────────────────────────────────────────────────────────────────────────────


def fragments(response: httpx.Response, *ids: str) -> Iterator[dict[str, str]]:
    """The elements with these ids that arrive."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            fragment = json.loads(line.removeprefix("data: "))
            if fragment["id"] in ids:
                yield fragment


def test_changed_elements_arrive_while_the_page_is_open(site: TestedSite) -> None:
    with httpx.stream("GET", f"{site.url}/ui/events?page=&range=hour") as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        arrived = fragments(response, "count")
        assert next(arrived) == {"id": "count", "html": '<p id="count">0 calls</p>'}
        site.add_call()
        assert next(arrived) == {"id": "count", "html": '<p id="count">1 calls</p>'}


def test_time_that_is_shown_follows_the_range(site: TestedSite) -> None:
    """`hour` ends now, however long the page is open."""
    with httpx.stream("GET", f"{site.url}/ui/events?page=&range=hour") as response:
        arrived = fragments(response, "span")
        assert "13:00 UTC</time> to <" in next(arrived)["html"]
        site.now += 1_800
        site.add_call()
        assert "13:30 UTC</time> to <" in next(arrived)["html"]


def test_stream_ends_when_the_host_says_so(site: TestedSite) -> None:
    with httpx.stream("GET", f"{site.url}/ui/events?page=blocks") as response:
        arrived = fragments(response, "count")
        next(arrived)
        site.allowed = False
        site.add_call()
        assert list(arrived) == []


def test_stopping_server_ends_its_streams() -> None:
    tested = TestedSite()
    with running(tested.app, host="127.0.0.1", extra="proxy") as address, httpx.Client() as client:
        request = client.build_request("GET", f"{address.url}/ui/events")
        response = client.send(request, stream=True)
        lines = response.iter_lines()
        next(lines)
    response.close()
    assert not tested.app.is_busy


def test_stream_of_a_closed_page_ends(site: TestedSite) -> None:
    with httpx.stream("GET", f"{site.url}/ui/events") as response:
        lines = response.iter_lines()
        next(lines)
        assert site.app.is_busy
    wait_until(lambda: not site.app.is_busy, "the server notices it")
