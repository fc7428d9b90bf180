"""A fan-out through the provider's Batch API.

A first batch with one request of each group writes the cache; the other requests follow in a second
one. A batch is noted in the state file before it is submitted, with a mark, and again with its id:
after a crash, the next run collects its results instead of paying again. If the id did not arrive,
the error names the batch by its mark: only its owner can tell whether the provider has it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from anaphora.cache.plan.groups import PrefixGroup, warming_pays
from anaphora.client.budget import applying, hold_in
from anaphora.client.failures import reported
from anaphora.errors import (
    AnaphoraError,
    BudgetExceeded,
    InvalidRequest,
    RequestRejected,
)

from .batch_apis import (
    BatchApi,
    BatchRequest,
    BatchStatus,
    Headers,
    batch_api,
    may_have_arrived,
)
from .kept import SubmittedBatch
from .run import FanOutRun
from .values import FanOutItem

#: Seconds between two polls of a batch: the first, the factor for the next ones, and the maximum.
_FIRST_WAIT, _FACTOR, _LONGEST_WAIT = 1.0, 1.5, 60.0
#: The most bytes that a request in a batch has besides its body.
_AROUND_REQUEST = 256


async def collect_earlier(run: FanOutRun, left: list[int]) -> list[int]:
    """Waits for the batches of earlier runs; returns the calls that are still to make."""
    assert run.kept is not None
    places = {run.keys[index]: index for index in left}
    for batch in [*run.kept.batches.values(), *run.kept.unconfirmed.values()]:
        indexes = [places[key] for key in batch.keys if key in places]
        if not indexes:
            continue
        path, headers, _ = run.calls[indexes[0]].assembled()
        api = batch_api(run.calls[indexes[0]].target.endpoint, path, headers)
        await _Lane(run, api).collect_earlier(batch, indexes)
        for index in indexes:
            del places[run.keys[index]]
    return sorted(places.values())


async def run_batches(run: FanOutRun, groups: dict[int, PrefixGroup | None]) -> None:
    """Makes the calls in batches, one sequence of them for each endpoint."""
    lanes: dict[tuple[int, str, Headers], tuple[_Lane, list[int]]] = {}
    for index in groups:
        call = run.calls[index]
        path, headers, _ = call.assembled()
        key = id(call.target.endpoint), path, headers
        if key not in lanes:
            lanes[key] = _Lane(run, batch_api(call.target.endpoint, path, headers)), []
        lanes[key][1].append(index)
    async with asyncio.TaskGroup() as tasks:
        for lane, indexes in lanes.values():
            tasks.create_task(lane.make(indexes, groups))


class _Lane:
    """The batches of one provider with the same path and headers."""

    def __init__(self, run: FanOutRun, api: BatchApi) -> None:
        self._run = run
        self._api = api
        self._around = applying(run.calls[0].budget)
        """The budgets around the fan-out,"""
        self._held: dict[int, Decimal] = {}
        """and what is held there for each call in a batch."""

    async def make(self, indexes: list[int], groups: dict[int, PrefixGroup | None]) -> None:
        first = self._first_of_each(indexes, groups)
        left = [index for index in indexes if index not in first]
        if first and left:
            await self._run_all([index for index in indexes if index in first])
            await self._run_all(left)
        else:
            await self._run_all(indexes)

    def _first_of_each(self, indexes: list[int], groups: dict[int, PrefixGroup | None]) -> set[int]:
        """One call of each group whose beginning is worth writing once."""
        chosen: dict[int, int] = {}
        for index in indexes:
            group, call = groups[index], self._run.calls[index]
            for each in reversed(() if group is None else group.line()):
                if warming_pays(each, call.target.rules, call.ttl):
                    chosen.setdefault(id(each), index)
                    break
        return set(chosen.values())

    async def _run_all(self, indexes: list[int]) -> None:
        """Runs the calls in as many batches as limits and budget require."""
        left = list(indexes)
        while left:
            taken, requests, held, refused = self._take(left)
            if not taken:
                for index in left:
                    amount = self._run.bound_of(index, batch=True)
                    self._run.fail(index, refused or self._run.budget.refused(amount))
                return
            left = left[len(taken) :]
            self._run.budget.held_usd += held
            try:
                await self._run_one(taken, requests)
            finally:
                self._run.budget.held_usd -= held
                for index in taken:  # their bills did not come
                    self._settle(index, self._held.get(index))

    def _hold(self, index: int, path: str, body: bytes) -> None:
        """Holds the maximum cost of a call in the budgets around the fan-out."""
        if self._around:
            from anaphora.client.costs.holds import maximum_usd

            call, now = self._run.calls[index], time.time()
            amount = maximum_usd(self._around, call.target, path, body, call.render(), now)
            hold_in(self._around, amount)
            self._held[index] = amount

    def _settle(self, index: int, cost: Decimal | None) -> None:
        """Replaces a hold by the bill; None: it was not sent."""
        amount = self._held.pop(index, None)
        if amount is not None:
            for budget in self._around:
                budget.settle(amount, cost)

    def _take(
        self, indexes: list[int]
    ) -> tuple[list[int], list[BatchRequest], Decimal, BudgetExceeded | None]:
        """The calls of the next batch, in order; and why a budget around refuses the next one."""
        taken: list[int] = []
        requests: list[BatchRequest] = []
        limits, bounded = self._api.limits, self._run.budget.limit_usd is not None
        size, held = _AROUND_REQUEST, Decimal(0)
        for index in indexes:
            path, _, body = self._run.calls[index].assembled()
            amount = self._run.bound_of(index, batch=True) if bounded else Decimal(0)
            bytes_after = size + len(body) + _AROUND_REQUEST
            full = len(taken) >= limits.most_requests or bytes_after > limits.most_bytes
            if (taken and full) or not self._run.budget.admits(held + amount):
                break
            try:
                self._hold(index, path, body)
            except BudgetExceeded as problem:
                return taken, requests, held, problem
            taken.append(index)
            requests.append(BatchRequest(self._run.keys[index], body))
            size, held = bytes_after, held + amount
        return taken, requests, held, None

    async def _run_one(self, indexes: list[int], requests: list[BatchRequest]) -> None:
        run = self._run
        try:
            batch = await self._submit(requests, provider=run.calls[indexes[0]].target.endpoint.id)
        except AnaphoraError as problem:
            unclear = may_have_arrived(problem)
            for index in indexes:
                self._settle(index, self._held.get(index) if unclear else None)
                run.fail(index, problem)
            return
        run.begin(indexes, batch=True)
        try:
            await self.collect(batch, indexes)
        except asyncio.CancelledError:
            if run.kept is None:  # its results would never be read
                await self._cancel(batch.id)
            raise

    async def _submit(self, requests: list[BatchRequest], *, provider: str) -> SubmittedBatch:
        keys = tuple(request.key for request in requests)
        mark = secrets.token_hex(8)
        batch = SubmittedBatch(mark=mark, provider=provider, keys=keys, at=time.time())
        self._note(batch)
        try:
            name = await self._api.submit(requests, mark)
        except AnaphoraError as problem:
            if may_have_arrived(problem):
                problem.args = (f"{problem}; {provider} may run {self._api.named(mark)}",)
            else:
                self._run.guarded(lambda kept: kept.refused(mark))
            raise
        submitted = msgspec.structs.replace(batch, id=name)
        self._note(submitted)
        return submitted

    def _note(self, batch: SubmittedBatch) -> None:
        self._run.guarded(lambda kept: kept.add_batch(batch))

    async def collect_earlier(self, batch: SubmittedBatch, indexes: list[int]) -> None:
        """The same as `collect` for a batch of an earlier run."""
        if batch.id:
            await self.collect(batch, indexes)
            return
        # It may be there: submitting again would pay twice.
        problem = InvalidRequest(
            f"an earlier run may have sent this request to {batch.provider}, in"
            f" {self._api.named(batch.mark)}: look for it there, and run with another file of"
            " results to send the request again",
            path="results",
        )
        for index in indexes:
            self._run.fail(index, problem)

    async def _cancel(self, name: str) -> None:
        try:
            await asyncio.shield(self._api.cancel(name))
        except AnaphoraError as problem:
            self._run.notices.append(reported("batch_cancel_failed", problem))

    async def collect(self, batch: SubmittedBatch, indexes: list[int]) -> None:
        """Waits for a batch and adds the outcomes of these requests."""
        run = self._run
        wanted = {run.keys[index]: index for index in indexes}
        try:
            status = await self._ended(batch.id)
            async for outcome in self._api.results(status):
                index = wanted.pop(outcome.key, None)
                if index is None:
                    continue
                if outcome.error is not None:
                    self._settle(index, Decimal(0))
                    run.fail(index, outcome.error)
                else:
                    self._add(index, outcome.body, batch.at)
            reason = status.problem or "the batch has no result for this request"
            for index in wanted.values():
                self._settle(index, Decimal(0))
                run.fail(index, RequestRejected(reason))
        except AnaphoraError as problem:
            for index in wanted.values():
                run.fail(index, problem)
            return  # a next run may still read them
        finally:
            run.progress.batch = ""
        run.guarded(lambda kept: kept.collected(batch.id))

    def _add(self, index: int, body: bytes, at: float) -> None:
        call = self._run.calls[index]
        try:
            response = call.read_batched(body, at=at)
        except AnaphoraError as problem:
            self._settle(index, call.lost_usd or self._held.get(index))
            self._run.fail(index, problem, call.lost_usd)
            return
        self._settle(index, response.cost_usd or Decimal(0))
        self._run.succeed(
            FanOutItem(
                index=index,
                key=self._run.keys[index],
                response=response,
                cost_usd=response.cost_usd,
            )
        )

    async def _ended(self, id: str) -> BatchStatus:
        for wait in _waits():
            status = await self._api.status(id)
            if status.ended:
                return status
            self._run.progress.batch = f"{id}: {status.done} of {status.total} ran"
            self._run.report()
            await asyncio.sleep(wait)
        raise AssertionError("a batch is polled until it ends")


def _waits() -> Iterator[float]:
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(wait * _FACTOR, _LONGEST_WAIT)
