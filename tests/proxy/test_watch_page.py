"""The live page of `anaphora watch`: what it shows in a browser, and to whom."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support.browser import browse, needs_chromium, shown

from anaphora.emulator.server import Emulator
from anaphora.proxy.judging import Judge
from anaphora.proxy.page import WatchPage
from anaphora.proxy.routes import default_routes
from anaphora.proxy.server import Proxy, running

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@contextmanager
def watching(emu: Emulator) -> Iterator[tuple[Proxy, WatchPage, Judge]]:
    judge = Judge()
    page = WatchPage(judge)
    with running(default_routes({"anthropic": emu.url}), observers=[judge], pages=page) as proxy:
        yield proxy, page, judge


def ask(proxy: Proxy, system: str, model: str = "claude-opus-5-5") -> None:
    text = {"type": "text", "text": f"{system} " + "It stays the same. " * 500}
    marked = {**text, "cache_control": {"type": "ephemeral"}}
    body = {"model": model, "max_tokens": 20, "system": [marked]}
    data = json.dumps(body | {"messages": [{"role": "user", "content": "Hello"}]}).encode()
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    url = proxy.url_of("anthropic") + "/v1/messages"
    try:
        with urlopen(Request(url, data, {**headers, "x-api-key": "k"})) as response:
            response.read()
    except HTTPError as problem:
        problem.close()


def status(url: str, method: str = "GET", **headers: str) -> int:
    request = Request(url, headers=headers, method=method)
    try:
        with urlopen(request) as response:
            return int(response.status)
    except HTTPError as problem:
        problem.close()
        return problem.code


@needs_chromium
def test_page_shows_calls_while_the_proxy_runs(emu: Emulator, tmp_path: Path) -> None:
    with watching(emu) as (proxy, page, judge):
        for day in ("2026-11-15", "2026-11-15", f"2026-11-16 {HOSTILE}"):
            ask(proxy, f"Today is {day}.")
        ask(proxy, "Hello", model=HOSTILE)
        document = browse(proxy.url + page.path, tmp_path, "--dump-dom")
    hostile, broken, hit, first = shown(document)
    assert first[3] == "conversation 1turn 1"
    assert hit[0] == "2"
    assert "Hit: " in hit[-1]
    usage = judge.calls[1].usage
    assert usage is not None
    assert hit[4].startswith(f"{usage.read:,} · 0 · ")
    assert "Miss: none of" in broken[-1]
    assert "- day is 2026-11-15." in broken[-1]
    assert HOSTILE[:19] in broken[-1]
    assert HOSTILE in hostile[2]
    title = re.search(r"<title>(.*)</title>", document)
    assert title is not None
    assert title[1] == "Watch · Anaphora"
    headline = re.search(r'<span id="sum">(.*?)</span>', document)
    assert headline is not None
    assert headline[1].startswith("4 calls, ")
    assert "1 break" in headline[1]
    assert '<span class="right" id="controls" hidden="">' in document


def test_there_is_nothing_without_the_token(emu: Emulator) -> None:
    with watching(emu) as (proxy, page, _), watching(emu) as (_, other, _):
        assert page.path != other.path
        assert status(proxy.url + page.path) == 200
        assert status(f"{proxy.url}{page.path}/requests") == 200
        for path in ("/_watch", "/_watch/", page.path[:-1], f"{page.path[:-1]}/requests"):
            assert status(proxy.url + path) == 404
        assert status(proxy.url + other.path) == 404
        assert status(f"{proxy.url}{page.path}x") == 404


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
    emu: Emulator, headers: dict[str, str], expected: int
) -> None:
    with watching(emu) as (proxy, page, _):
        assert status(proxy.url + page.path, **headers) == expected
        assert status(f"{proxy.url}{page.path}/requests", **headers) == expected


def test_page_can_only_be_read(emu: Emulator) -> None:
    with watching(emu) as (proxy, page, judge):
        assert status(proxy.url + page.path, method="POST") == 405
        assert status(proxy.url + page.path, method="HEAD") == 200
    assert judge.calls == ()


def test_page_shows_the_latest_calls_only(emu: Emulator) -> None:
    with watching(emu) as (proxy, page, judge):
        for _ in range(3):
            ask(proxy, "Hello")
        while len(judge.calls) < 3:  # they are judged beside the relay
            time.sleep(0.01)
        for query, numbers in (("", [3, 2, 1]), ("?last=2", [3, 2]), ("?last=0", [])):
            with urlopen(f"{proxy.url}{page.path}/requests{query}") as response:
                answer = json.load(response)
            assert [call["number"] for call in answer["requests"]] == numbers
