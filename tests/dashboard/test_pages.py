"""The pages: what they show, what they link to, and that names from requests are only text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from html import unescape
from typing import Protocol, get_args
from urllib.parse import parse_qsl, urlsplit

import htpy
import pytest
from support.dashboard_data import HOSTILE_NAMES, LONG_NAME, SCRIPT, hostile_calls, varied_calls
from support.tables import each_row

from anaphora.audit.envelope import AuditBlock, AuditEnvelope, AuditUsage
from anaphora.cache.verdict import CauseKind
from anaphora.cache.verdict.advice import cause_name, what_to_do
from anaphora.cache.verdict.values import CHANGES
from anaphora.dashboard.layout import document, static_content
from anaphora.dashboard.pages.blocks import BlocksPage
from anaphora.dashboard.pages.conversations import ConversationPage, ConversationsPage
from anaphora.dashboard.pages.overview import OverviewPage
from anaphora.dashboard.past_calls.memory import MemoryCalls
from anaphora.dashboard.past_calls.source import PastCalls
from anaphora.dashboard.site import Page, PageContent, Section, Site, page_request
from anaphora.dashboard.values import AppRow, ShownCall
from anaphora.dashboard.view import view_from_query
from anaphora.wording import format_share

NOW = 1_795_871_100.0
SITE = Site(
    root="/ui",
    title="Daemon",
    sections=(
        Section("", "Overview"),
        Section("conversations", "Conversations"),
        Section("blocks", "Blocks"),
    ),
    viewer="admin",
    csrf="csrf-token",
)


class MakesPage(Protocol):
    def __call__(self, source: PastCalls, *, start: htpy.Node = None) -> Page: ...


PAGES: Mapping[str, MakesPage] = {
    "": OverviewPage,
    "conversations": ConversationsPage,
    "blocks": BlocksPage,
}


def source_of(calls: Iterable[AuditEnvelope | ShownCall]) -> MemoryCalls:
    source = MemoryCalls()
    for number, call in enumerate(calls, 1):
        source.add(call if isinstance(call, ShownCall) else ShownCall(id=str(number), call=call))
    return source


def shown(
    page: Page, path: str, source: PastCalls, query: str = "range=month"
) -> tuple[PageContent, str]:
    """The content of a page, and the whole page."""
    request = page_request("GET", path, query, NOW)
    content = page.content(request, SITE)
    names = source.names(request.view)
    return content, document(SITE, content, request.view, names, path).decode()


def visit(path: str, source: PastCalls, query: str = "range=month") -> str:
    """The whole page at a path."""
    page = ConversationPage(source) if path.startswith("conversation/") else PAGES[path](source)
    return shown(page, path, source, query)[1]


@pytest.fixture(scope="module")
def varied() -> MemoryCalls:
    return source_of(varied_calls(NOW))


def texts(page: str, element: str) -> list[str]:
    """The texts of the elements with that name, without the markup inside."""
    found = re.findall(rf"<{element}(?:\s[^>]*)?>(.*?)</{element}>", page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]*>", "", each)) for each in found]


def links_to(page: str) -> list[str]:
    return [unescape(to) for to in re.findall(r'<a\s[^>]*href="([^"]*)"', page)]


def links(page: str) -> dict[str, str]:
    """Addresses by the text of their links."""
    found = re.findall(r'<a\s[^>]*href="([^"]*)"[^>]*>(.*?)</a>', page, re.DOTALL)
    return {unescape(re.sub(r"<[^>]*>", "", text)): unescape(to) for to, text in found}


# ── Every page ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("calls", ["varied", "none", "hostile"])
def test_pages_have_nothing_inline_and_no_id_twice(
    path: str, calls: str, varied: MemoryCalls
) -> None:
    sources = {"varied": varied, "none": source_of([]), "hostile": source_of(hostile_calls(NOW))}
    source = sources[calls]
    content, page = shown(PAGES[path](source), path, source)
    tags = re.findall(r"<[a-z][^>]*>", re.sub(r'"[^"]*"', "", page))
    assert not [tag for tag in tags if re.search(r"\s(style|on\w+)=", tag)]
    assert len(re.findall("<script", page)) == 1
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(content.live) <= set(ids)


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_are_isolated_text_and_cut(path: str) -> None:
    page = visit(path, source_of(hostile_calls(NOW)))
    assert SCRIPT not in page
    assert "<img" not in page
    visible = re.sub(r"<[^>]*>", "", page)
    assert LONG_NAME not in visible
    assert "(10,000 characters)" in visible
    isolated = "".join(texts(page, "bdi"))
    for name in HOSTILE_NAMES:
        assert name[:16] in isolated


def test_half_of_a_surrogate_pair_is_no_error() -> None:
    call = AuditEnvelope(at=NOW, model="\ud83d", conversation="c")
    for path in PAGES:
        assert "?" in visit(path, source_of([call]))


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_landmarks_headings_and_labels(path: str, varied: MemoryCalls) -> None:
    page = visit(path, varied)
    for landmark in ("header", "nav", "main", "footer"):
        assert len(re.findall(rf"<{landmark}[\s>]", page)) == 1
    assert '<a class="skip" href="#main">' in page
    assert len(texts(page, "h1")) == 1
    assert page.count("<table") == page.count("<caption")
    assert all("scope=" in head for head in re.findall(r"<th\b[^>]*>", page))
    current = re.findall(r'<a href="[^"]*" aria-current="page">([^<]*)', page)
    assert current == [{each.name: each.title for each in SITE.sections}[path]]


def test_the_page_of_a_conversation_is_in_the_section_of_conversations(varied: MemoryCalls) -> None:
    id = varied.conversations(view_from_query({"range": "month"}, NOW))[0].id
    page = visit(f"conversation/{id}", varied)
    assert re.findall(r'aria-current="page">([^<]*)', page) == ["Conversations"]


@pytest.mark.parametrize("path", PAGES)
def test_an_empty_page_says_what_to_do(path: str) -> None:
    start = htpy.code["anaphora ask hello"]
    source = source_of([])
    page = PAGES[path](source, start=start)
    _, day = shown(page, path, source, "")
    assert links(day)["Show the last 30 days"] == f"/ui{'/' * bool(path)}{path}?range=month"
    assert "anaphora ask hello" in day
    _, filtered = shown(page, path, source, "range=week&app=shop")
    assert links(filtered)["Remove the filters"].endswith("?range=week")


# ── Range and filters ────────────────────────────────────────────────────────────────────────────


def test_ranges_keep_the_filters_and_filters_the_range(varied: MemoryCalls) -> None:
    page = visit("", varied, "range=week&app=code-review&model=gpt-5.2")
    query = dict(parse_qsl(urlsplit(links(page)["Month"]).query))
    assert query == {"range": "month", "app": "code-review", "model": "gpt-5.2"}
    assert '<input type="hidden" name="range" value="week">' in page
    assert '<option value="gpt-5.2" selected>' in page
    removed = re.findall(r'<a href="([^"]*)" aria-label="Remove the filter of app"', page)
    assert dict(parse_qsl(urlsplit(unescape(removed[0])).query)) == {
        "range": "week",
        "model": "gpt-5.2",
    }


def test_a_custom_range_is_kept_by_the_filters(varied: MemoryCalls) -> None:
    query = "range=custom&since=2026-11-01T00:00&until=2026-11-28T00:00"
    page = visit("", varied, query)
    assert '<input type="hidden" name="since" value="2026-11-01T00:00:00">' in page
    assert 'type="datetime-local" name="since" value="2026-11-01T00:00"' in page


def test_a_name_in_a_table_sets_the_filter(varied: MemoryCalls) -> None:
    page = visit("", varied)
    query = dict(parse_qsl(urlsplit(links(page)["code-review"]).query))
    assert view_from_query(query, NOW).app == "code-review"


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=["script", "markup", "bidi", "long"])
def test_hostile_names_can_be_filtered_by(name: str) -> None:
    page = visit("", source_of(hostile_calls(NOW)))
    queries = [dict(parse_qsl(urlsplit(to).query)) for to in links_to(page)]
    assert name in {query.get("model") for query in queries}


# ── What they show ───────────────────────────────────────────────────────────────────────────────


def test_the_overview_sums_the_calls_up(varied: MemoryCalls) -> None:
    total = varied.overview(view_from_query({"range": "month"}, NOW)).total
    page = visit("", varied)
    figures = dict(zip(texts(page, "dt"), re.findall(r'class="value">([^<]*)', page), strict=False))
    assert figures["Spent"] == f"${total.cost_nano_usd / 1e9:,.2f}"
    assert figures["Calls"] == f"{total.calls:,}"
    assert figures["Errors"] == f"{total.failed:,}"
    assert figures["Input read from cache"] == format_share(total.read_share or 0)
    titles = re.findall(r'class="chart-title">([^<]*)', page)
    assert titles == [
        "Spend",
        "Share of input read from cache",
        "Saved and lost",
        "Calls and errors",
    ]
    assert "cache entry expired" in page
    assert "Cache for longer" in page


def test_spend_is_shown_against_grants_the_nearest_to_a_limit_first(varied: MemoryCalls) -> None:
    apps = [
        AppRow(id="calm", today_nano_usd=10**9, day_limit=10**10),
        AppRow(id="free", today_nano_usd=10**9),
        AppRow(id="busy", today_nano_usd=9 * 10**9, day_limit=10**10),
        AppRow(id="removed", granted=False),
    ]
    _, page = shown(OverviewPage(varied, apps=lambda: apps), "", varied)
    grants = page[page.index("Spend against grants") :]
    assert texts(grants, "dt")[:4] == ["busy", "calm", "free", "removed no grant"]
    assert "$9.00 of $10.00 (90%)" in grants
    assert "$1.00, no limit" in grants
    assert "no limit" not in grants[grants.index("removed") :].partition("</dl>")[0]


def broken_turn(**fields: object) -> ShownCall:
    call = AuditEnvelope(
        at=NOW - 60,
        model="m",
        conversation="c1",
        turn=2,
        usage=AuditUsage(read=100, written={"5m": 900}, uncached=5, output=20),
        predicted=1_000,
        verdict="partial",
        cause="system_changed",
        change="date",
        changed="system[1]",
        broke=True,
        lost=900,
        lost_nano_usd=5_000_000,
        blocks=(AuditBlock(label="system[1]", kind="system", tokens=9, marker=True, ttl="1h"),),
    )
    return ShownCall(
        id="2",
        call=call,
        sentence="Partial hit.",
        field="system[1].text",
        position=9,
        **fields,  # type: ignore[arg-type]
    )


def test_a_break_shows_field_position_cause_and_both_texts() -> None:
    excerpts = ("It is Monday <b>now</b>.", "It is Tuesday <b>now</b>.")
    source = source_of([broken_turn(excerpts=excerpts)])
    page = visit("conversation/c1", source)
    for fact in ("a date changed", "system[1].text", "character 9 of that field", "$0.0050 lost"):
        assert fact in page
    assert "into the newest message" in page
    assert texts(page, "del") == ["Mon"]
    assert texts(page, "ins") == ["Tues"]
    assert "<b>now" not in page
    assert "marker, 1h" in page
    assert "predicted 1,000 read" in page


def test_a_break_without_texts_says_why() -> None:
    source = source_of([broken_turn()])
    page = ConversationPage(source, no_text="the operator has not switched it on")
    _, made = shown(page, "conversation/c1", source)
    assert "The text is not shown here: the operator has not switched it on." in made


@pytest.mark.parametrize(
    "before, after, marked",
    [
        ("same", "same", ([], [])),
        ("", "new", ([], ["new"])),
        ("aaaa", "aa", (["aa"], [])),
        ("abc", "xyz", (["abc"], ["xyz"])),
    ],
)
def test_only_the_part_that_differs_is_marked(
    before: str, after: str, marked: tuple[list[str], list[str]]
) -> None:
    source = source_of([broken_turn(excerpts=(before, after))])
    page = visit("conversation/c1", source)
    assert (texts(page, "del"), texts(page, "ins")) == marked


def test_a_call_of_a_list_leads_to_its_row_in_the_conversation() -> None:
    source = source_of([broken_turn()])
    overview = visit("", source)
    address = urlsplit(links(overview)["turn 2"])
    page = visit(address.path.removeprefix("/ui/"), source)
    assert f'id="{address.fragment}"' in page


def test_a_long_conversation_lists_its_newest_turns_and_all_of_them_on_request() -> None:
    calls = [
        AuditEnvelope(at=NOW - 1000 + n, model="m", conversation="c", turn=n) for n in range(250)
    ]
    source = source_of(calls)
    page = visit("conversation/c", source)
    assert (page.count('id="call-'), "Turn\xa0150" in page, "Turn\xa0249" in page) == (
        100,
        True,
        True,
    )
    assert links(page)["Show all turns"] == "?turns=all"
    assert visit("conversation/c", source, "turns=all").count('id="call-') == 250


def test_a_conversation_that_is_not_there() -> None:
    source = source_of([])
    content, page = shown(ConversationPage(source), f"conversation/{SCRIPT}", source)
    assert content.status == 404
    assert SCRIPT not in page
    assert links(page)["All conversations"] == "/ui/conversations"


def test_the_block_that_costs_most_comes_first_with_what_to_do(varied: MemoryCalls) -> None:
    rows = varied.blocks(view_from_query({"range": "month"}, NOW))
    worst = max(rows, key=lambda row: row.lost_nano_usd)
    page = visit("blocks", varied)
    assert texts(page, "h3")[0] == worst.label
    first = page[page.index("<h3>") : page.index("</article>")]
    assert "What to do: " in unescape(re.sub(r"<[^>]*>", "", first))


@each_row("kind", [*CHANGES, *get_args(CauseKind)])
def test_every_cause_has_a_name_and_advice(kind: str) -> None:
    assert "_" not in cause_name(kind)
    assert what_to_do(kind)


# ── The style ────────────────────────────────────────────────────────────────────────────────────

TEXT_ON = {
    "ink": ("back", "card", "hover", "soft"),
    "dim": ("back", "card"),
    "accent": ("back", "card", "soft"),
    "accent-ink": ("accent",),
    "good": ("card", "good-back"),
    "warn": ("card", "warn-back"),
    "bad": ("back", "card", "bad-back"),
}
SERIES = ("read", "written", "fresh", "output", "saved", "lost", "spent", "calls")


def palettes() -> list[dict[str, str]]:
    """The colours of the light and of the dark style."""
    light, dark = re.findall(
        r":root \{(.*?)\}", static_content("dashboard.css").decode(), re.DOTALL
    )
    colours = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", each)) for each in (light, dark)]
    assert colours[0].keys() == colours[1].keys()
    return colours


def linear(colour: str) -> list[float]:
    """Red, green and blue as amounts of light."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def mixed(rows: Iterable[Iterable[float]], light: Iterable[float]) -> list[float]:
    parts = list(light)
    return [sum(a * b for a, b in zip(row, parts, strict=True)) for row in rows]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    weights = [(0.2126, 0.7152, 0.0722)]
    dark, light = sorted(mixed(weights, linear(each))[0] for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


#: How people see colours who lack one kind of cone: the matrices of Machado, Oliveira and Fernandes
#: (2009) for light.
SIGHTS = {
    "protanopia": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.052)),
    "deuteranopia": ((0.3673, 0.8606, -0.228), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "tritanopia": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}
XYZ = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))


def difference(one: str, other: str, sight: Iterable[Iterable[float]]) -> float:
    """The distance of two colours in CIE Lab, as someone sees them; 2 can just be seen."""
    rows = [list(row) for row in sight]

    def lab(colour: str) -> tuple[float, float, float]:
        seen = (min(max(part, 0.0), 1.0) for part in mixed(rows, linear(colour)))
        x, y, z = (part ** (1 / 3) for part in mixed(XYZ, seen))
        return 116 * y, 500 * (x - y), 200 * (y - z)

    return math.dist(lab(one), lab(other))


#: The series of each chart.
CHARTS = (
    ("read", "written", "fresh", "output"),
    ("saved", "lost", "output"),
    ("spent", "lost"),
    ("calls", "lost"),
)


@pytest.mark.parametrize("colours", palettes(), ids=["light", "dark"])
def test_text_and_bars_stand_out_from_what_is_behind_them(colours: dict[str, str]) -> None:
    for text, grounds in TEXT_ON.items():
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for series in SERIES:
        assert contrast(colours[series], colours["card"]) >= 3, series


@each_row("colours", palettes(), ids=["light", "dark"])
@each_row("sight", SIGHTS)
def test_series_of_a_chart_differ_for_people_who_see_fewer_colours(
    sight: str, colours: dict[str, str]
) -> None:
    for series in CHARTS:
        for one, other in itertools.combinations(series, 2):
            seen = difference(colours[one], colours[other], SIGHTS[sight])
            assert seen >= 20, (one, other)
