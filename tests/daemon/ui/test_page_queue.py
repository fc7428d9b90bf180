"""The queue of pages: a viewer who requests many does not block the others."""

from __future__ import annotations

import asyncio

import pytest

from anaphora.daemon.ui.service import PageQueue
from anaphora.errors import Overloaded
from anaphora.serving.exchange import CompleteResponse


async def page() -> CompleteResponse:
    return CompleteResponse(200, {}, b"")


def test_one_viewer_does_not_take_the_whole_queue() -> None:
    async def run() -> None:
        queue, ready = PageQueue(working=1, waiting=4, each=2), asyncio.Event()

        async def slow() -> CompleteResponse:
            await ready.wait()
            return await page()

        def asked(viewer: str) -> asyncio.Task[CompleteResponse]:
            return asyncio.create_task(queue.run(viewer, slow()))

        tasks = [asked("greedy") for _ in range(3)]  # one is made, two wait
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await queue.run("greedy", page())
        tasks += [asked("other") for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await queue.run("third", page())  # four wait
        ready.set()
        assert [task.status for task in await asyncio.gather(*tasks)] == [200] * 5
        assert (await queue.run("greedy", page())).status == 200

    asyncio.run(run())


def test_turn_lasts_until_the_page_is_made() -> None:
    """Also where its viewer has gone: a thread cannot be interrupted."""

    async def run() -> None:
        queue, ready = PageQueue(working=1, waiting=4, each=4), asyncio.Event()

        async def slow() -> CompleteResponse:
            await ready.wait()
            return await page()

        gone, next_one = (asyncio.create_task(queue.run("a", each)) for each in (slow(), page()))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert gone.cancelled()
        assert not next_one.done()
        ready.set()
        assert (await next_one).status == 200

    asyncio.run(run())


def test_viewer_who_goes_while_waiting_leaves_the_queue() -> None:
    async def run() -> None:
        queue, ready = PageQueue(working=1, waiting=1, each=1), asyncio.Event()

        async def slow() -> CompleteResponse:
            await ready.wait()
            return await page()

        first, waiting = (asyncio.create_task(queue.run("a", each)) for each in (slow(), page()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        last = asyncio.create_task(queue.run("a", page()))
        ready.set()
        assert [(await task).status for task in (first, last)] == [200, 200]

    asyncio.run(run())
