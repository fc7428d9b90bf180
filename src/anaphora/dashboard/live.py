"""Live updates: server-sent events with the elements of a page that have changed.

Each event `fragment` holds JSON, `{"id": …, "html": …}`. A stream begins with all live elements of
its page: calls may have been added since the page was sent. The page is rendered again when the
source has a new version, outside the event loop, one stream at a time and at most a fifth of the
time: rendering blocks other threads of the process.
"""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

import msgspec

from anaphora.errors import Overloaded

#: Seconds between two checks for a new version, and between comments on a quiet stream: proxies
#: close idle connections.
_LOOK, _HEARTBEAT = 0.3, 15.0
#: Seconds after which a page is rendered again without a new version: its range ends now.
_AGAIN = 60.0
#: A stream waits this many times the duration of a rendering before the next one.
_REST = 4.0
_MOST_STREAMS = 32


class LiveStreams:
    """The open streams of a site. For one event loop."""

    def __init__(
        self,
        version: Callable[[], int],
        *,
        most: int = _MOST_STREAMS,
        look: float = _LOOK,
        heartbeat: float = _HEARTBEAT,
    ) -> None:
        """`version` may read files, so it is called outside the event loop. `look` and `heartbeat`
        are the seconds between two such checks and between two comments on a quiet stream."""
        self._version = version
        self._most = most
        self._look = look
        self._heartbeat = heartbeat
        self._open = 0
        self._rendering = asyncio.Lock()

    def stream(
        self,
        render: Callable[[], Mapping[str, str]],
        allowed: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes]:
        """The events of a page. `render` returns its live elements by id, and runs outside the
        event loop. The stream ends soon after `allowed` returns False. Raises `Overloaded` if too
        many are open."""
        if self._open >= self._most:
            reason = f"{self._most} pages with live updates are open; close one, or reload this one"
            raise Overloaded(reason, status=503)
        return self._events(render, allowed)

    async def _events(
        self, render: Callable[[], Mapping[str, str]], allowed: Callable[[], bool]
    ) -> AsyncGenerator[bytes]:
        shown: Mapping[str, str] = {}
        seen: int | None = None
        rendered = sent = time.monotonic()
        rest = self._look
        self._open += 1
        try:
            while allowed():
                version, now = await asyncio.to_thread(self._version), time.monotonic()
                if version != seen or now - rendered > _AGAIN:
                    elements, took = await self._rendered(render)
                    seen, rendered = version, now
                    rest = max(self._look, _REST * took * self._open)
                    changed = [each for each in elements.items() if shown.get(each[0]) != each[1]]
                    shown = elements
                    if changed and allowed():
                        sent = now
                        yield b"".join(_event(id, element) for id, element in changed)
                elif now - sent > self._heartbeat:
                    sent = now
                    yield b": open\n\n"
                await self._wait(rest, allowed)
                rest = self._look  # a call after a quiet period is shown without the wait
        finally:
            self._open -= 1

    async def _rendered(
        self, render: Callable[[], Mapping[str, str]]
    ) -> tuple[Mapping[str, str], float]:
        """The elements, and the seconds that rendering took."""
        async with self._rendering:
            began = time.monotonic()
            elements = await asyncio.to_thread(render)
            return elements, time.monotonic() - began

    async def _wait(self, seconds: float, allowed: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and allowed():  # noqa: ASYNC110
            await asyncio.sleep(min(left, self._look))


def _event(id: str, element: str) -> bytes:
    return b"event: fragment\ndata: " + msgspec.json.encode({"id": id, "html": element}) + b"\n\n"


def elements_of(page: str, ids: Iterable[str]) -> dict[str, str]:
    """The elements with these ids, cut from htpy's markup, in which `<`, `>` and `"` in texts and
    attributes are escaped."""
    found = {}
    for id in ids:
        at = page.find(f' id="{html.escape(id)}"')
        if at >= 0:
            begin = page.rindex("<", 0, at)
            found[id] = page[begin : _end(page, begin)]
    return found


def _end(page: str, begin: int) -> int:
    """End offset of the element that starts there."""
    name = re.compile(r"[a-z][a-z0-9-]*").match(page, begin + 1)
    assert name is not None, page[begin : begin + 40]
    depth = 0
    for tag in re.compile(rf"<(/?){name[0]}(?=[\s>])[^>]*>").finditer(page, begin):
        depth += -1 if tag[1] else 1
        if not depth:
            return tag.end()
    return len(page)
