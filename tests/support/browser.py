"""Debian's Chromium, driven by its own command line: it loads a page, runs its script, and prints
the document that came of it. No driver and no package is needed for that."""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
HOW = (
    "no Chromium here: apt-get install chromium (`make test INSTALL_CHROMIUM=1` does it, as root), "
    "or name one: CHROMIUM=/path/to/chromium"
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=HOW)


def browse(url: str, profile: Path, *more: str) -> str:
    """The document that the browser prints after the page's script has run."""
    assert CHROMIUM is not None
    flags = [
        "--headless",
        "--no-sandbox",  # as root there is no other way, and the page is our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={profile}",
        "--window-size=1280,700",
        "--virtual-time-budget=3000",
    ]
    run = subprocess.run(
        [CHROMIUM, *flags, *more, url], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


class Rows(HTMLParser):
    """The table's body as texts, a list for each row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def shown(page: str) -> list[list[str]]:
    return [row for row in Rows(page).rows if row]
