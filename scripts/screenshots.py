"""Take the pictures of docs/dashboard.md and docs/why-is-my-bill-high.md again, from made-up calls.

    python scripts/screenshots.py [--output FOLDER]

Needs Chromium (`CHROMIUM=/path/to/chromium` names one). The calls come from
tests/support/dashboard_data.py, and from an agent whose system prompt has a date in it, which the
emulator answers. No network, no key.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import httpx  # noqa: E402
from playwright.sync_api import expect  # noqa: E402
from support.browser import CHROMIUM, HOW, Chromium  # noqa: E402
from support.dashboard_data import filled_daemon, varied_calls  # noqa: E402
from support.usage_home import write_example_home  # noqa: E402

from anaphora import emulator  # noqa: E402
from anaphora.daemon.access.identity import ADMIN  # noqa: E402
from anaphora.emulator.server import Emulator  # noqa: E402
from anaphora.proxy.page import WatchedCalls, WatchPage  # noqa: E402
from anaphora.proxy.routes import default_routes  # noqa: E402
from anaphora.proxy.server import running  # noqa: E402
from anaphora.traffic.judging import Judge  # noqa: E402

WIDTH = 1_280
GUIDE = "You answer questions about orders, and name the order in each answer. " * 120
QUESTIONS = (
    "Where is order 1041?",
    "And 1042?",
    "Can it come on Friday?",
    "Then cancel 1041.",
    "What do I get back?",
    "Thanks. Anything else open?",
    "Show me all of this month.",
)


def take_overview(browser: Chromium, emu: Emulator, picture: Path) -> None:
    """The overview of a daemon with calls of a month."""
    with (
        tempfile.TemporaryDirectory() as folder,
        filled_daemon(Path(folder), emu, varied_calls(time.time())) as daemon,
    ):

        def take() -> None:
            with browser.open(f"{daemon.url}/ui?range=month", width=WIDTH) as tab:
                tab.page.get_by_label("Token").fill(daemon.token(ADMIN))
                tab.page.keyboard.press("Enter")
                tab.page.get_by_role("link", name="Month").click()
                newest = tab.page.locator("#newest tbody tr")
                expect(newest).to_have_count(20)
                tab.page.reload()  # the log is summed now, and its names can be filtered by
                tab.page.screenshot(path=picture, full_page=True, clip=_clip(1_180))

        browser.run(take)


def take_conversation(browser: Chromium, emu: Emulator, picture: Path) -> None:
    """A watched program, one turn of which has another date."""
    judge = Judge()
    calls = WatchedCalls(judge)
    page = WatchPage(judge, calls)
    routes = default_routes({"anthropic": emu.url})
    with running(routes, observers=[judge, calls], pages=page) as proxy:
        _converse(proxy.url_of("anthropic"))
        proxy.settle(10)

        def take() -> None:
            url = f"{proxy.url}{page.path}/conversation/1"
            with browser.open(url, width=WIDTH, scheme="dark") as tab:
                expect(tab.page.locator(".excerpts")).to_be_visible()
                tab.page.screenshot(path=picture, full_page=True, clip=_clip(1_040))

        browser.run(take)


def take_usage(browser: Chromium, picture: Path) -> None:
    """The report of `anaphora usage --html` on the sessions of two weeks."""
    with tempfile.TemporaryDirectory() as folder:
        home = write_example_home(Path(folder))
        report = home / "usage.html"
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TZ": "UTC"}
        words = [sys.executable, "-m", "anaphora", "usage", "--html", str(report)]
        subprocess.run(words, env=environ, check=True)

        def take() -> None:
            with browser.open(report.as_uri(), width=WIDTH) as tab:
                tab.page.screenshot(path=picture, full_page=True, clip=_clip(860))

        browser.run(take)


def _converse(url: str) -> None:
    messages: list[Any] = []
    for number, question in enumerate(QUESTIONS):
        day = "Sunday, 15 November" if number < 4 else "Monday, 16 November"
        text = f"Today is {day}. {GUIDE}"
        marked = {"cache_control": {"type": "ephemeral"}}
        asked = {"role": "user", "content": [{"type": "text", "text": question, **marked}]}
        body = {
            "model": "claude-sonnet-5-5",
            "max_tokens": 200,
            "system": [{"type": "text", "text": text, **marked}],
            "messages": [*messages, asked],
        }
        headers = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
        answer = httpx.post(f"{url}/v1/messages", json=body, headers=headers).json()
        messages += [{"role": "user", "content": question}]
        messages += [{"role": "assistant", "content": answer["content"]}]


def _clip(height: int) -> Any:
    return {"x": 0, "y": 0, "width": WIDTH, "height": height}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    folder: Path = parser.parse_args().output
    if CHROMIUM is None:
        sys.exit(HOW)
    folder.mkdir(parents=True, exist_ok=True)
    browser = Chromium()
    try:
        with emulator.running() as emu:
            take_overview(browser, emu, folder / "dashboard-overview.png")
            take_conversation(browser, emu, folder / "dashboard-conversation.png")
        take_usage(browser, folder / "usage-report.png")
    finally:
        browser.close()
    for picture in sorted(folder.glob("*.png")):
        print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
