"""Runs calls: a bounded number at a time, and none that could exceed the budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec

from anaphora.errors import BudgetExceeded
from anaphora.wording import format_usd

T = TypeVar("T")


class Budget:
    """The spending limit. An amount is held while a call runs, then replaced by its cost."""

    def __init__(self, limit: Decimal | None, spent: Decimal) -> None:
        self.limit = limit
        self.spent = spent
        self.held = Decimal(0)
        self.exceeded = False
        """Whether a call was not sent because of the limit."""

    def admits(self, amount: Decimal) -> bool:
        return self.limit is None or self.spent + self.held + amount <= self.limit

    def refused(self, amount: Decimal) -> BudgetExceeded:
        self.exceeded = True
        assert self.limit is not None
        return BudgetExceeded(
            f"not sent: it may cost {format_usd(amount)}, and"
            f" {format_usd(max(self.limit - self.spent, Decimal(0)))} of {format_usd(self.limit)}"
            " are left (max_cost_usd)",
            limit=self.limit,
        )


class _Job(msgspec.Struct, Generic[T], eq=False):
    run: Callable[[], Awaitable[T]]
    bound: Callable[[], Decimal]
    """The maximum cost, estimated when it starts."""
    done: asyncio.Future[T]


class CallPool:
    """Starts jobs in the order of submission. Cancelling a task that waits for a job does not end
    the job; `close` does."""

    def __init__(self, limit: int, budget: Budget) -> None:
        self._free = limit
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
            amount = job.bound() if self._budget.limit is not None else Decimal(0)
            if not self._budget.admits(amount):
                if self._tasks:
                    return  # they may cost less than what is held for them
                self._ready.popleft()
                job.done.set_exception(self._budget.refused(amount))
                continue
            self._ready.popleft()
            self._free -= 1
            self._budget.held += amount
            task = asyncio.get_running_loop().create_task(self._run(job, amount))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _run(self, job: _Job[T], amount: Decimal) -> None:
        try:
            result = await job.run()
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except Exception as problem:
            if not job.done.done():
                job.done.set_exception(problem)
        else:
            if not job.done.done():
                job.done.set_result(result)
        finally:
            self._budget.held -= amount
            self._free += 1

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
