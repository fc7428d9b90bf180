"""The page, opened by a real Chromium."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import anthropic
import pytest

from anaphora.emulator.server.run import Emulator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; on Debian: apt-get install chromium"
)

LONG = "A beginning that stays the same. " * 400


def opened(url: str, profile: Path) -> str:
    """The page's body as it is after its script has run."""
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=3000",
        "--dump-dom",
        url,
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return shown.stdout.partition("<body>")[2].partition("<script>\n")[0]


def test_the_page_shows_every_call(emu: Emulator, tmp_path: Path) -> None:
    def ask(system: str, **more: Any) -> Any:
        marked: Any = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        return client.messages.create(
            model="claude-opus-5-5",
            max_tokens=100,
            system=[marked],
            messages=[{"role": "user", "content": "Hello"}],
            **more,
        )

    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        wrote = ask(LONG).usage.cache_creation_input_tokens
        ask(LONG)
        with pytest.raises(anthropic.BadRequestError):
            ask(LONG, extra_body={"<script>alert(1)</script>": 1})
        with pytest.raises(anthropic.APIStatusError):
            ask(LONG, extra_headers={"x-emulator-fault": "529"})
    page = opened(f"{emu.url}/_emulator", tmp_path)
    assert page.count('<tr class="" data-number=') + page.count("<tr data-number=") == 4
    assert f"Hit: {wrote:,} tokens were read" in page
    assert "system[0]" in page
    assert "fault: 529" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
