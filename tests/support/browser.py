"""The installed Chromium, driven by playwright. It reaches this machine and nothing else.

    def test_page(chromium: Chromium, emu: Emulator) -> None:
        with chromium.open(f"{emu.url}/_emulator") as tab:
            expect(tab.page).to_have_title("Emulator · Anaphora")
        assert not tab.problems

One browser serves all tests of a process. Playwright keeps an event loop running in the thread that
it is used from, in which `asyncio.run` then fails; the browser and the tests that ask for it
therefore run in a thread of their own (tests/conftest.py).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)
from support.waiting import PATIENCE

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM") or "", *NAMES))), None)
HOW = (
    "no Chromium here: apt-get install chromium (`make test INSTALL_SERVERS=1` does it, as root), "
    "or name one: CHROMIUM=/path/to/chromium"
)
#: In CI a missing Chromium is a failure: the fixture `chromium` reports it.
needs_chromium = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason=HOW)

#: A name that leads here, as a name of another site would after DNS rebinding.
REBOUND = "evil.example"

FLAGS = [
    "--no-sandbox",  # as root there is no other way, and the pages are our own
    "--disable-gpu",
    "--js-flags=--no-opt --no-maglev",  # pages are left before optimized code would pay
    "--disable-dev-shm-usage",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1,"
    "MAP * ~NOTFOUND,EXCLUDE 127.0.0.1,EXCLUDE localhost",
]


#: Milliseconds for something to appear.
TIMEOUT = int(PATIENCE * 1000)
expect.set_options(timeout=TIMEOUT)


#: Pixels of a small screen.
WIDTH, HEIGHT = 1_280, 800


def _origin(url: str) -> str:
    return "://".join(urlsplit(url)[:2])


class Tab:
    """A page, and everything that went wrong in it: errors and warnings of the console (violations
    of its content security policy among them), exceptions, requests that failed or went to another
    origin, and dialogs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self._origin = ""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("request", self._request)
        page.on("requestfailed", self._failed)
        page.on("response", self._response)

    def visit(self, url: str) -> Page:
        """The page at another address, maybe of another origin, with no problems so far."""
        self.problems.clear()
        self._origin = _origin(url)
        self.page.goto(url)
        return self.page

    def leave(self) -> None:
        """Ends the page, and its stream of events."""
        self.page.goto("about:blank")

    def _console(self, message: ConsoleMessage) -> None:
        # The status of a response is reported below.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")) and _origin(request.url) != self._origin:
            self.problems.append(f"request to another origin: {request.url}")

    def _failed(self, request: Request) -> None:
        # A stream of events, or what a page loads, ends when the page is left.
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"{request.method} {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.request.method} {response.url}: {response.status}")


class Chromium:
    """A browser in a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chromium")
        self._stack = ExitStack()
        self._browser: Browser = self.run(self._launch)

    def _launch(self) -> Browser:
        playwright = self._stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        self._stack.callback(browser.close)
        return browser

    def run(self, use: Callable[[], T]) -> T:
        """The result of a function that is called in the browser's thread."""
        return self._thread.submit(use).result()

    def close(self) -> None:
        self.run(self._stack.close)
        self._thread.shutdown()

    @contextmanager
    def kept(self, url: str, **options: Any) -> Iterator[Tab]:
        """A tab for several tests: `open`, for a fixture."""
        opened = self.open(url, **options)
        tab = self.run(opened.__enter__)
        try:
            yield tab
        finally:
            self.run(lambda: opened.__exit__(None, None, None))

    @contextmanager
    def open(
        self,
        url: str,
        *,
        width: int = WIDTH,
        scheme: Literal["light", "dark"] = "light",
        zone: str = "Asia/Tokyo",
        javascript: bool = True,
        **context: Any,
    ) -> Iterator[Tab]:
        """A tab with a profile of its own, at an address. `context` are options of playwright's
        `new_context`, such as the `storage_state` of another tab."""
        opened = self._browser.new_context(
            viewport={"width": width, "height": HEIGHT},
            color_scheme=scheme,
            timezone_id=zone,
            locale="en-GB",
            java_script_enabled=javascript,
            reduced_motion="reduce",  # so that colours are final when they are checked
            **context,
        )
        try:
            opened.set_default_timeout(TIMEOUT)
            tab = Tab(opened.new_page())
            tab.visit(url)
            yield tab
        finally:
            opened.close()
