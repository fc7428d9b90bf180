"""One fan-out from beginning to end: results of earlier runs, the groups, the calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from anaphora.cache.plan.groups import PrefixGroup, shared_inside_chunks
from anaphora.cache.verdict.judgement import ComparedCalls
from anaphora.client.budget import Budget
from anaphora.client.failures import reported
from anaphora.client.oneshot import CallWatch, OneShot
from anaphora.client.options import FanOutProgress
from anaphora.client.target import Target
from anaphora.errors import (
    AnaphoraError,
    BudgetExceeded,
    InvalidRequest,
    QuotaExhausted,
    Unauthenticated,
)
from anaphora.rendered import Rendered
from anaphora.values import Notice, Usage
from anaphora.wording import counted

from .kept import KeptResults
from .pool import CallPool
from .release import GroupRelease, assign_groups, content_key
from .values import FanOutItem, FanOutSettings

Deliver: TypeAlias = Callable[[FanOutItem[Any]], None]

#: Seconds that a batch may take: a marker has to outlive it.
_BATCH_SECONDS = 3000.0
#: Seconds between two calls of a group.
PAUSE = 60.0
#: Prompts that are rendered before other tasks of the event loop run.
_AT_ONCE = 50
#: Errors that all other calls to the same provider would get as well.
_FATAL = (Unauthenticated, QuotaExhausted)


class BatchWay(NamedTuple):
    collect_earlier: Callable[[FanOutRun, list[int]], Awaitable[list[int]]]
    run: Callable[[FanOutRun, dict[int, PrefixGroup | None]], Awaitable[None]]


class FanOutRun:
    def __init__(
        self,
        calls: Sequence[OneShot],
        settings: FanOutSettings,
        on_progress: Callable[[FanOutProgress], None] | None,
        known: ComparedCalls | None = None,
    ) -> None:
        self.calls = calls
        self._known = ComparedCalls() if known is None else known
        self.settings = settings
        self.progress = FanOutProgress(total=len(calls))
        self.budget = Budget(settings.max_cost_usd, name="max_cost_usd")
        self.notices: list[Notice] = []
        self.keys: list[str] = []
        self._tokens: dict[int, int] = {}
        """The input tokens of each call still to make: a maximum if the cost is limited, else an
        estimate."""
        self._in_flight: dict[object, Decimal] = {}
        """The estimated cost of each call in flight; by its position, or the call itself for a
        warm-up."""
        self.kept: KeptResults | None = None
        self._on_progress = on_progress
        self._deliver: Deliver = lambda _: None
        self._largest_output = 0
        self._fatal: dict[int, Exception] = {}
        """By endpoint."""
        self._pool = CallPool(settings.concurrency, self.budget)

    async def make(self, deliver: Deliver, batches: BatchWay) -> None:
        """Makes all calls; `deliver` gets an item for each prompt."""
        self._deliver = deliver
        prompts = await self._render()
        if self.settings.results is not None:
            self.kept = KeptResults(self.settings.results)
        try:
            left = self._resume(prompts)
            if self.kept is not None and (self.kept.batches or self.kept.unconfirmed):
                left = await batches.collect_earlier(self, left)
            self._check_prices(left)
            groups = self._groups(left, prompts)
            self._tokens = {index: self._tokens_of(index, prompts[index]) for index in left}
            del prompts
            await self._check_cold(left)
            if self.settings.batch:
                await batches.run(self, groups)
            else:
                release = GroupRelease(
                    self,
                    self.calls,
                    warm=self.settings.warm,
                    delay=self.settings.visibility_delay,
                    notice=lambda notice, _: self.notices.append(notice),
                )
                await release.run(groups)
            if self.kept is not None:
                labels = [self._label(index) for index in range(len(self.keys))]
                self.guarded(lambda kept: kept.put_in_order(self.keys, labels))
        finally:
            await self._pool.close()
            if self.kept is not None:
                self._keep_interrupted()
                self.kept.close()

    # ── Before the first call ────────────────────────────────────────────────────────────────────

    async def _render(self) -> list[Rendered]:
        """All prompts, rendered. If one cannot be sent, this fails before any is."""
        prompts: list[Rendered] = []
        seen: Counter[str] = Counter()
        for index, call in enumerate(self.calls):
            try:
                prompts.append(call.render())
            except InvalidRequest as problem:
                raise problem.within(f"prompts[{index}]") from None
            key = content_key(prompts[-1])
            # The same request twice is two calls.
            self.keys.append(f"{key}-{seen[key]}" if seen[key] else key)
            seen[key] += 1
            if not index % _AT_ONCE:
                await asyncio.sleep(0)
        return prompts

    def _resume(self, prompts: list[Rendered]) -> list[int]:
        """Delivers the results of earlier runs, and returns the calls to make."""
        if self.kept is None:
            return list(range(len(prompts)))
        self.progress.billed_usd = self.budget.spent_usd = self.kept.spent
        self.progress.warmup_usd = self.kept.warmup_usd
        for usage in self.kept.usages:
            self.progress.add_usage(usage)
        left = []
        for index, key in enumerate(self.keys):
            response = self.kept.response(key, self.calls[index].output)
            if response is None:
                left.append(index)
                continue
            self.budget.spent_usd += response.cost_usd or 0
            self.progress.resumed += 1
            self._add(
                FanOutItem(
                    index=index,
                    key=key,
                    response=response,
                    cost_usd=response.cost_usd,
                    resumed=True,
                )
            )
        return left

    def _check_prices(self, left: list[int]) -> None:
        if self.settings.max_cost_usd is None:
            return
        for index in left:
            target = self.calls[index].target
            if target.price(time.time()) is None:
                raise InvalidRequest(
                    f"no price is known for {target.model}, so its cost cannot be bounded; set one"
                    " under `prices` of the provider in llm.yaml",
                    path="max_cost_usd",
                )

    async def _check_cold(self, left: list[int]) -> None:
        """Raises `ColdCache` before anything is sent. The first call of a group writes what the
        others read."""
        cold, shared = self.settings.cold, set[int]()
        if cold is None or not cold.is_on:
            return
        if self.settings.batch:
            reason = "a batch has a cache of its own, so its calls are not checked"
            self.notices.append(Notice("cold_unchecked", reason, "on_cold"))
            return
        for index in left:
            call = self.calls[index]
            groups = () if call.group is None else call.group.line()
            known = max([group.tokens for group in groups if id(group) in shared], default=0)
            shared.update(map(id, groups))
            await call.check_shared(cold, self._known, known)

    def _groups(self, left: list[int], prompts: list[Rendered]) -> dict[int, PrefixGroup | None]:
        """The group of each call that is left, if its beginning is worth writing."""
        seconds = _BATCH_SECONDS if self.settings.batch else PAUSE
        return assign_groups(
            self.calls,
            {index: prompts[index] for index in left},
            seconds=seconds,
            mark=self.settings.warm != "off",
            found=self._notice_inside,
        )

    def _notice_inside(
        self, rendered: list[Rendered], groups: list[PrefixGroup | None], target: Target
    ) -> None:
        """Adds a notice about a shared beginning that is not cached because it ends inside a
        block."""
        rules = target.rules
        if not rules.slots.value or rules.caches_tokens:
            return
        for members, tokens in shared_inside_chunks(rendered, groups, rules):
            reason = (
                f"{counted(len(members), 'prompt')} begin with the same {tokens:,} tokens inside"
                f" one block, and {target.endpoint.id} caches whole blocks: pass that text as"
                " `system`, or as a part of its own"
            )
            self.notices.append(Notice("shared_inside_block", reason))

    def _tokens_of(self, index: int, prompt: Rendered) -> int:
        if self.settings.max_cost_usd is not None:
            return self.calls[index].most_tokens(prompt)
        return int(prompt.size / prompt.bytes_per_token)

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────

    def send(self, index: int, watch: CallWatch | None = None) -> asyncio.Future[FanOutItem[Any]]:
        """Sends a call when the pool has room. The future always gets an item."""
        sent = self._pool.submit(lambda: self._send(index, watch), lambda: self.bound_of(index))
        done: asyncio.Future[FanOutItem[Any]] = asyncio.get_running_loop().create_future()

        def end(sent: asyncio.Future[FanOutItem[Any]]) -> None:
            if watch is not None:
                watch.ended()
            if sent.cancelled() or done.done():
                done.cancel()
            elif (problem := sent.exception()) is not None:
                assert isinstance(problem, Exception)
                done.set_result(self.fail(index, problem))
            else:
                done.set_result(sent.result())

        sent.add_done_callback(end)
        return done

    async def _send(self, index: int, watch: CallWatch | None) -> FanOutItem[Any]:
        call = self.calls[index]
        endpoint = id(call.target.endpoint)
        if (fatal := self._fatal.get(endpoint)) is not None:
            return self.fail(index, fatal)
        self.begin([index], reads=watch is None)
        try:
            response = await call.send(watch)
        except BudgetExceeded:  # it may be sent later
            self._end(index)
            self.progress.calls -= 1
            raise
        except Exception as problem:
            if isinstance(problem, _FATAL):
                self._fatal[endpoint] = problem
            return self.fail(index, problem, call.lost_usd)
        return self.succeed(
            FanOutItem(
                index=index, key=self.keys[index], response=response, cost_usd=response.cost_usd
            )
        )

    async def send_warmup(self, call: OneShot) -> Usage:
        """Sends a pre-warm, and adds its cost."""

        tokens = call.most_tokens(call.render())

        async def send() -> Usage:
            self.progress.calls += 1
            self._add_in_flight(
                call, self._estimate(call, Usage(uncached=tokens, read=0, output=0))
            )
            try:
                response = await call.send()
            except Exception:
                self._end(call)
                raise
            self._end(call)
            cost = response.cost_usd
            self.progress.add_usage(response.usage)
            self.progress.add_cost(cost)
            self.progress.warmup_usd += cost or 0
            self.budget.spent_usd += cost or 0
            self.guarded(lambda kept: kept.add_spent(cost, warmup=True, usage=response.usage))
            self.report()
            return response.usage

        return await self._pool.submit(send, lambda: self.bound_usd(call, tokens))

    def begin(self, indexes: Sequence[int], *, reads: bool = False, batch: bool = False) -> None:
        """Counts calls that are sent now; they are in flight until their items are added. `reads`:
        the beginnings that they share with others are in the cache."""
        self.progress.calls += len(indexes)
        for index in indexes:
            call, tokens = self.calls[index], self._tokens.get(index, 0)
            shared = 0 if call.group is None or not reads else min(call.group.tokens, tokens)
            usage = Usage(uncached=tokens - shared, read=shared, output=self._largest_output)
            self._add_in_flight(index, self._estimate(call, usage, batch=batch))

    @staticmethod
    def _estimate(call: OneShot, usage: Usage, *, batch: bool = False) -> Decimal:
        price = call.target.price(time.time(), batch=batch)
        return Decimal(0) if price is None else price.of(usage) or Decimal(0)

    def _add_in_flight(self, key: object, amount: Decimal) -> None:
        self._in_flight[key] = amount
        self.progress.in_flight += 1
        self.progress.in_flight_usd += amount

    def _keep_interrupted(self) -> None:
        """Calls that were cancelled count in the next run, about as they are billed. Batches go on
        at the provider, and are collected."""
        if self._in_flight and not self.settings.batch:
            spent = sum(self._in_flight.values(), Decimal(0))
            self.guarded(lambda kept: kept.add_spent(spent))

    def _end(self, key: object) -> None:
        """The call has ended, if it was sent."""
        amount = self._in_flight.pop(key, None)
        if amount is not None:
            self.progress.in_flight -= 1
            self.progress.in_flight_usd -= amount

    def bound_usd(self, call: OneShot, tokens: int, *, batch: bool = False) -> Decimal:
        """The estimated maximum cost of a call with that many input tokens."""
        price = call.target.price(time.time(), batch=batch)
        if price is None:
            return Decimal(0)
        return call.bound_usd(tokens, price, self._largest_output * 3 // 2) or Decimal(0)

    def bound_of(self, index: int, *, batch: bool = False) -> Decimal:
        return self.bound_usd(self.calls[index], self._tokens.get(index, 0), batch=batch)

    # ── Outcomes ─────────────────────────────────────────────────────────────────────────────────

    def succeed(self, item: FanOutItem[Any]) -> FanOutItem[Any]:
        assert item.response is not None
        self.budget.spent_usd += item.cost_usd or 0
        self._largest_output = max(self._largest_output, item.response.usage.output or 0)
        self._keep(item)
        self._add(item)
        return item

    def fail(
        self, index: int, problem: Exception, lost_usd: Decimal | None = None
    ) -> FanOutItem[Any]:
        item: FanOutItem[Any] = FanOutItem(
            index=index, key=self.keys[index], error=problem, cost_usd=lost_usd
        )
        self.budget.exceeded |= isinstance(problem, BudgetExceeded)
        if lost_usd is not None:
            self.budget.spent_usd += lost_usd
            self.guarded(lambda kept: kept.add_spent(lost_usd))
        self._keep(item)
        self._add(item)
        return item

    def _keep(self, item: FanOutItem[Any]) -> None:
        if not isinstance(item.error, BudgetExceeded):
            self.guarded(lambda kept: kept.add(item, self._label(item.index)))

    def _label(self, index: int) -> dict[str, object]:
        return self.settings.labels[index] if self.settings.labels else {"index": index}

    def guarded(self, write: Callable[[KeptResults], None]) -> None:
        """Calls a step on the file. A failure becomes a notice: the answer is not lost."""
        if self.kept is None:
            return
        try:
            write(self.kept)
        except (AnaphoraError, OSError) as problem:
            notice = reported("results_failed", problem)
            if notice not in self.notices:
                self.notices.append(notice)

    def _add(self, item: FanOutItem[Any]) -> None:
        progress, response = self.progress, item.response
        self._end(item.index)
        if response is None:
            progress.failed += 1
            if item.cost_usd is not None:
                progress.add_cost(item.cost_usd)
        else:
            progress.done += 1
            progress.add_usage(response.usage)
            progress.add_cost(item.cost_usd)
        self._deliver(item)
        self.report()

    def report(self) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(self.progress)
        except Exception as problem:
            self.notices.append(reported("observer_failed", problem))
            self._on_progress = None
