"""HTML of responses, replies and verdicts: everything is shown, and no script in it runs."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.browser import Chromium, needs_chromium

from anaphora.cache.verdict import Cause, Change, Verdict
from anaphora.client.response import Attempt, Record, Response
from anaphora.notebook import html_of
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Notice,
    Opaque,
    Refusal,
    Reply,
    Thinking,
    ToolCall,
    ToolResult,
    Url,
    Usage,
)

HOSTILE = "</div></details><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> &amp; ' \""
#: All that may stand in what is shown.
TAGS = {"div", "b", "details", "summary", "table", "tr", "td"}


class Seen(HTMLParser):
    """The tags, attributes and texts of a piece of HTML."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open, "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def reply_with(text: str) -> Reply:
    """A reply with that text wherever a provider may put one."""
    parts: tuple[Any, ...] = (
        text,
        Thinking(text),
        Thinking(),
        Refusal(text),
        ToolCall(text, text, text),
        ToolResult(text, text),
        Image(Url(text)),
        Image(Bytes(b"123", text)),
        Document(FileId(text, text)),
        Audio(Bytes(b"", text)),
        Opaque(text, text, text),
    )
    return Reply(
        id=text,
        model=text,
        message=Message.assistant(*parts),
        stop_reason="other",
        stop_reason_raw=text,
        usage=Usage(uncached=1200, read=34000, written={"5m": 56}, output=78),
        notices=(Notice(text, text, text),),
    )


def verdict_with(text: str) -> Verdict:
    return Verdict(
        result="miss",
        causes=(Cause(kind="changed", text=text), Cause(kind="expired", text=text)),
        change=Change(
            kind="date",
            offset=1234,
            chunk=0,
            section="system",
            label=text,
            path=text,
            before=text,
            after=text,
        ),
        left=5000,
        predicted=0,
        billed=0,
        lost=5000,
        cost_usd=Decimal("0.0150"),
        saved=Decimal("-0.01"),
    )


def response_with(text: str) -> Response:
    attempts = tuple(Attempt(provider=text, model=text, at=0, seconds=1) for _ in range(2))
    record = Record(
        provider=text,
        system=text,
        wire=text,
        host=text,
        model=text,
        at=0,
        seconds=1.234,
        attempts=attempts,
        verdict=verdict_with(text),
        cost_usd=Decimal("0.5"),
        notices=(*reply_with(text).notices, Notice("planned", text)),
    )
    return Response(reply=reply_with(text), record=record, raw_hash="00")


@given(st.just(HOSTILE) | st.text(alphabet="<>&\"'/ascript=\x00\ud800\u202e\n") | st.text())
def test_text_is_never_markup(text: str) -> None:
    """The same tags, whatever the text."""
    plain, other = (
        Seen(html_of(response_with("x"))),
        Seen(html_of(response_with(text))),
    )
    assert other.tags <= plain.tags | {"details", "summary", "div"} <= TAGS
    assert other.attributes == {"style"}


def test_reply_shows_all_parts_and_usage() -> None:
    page = reply_with(HOSTILE)._repr_html_()
    text = Seen(page).text
    # Text, thinking, refusal, the call's name and arguments, the result's call id and content, an
    # address, two media types, the file's id and provider, the opaque part's kind, provider and JSON, the
    # model, the reason it stopped, and three words of the notice.
    assert text.count(HOSTILE) == 20
    assert "1,200" not in text
    assert "35,256 in · 34,000 of them read from the cache · 56 written to it · 78 out" in text
    assert "3 bytes" in text


def test_verdict_shows_figures_and_change() -> None:
    text = Seen(verdict_with(HOSTILE)._repr_html_()).text
    assert text.count(HOSTILE) == 5
    for reported in ("5,000 tokens", "at byte 1,234 of the prompt", "$0.015", "$-0.01"):
        assert reported in text
    first = Verdict(result="first")._repr_html_()
    assert Seen(first).tags == {"div", "b"}
    assert "First" in first


def test_response_shows_reply_verdict_and_attempts() -> None:
    text = Seen(response_with("said")._repr_html_()).text
    assert "said · 1.23 s · 2 attempts · $0.5" in text
    assert text.count("said: said: said") == 1, "a notice of the reply is shown once"
    assert "planned: said" in text


def test_lone_surrogates_are_replaced() -> None:
    reply_with("\ud800")._repr_html_().encode()


def test_renderer_is_loaded_on_demand() -> None:
    """A kernel asks an object for `_repr_html_`; until then nothing of it is imported."""
    program = (
        "import sys\n"
        "from anaphora.values import Message, Reply\n"
        "reply = Reply(id='1', model='m', message=Message.assistant('Hello.'), stop_reason='end')\n"
        "late = ('anaphora.notebook', 'anaphora.client.response', 'html')\n"
        "assert not [name for name in late if name in sys.modules]\n"
        "print(reply._repr_html_())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Hello." in shown.stdout


def test_other_values_have_no_html() -> None:
    with pytest.raises(TypeError, match="no HTML for int"):
        html_of(3)


@needs_chromium
def test_browser_runs_no_script(tmp_path: Path, chromium: Chromium) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<meta charset=utf-8><title>quiet</title>{html_of(response_with(HOSTILE))}")
    with chromium.open(file.as_uri()) as tab:
        assert tab.page.title() == "quiet"
        assert tab.page.locator("script, img").count() == 0
    assert not tab.problems
