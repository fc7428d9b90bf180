"""Every page of the dashboard at three widths, in light and dark, with all rules of axe."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from support.browser import WIDTH, Chromium, Tab, needs_chromium
from support.daemon import TestedDaemon
from support.dashboard_data import APPS, filled_daemon, varied_calls
from support.page_checks import WIDTHS, keyboard_problems, log_in, page_problems, sections
from support.watched_program import watched_program

from anaphora import emulator
from anaphora.daemon.access.identity import ADMIN

pytestmark = needs_chromium

APP = next(iter(APPS))


def problems_of(tab: Tab, urls: Iterable[str]) -> list[str]:
    found = []
    for url in urls:
        found += page_problems(tab, url, widths=(*WIDTHS, WIDTH), contrast=True)
        found += [f"{url}: {each}" for each in keyboard_problems(tab.visit(url))]
    return found


def problems_after_login(browser: Chromium, daemon: TestedDaemon, app: str) -> list[str]:
    with browser.open(f"{daemon.url}/ui") as tab:
        log_in(tab.page, daemon.token(app))
        addresses = sections(tab.page)
        page = tab.visit(f"{daemon.url}/ui/conversations?range=month")
        addresses.append(str(page.locator("main table a").last.get_attribute("href")))
        if app == ADMIN:
            own = f"/ui/apps/{APP}"
            addresses += [own, f"{own}/revoke", f"{own}/rotate", "/ui/session", "/ui/login"]
        return problems_of(tab, [f"{daemon.url}{each}?range=day" for each in addresses])


def test_pages_of_the_daemon(tmp_path: Path) -> None:
    browser = Chromium()
    calls = varied_calls(time.time(), 30)
    try:
        with emulator.running() as emu, filled_daemon(tmp_path, emu, calls) as daemon:
            for app in (ADMIN, APP):
                assert browser.run(partial(problems_after_login, browser, daemon, app)) == []
    finally:
        browser.close()


def test_pages_of_watch_and_emulator() -> None:
    browser = Chromium()
    try:
        with emulator.running() as emu, watched_program(emu) as hosts:
            for root in (hosts.watch, hosts.emulator):
                paths = ("", "/conversations", "/blocks", "/conversation/1")
                urls = [root + path for path in paths]
                with browser.kept(root) as tab:
                    assert browser.run(partial(problems_of, tab, urls)) == []
    finally:
        browser.close()
