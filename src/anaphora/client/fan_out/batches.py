"""A fan-out through the provider's Batch API.

The cache of batches is written by a first batch with one request of each group; the others follow
in a second one. Which batches were submitted is in the state file before they are waited for: a run
that was killed collects their results instead of paying again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

from anaphora.cache.plan.groups import PrefixGroup, warming_pays
from anaphora.client.failures import reported
from anaphora.errors import AnaphoraError, RequestRejected

from .batch_apis import BatchApi, BatchRequest, BatchStatus, Headers, batch_api
from .kept import SubmittedBatch
from .values import FanOutItem

if TYPE_CHECKING:
    from .run import FanOutRun

#: Seconds between two looks at a batch: the first wait, the factor of the next ones, and the most.
_FIRST_WAIT, _FACTOR, _LONGEST_WAIT = 1.0, 1.5, 60.0


async def collect_earlier(run: FanOutRun) -> set[int]:
    """Waits for the batches that earlier runs submitted; returns the calls that they were for."""
    assert run.kept is not None
    places = {key: index for index, key in enumerate(run.keys)}
    collected: set[int] = set()
    for batch in list(run.kept.batches.values()):
        indexes = [places[key] for key in batch.keys if key in places]
        if not indexes:
            continue
        path, headers, _ = run.calls[indexes[0]].assembled()
        api = batch_api(run.calls[indexes[0]].target.endpoint, path, headers)
        await _Lane(run, api).collect(batch)
        collected.update(indexes)
    return collected


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
        """Runs the calls in as many batches as limits and budget need."""
        left = list(indexes)
        while left:
            taken, requests, held = self._take(left)
            if not taken:
                for index in left:
                    amount = self._run.bound_of(index, batch=True)
                    self._run.fail(index, self._run.budget.refused(amount))
                return
            left = left[len(taken) :]
            self._run.budget.held += held
            try:
                await self._run_one(taken, requests)
            finally:
                self._run.budget.held -= held

    def _take(self, indexes: list[int]) -> tuple[list[int], list[BatchRequest], Decimal]:
        """The calls of the next batch, in order."""
        taken: list[int] = []
        requests: list[BatchRequest] = []
        size, held, bounded = 0, Decimal(0), self._run.budget.limit is not None
        for index in indexes:
            _, _, body = self._run.calls[index].assembled()
            amount = self._run.bound_of(index, batch=True) if bounded else Decimal(0)
            full = len(taken) >= self._api.most_requests or size + len(body) > self._api.most_bytes
            if (taken and full) or not self._run.budget.admits(held + amount):
                break
            taken.append(index)
            requests.append(BatchRequest(self._run.keys[index], body))
            size, held = size + len(body) + 128, held + amount
        return taken, requests, held

    async def _run_one(self, indexes: list[int], requests: list[BatchRequest]) -> None:
        run = self._run
        try:
            name = await self._api.submit(requests)
        except AnaphoraError as problem:
            for index in indexes:
                run.fail(index, problem)
            return
        run.progress.calls += len(indexes)
        endpoint = run.calls[indexes[0]].target.endpoint.id
        keys = tuple(request.key for request in requests)
        batch = SubmittedBatch(id=name, provider=endpoint, keys=keys, at=time.time())
        if run.kept is not None:
            run.guarded(lambda kept: kept.add_batch(batch))
        try:
            await self.collect(batch)
        except asyncio.CancelledError:
            if run.kept is None:  # its results would never be read
                await self._cancel(name)
            raise

    async def _cancel(self, name: str) -> None:
        try:
            await asyncio.shield(self._api.cancel(name))
        except AnaphoraError as problem:
            self._run.notices.append(reported("batch_cancel_failed", problem))

    async def collect(self, batch: SubmittedBatch) -> None:
        """Waits for a batch and adds what became of its requests."""
        run = self._run
        places = {key: index for index, key in enumerate(run.keys)}
        wanted = {key: places[key] for key in batch.keys if key in places}
        try:
            status = await self._ended(batch)
            async for outcome in self._api.results(status):
                index = wanted.pop(outcome.key, None)
                if index is None:
                    continue
                if outcome.error is not None:
                    run.fail(index, outcome.error)
                else:
                    self._add(index, outcome.body, batch.at)
            reason = status.problem or "the batch has no result for this request"
            for index in wanted.values():
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
            self._run.fail(index, problem, call.lost_usd)
            return
        self._run.succeed(
            FanOutItem(
                index=index,
                key=self._run.keys[index],
                response=response,
                cost_usd=response.cost_usd,
            )
        )

    async def _ended(self, batch: SubmittedBatch) -> BatchStatus:
        for wait in _waits():
            status = await self._api.status(batch.id)
            if status.ended:
                return status
            self._run.progress.batch = f"{batch.id}: {status.done} of {len(batch.keys)} ran"
            self._run.report()
            await asyncio.sleep(wait)
        raise AssertionError("a batch is looked at until it ends")


def _waits() -> Iterator[float]:
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(wait * _FACTOR, _LONGEST_WAIT)
