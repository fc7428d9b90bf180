"""The page in a real browser. Where there is no Chromium the tests are skipped, with a hint how to
install it."""

from __future__ import annotations

import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import pytest
from support.browser import browse, needs_chromium, shown

from anaphora.emulator.server import Emulator

pytestmark = needs_chromium

LONG = "A beginning that stays the same. " * 400
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def ask(client: anthropic.Anthropic, system: str, **more: Any) -> Any:
    marked: Any = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    messages: Any = [{"role": "user", "content": "Hello"}]
    model = more.pop("model", "claude-opus-5-5")
    return client.messages.create(
        model=model, max_tokens=100, system=[marked], messages=messages, **more
    )


def test_page_shows_markers_reads_writes_and_cost(emu: Emulator, tmp_path: Path) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        wrote = ask(client, LONG).usage
        read = ask(client, LONG).usage
    second, first = shown(browse(f"{emu.url}/_emulator", tmp_path, "--dump-dom"))
    entries = emu.requests()
    for row, call, usage in ((first, entries[1], wrote), (second, entries[0], read)):
        number, _time, about, markers, prompt, output, bill, verdict = row
        assert number == str(call["number"])
        assert about.startswith("claude-opus-5-5 200")
        assert markers == "system[0] 5m"
        assert [int(n.replace(",", "")) for n in prompt.split(" · ")] == [
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            usage.input_tokens,
        ]
        assert output == str(usage.output_tokens)
        assert bill == f"${float(call['cost_usd']):.6f}"
        assert verdict == call["verdict"]["sentence"]
    assert (wrote.cache_read_input_tokens, read.cache_creation_input_tokens) == (0, 0)


def test_page_shows_request_data_as_text(emu: Emulator, tmp_path: Path) -> None:
    """An unknown field is entries in the error, with its name."""
    with (
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError),
    ):
        ask(client, LONG, extra_body={HOSTILE: 1})
    page = browse(f"{emu.url}/_emulator", tmp_path, "--dump-dom")
    (row,) = shown(page)
    assert HOSTILE in row[-1]
    title = re.search(r"<title>(.*)</title>", page)
    assert title is not None
    assert title[1] == "Emulator · Anaphora"


def test_empty_page_shows_a_hint(emu: Emulator, tmp_path: Path) -> None:
    page = browse(f"{emu.url}/_emulator", tmp_path, "--dump-dom")
    assert shown(page) == []
    assert re.search(r'<table id="calls" hidden="">', page)
    assert re.search(r'<p id="empty">No call yet', page)


def test_screenshot_can_be_taken(emu: Emulator, tmp_path: Path) -> None:
    """If ANAPHORA_SCREENSHOT names a file, the screenshot is kept there."""
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        for system in (LONG, LONG, "It is 09:31. " + LONG):
            ask(client, system)
    picture = Path(os.environ.get("ANAPHORA_SCREENSHOT") or tmp_path / "page.png")
    browse(f"{emu.url}/_emulator", tmp_path / "profile", f"--screenshot={picture}")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1280


# ── Pages of other sites ─────────────────────────────────────────────────────────────────────────

ATTACK = """<!doctype html><p id="done"></p><img src="URL/v1/models"><iframe src="URL/_emulator"></iframe>
<script>
const call = JSON.stringify({model: "gpt-4o", messages: [{role: "user", content: "Hi"}]});
const attempts = [
  fetch("URL/v1/chat/completions", {method: "POST", mode: "no-cors", body: call}),
  fetch("URL/_emulator/reset", {method: "POST", mode: "no-cors"}),
  fetch("URL/_emulator/clock", {method: "POST", mode: "no-cors", body: '{"advance": 3600}'}),
  fetch("URL/v1/chat/completions", {method: "POST", body: call, headers: {authorization: "Bearer k"}}),
  fetch("URL/_emulator/requests"),
];
Promise.allSettled(attempts).then((all) => {
  document.getElementById("done").textContent = all.map((one) => one.status).join(" ");
});
</script>"""


class AttackPage(BaseHTTPRequestHandler):
    target = ""

    def do_GET(self) -> None:
        page = ATTACK.replace("URL", self.target).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        pass


def test_page_of_another_site_neither_reads_nor_changes_anything(
    emu: Emulator, tmp_path: Path
) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        ask(client, LONG)
    handler = type("Attack", (AttackPage,), {"target": emu.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        page = browse(f"http://localhost:{site.server_port}/", tmp_path, "--dump-dom")
        site.shutdown()
        thread.join()
    # Without CORS the first three resolve, whatever the server answered; it answered 403.
    assert '<p id="done">fulfilled fulfilled fulfilled rejected rejected</p>' in page
    assert [call["number"] for call in emu.requests()] == [1]
    assert emu.engine.offset == 0


def test_rebound_name_does_not_read_the_journal(emu: Emulator, tmp_path: Path) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        ask(client, LONG)
    rebind = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    url = f"http://evil.example:{emu.port}/_emulator/requests"
    page = browse(url, tmp_path, "--dump-dom", rebind)
    assert "the host 'evil.example' is not allowed" in page
    assert "claude" not in page
