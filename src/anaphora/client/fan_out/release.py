"""When each call of a fan-out is sent: one of a group first, the others once they read what it
wrote.

When a cache entry becomes readable depends on the provider (`readable_from`), and some reads miss
it shortly afterwards (`visibility_delay`). So one more call, the probe, confirms that the entry is
read before all others are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from blake3 import blake3

from anaphora.cache.plan.groups import PrefixGroup, group_prompts, group_ttl, warming_pays
from anaphora.catalog import CacheRules
from anaphora.client.oneshot import CallWatch, OneShot
from anaphora.client.options import WarmUp
from anaphora.client.target import Target
from anaphora.errors import AnaphoraError, BudgetExceeded
from anaphora.rendered import Rendered
from anaphora.values import Notice, Usage
from anaphora.wording import counted

from .values import FanOutItem

#: After this many failed calls, all others of the group are sent without waiting.
_LEADERS = 3
#: After this many probes, all calls are sent even if none has read.
_PROBES = 3
#: The share of a beginning that a call must read to prove that it is cached: lengths are estimates.
_ENOUGH = 0.5


class CallSender(Protocol):
    """Sends the calls of a fan-out, and reports their outcomes."""

    def send(
        self, index: int, watch: CallWatch | None = None
    ) -> asyncio.Future[FanOutItem[Any]]: ...
    def send_warmup(self, call: OneShot) -> Awaitable[Usage]: ...


class GroupRelease:
    """Sends the calls of a fan-out in the cheapest order."""

    def __init__(
        self,
        sender: CallSender,
        calls: Sequence[OneShot],
        *,
        warm: WarmUp,
        delay: float | None,
        notice: Callable[[Notice, Sequence[int]], None],
        readable: Callable[[PrefixGroup], None] = lambda _: None,
    ) -> None:
        """`notice` gets messages for the user, with the positions of the calls that they are about;
        `readable` is called when the calls of a group may be sent."""
        self._sender = sender
        self._calls = calls
        self._warm = warm
        self._delay = delay
        self._notice = notice
        self._readable = readable
        self._waiting: dict[int, None] = {}
        """Calls that were not sent, in the order of the prompts."""
        self._sent: list[asyncio.Future[FanOutItem[Any]]] = []

    async def run(self, groups: dict[int, PrefixGroup | None]) -> None:
        """Sends all calls, given by their positions; returns when all have ended."""
        self._waiting = dict.fromkeys(groups)
        roots: dict[int, PrefixGroup] = {}
        for index, group in groups.items():
            if group is None:
                self._release(index)
            else:
                root = group.line()[0]
                roots[id(root)] = root
        async with asyncio.TaskGroup() as tasks:
            for root in roots.values():
                tasks.create_task(self._release_group(root))
        await asyncio.gather(*self._sent, return_exceptions=True)

    async def _release_group(self, group: PrefixGroup) -> None:
        """Sends the calls of a group, whose shared beginning with other groups can be read
        already."""
        rules = self._rules(group)
        warmed: set[int] = set()
        ttl = self._calls[group.members[0]].ttl
        prewarms = self._prewarms(rules)
        if self._warm != "off" and warming_pays(group, rules, ttl, extra=int(prewarms)):
            written = await self._write(group, rules, prewarms=prewarms)
            if written is not None:
                leader, watch = written
                warmed = {id(each) for each in leader.line()}
                await self._visible(group, rules, watch, prewarms=watch.prewarm)
        await self._flood(group, warmed)

    async def _flood(self, group: PrefixGroup, warmed: set[int]) -> None:
        """Sends everything that can read now. Smaller groups whose own beginning was not written
        yet write that first."""
        self._readable(group)
        async with asyncio.TaskGroup() as tasks:
            inside: set[int] = set()
            for child in filter(_has_members, group.children):
                inside.update(child.members)
                again = self._flood(child, warmed) if id(child) in warmed else None
                tasks.create_task(again or self._release_group(child))
            for index in group.members:
                if index in self._waiting and index not in inside:
                    self._release(index)

    def _release(
        self, index: int, watch: CallWatch | None = None
    ) -> asyncio.Future[FanOutItem[Any]]:
        del self._waiting[index]
        future = self._sender.send(index, watch)
        self._sent.append(future)
        return future

    # ── Writing, and the probe ───────────────────────────────────────────────────────────────────

    async def _write(
        self, group: PrefixGroup, rules: CacheRules, *, prewarms: bool
    ) -> tuple[PrefixGroup, CallWatch] | None:
        """Sends one call and returns when its write can be read: the smallest group of it, and the
        watch on its reads. None if no call is left, or none succeeds."""
        for _ in range(_LEADERS):
            if (chosen := self._next(group)) is None:
                return None
            watch = CallWatch(_ENOUGH * group.tokens)
            if prewarms and await self._prewarm(chosen, watch):
                return self._calls[chosen].group or group, watch
            prewarms = False
            sent = self._release(chosen, watch)
            if rules.readable_from.value == "response_end":
                await asyncio.wait([sent])
            else:
                await watch.began.wait()
            if not sent.done() or sent.result().response is not None:
                return self._calls[chosen].group or group, watch
            if isinstance(sent.result().error, BudgetExceeded):
                return None
        return None

    async def _prewarm(self, index: int, watch: CallWatch) -> bool:
        """Writes the beginning by a call without a reply; False if that is not possible."""
        try:
            watch.reads(await self._sender.send_warmup(self._calls[index].prewarm()))
        except BudgetExceeded:
            return False
        except AnaphoraError as problem:
            reason = f"no pre-warm was sent, a call writes the cache instead: {problem}"
            self._notice(Notice("prewarm_failed", reason), [index])
            return False
        watch.prewarm = True
        watch.ended()
        return True

    async def _visible(
        self, group: PrefixGroup, rules: CacheRules, watch: CallWatch, *, prewarms: bool
    ) -> None:
        """Returns when a call has read the beginning, or there is no point in waiting. `prewarms`:
        a pre-warm shows it sooner than a call with a reply."""
        delay = rules.visibility_delay.value if self._delay is None else self._delay
        for probe in range(_PROBES + 1):
            # The first call also reads if an earlier run has written the beginning.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.proved.wait(), delay)
            if watch.proved.is_set() or len(self._left(group)) < 2:
                return
            if probe == _PROBES:
                break
            watch = CallWatch(_ENOUGH * group.tokens)
            index = self._next(group)
            assert index is not None
            if prewarms and await self._prewarm(index, watch):
                continue
            prewarms = False
            self._release(index, watch)
            await watch.news.wait()
        left = self._left(group)
        reason = (
            f"{_PROBES} calls did not read the {group.tokens:,} tokens that the first one wrote;"
            f" the other {counted(len(left), 'call')} of the group were sent anyway"
        )
        self._notice(Notice("prefix_not_read", reason), left)

    def _left(self, group: PrefixGroup) -> list[int]:
        return [index for index in group.members if index in self._waiting]

    def _next(self, group: PrefixGroup) -> int | None:
        """The call to send first: one of the largest group inside this one, so that the most calls
        read what it writes."""
        left = self._left(group)
        inside = [(len(self._left(child)), child) for child in group.children]
        if inside:
            count, largest = max(inside, key=lambda each: each[0])
            if count:
                return self._next(largest)
        return left[0] if left else None

    def _prewarms(self, rules: CacheRules) -> bool:
        """Whether a pre-warm goes first. A call costs less; a pre-warm ends sooner, which matters
        if an entry becomes readable at the end of a response."""
        if rules.prewarm is None or self._warm == "call":
            return False
        return self._warm == "prewarm" or rules.readable_from.value == "response_end"

    def _rules(self, group: PrefixGroup) -> CacheRules:
        return self._calls[group.members[0]].target.rules


def _has_members(group: PrefixGroup) -> bool:
    return bool(group.members)


def assign_groups(
    calls: Sequence[OneShot],
    prompts: Mapping[int, Rendered],
    *,
    seconds: float,
    mark: bool = True,
    found: Callable[[list[Rendered], list[PrefixGroup | None], Target], None] | None = None,
) -> dict[int, PrefixGroup | None]:
    """The group of each call, by its position, if its beginning is worth writing; the call
    marks it. `seconds` are those between two calls of a group; `found` gets all groups of a
    target."""
    by_target: dict[int, list[int]] = {}
    for index in prompts:
        by_target.setdefault(id(calls[index].target), []).append(index)
    groups: dict[int, PrefixGroup | None] = dict.fromkeys(prompts)
    for members in by_target.values():
        target = calls[members[0]].target
        rendered = [prompts[index] for index in members]
        grouped = group_prompts(rendered, target.rules)
        if found is not None:
            found(rendered, grouped, target)
        seen: set[int] = set()
        for group in grouped:
            for each in () if group is None else group.line():
                if id(each) not in seen:
                    seen.add(id(each))
                    each.members = [members[place] for place in each.members]
        for index, group in zip(members, grouped, strict=True):
            if group is None or not mark:
                continue
            ttl = group_ttl(prompts[index], target.rules, seconds)
            if any(warming_pays(each, target.rules, ttl) for each in group.line()):
                groups[index] = calls[index].group = group
                calls[index].ttl = ttl
    return groups


def content_key(rendered: Rendered) -> str:
    """Identifies a request by its content, without markers: the same in every run."""
    envelope = rendered.envelope
    digest = blake3(rendered.digest(len(rendered)))
    for part in (rendered.wire, rendered.model, envelope.path):
        digest.update(part.encode() + b"\0")
    digest.update(envelope.head + b"\0" + envelope.tail)
    return digest.hexdigest(length=16)
