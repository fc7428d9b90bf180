"""What holds for every page of the dashboard in a browser: it fits its window, its text can be read,
a keyboard reaches everything, and axe finds nothing serious."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from playwright.sync_api import Page, expect

from .browser import HEIGHT, WIDTH, Tab

#: Widths of a large screen and a telephone.
WIDTHS = (2_560, 360)
#: Pixels of the smallest text, and of text in a chart, which is scaled with it.
SMALLEST_TEXT, SMALLEST_CHART_TEXT = 11, 9

_LAYOUT = """([smallest, smallestInChart]) => {
    const found = [];
    const name = (element) => element.tagName.toLowerCase()
        + (element.id ? '#' + element.id : '')
        + (element.getAttribute('class') ? '.' + element.getAttribute('class') : '')
        + ` "${element.textContent.trim().slice(0, 40)}"`;
    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) {
        found.push(`the page is ${root.scrollWidth} px wide in a window of ${root.clientWidth} px`);
        const scrolls = (element) => {
            for (let e = element.parentElement; e && e !== root; e = e.parentElement)
                if (getComputedStyle(e).overflowX !== 'visible') return true;
            return false;
        };
        for (const element of document.body.querySelectorAll('*')) {
            const right = element.getBoundingClientRect().right + scrollX;
            if (right > root.clientWidth + 1 && element.checkVisibility() && !scrolls(element))
                found.push(`  ${name(element)} ends at ${Math.round(right)} px`);
        }
    }
    if (root.clientWidth < 640)
        for (const area of document.querySelectorAll('.scroll'))
            if (area.checkVisibility() && area.scrollWidth > area.clientWidth + 1)
                found.push(`the table "${area.getAttribute('aria-label')}" scrolls sideways`);
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || seen.has(element)) continue;
        seen.add(element);
        if (!element.checkVisibility() || element.closest('title, desc, script, style')) continue;
        const chart = element instanceof SVGElement && element.getScreenCTM;
        const scale = chart ? element.getScreenCTM().a : 1;
        const size = parseFloat(getComputedStyle(element).fontSize) * scale;
        const least = chart ? smallestInChart : smallest;
        if (size < least) found.push(`${name(element)} has text of ${size.toFixed(1)} px`);
    }
    return found.slice(0, 20);
}"""


def log_in(page: Page, token: str) -> None:
    """Fills in the form of the daemon's login page."""
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def layout_problems(page: Page, width: int | None = None) -> list[str]:
    """What does not fit into the window, or is too small to be read; `width` resizes it before."""
    if width is not None:
        page.set_viewport_size({"width": width, "height": HEIGHT})
    found: list[str] = page.evaluate(_LAYOUT, [SMALLEST_TEXT, SMALLEST_CHART_TEXT])
    return found


@functools.cache
def _axe() -> str:
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


#: The rows of a table, the columns of a chart and the options of a field are alike, and axe takes
#: seconds for hundreds of them.
#: An update of a live page brings them back, so they are removed before each run.
_AXE_RUN = """async (options) => {
    for (const list of document.querySelectorAll('tbody, select, svg, svg g')) {
        const alike = {};
        for (const item of [...list.children]) {
            const kind = item.tagName + '.' + item.getAttribute('class');
            alike[kind] = (alike[kind] ?? 0) + 1;
            if (alike[kind] > 2) item.remove();
        }
    }
    const results = await axe.run(
        document, {resultTypes: ['violations'], preload: false, ...options});
    return results.violations.flatMap((one) => one.nodes.map((node) =>
        [one.impact, `${one.id} (${one.impact}): ${node.target.join(' ')}: ${node.failureSummary}`]));
}"""
_CONTRAST: dict[str, Any] = {"runOnly": ["color-contrast"]}
_NO_CONTRAST: dict[str, Any] = {"rules": {"color-contrast": {"enabled": False}}}


def accessibility_problems(page: Page, *, contrast: bool) -> list[str]:
    """The serious and critical violations that axe finds; with `contrast`, which takes most of the
    time, those of the colours in light and dark as well. Of long lists it sees the beginning: the
    rest is removed from the page."""
    page.evaluate(_axe())
    found: list[tuple[str, str]] = page.evaluate(_AXE_RUN, {} if contrast else _NO_CONTRAST)
    if contrast:
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(_AXE_RUN, _CONTRAST)
        found += [(impact, f"dark: {text}") for impact, text in dark]
        page.emulate_media(color_scheme="light")
    return [text for impact, text in found if impact in ("serious", "critical")]


_REACHABLE = """[...document.querySelectorAll(
    'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')]
    .filter((element) => element.checkVisibility() && !element.disabled)"""
#: Notes each element that gets the focus; returns how many elements should. The next Tab starts at
#: the top, also on a page that has given the focus to a field.
_WATCH_FOCUS = f"""() => {{
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute('tabindex');
    scrollTo(0, 0);
    window.focused = new Map();
    document.addEventListener('focusin', ({{target}}) => {{
        const style = getComputedStyle(target);
        const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
        window.focused.set(target, outlined || style.boxShadow !== 'none');
    }});
    return {_REACHABLE}.length;
}}"""
_FOCUS_PROBLEMS = f"""() => [
    ...[...window.focused].filter(([element, shown]) => !shown)
        .map(([element]) => 'no visible focus: ' + element.outerHTML.slice(0, 120)),
    ...{_REACHABLE}.filter((element) => !window.focused.has(element))
        .map((element) => 'not reached: ' + element.outerHTML.slice(0, 120)),
]"""


def keyboard_problems(page: Page) -> list[str]:
    """Elements that the Tab key does not reach, or that do not show that they have the focus."""
    reachable: int = page.evaluate(_WATCH_FOCUS)
    found: list[str] = []
    for _ in range(2):  # regions that scroll have the focus as well
        for _ in range(reachable):
            page.keyboard.press("Tab")
        found = page.evaluate(_FOCUS_PROBLEMS)
        if not found:
            break
    return found


def sections(page: Page) -> list[str]:
    """The addresses in the navigation, without the view."""
    links = page.get_by_role("navigation").get_by_role("link").all()
    return [str(link.get_attribute("href")).partition("?")[0] for link in links]


def page_problems(
    tab: Tab,
    address: str,
    *,
    hidden: Iterable[str] = (),
    widths: Sequence[int] = WIDTHS,
    axe: bool = True,
    contrast: bool = False,
) -> list[str]:
    """The problems of the page at an address: something failed or left this machine, text is there
    that must be `hidden`, the page does not fit one of the widths, or axe finds something serious.
    Without `axe` for pages that another host has as well; `contrast` as of
    `accessibility_problems`."""
    page = tab.visit(address)  # a status of 400 and more is among the tab's problems
    content = page.content()
    found = [f"shows {each!r}" for each in hidden if each in content]
    if "owned" in page.title() or page.locator("main script, main img").count():
        found.append("a name became markup")
    for width in widths:
        found += [f"{width} px: {each}" for each in layout_problems(page, width)]
    if axe:
        found += accessibility_problems(page, contrast=contrast)
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return [f"{page.url}: {each}" for each in (*found, *tab.problems)]
