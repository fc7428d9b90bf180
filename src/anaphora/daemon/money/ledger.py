"""The ledger: a hold before each attempt of a call, and its settlement afterwards.

async def attempt(ledger: Ledger, app: App) -> None:
    hold = await ledger.hold(app, provider=..., model=..., request_id=..., bound=...)
    ...  # send
    hold.settle_later(billed, "billed", usage=usage)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec.structs import replace

from anaphora.client.failures import log
from anaphora.daemon.access.grants import exact_usd
from anaphora.daemon.store import (
    LARGEST_AMOUNT,
    Hold,
    RecoveredHolds,
    Settled,
    Settlement,
    SpendLimits,
    Spent,
)
from anaphora.daemon.store.budgets import OWN
from anaphora.daemon.store.interface import Store
from anaphora.errors import GrantExceeded, StoreUnavailable
from anaphora.values import Usage
from anaphora.wording import counted

from .sent_marks import EarlierMarks, SentMarks

if TYPE_CHECKING:
    from anaphora.daemon.access.grants import AppGrant
    from anaphora.daemon.values import App

_log = logging.getLogger("anaphora.daemon")


class Ledger:
    """Holds and settles the spend of apps, in a store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.clock = clock
        # The common part of its ids. A random number for each would be a system call, during which
        # another thread runs.
        self._name = os.urandom(6).hex()
        self._numbers = itertools.count()
        self.bound_exceeded: Counter[tuple[str, str]] = Counter()
        """Number of bills above the hold, by app and provider."""
        self.marks: SentMarks | None = None
        self._lock = threading.RLock()  # reentrant: a hold's `__del__` may run while it is held
        self._open: dict[str, int] = {}
        """Number of open holds by request id."""
        self.charged: dict[str, float] = {}
        """When each app was last charged here, on the monotonic clock."""
        self._early: set[str] = set()
        """Request ids of those whose audit row is durable."""
        self.shows_spend: Callable[[App], bool] = lambda _: False
        """Whether an app may see what it is charged, and so what other apps have cached."""

    async def recover(self, marks: Path | None = None) -> RecoveredHolds:
        """Settles the open holds of a killed daemon: at the bound, or free if the file `marks`
        shows that nothing was sent. Called once, before the first hold. Then the file is replaced
        by this ledger's marks."""
        earlier = EarlierMarks() if marks is None else EarlierMarks.read(marks)
        recovered = await self.store.recover(earlier.is_unsent)
        if recovered.count:
            _log.warning(
                "open when the daemon was killed: %s; %d not sent and free, the others settled at"
                " their bound",
                counted(recovered.count, "hold"), recovered.unsent,
            )  # fmt: skip
        if marks is not None:
            self.marks = SentMarks.create(marks, self._name)
            self.store.follow_holds(self.marks.free)
        return recovered

    async def hold(
        self, app: App, *, provider: str, model: str, request_id: str, bound: int
    ) -> OpenHold:
        """Reserves the maximum cost of an attempt, in nano-dollars. Raises `GrantExceeded`, and
        `StoreUnavailable` if the hold cannot be written; then nothing may be sent."""
        now = self.clock()
        group, limits = spend_limits(app.grant, app.budget_limits)
        hold = Hold(
            id=self._new_id(now),
            app=app.id,
            provider=provider,
            model=model,
            request_id=request_id,
            bound=bound,
            at=now,
            group=group,
            budgets=app.budgets,
        )
        try:
            await self.store.hold(hold, limits)
        except Exception as problem:  # not if cancelled: the store decides on the hold later
            if self.marks is not None:
                self.marks.free(hold.id)
            if isinstance(problem, GrantExceeded) and self.shows_spend(app):
                raise await self._with_amounts(problem, app, hold, limits) from None
            raise
        self._put_held(hold)
        return OpenHold(self, hold)

    async def _with_amounts(
        self, problem: GrantExceeded, app: App, hold: Hold, limits: SpendLimits
    ) -> GrantExceeded:
        """The refusal with what is spent and held of the app's own limit. The amounts of a group
        are also other apps', and those of the app are not a narrowed token's."""
        spent, held, most = 0, 0, None
        with contextlib.suppress(StoreUnavailable):
            if problem.limit == OWN and limits.budgets:
                found = await self.store.budgets(app.id, since=hold.at)
                own = next((one for one in found if one.token.id == app.budget), None)
                if own is not None:
                    spent, held, most = own.spent, own.held, limits.budgets[-1]
            elif not app.budgets:
                now = await self.store.spent(app.id, hold.at)
                held = now.held
                if problem.limit == "usd_per_day":
                    spent, most = now.today, limits.per_day
                elif problem.limit == "usd_per_month":
                    spent, most = now.month, limits.per_month
        if most is None:
            return problem
        amounts = f"{exact_usd(spent)} of {exact_usd(most)} is spent and {exact_usd(held)} held"
        text = f"{problem} ({amounts}; this call can cost {exact_usd(hold.bound)})"
        return problem.restated(text)

    def _put_held(self, hold: Hold) -> None:
        """Called when a hold is durable."""
        id = hold.request_id
        with self._lock:
            self._open[id] = self._open.get(id, 0) + 1

    def _new_id(self, now: float) -> str:
        """Ids sort by time, so that the entries of a day are adjacent. Ends with the slot of the
        hold's mark."""
        start = f"{int(now * 1000):012x}{self._name}{next(self._numbers) & 0xFFFFFFFF:08x}"
        return f"{start}0000" if self.marks is None else self.marks.add(start)

    def audited(self, request_ids: Sequence[str]) -> None:
        """Notes that the audit rows of these calls are durable, possibly before all their holds are
        settled. Thread-safe."""
        with self._lock:
            early = [id for id in request_ids if id in self._open]
            self._early.update(early)
        self.store.audited(request_ids)

    def put_settled(self, hold: Hold) -> None:
        """Called when the settlement of an open hold is queued."""
        id, self.charged[hold.app] = hold.request_id, time.monotonic()
        with self._lock:
            left = self._open.pop(id, 1) - 1
            if left:
                self._open[id] = left
            early = not left and id in self._early
            if early:
                self._early.discard(id)
        if early:
            self.store.audited([id])

    async def spent(self, app: str) -> Spent:
        return await self.store.spent(app, self.clock())


class SettledDetails(TypedDict, total=False):
    usage: Usage | None
    read_by_others: int
    """Tokens read that other apps wrote."""
    labels: Mapping[str, int] | None
    """Nano-dollars by label."""
    saved: int
    model: str
    """The model that answered; empty: that of the hold."""


class OpenHold:
    """A hold to be settled once. If it is dropped unsettled, it is settled at its bound: the
    attempt may have been charged."""

    __slots__ = ("hold", "_ledger", "_settled")

    def __init__(self, ledger: Ledger, hold: Hold) -> None:
        self.hold = hold
        self._ledger = ledger
        self._settled = False

    def sending(self) -> None:
        """Called before the attempt is written to a connection: from now on it may be charged."""
        if (marks := self._ledger.marks) is not None:
            marks.mark(self.hold.id)

    async def settle(self, billed: int, kind: Settled, **details: Unpack[SettledDetails]) -> None:
        """Returns when the settlement is on disk, or kept in memory because the disk is full."""
        was_open = not self._settled
        settlement = self._settlement(billed, kind, **details)
        try:
            await self._ledger.store.settle(settlement)
        finally:
            if was_open:
                self._ledger.put_settled(self.hold)

    def settle_later(self, billed: int, kind: Settled, **details: Unpack[SettledDetails]) -> None:
        """The same without waiting. Never raises."""
        was_open = not self._settled
        self._ledger.store.settle_later(self._settlement(billed, kind, **details))
        if was_open:
            self._ledger.put_settled(self.hold)

    def settle_behind(
        self,
        billed: int,
        kind: Settled,
        labels_of: Callable[[], Mapping[str, int]],
        **details: Unpack[SettledDetails],
    ) -> None:
        """The same when the event loop has run what is due now: an answer that has arrived is on
        its way to its app before. `labels_of` computes the nano-dollars by label."""
        was_open, self._settled = not self._settled, True

        def settle() -> None:
            try:
                details["labels"] = labels_of()
            except Exception as problem:
                log(logging.ERROR, "the cost of an attempt has no labels", problem)
            self.settle_later(billed, kind, **details)
            if was_open:
                self._ledger.put_settled(self.hold)

        asyncio.get_running_loop().call_later(0, settle)

    def settle_at_bound(self) -> None:
        """Settles an attempt that was sent and has no bill."""
        self.settle_later(self.hold.bound, "bound")

    def release(self) -> None:
        """Settles an attempt free of charge: it was not sent, or refused before any output."""
        self.settle_later(0, "free")

    def _settlement(
        self,
        billed: int,
        kind: Settled,
        *,
        usage: Usage | None = None,
        read_by_others: int = 0,
        labels: Mapping[str, int] | None = None,
        saved: int = 0,
        model: str = "",
    ) -> Settlement:
        self._settled = True
        usage = usage or Usage()
        input, output = usage.input or 0, usage.output or 0
        if not 0 <= billed <= LARGEST_AMOUNT or max(input, output) > LARGEST_AMOUNT:
            kind, labels = "disputed", None
        if kind == "disputed":
            self._exceeded(
                "reports %d tokens, which cannot be true; its bound of %d nano-dollars is charged",
                input + output, self.hold.bound,
            )  # fmt: skip
            billed, usage, saved, read_by_others = self.hold.bound, Usage(), 0, 0
            input = output = 0
        elif billed > self.hold.bound > 0:  # 0: an app without limits, and no bound is known
            self._exceeded("cost %d nano-dollars, more than its bound %d", billed, self.hold.bound)
        return Settlement(
            hold=self.hold.id,
            billed=billed,
            kind=kind,
            at=self._ledger.clock(),
            input=input,
            read=usage.read or 0,
            written=usage.written_total or 0,
            output=output,
            read_by_others=read_by_others,
            labels=_storable(labels) if labels else {},
            saved=saved,
            model="" if model == self.hold.model else model,
        )

    def _exceeded(self, text: str, *values: int) -> None:
        hold = self.hold
        self._ledger.bound_exceeded[hold.app, hold.provider] += 1
        _log.error(
            f"request %s {text} (%s, %s, entry %s)",
            hold.request_id, *values, hold.provider, hold.model, hold.id,
        )  # fmt: skip

    def __del__(self) -> None:
        if not getattr(self, "_settled", True):
            self.settle_at_bound()


def spend_limits(grant: AppGrant, budgets: tuple[int, ...] = ()) -> tuple[str, SpendLimits]:
    """The limits of calls under a grant, with those of narrowed tokens, and the name of the app's
    group if that has limits."""
    llm, group = grant.llm, grant.group_limits
    limits = SpendLimits(llm.nano_usd_per_day, llm.nano_usd_per_month, budgets=budgets)
    if group is None or not group.is_limited:
        return "", limits
    return grant.group, replace(
        limits, group_per_day=group.nano_usd_per_day, group_per_month=group.nano_usd_per_month
    )


def _storable(labels: Mapping[str, int]) -> Mapping[str, int]:
    """Replaces characters that a store cannot hold: labels may come from apps, and the amount must
    not be lost."""
    if all(map(str.isprintable, labels)):
        return labels
    found: dict[str, int] = {}
    for label, amount in labels.items():
        clean = label.encode(errors="replace").decode().replace("\0", "?")
        found[clean] = found.get(clean, 0) + amount
    return found
