"""The pages of the emulator: its calls, its clock, and who may open them."""

from __future__ import annotations

import html
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import anthropic
import pytest
from playwright.sync_api import expect
from support.browser import REBOUND, Chromium, needs_chromium
from support.raw_http import exchange, request_bytes

from anaphora.dashboard.values import View
from anaphora.emulator.engine import Engine
from anaphora.emulator.exchange import EmulatorRequest
from anaphora.emulator.page import EmulatorCalls
from anaphora.emulator.server import Emulator

LONG = "A beginning that stays the same. " * 400
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def ask(client: anthropic.Anthropic, system: str, **more: Any) -> Any:
    marked: Any = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
    messages: Any = [{"role": "user", "content": "Hello"}]
    model = more.pop("model", "claude-opus-5-5")
    return client.messages.create(
        model=model, max_tokens=100, system=[marked], messages=messages, **more
    )


def page_at(emu: Emulator, path: str = "") -> str:
    with urlopen(f"{emu.url}/_emulator{path}") as response:
        return str(response.read().decode())


def text_at(emu: Emulator, path: str = "") -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page_at(emu, path))))


def test_pages_show_markers_reads_writes_and_cost(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        used = [ask(client, LONG).usage for _ in range(2)]
    overview, conversation = text_at(emu), text_at(emu, "/conversation/1")
    for call, usage in zip(reversed(emu.requests()), used, strict=True):
        prompt = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        assert " · ".join(f"{count:,}" for count in (*prompt, usage.input_tokens)) in overview
        assert f"${float(call['cost_usd']):.4f}" in conversation
        assert call["verdict"]["sentence"] in overview
        assert call["verdict"]["sentence"] in conversation
    assert "marker, 5m" in conversation
    assert [use.cache_read_input_tokens > 0 for use in used] == [False, True]
    assert "claude-opus-5-5" in text_at(emu, "/conversations")
    assert "system0" in text_at(emu, "/blocks")


def test_break_has_both_texts(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        for system in (LONG, f"{HOSTILE}{LONG}"):
            ask(client, system)
    page = page_at(emu, "/conversation/1")
    assert "<img" not in page
    text = text_at(emu, "/conversation/1")
    assert "Field system[0].text" in text
    assert "Before A beginning that stays" in text
    assert "After <img src=x" in text


def test_errors_and_faults_are_shown_as_text(emu: Emulator) -> None:
    """An unknown field is named in the error."""
    headers = {"x-emulator-fault": "529"}
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError):
            ask(client, LONG, extra_body={HOSTILE: 1})
        with pytest.raises(anthropic.InternalServerError):
            ask(client, LONG, extra_headers=headers)
    assert "<img" not in page_at(emu)
    text = text_at(emu)
    assert HOSTILE in text
    assert "Fault: 529." in text


def test_empty_page_shows_a_hint(emu: Emulator) -> None:
    assert "Point a client at this address; any key will do." in text_at(emu)


def test_pages_keep_up_with_resets(emu: Emulator) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        ask(client, LONG)
        assert "claude-opus-5-5" in text_at(emu, "/conversations")
        emu.reset()
        assert "claude-opus-5-5" not in text_at(emu, "/conversations")
        ask(client, LONG)
    assert "claude-opus-5-5" in text_at(emu, "/conversations")


def test_calls_stay_on_the_pages_when_their_prompts_are_dropped() -> None:
    journal_bytes = 60_000
    engine = Engine()
    engine.journal._max_bytes = journal_bytes
    for number in range(12):
        engine.respond(generate(f"Prompt {number}. {LONG}"))
    calls = EmulatorCalls(engine)
    calls.update()
    view = View(since=0.0, until=60.0)
    overview = calls.source.overview(view)
    assert overview.total.calls == 12
    assert overview.total.unpriced == 0
    assert {row.calls for row in calls.source.blocks(view) if row.label == "system0"} == {12}


def generate(system: str) -> EmulatorRequest:
    body = {
        "model": "claude-opus-5-5",
        "max_tokens": 9,
        "system": system,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    headers["content-type"] = "application/json"
    return EmulatorRequest(
        method="POST", path="/v1/messages", headers=headers, body=json.dumps(body).encode(), now=1.0
    )


@needs_chromium
def test_calls_appear_while_the_page_is_open(emu: Emulator, chromium: Chromium) -> None:
    with (
        chromium.open(f"{emu.url}/_emulator") as tab,
        anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client,
    ):
        expect(tab.page.get_by_text("any key will do")).to_be_visible()
        ask(client, LONG)
        expect(tab.page.locator("#newest")).to_contain_text("First call: nothing cached yet.")
    assert not tab.problems


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/forms/clock", b"advance=60", 303),
        ("/forms/clock", b"advance=a%20day", 400),
        ("/forms/clock", b"", 400),
        ("/forms/reset", b"", 303),
        ("/forms/nothing", b"", 404),
        ("", b"", 405),
        ("/blocks", b"", 405),
    ],
)
def test_forms(emu: Emulator, path: str, body: bytes, status: int) -> None:
    answer = exchange(emu.port, request_bytes("POST", f"/_emulator{path}", body))
    assert answer.status == status
    if status == 303:
        assert "location: /_emulator\r\n" in answer.head.lower()


# ── Pages of other sites ─────────────────────────────────────────────────────────────────────────

ATTACK = """<!doctype html><p id="done"></p><img src="URL/v1/models"><iframe src="URL/_emulator"></iframe>
<script>
const call = JSON.stringify({model: "gpt-4o", messages: [{role: "user", content: "Hi"}]});
const attempts = [
  fetch("URL/v1/chat/completions", {method: "POST", mode: "no-cors", body: call}),
  fetch("URL/_emulator/reset", {method: "POST", mode: "no-cors"}),
  fetch("URL/_emulator/clock", {method: "POST", mode: "no-cors", body: '{"advance": 3600}'}),
  fetch("URL/_emulator/forms/reset", {method: "POST", mode: "no-cors"}),
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


@needs_chromium
def test_page_of_another_site_neither_reads_nor_changes_anything(
    emu: Emulator, chromium: Chromium
) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        ask(client, LONG)
    handler = type("Attack", (AttackPage,), {"target": emu.url})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        with chromium.open(f"http://localhost:{site.server_port}/") as tab:
            # Without CORS the first four resolve, whatever the server answered; it answered 403.
            expect(tab.page.locator("#done")).to_have_text(
                "fulfilled fulfilled fulfilled fulfilled rejected rejected"
            )
        site.shutdown()
        thread.join()
    assert [call["number"] for call in emu.requests()] == [1]
    assert emu.engine.offset == 0


@needs_chromium
def test_rebound_name_does_not_read_the_journal(emu: Emulator, chromium: Chromium) -> None:
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as client:
        ask(client, LONG)
    with chromium.open(f"http://{REBOUND}:{emu.port}/_emulator/requests") as tab:
        expect(tab.page.locator("body")).to_contain_text(f"the host '{REBOUND}' is not allowed")
        assert "claude" not in tab.page.content()
