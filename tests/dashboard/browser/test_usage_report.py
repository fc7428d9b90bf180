"""The page of `anaphora usage --html` in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.browser import Tab, needs_chromium
from support.page_checks import keyboard_problems, page_problems
from support.usage_home import CANARY, MORNING, claude_session, write_home

from anaphora.cli.main import main

pytestmark = needs_chromium


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = write_home(tmp_path) / ".claude" / "projects" / "-work-shop"
    new = claude_session("new", MORNING, [0], "/w" + "/very-long-name" * 9, model="<b>owned</b>")
    untimed = re.sub(rb'"timestamp": "[^"]+", ', b"", claude_session("old", MORNING, [0], "/w"))
    (folder / "new.jsonl").write_bytes(new + b"{broken\n" + b'{"usage": \n' + untimed)
    file = tmp_path / "usage.html"
    assert main(["usage", "--html", str(file)]) == 0
    return file.as_uri()


def test_the_report_fits_telephones_and_screens_in_light_and_dark(tab: Tab, page: str) -> None:
    assert page_problems(tab, page, hidden=[CANARY], widths=(360, 1280), contrast=True) == []
    tab.visit(page)
    assert keyboard_problems(tab.page) == []
    tab.leave()
