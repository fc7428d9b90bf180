"""The interface of a daemon's store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from . import (
    EVERYTHING,
    CorrectedEntry,
    Entry,
    EntryQuery,
    HandleKind,
    HandleRow,
    Hold,
    IsUnsent,
    RecoveredHolds,
    Settlement,
    SpendLimits,
    SpendQuery,
    SpendRow,
    Spent,
    TokenBudget,
    TokenRow,
    UnauditedEntry,
    all_sent,
)


class Store(Protocol):
    """The interface of a store. Methods raise `StoreUnavailable` if a write cannot be made
    durable."""

    @property
    def problem(self) -> str | None:
        """Why the last write failed; None if it succeeded."""
        ...

    @property
    def replaced(self) -> str | None:
        """Set when the store's file was replaced by another one, so that the daemon must stop."""
        ...

    async def probe(self) -> None:
        """Checks that the store can be written. Raises `StoreUnavailable`."""
        ...

    @property
    def waiting(self) -> int:
        """Number of settlements that could not be written yet."""
        ...

    async def hold(self, hold: Hold, limits: SpendLimits) -> None:
        """Durable when it returns. Raises `GrantExceeded` if settled, held and this together
        exceed a limit. Charged to the day of `hold.at` or the latest day of any hold, so that a
        clock that jumps back reopens no day."""
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Turns a hold into an entry, charged to the day of the hold. Idempotent. If the hold was
        settled at its bound, its entry gets the actual amount. If the disk is full, it is kept and
        written later, so that an answer never waits."""
        ...

    def settle_later(self, settlement: Settlement) -> None:
        """The same without waiting: it is written with the next hold, or some milliseconds later.
        Never raises."""
        ...

    async def recover(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:
        """Settles the open holds of a killed daemon: those not sent are free, the others are
        settled at their bound. Called once, before the first hold."""
        ...

    def follow_holds(self, over: Callable[[str], None]) -> None:
        """Calls `over` with the id of each hold whose settlement is durable or that was refused.
        May be called in another thread, and more than once for a hold."""
        ...

    async def begin_audit(self, epoch: int) -> None:
        """Marks each later settlement until `audited`. `epoch` is that of the audit log's writer; 0
        without an audit log. Called once, before the first hold."""
        ...

    def audited(self, request_ids: Sequence[str]) -> None:
        """Notes that the audit rows of these calls are durable. Written with the next batch, which
        can be late: to find calls without a row, also search the log. Thread-safe."""
        ...

    async def unaudited(self) -> list[UnauditedEntry]:
        """The marked entries of this daemon, or node, from before it was killed."""
        ...

    async def record_signed_rows(self, log: str, first: int, key: str) -> None:
        """Notes that the rows of an audit log have a MAC from `first` on, if that is unknown for
        this key. A log that ends before the first known row is new or was replaced: all of its rows
        must have one."""
        ...

    async def spent(self, app: str, now: float) -> Spent:
        """An app's spend with all settlements so far, including unwritten ones."""
        ...

    async def spent_by_app(self, now: float) -> dict[str, Spent]:
        """The spend of every app with entries or holds this month. Read outside the event loop."""
        ...

    async def spent_by_group(self, now: float) -> dict[str, Spent]:
        """The spend of every group with limits, since it has them. Its `held` is that of this
        day."""
        ...

    async def budgets(self, app: str | None = None, *, since: float = 0.0) -> list[TokenBudget]:
        """The narrowed tokens of an app, or of all, that had not expired at `since`."""
        ...

    async def spend(self, by: Sequence[str], of: SpendQuery = EVERYTHING) -> list[SpendRow]:
        """Sums grouped by any of `group`, `app`, `provider`, `model`, `label`, `budget`, `day`, in
        this order; by budget without those of pruned entries."""
        ...

    async def spend_by_hour(self, day: str, of: SpendQuery = EVERYTHING) -> dict[float, SpendRow]:
        """The sums of a day by the beginning of each hour; empty if its entries were pruned."""
        ...

    async def held(self, of: SpendQuery = EVERYTHING) -> int:
        """Nano-dollars of open holds."""
        ...

    async def entries(self, query: EntryQuery) -> list[Entry]:
        """The newest entries first, and one more than `limit` if there are more."""
        ...

    async def correct(self, entry: str, amount: int, reason: str) -> CorrectedEntry:
        """Books the difference to a call's actual cost as a separate entry, on the day and in the
        month of the corrected one. Durable when it returns. Replaces an earlier correction. Raises
        `InvalidRequest` for an unknown entry."""
        ...

    async def tokens(self) -> list[TokenRow]:
        """Narrowed ones only until they expire."""
        ...

    async def narrowed(self, digest: bytes) -> list[TokenRow]:
        """The narrowed token with a digest, and those that it was narrowed from; empty if there is
        none."""
        ...

    async def count_narrowed(self, app: str, now: float) -> int:
        """Number of the valid narrowed tokens of an app."""
        ...

    async def remove_unused_budgets(self, before: float) -> None:
        """Removes some narrowed tokens that expired in the day before a time, and have spent
        nothing."""
        ...

    async def add_token(self, token: TokenRow) -> None: ...
    async def change_token(
        self, id: str, *, expires: float | None = None, revoked: float | None = None
    ) -> None:
        """Revoking a token revokes those narrowed from it."""
        ...

    async def add_handle(self, handle: HandleRow) -> None:
        """Adds a row, or replaces the one of the same kind, provider and id if it is the same
        app's; another app's stays. If the disk is full, it is kept and written later, like a
        settlement."""
        ...

    async def handle(self, kind: HandleKind, id: str, app: str) -> HandleRow | None:
        """The row of a handle; None if unknown or another app's."""
        ...

    async def own_handles(
        self, kind: HandleKind, ids: Iterable[str], app: str
    ) -> dict[str, HandleRow]:
        """The rows of those ids that belong to an app."""
        ...

    async def handles(self, kind: HandleKind, app: str) -> list[HandleRow]: ...
    async def remove_handle(self, kind: HandleKind, id: str, app: str) -> None: ...
    async def remove_old_handles(self, kind: HandleKind, before: float) -> None:
        """Removes the oldest rows; only a part if there are many."""
        ...

    async def close(self) -> None: ...
