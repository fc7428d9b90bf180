"""The store of a daemon: ledger, tokens and handles. One interface, implemented with SQLite for one
node and PostgreSQL for several.

Amounts are whole nano-dollars. Times are seconds since 1970; a day is a UTC date, as `YYYY-MM-DD`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from anaphora.client.costs import LARGEST_AMOUNT as LARGEST_AMOUNT
from anaphora.client.costs import Settled as Settled
from anaphora.wire.facts.stored import StoredKind

EntryKind: TypeAlias = Settled | Literal["correction"]
"""A correction changes the amount of another entry."""

#: Kinds of amounts without a bill.
ESTIMATED_KINDS: frozenset[EntryKind] = frozenset(("estimated", "bound", "disputed"))

HandleKind: TypeAlias = StoredKind | Literal["prefix", "signature", "alert"]
"""`item`: of a stored response. `prefix`: the beginning of a prompt, by its keyed digest.
`signature`: of a request, which is accepted once. `alert`: its state, so that it is sent once."""


class SpendLimits(msgspec.Struct, frozen=True):
    """Nano-dollars; None: no limit. All of them apply."""

    per_day: int | None = None
    per_month: int | None = None
    group_per_day: int | None = None
    group_per_month: int | None = None
    budgets: tuple[int, ...] = ()
    """Of each of the hold's `budgets`: the total over its life."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum cost of one attempt of a call, reserved before it is sent."""

    id: str
    app: str
    provider: str
    model: str
    request_id: str
    bound: int
    at: float
    group: str = ""
    """The app's group, if that has limits. The call counts in it, even if the app moves."""
    budgets: tuple[str, ...] = ()
    """Ids of the narrowed tokens whose budgets the call counts in, the outermost first."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an attempt."""

    hold: str
    billed: int
    kind: Settled
    at: float
    input: int = 0
    """All tokens of the prompt."""
    read: int = 0
    written: int = 0
    output: int = 0
    read_by_others: int = 0
    """The part of `read` that other apps wrote. Only the operator sees it."""
    labels: Mapping[str, int] = {}
    """Nano-dollars of the prompt by block label."""
    saved: int = 0
    """Nano-dollars saved by the cache."""
    model: str = ""
    """The model that answered; empty: that of the hold."""
    interrupted: bool = False
    """The daemon was killed before the attempt ended."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """An app's spend, settled and held."""

    day: str
    """The day to which a call is charged now."""
    today: int = 0
    """Settled, without holds."""
    month: int = 0
    held: int = 0
    """Sum of all open holds, including those of earlier days."""


class RecoveredHolds(msgspec.Struct, frozen=True):
    """Holds of a killed daemon that were settled at the start."""

    count: int = 0
    amount: int = 0
    """The sum of the bounds at which they were settled."""
    unsent: int = 0
    """Number of those that were not sent and are free."""

    def __add__(self, other: RecoveredHolds) -> RecoveredHolds:
        return RecoveredHolds(
            self.count + other.count, self.amount + other.amount, self.unsent + other.unsent
        )


IsUnsent: TypeAlias = Callable[[str], bool]
"""Whether nothing was sent for the hold with this id."""


def all_sent(hold: str) -> bool:  # noqa: ARG001
    """For stores that do not know which holds were sent."""
    return False


def interrupted(hold: str, bound: int, at: float, is_unsent: IsUnsent) -> Settlement:
    """The settlement of a hold that a killed daemon left open."""
    free = is_unsent(hold)
    return Settlement(
        hold=hold,
        billed=0 if free else bound,
        kind="free" if free else "bound",
        at=at,
        interrupted=True,
    )


def recovered(settlements: Sequence[Settlement]) -> RecoveredHolds:
    return RecoveredHolds(
        len(settlements),
        sum(one.billed for one in settlements),
        sum(one.kind == "free" for one in settlements),
    )


class SettledFigures(msgspec.Struct, frozen=True):
    """How an attempt was settled, as in the table `entries`."""

    settled_at: float
    billed: int
    kind: Settled
    input: int
    read: int
    written: int
    output: int
    saved: int
    read_by_others: int
    """Tokens of `read` that other apps wrote."""


class UnauditedEntry(SettledFigures, frozen=True, kw_only=True):
    """An entry of a killed daemon whose call may have no row in the audit log."""

    request_id: str
    interrupted: bool
    """The call was still running."""
    node: str
    """The node that made it; empty with SQLite, which has only one."""
    epoch: int
    """With SQLite, the epoch of the audit log's writer; with PostgreSQL, the id of the node."""
    app: str
    group: str
    """That the app had when it made the call."""
    budget: str = ""
    """The id of the narrowed token that made it,"""
    budget_label: str = ""
    """and its label."""
    provider: str
    model: str
    at: float


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum of entries; fields that are not grouped by are empty. By label, tokens are unknown, and
    the row with an empty label has the output and unlabelled text."""

    group: str = ""
    """The app's group when the call began."""
    app: str = ""
    provider: str = ""
    model: str = ""
    label: str = ""
    budget: str = ""
    """The id of the narrowed token that made the calls; empty: a token of the app."""
    budget_label: str = ""
    day: str = ""
    calls: int = 0
    """Attempts that were charged, or would have been with a known price."""
    billed: int = 0
    estimated: int = 0
    """The part of `billed` without a bill."""
    saved: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    corrected: int = 0
    """The part of `billed` that corrections added; negative if they reduced it."""


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of entries to sum; None: all."""

    since: str = ""
    """The first day."""
    until: str = ""
    """The last day."""
    app: str | None = None
    group: str | None = None


EVERYTHING = SpendQuery()


class Entry(msgspec.Struct, frozen=True):
    """A settled attempt of a call, or a correction of one."""

    id: str
    app: str
    provider: str
    model: str
    request_id: str
    day: str
    """The day to which it is charged."""
    at: float
    """When the call began."""
    settled_at: float
    bound: int
    billed: int
    """In a correction: the amount added to the corrected entry."""
    kind: EntryKind
    input: int
    read: int
    written: int
    output: int
    labels: str
    """Nano-dollars of the prompt by block label, as JSON."""
    corrects: str = ""
    """In a correction: the id of the corrected entry."""
    reason: str = ""
    accounts: str = ""
    """The further accounts in which it counts: see `budgets.accounts_of`."""
    budget: str = ""
    """The id of the narrowed token that made the call,"""
    budget_label: str = ""
    """and its label."""

    @property
    def label_costs(self) -> dict[str, int]:
        return msgspec.json.decode(self.labels, type=dict[str, int])


class EntryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of entries to list."""

    app: str | None = None
    since: float | None = None
    """Only calls that began at this time or later."""
    before: str = ""
    """Only entries before the one with this id."""
    corrections: bool = False
    """Only corrections."""
    limit: int = 100

    @property
    def first_id(self) -> str:
        """The smallest id at `since`: ids sort by time."""
        return "" if self.since is None else f"{max(0, int(self.since * 1000)):012x}"


class CorrectedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a correction."""

    id: str
    """The id of the correction."""
    entry: str
    app: str
    request_id: str
    day: str
    before: int
    after: int
    booked: bool
    """False if the latest correction already had this amount."""


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token of an app, or of an administrator (`app` is empty)."""

    id: str
    app: str
    digest: bytes
    """Keyed hash of the token, which itself is not stored."""
    created: float
    expires: float | None = None
    revoked: float | None = None
    parent: str = ""
    """Of a narrowed token: the id of the token from which it was narrowed."""
    nano_usd: int | None = None
    """Of a narrowed token: what it may spend in its life."""
    models: tuple[str, ...] = ()
    """Of a narrowed token: globs; empty: those of its parent."""
    label: str = ""
    reserved: bool = False
    """Its amount is carved out of what its parent may spend."""


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A narrowed token with its spend and that of the tokens narrowed from it."""

    token: TokenRow
    spent: int = 0
    """Settled, in nano-dollars."""
    held: int = 0


class HandleRow(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a provider stores for an app."""

    kind: HandleKind
    id: str
    app: str
    provider: str
    created: float
    tokens: int | None = None
    """The last billed size of the history behind it."""
    bill: str = ""
    """For a background response: the data of its bill, as JSON."""


class Store(Protocol):
    """The interface of a store. Methods raise `StoreUnavailable` if a write cannot be made
    durable."""

    @property
    def problem(self) -> str | None:
        """Why the last write failed; None if it succeeded."""
        ...

    async def probe(self) -> None:
        """Checks that the store can be written. Raises `StoreUnavailable`."""
        ...

    @property
    def waiting(self) -> int:
        """Number of settlements that could not be written yet."""
        ...

    async def hold(self, hold: Hold, limits: SpendLimits) -> float:
        """Durable when it returns. Raises `GrantExceeded` if settled, held, reserved and this
        together exceed a limit; otherwise returns the highest share of a limit that is used now (0
        without limits). Charged to the day of `hold.at` or the latest day of any hold, so that a
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
        """The marked entries of killed daemons. With several nodes, this node is responsible for
        them from now on, until it dies as well."""
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

    def note_groups(self, groups: Mapping[str, str], at: float) -> None:
        """Stores the groups of apps, by app, for later calls. Never raises."""
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

    async def add_token(self, token: TokenRow) -> None:
        """A narrowed one without a reservation, or one of another kind."""
        ...

    async def reserve(
        self, token: TokenRow, limits: SpendLimits, *, group: str = "", budgets: Sequence[str] = ()
    ) -> None:
        """Adds a narrowed token, and carves its amount out of what its parent may spend: `limits`
        are those of the app, of its `group` and of `budgets`, the narrowed tokens above it, the
        outermost first. One step. Raises `GrantExceeded` if less than the amount is left."""
        ...

    async def change_token(
        self, id: str, *, expires: float | None = None, revoked: float | None = None
    ) -> None:
        """Revoking a token revokes those narrowed from it, and gives back what they reserved."""
        ...

    async def add_handle(self, handle: HandleRow) -> None:
        """Adds a row, or replaces the one of the same kind, provider and id if it is the same
        app's; another app's stays. If the disk is full, it is kept and written later, like a
        settlement."""
        ...

    def add_handles_later(self, handles: Iterable[HandleRow]) -> None:
        """The same without waiting: written with the next hold or settlement. Never raises."""
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
    async def grow_handle(
        self, row: HandleRow, growth: int | None, size: int | None = None
    ) -> None:
        """Sets the tokens of a handle to `size` if they are still those of `row`; otherwise adds
        `growth`, None if unknown. If the disk is full, it is kept and written later."""
        ...

    async def remove_handle(self, kind: HandleKind, id: str, app: str) -> None: ...
    async def remove_old_handles(self, kind: HandleKind, before: float) -> None:
        """Removes the oldest rows; only a part if there are many."""
        ...

    async def close(self) -> None: ...
