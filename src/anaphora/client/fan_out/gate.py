"""A gate for concurrent calls that a framework makes one by one.

    gate = CallGate(client)
    response = await gate.complete(prompt, model="claude-sonnet-5-5")     from many tasks at once

Calls that arrive within a moment are grouped by their shared beginning, like those of `client.map`:
the first of a group is sent, and the others once they can read what it wrote. Later calls with the
same beginning wait with them, or are sent at once if it can be read already. A call that continues
an earlier one, or is too short for a cache, never waits; no call waits longer than its own timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.cache.plan import SingleCallPlanner
from anaphora.cache.plan.groups import PrefixGroup, beginning_key
from anaphora.cache.sent_call import expiry, is_alive
from anaphora.client.cold_guard import cold_guard_of
from anaphora.client.content import Content
from anaphora.client.oneshot import CallWatch, OneShot
from anaphora.client.options import CALL_KEYWORDS, CallOptions, check_keywords
from anaphora.client.response import Response
from anaphora.client.structured import output_of
from anaphora.errors import Transport
from anaphora.prompt import Call
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Notice, Ttl, Usage

from .release import GroupRelease, assign_groups
from .run import PAUSE
from .values import FanOutItem

if TYPE_CHECKING:
    from anaphora.client.client import AsyncClient

#: Seconds without a new call after which the waiting ones are grouped, and the longest wait.
_QUIET, _LONGEST = 0.02, 0.2
#: Seconds after its last use that a beginning without a marker is expected to be readable.
_AUTOMATIC_SECONDS = 240.0
#: The share of a TTL after which a single call writes the beginning again.
_MARGIN = 0.9
#: Beginnings that are remembered.
_MOST_BEGINNINGS = 256


class _Beginning(msgspec.Struct, eq=False):
    """A beginning that calls share, and whether it can be read."""

    group: PrefixGroup
    ttl: Ttl | None
    readable: asyncio.Event
    used: float
    """When the last call that reads it was sent, on the monotonic clock."""
    notices: list[Notice] = []
    """For the calls that wait for it."""

    def is_alive(self, now: float) -> bool:
        seconds = _AUTOMATIC_SECONDS if self.ttl is None else TTL_SECONDS[self.ttl] * _MARGIN
        return not self.readable.is_set() or is_alive(expiry(self.used, seconds), now)


class _Waiting(msgspec.Struct, eq=False):
    """A call before it is sent, in the task of its caller."""

    call: OneShot
    prompt: Rendered
    released: asyncio.Future[CallWatch | None]
    ended: asyncio.Future[FanOutItem[Any]]
    index: int = 0
    notices: list[Notice] = []

    @property
    def watch(self) -> CallWatch | None:
        """The watch that it was released with."""
        released = self.released
        return released.result() if released.done() and not released.cancelled() else None


class CallGate:
    """Sends single calls of any number of tasks in the cheapest order. Used in the event loop of
    its client."""

    def __init__(self, client: AsyncClient, *, visibility_delay: float | None = None) -> None:
        """`visibility_delay` is that of `client.map`."""
        self._client = client
        self._delay = visibility_delay
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._collecting = False
        self._alone: list[_Waiting] = []
        """Calls in flight that shared their beginning with no other."""
        self._beginnings = BoundedMap[tuple[int, int, bytes], _Beginning](_MOST_BEGINNINGS)
        """By the target, the chunks and their key."""

    async def complete(
        self,
        prompt: Call | Content,
        provider: str | None = None,
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> Response[Any]:
        """The response to a single call; the arguments are those of `AsyncClient.complete`."""
        check_keywords(options, CALL_KEYWORDS)
        form = None if output is None else output_of(output)
        cold, compared = cold_guard_of(options, self._client._cold), self._client._compared
        call = self._client.single_call(prompt, provider, output=form, **options)
        rendered, target = call.render(), call.target
        if Counts(rendered).total < target.rules.minimum_tokens.value:
            return await call.send()
        known = self._known(call, rendered)
        if cold is not None:
            await call.check_shared(cold, compared, 0 if known is None else known.group.tokens)
        if SingleCallPlanner(target.memory, rendered).continues:
            return await call.send()
        if known is None:
            return await self._send_grouped(call, rendered)
        call.group, call.ttl = known.group, known.ttl
        notices: tuple[Notice, ...] = ()
        if not known.readable.is_set():
            await _in_time(known.readable.wait(), call)
            notices = tuple(known.notices)
        known.used = time.monotonic()
        return (await call.send()).with_notices(notices)

    def _known(self, call: OneShot, rendered: Rendered) -> _Beginning | None:
        """The longest beginning of the call that was written, or is being written."""
        target, now = call.target, time.monotonic()
        lengths = {chunks for place, chunks, _ in self._beginnings if place == id(target)}
        for chunks in sorted(lengths, reverse=True):
            if chunks > rendered.cacheable:
                continue
            place = id(target), chunks, beginning_key(rendered, chunks, target.rules)
            known = self._beginnings.get(place)
            if known is not None and known.is_alive(now):
                self._beginnings.use(place)
                return known
        return None

    async def _send_grouped(self, call: OneShot, rendered: Rendered) -> Response[Any]:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(call, rendered, loop.create_future(), loop.create_future())
        self._waiting.append(waiting)
        if not self._collecting:
            self._collecting = True
            task = loop.create_task(self._collect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        item: FanOutItem[Any] = _item(waiting, error=Transport("cancelled", phase="send"))
        try:
            await _in_time(waiting.released, call)
            response = await call.send(waiting.watch)
            response = response.with_notices(tuple(waiting.notices))
            item = _item(waiting, response=response)
            return response
        except Exception as problem:
            item = _item(waiting, error=problem)
            raise
        finally:
            # Also if the task was cancelled after its release, and before it ran again.
            if waiting.watch is not None:
                waiting.watch.ended()
            waiting.ended.set_result(item)

    async def _collect(self) -> None:
        """Waits until no more calls come, and releases them."""
        count, until = 0, time.monotonic() + _LONGEST
        while len(self._waiting) > count and time.monotonic() < until:
            count = len(self._waiting)
            await asyncio.sleep(_QUIET)
        taken, self._waiting, self._collecting = self._waiting, [], False
        await self._release([each for each in taken if not each.ended.done()])

    async def _release(self, waiting: list[_Waiting]) -> None:
        for index, each in enumerate(waiting):
            each.index = index
        # If calls arrive slowly, those that were sent alone show what is shared.
        together = [*waiting, *(each for each in self._alone if not each.ended.done())]
        calls = [each.call for each in together]
        added: dict[int, _Beginning] = {}

        def add_notice(notice: Notice, indexes: Sequence[int]) -> None:
            lines: set[int] = set()
            for index in indexes:
                waiting[index].notices.append(notice)
                group = calls[index].group
                lines.update(id(each) for each in (() if group is None else group.line()))
            for place in lines & added.keys():
                added[place].notices.append(notice)

        try:
            prompts = {index: each.prompt for index, each in enumerate(together)}
            grouped = assign_groups(calls, prompts, seconds=PAUSE)
            groups = {each.index: grouped[each.index] for each in waiting}
            self._alone = [each for each in together if each.call.group is None]
            added = self._remember(waiting)
            # No pre-warm: no response would show its cost.
            release = GroupRelease(
                _Released(waiting),
                calls,
                warm="call",
                delay=self._delay,
                notice=add_notice,
                readable=lambda group: _now_readable(added.get(id(group))),
            )
            await release.run(groups)
        finally:
            # After any failure, no call may wait for it.
            for beginning in added.values():
                _now_readable(beginning)
            for caller in waiting:
                if not caller.released.done():
                    caller.released.set_result(None)

    def _remember(self, waiting: list[_Waiting]) -> dict[int, _Beginning]:
        """The beginnings that are about to be written, by their group."""
        added: dict[int, _Beginning] = {}
        for each in waiting:
            call, now = each.call, time.monotonic()
            for group in () if call.group is None else call.group.line():
                inside = group.parent is not None and group.parent.chunks == group.chunks
                if id(group) in added or not group.chunks or inside:
                    continue
                key = beginning_key(each.prompt, group.chunks, call.target.rules)
                beginning = _Beginning(group, call.ttl, asyncio.Event(), now)
                self._beginnings[id(call.target), group.chunks, key] = beginning
                added[id(group)] = beginning
        return added


class _Released:
    """Lets each caller send its own call, so that the call ends with the caller's task."""

    def __init__(self, waiting: list[_Waiting]) -> None:
        self._waiting = waiting

    def send(self, index: int, watch: CallWatch | None = None) -> asyncio.Future[FanOutItem[Any]]:
        waiting = self._waiting[index]
        if waiting.released.done():  # the caller was cancelled, or has waited long enough
            if watch is not None:
                watch.ended()
        else:
            waiting.released.set_result(watch)
        return waiting.ended

    async def send_warmup(self, call: OneShot) -> Usage:
        return (await call.send()).usage


async def _in_time(readable: Awaitable[object], call: OneShot) -> None:
    """Waits for other calls, at most for the call's own time limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(call.timeout):
            await readable


def _item(
    waiting: _Waiting, response: Response[Any] | None = None, error: Exception | None = None
) -> FanOutItem[Any]:
    return FanOutItem(index=waiting.index, key="", response=response, error=error)


def _now_readable(beginning: _Beginning | None) -> None:
    if beginning is not None:
        beginning.used = time.monotonic()
        beginning.readable.set()
