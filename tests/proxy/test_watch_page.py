"""The pages of `anaphora watch --web`: what they show, live and to whom."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from playwright.sync_api import expect
from support.browser import Chromium, needs_chromium

from anaphora import emulator
from anaphora.emulator import EmulatorOptions, Latency
from anaphora.emulator.server import Emulator
from anaphora.proxy.page import WatchedCalls, WatchPage, watch_report
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running
from anaphora.traffic.judging import Judge
from anaphora.traffic.sums import CallSums

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
KEY = "sk-canary-9aF3xLq8ZpQ"
LONG = "It stays the same. " * 500


class Watched(NamedTuple):
    client: httpx.Client
    proxy: Proxy
    page: WatchPage
    judge: Judge
    calls: WatchedCalls

    def url(self, path: str = "") -> str:
        return self.proxy.url + self.page.path + path

    def text(self, path: str = "") -> str:
        """The texts of a page."""
        return text_of(self.page_at(path))

    def page_at(self, path: str = "") -> str:
        response = self.client.get(self.url(path))
        assert response.status_code == 200, response.text
        return response.text

    def status(self, path: str, method: str = "GET", **headers: str) -> int:
        return self.client.request(method, self.proxy.url + path, headers=headers).status_code

    def post(self, provider: str, path: str, body: Any) -> httpx.Response:
        headers = {"anthropic-version": "2023-06-01", "x-api-key": KEY}
        headers["authorization"] = f"Bearer {KEY}"
        response = self.client.post(self.proxy.url_of(provider) + path, json=body, headers=headers)
        assert self.proxy.settle(10)
        return response

    def ask(self, system: str, **changes: Any) -> httpx.Response:
        marked = {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        body = {"model": "claude-opus-5-5", "max_tokens": 20, "system": [marked]}
        body |= {"messages": [{"role": "user", "content": "Hello"}]}
        return self.post("anthropic", "/v1/messages", body | changes)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)))


@contextmanager
def watching(emu: Emulator) -> Iterator[Watched]:
    judge = Judge()
    calls = WatchedCalls(judge)
    page = WatchPage(judge, calls)
    routes = default_routes({"anthropic": emu.url, "openai": emu.url})
    with running(routes, observers=[judge, calls], pages=page) as proxy, httpx.Client() as client:
        yield Watched(client, proxy, page, judge, calls)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A proxy after some calls: a conversation whose third turn breaks, a side call, an error, a
    stream without a bill, and a response with an address past the proxy."""
    options = EmulatorOptions(latency=Latency(first=0.0), any_model=True)
    with emulator.running(options) as emu, watching(emu) as watched:
        for day in ("2026-11-15", "2026-11-15", f"2026-11-16 {HOSTILE}"):
            watched.ask(f"Today is {day}. {LONG}")
        title = [{"role": "user", "content": "What was that about?"}]
        watched.ask("Write a title.", messages=title)
        watched.ask(LONG, max_tokens=-1)
        streamed = {"model": "gpt-4o", "stream": True}
        streamed["messages"] = [{"role": "user", "content": f"Question. {LONG}"}]
        for _ in range(2):
            watched.post("openai", "/v1/chat/completions", streamed)
        one = {"custom_id": "a", "params": {"model": "claude-opus-5-5", "max_tokens": 9}}
        one["params"]["messages"] = [{"role": "user", "content": "Hi"}]  # type: ignore[index]
        batch = watched.post("anthropic", "/v1/messages/batches", {"requests": [one]}).json()
        emu.advance(60)
        headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
        url = watched.proxy.url_of("anthropic") + f"/v1/messages/batches/{batch['id']}"
        watched.client.get(url, headers=headers)
        assert watched.proxy.settle(10)
        yield watched


def test_overview_has_the_sums_of_the_command(watched: Watched) -> None:
    page = watched.text()
    assert f"Since the start: {watched.judge.summary().headline}." in page
    assert "7 calls, 2 other requests such as token counts (not listed), " in page
    assert ", 1 break." in page
    assert watched.judge.summary().advice[0] in page
    assert "past the proxy" in page
    assert "claude-opus-5-5" in page


def test_newest_calls_have_their_verdicts_and_errors(watched: Watched) -> None:
    page = watched.text()
    usage = watched.judge.calls[1].usage
    assert usage is not None
    assert f"{usage.read:,} · 0 · {usage.uncached:,}" in page
    assert "Hit: " in page
    assert "Miss: none of" in page
    assert "max_tokens" in page
    assert "(400)" in page


def test_break_has_field_position_price_and_both_texts(watched: Watched) -> None:
    broken = watched.judge.calls[2]
    page = watched.page_at("/conversation/1")
    assert "<img" not in page
    text = text_of(page)
    assert "Field system[0].text" in text
    assert "Position character 18 of that field" in text
    assert f"Billed again {broken.lost:,} tokens" in text
    assert "2026-11-15. It stays" in text.replace("2026-11-1 5", "2026-11-15")
    assert HOSTILE[:10] in text
    assert "marker, 5m" in text


def test_stream_without_a_bill_is_shown_with_the_prediction(watched: Watched) -> None:
    *_, call = (each for each in watched.judge.calls if each.usage is None and each.predicted)
    assert "(predicted; there is no bill)" in call.sentence
    page = watched.text(f"/conversation/{call.conversation}")
    assert call.sentence in page
    predicted = call.predicted
    assert predicted is not None
    assert f" {predicted.read:,} " in page


def test_side_calls_are_marked_among_the_conversations(watched: Watched) -> None:
    side = [call.conversation for call in watched.judge.calls if call.side_call]
    page = watched.text("/conversations")
    assert re.findall(r" (\d+) side call", page) == [str(number) for number in side]


def test_sums_of_side_calls_are_those_of_their_conversations(watched: Watched) -> None:
    summary, totals = watched.judge.summary(), watched.judge.totals
    for side, sums in ((False, summary.judged), (True, summary.side_calls)):
        direct = CallSums()
        for each in totals.conversations:
            if each.is_side_call == side:
                direct.add_sums(each.sums)
        assert sums == direct
        assert sums.calls > 0


def test_blocks_name_what_broke(watched: Watched) -> None:
    page = watched.text("/blocks")
    assert "system0" in page
    assert " in 1 break, " in page


def test_key_and_whole_prompts_are_on_no_page(watched: Watched) -> None:
    report = watch_report(watched.judge, watched.calls, watched.judge.calls[-1].at + 1).decode()
    paths = ("", "/conversations", "/conversation/1", "/blocks")
    for page in (report, *(watched.page_at(path) for path in paths)):
        assert KEY not in page
        assert LONG[:100] not in page


def test_first_turn_of_a_conversation_is_no_side_call(emu: Emulator) -> None:
    """A later turn shows it, and the page follows."""
    with watching(emu) as watched:
        for _ in range(2):
            watched.ask(LONG)
        other: dict[str, Any] = {"messages": [{"role": "user", "content": "Another question"}]}
        watched.ask("Talk.", **other)
        assert watched.proxy.settle(10)
        assert "no call has followed it" in text_of(watched.page_at("/conversation/2"))
        other["messages"] += [
            {"role": "assistant", "content": "Answer"},
            {"role": "user", "content": "And then?"},
        ]
        watched.ask("Talk.", **other)
        assert watched.proxy.settle(10)
        for page in ("", "/conversations", "/conversation/2"):
            text = text_of(watched.page_at(page)).lower()
            assert "side call" not in text, page
            assert "nothing was lost" not in text


def test_report_is_one_file_with_the_same_facts(watched: Watched) -> None:
    report = watch_report(watched.judge, watched.calls, watched.judge.calls[-1].at + 1).decode()
    assert "<script" not in report
    assert "<link" not in report
    assert "<img" not in report
    text = text_of(report)
    assert "7 calls, 2 other requests such as token counts (not listed), " in text
    shown = watched.judge.summary().advice
    assert shown
    assert all(sentence in text for sentence in shown)
    assert "Field system[0].text" in text
    assert "2026-11-15. It stays" in text.replace("2026-11-1 5", "2026-11-15")


def test_report_without_calls_says_so() -> None:
    judge = Judge()
    assert "No calls." in text_of(watch_report(judge, WatchedCalls(judge), 1.0).decode())


# ── Live ─────────────────────────────────────────────────────────────────────────────────────────


@needs_chromium
@pytest.mark.long
def test_break_appears_while_the_page_is_open(emu: Emulator, chromium: Chromium) -> None:
    with watching(emu) as watched, chromium.open(watched.url()) as tab:
        expect(tab.page.get_by_text("Calls appear here when they have ended.")).to_be_visible()
        for day in ("2026-11-15", "2026-11-15", f"2026-11-16 {HOSTILE}"):
            watched.ask(f"Today is {day}. {LONG}")
        expect(tab.page.locator("#watched")).to_contain_text("3 calls, ")
        expect(tab.page.locator("#newest")).to_contain_text("Miss: none of")
        tab.page.get_by_role("link", name="Conversation 1, turn 3").click()
        expect(tab.page.locator(".excerpts")).to_contain_text("day is 2026-11-15.")
        expect(tab.page.locator(".excerpts")).to_contain_text(HOSTILE[:10])
        expect(tab.page).to_have_title("Conversation 1 · Watch · Anaphora")
    assert not tab.problems


def test_events_of_a_page_follow_the_calls(emu: Emulator) -> None:
    with (
        watching(emu) as watched,
        watched.client.stream("GET", watched.url("/events?page=conversations")) as response,
    ):
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        assert "No calls" in next(lines)
        watched.ask(LONG)
        fragment = json.loads(
            next(line for line in lines if '"conversations"' in line).removeprefix("data: ")
        )
        assert "claude-opus-5-5" in fragment["html"]


# ── Access ───────────────────────────────────────────────────────────────────────────────────────


def test_there_is_nothing_without_the_token(emu: Emulator) -> None:
    with watching(emu) as watched, watching(emu) as other:
        token = watched.page.path
        assert token != other.page.path
        for path in ("", "/", "/blocks", "/conversations"):
            assert watched.status(token + path) == 200
        for path in ("", "/blocks", "/events", "/static/dashboard.css"):
            for root in ("/_watch", "/_watch/", token[:-1], f"{token}x", other.page.path):
                assert watched.status(root + path) == 404


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        (
            {
                "Sec-Fetch-Site": "cross-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "document",
            },
            403,
        ),
    ],
)
def test_pages_of_other_sites_are_kept_out(
    watched: Watched, headers: dict[str, str], expected: int
) -> None:
    for path in ("", "/conversation/1"):
        assert watched.status(watched.page.path + path, **headers) == expected


def test_page_can_only_be_read(emu: Emulator) -> None:
    with watching(emu) as watched:
        assert watched.status(watched.page.path, method="POST") == 405
        assert watched.status(watched.page.path, method="HEAD") == 200
    assert watched.judge.calls == ()
