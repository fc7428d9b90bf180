"""Many prompts at once: a shared prefix is written to the cache once and read by the others.

    result = await client.map(prompts, model="claude-sonnet-5-5", system=instructions)
    result.texts, result.cost_usd, result.read_share

    async for item in client.map(prompts, …): ...      as they arrive; in order with ordered=True

The prompts are grouped by their rendered prefix. One call of each group, or a pre-warm, is sent
first; the others follow when they can read what it wrote. With `results`, each response is written
to a file at once, and a run that was killed can be continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import ClassVar, Generic, NoReturn

from anaphora.cache.verdict.judgement import ComparedCalls
from anaphora.client.oneshot import OneShot
from anaphora.client.options import FanOutProgress
from anaphora.client.pending import Pending
from anaphora.client.response import Parsed
from anaphora.values import Notice

from .run import BatchWay, FanOutRun
from .values import FanOutItem, FanOutResult, FanOutSettings

__all__ = ["FanOut", "FanOutItem", "FanOutProgress", "FanOutResult", "FanOutSettings"]


class FanOut(Pending[FanOutResult[Parsed]], Generic[Parsed]):
    """Calls that are made when this is awaited or iterated over, once."""

    _kind, _verb = "FanOut", "map"
    _instead: ClassVar = {
        "text": "a map has no text; use `text` of its items, or `texts` of its result"
    }

    def __init__(
        self,
        calls: Sequence[OneShot],
        settings: FanOutSettings,
        on_progress: Callable[[FanOutProgress], None] | None = None,
        known: ComparedCalls | None = None,
    ) -> None:
        """`known` are the calls made with a guard."""
        self._run = FanOutRun(calls, settings, on_progress, known)
        self._settings = settings
        self.result: FanOutResult[Parsed] | None = None
        self._made()

    @property
    def progress(self) -> FanOutProgress:
        """The progress so far; at the end, the totals."""
        return self._run.progress

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._run.notices)

    @property
    def text(self) -> NoReturn:
        raise AttributeError  # for which `_instead` has the message

    def __aiter__(self) -> AsyncGenerator[FanOutItem[Parsed], None]:
        self._consume()
        return self._in_order() if self._settings.ordered else self._as_they_come()

    async def _complete(self) -> FanOutResult[Parsed]:
        if self.result is None:
            self._consume()
            items: dict[int, FanOutItem[Parsed]] = {}
            async with aclosing(self._as_they_come()) as coming:
                async for item in coming:
                    items[item.index] = item
            self.result = FanOutResult(
                items=tuple(items[index] for index in sorted(items)),
                progress=self.progress,
                stop_reason="cost_usd" if self._run.budget.exceeded else "done",
                notices=self.notices,
            )
        return self.result

    async def _as_they_come(self) -> AsyncGenerator[FanOutItem[Parsed], None]:
        items: asyncio.Queue[FanOutItem[Parsed] | None] = asyncio.Queue()
        task = asyncio.create_task(self._run.make(items.put_nowait, _batches()))
        task.add_done_callback(lambda _: items.put_nowait(None))
        try:
            while (item := await items.get()) is not None:
                yield item
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _in_order(self) -> AsyncGenerator[FanOutItem[Parsed], None]:
        early: dict[int, FanOutItem[Parsed]] = {}
        following = 0
        async with aclosing(self._as_they_come()) as coming:
            async for item in coming:
                early[item.index] = item
                while following in early:
                    yield early.pop(following)
                    following += 1


def _batches() -> BatchWay:
    from .batches import collect_earlier, run_batches

    return BatchWay(collect_earlier, run_batches)
