"""Live updates: events with the elements of a page that have changed."""

from __future__ import annotations

import asyncio
import json
import threading

import htpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.dashboard.live import LiveStreams, elements_of
from anaphora.errors import Overloaded

texts = st.text(st.characters(codec="utf-8"), max_size=30)


class Counter:
    """A source with a version, and a page with two elements of which one follows it."""

    def __init__(self) -> None:
        self.number = 0
        self.threads: list[threading.Thread] = []

    def version(self) -> int:
        self.threads.append(threading.current_thread())
        return self.number

    def render(self) -> dict[str, str]:
        self.threads.append(threading.current_thread())
        return {"calls": f"<p>{self.number}</p>", "help": "<p>Help</p>"}


def read(data: bytes) -> dict[str, str]:
    """The elements of some events."""
    events = [event.split("\n") for event in data.decode().split("\n\n") if event]
    assert all(event[0] == "event: fragment" for event in events)
    elements = [json.loads(event[1].removeprefix("data: ")) for event in events]
    return {each["id"]: each["html"] for each in elements}


def test_stream_begins_with_all_elements_and_goes_on_with_those_that_changed() -> None:
    async def run() -> None:
        counter = Counter()
        stream = LiveStreams(counter.version, look=0.001).stream(counter.render)
        assert read(await anext(stream)) == {"calls": "<p>0</p>", "help": "<p>Help</p>"}
        counter.number = 7
        assert read(await anext(stream)) == {"calls": "<p>7</p>"}
        await stream.aclose()
        # Neither may hold up the event loop.
        assert threading.current_thread() not in counter.threads

    asyncio.run(run())


def test_quiet_stream_gets_comments_and_renders_nothing() -> None:
    async def run() -> None:
        counter = Counter()
        streams = LiveStreams(counter.version, look=0.001, heartbeat=0.002)
        renderings = 0

        def render() -> dict[str, str]:
            nonlocal renderings
            renderings += 1
            return counter.render()

        stream = streams.stream(render)
        await anext(stream)
        assert [await anext(stream) for _ in range(3)] == [b": open\n\n"] * 3
        await stream.aclose()
        assert renderings == 1

    asyncio.run(run())


def test_stream_ends_when_it_is_not_allowed_any_more() -> None:
    async def run() -> None:
        counter, allowed = Counter(), True
        streams = LiveStreams(counter.version, look=0.001)
        stream = streams.stream(counter.render, lambda: allowed)
        await anext(stream)
        allowed = False
        counter.number = 1
        assert [data async for data in stream] == []

    asyncio.run(run())


def test_nothing_is_sent_that_was_rendered_while_the_permission_ended() -> None:
    async def run() -> None:
        allowed = True

        def render() -> dict[str, str]:
            nonlocal allowed
            allowed = False
            return {"calls": "<p>secret</p>"}

        stream = LiveStreams(lambda: 0, look=0.001).stream(render, lambda: allowed)
        assert [data async for data in stream] == []

    asyncio.run(run())


def test_number_of_streams_is_bounded() -> None:
    async def run() -> None:
        counter = Counter()
        streams = LiveStreams(counter.version, most=2, look=0.001)
        first, second = (streams.stream(counter.render) for _ in range(2))
        await asyncio.gather(anext(first), anext(second))
        with pytest.raises(Overloaded, match="2 pages with live updates are open"):
            streams.stream(counter.render)
        await first.aclose()
        third = streams.stream(counter.render)
        await anext(third)
        await asyncio.gather(second.aclose(), third.aclose())

    asyncio.run(run())


@given(texts, texts, st.integers(0, 3))
def test_elements_are_cut_from_a_page(text: str, name: str, depth: int) -> None:
    inner: htpy.Node = htpy.span(title=name)[text]
    for _ in range(depth):
        inner = [htpy.div(class_="live")[inner], htpy.br]
    element = htpy.div(".card", id="live", data_name=name)[inner]
    page = htpy.main[htpy.p(data_id="live")[' id="live"'], htpy.div[text, element, text]]
    assert elements_of(str(page), ["live", "other"]) == {"live": str(element)}
