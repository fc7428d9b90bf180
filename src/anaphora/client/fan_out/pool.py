"""Runs calls: a bounded number at a time, and none that could exceed the budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec

from anaphora.client.budget import Budget
from anaphora.errors import BudgetExceeded

T = TypeVar("T")


class _Job(msgspec.Struct, Generic[T], eq=False):
    run: Callable[[], Awaitable[T]]
    bound: Callable[[], Decimal]
    """The maximum cost, estimated when it starts."""
    done: asyncio.Future[T]


class CallPool:
    """Starts jobs in the order of submission. Cancelling a task that waits for a job does not end
    the job; `close` does. A job that a budget around the fan-out refuses is started again when
    another has ended: that may have cost less than was held for it."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self._free = limit
        self._running = 0
        self._budget = budget
        self._ready: deque[_Job[Any]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(
        self, run: Callable[[], Awaitable[T]], bound: Callable[[], Decimal]
    ) -> asyncio.Future[T]:
        """Raises `BudgetExceeded` through the future if the job may not be run."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._ready.append(_Job(run, bound, done))
        self._start()
        return done

    def _start(self) -> None:
        while self._free and self._ready:
            job = self._ready[0]
            amount = job.bound() if self._budget.limit_usd is not None else Decimal(0)
            if not self._budget.admits(amount):
                if self._tasks:
                    return  # they may cost less than what is held for them
                self._ready.popleft()
                job.done.set_exception(self._budget.refused(amount))
                continue
            self._ready.popleft()
            self._free -= 1
            self._running += 1
            self._budget.held_usd += amount
            task = asyncio.get_running_loop().create_task(self._run(job, amount))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _run(self, job: _Job[T], amount: Decimal) -> None:
        waits = False
        try:
            result = await job.run()
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except Exception as problem:
            waits = isinstance(problem, BudgetExceeded) and self._running > 1
            if waits:
                self._ready.appendleft(job)
            elif not job.done.done():
                job.done.set_exception(problem)
        else:
            if not job.done.done():
                job.done.set_result(result)
        finally:
            self._budget.held_usd -= amount
            self._running -= 1
            # No more at a time than the budget admits.
            self._free = 0 if waits else self._free + 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._start()

    async def close(self) -> None:
        """Cancels what runs, and waits until it has ended."""
        for job in self._ready:
            job.done.cancel()
        self._ready.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
