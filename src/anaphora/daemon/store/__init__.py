"""The store of a daemon: ledger, tokens and handles. One interface, which SQLite implements for one
node and PostgreSQL for several.

Amounts are whole nano-dollars. Times are seconds since 1970; a day is a UTC date, as `YYYY-MM-DD`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

Settled: TypeAlias = Literal["billed", "estimated", "bound", "free", "disputed"]
"""How an amount is known: from the bill; from what was received; the held bound, since the call was
sent and its bill never came; nothing was charged; the held bound, since the bill cannot be true."""

EntryKind: TypeAlias = Settled | Literal["correction"]
"""A correction changes the amount of another entry."""

#: Amounts that no bill confirms.
ESTIMATED_KINDS: frozenset[EntryKind] = frozenset(("estimated", "bound", "disputed"))

#: In nano-dollars: nine million dollars. Sums of such amounts fit into 64 bits.
LARGEST_AMOUNT = 2**53

HandleKind: TypeAlias = Literal[
    "response", "item", "conversation", "file", "batch", "cached_content", "container", "prefix"
]
"""An item is one of a stored response; a prefix the beginning of a prompt, by its keyed digest."""


class SpendLimits(msgspec.Struct, frozen=True):
    """Nano-dollars; None: no limit."""

    per_day: int | None = None
    per_month: int | None = None


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one attempt of a call can cost, reserved before it is sent."""

    id: str
    app: str
    provider: str
    model: str
    request_id: str
    bound: int
    at: float


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt cost."""

    hold: str
    billed: int
    kind: Settled
    at: float
    input: int = 0
    """Tokens, all of the prompt."""
    read: int = 0
    written: int = 0
    output: int = 0
    read_by_others: int = 0
    """The part of `read` that another app wrote: the operator's view."""
    labels: Mapping[str, int] = {}
    """Nano-dollars of the prompt by block label."""
    saved: int = 0
    """Nano-dollars less than without a cache."""
    model: str = ""
    """The model that answered; empty: that of the hold."""
    interrupted: bool = False
    """The daemon was killed before the attempt ended."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """An app's spend, settled and held."""

    day: str
    """The day that a call is charged to now."""
    today: int = 0
    """Settled, without what is held."""
    month: int = 0
    held: int = 0
    """Of all open holds, those of earlier days included."""


class RecoveredHolds(msgspec.Struct, frozen=True):
    """Holds of a daemon that was killed, which are settled now."""

    count: int = 0
    amount: int = 0
    """The sum of their bounds, if they were settled at it."""
    unsent: int = 0
    """Those that were not sent, and are free."""

    def __add__(self, other: RecoveredHolds) -> RecoveredHolds:
        return RecoveredHolds(
            self.count + other.count, self.amount + other.amount, self.unsent + other.unsent
        )


IsUnsent: TypeAlias = Callable[[str], bool]
"""Whether nothing was sent for the hold of this id."""


def all_sent(hold: str) -> bool:  # noqa: ARG001
    """For a store that does not know which holds were sent."""
    return False


def interrupted(hold: str, bound: int, at: float, is_unsent: IsUnsent) -> Settlement:
    """Of a hold that a killed daemon left open."""
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
    """How an attempt was settled, as `entries` has it."""

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
    """An entry of a daemon that was killed, whose call may have no row in the audit log."""

    request_id: str
    interrupted: bool
    """The call was under way."""
    node: str
    """The node that made it; empty with SQLite, which has one."""
    epoch: int
    """With SQLite, that of the audit log's writer; with PostgreSQL, the id of the node."""
    app: str
    group: str
    """That the app had when it made the call."""
    provider: str
    model: str
    at: float


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sum of entries; fields that are not grouped by are empty. By label, tokens are unknown, and
    the row with an empty label holds the output and what has no label."""

    group: str = ""
    """That the app had when the call began."""
    app: str = ""
    provider: str = ""
    model: str = ""
    label: str = ""
    day: str = ""
    calls: int = 0
    """Attempts that were charged, or would have been if the model had a price."""
    billed: int = 0
    estimated: int = 0
    """The part of `billed` that no bill confirms."""
    saved: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    output: int = 0
    corrected: int = 0
    """The part of `billed` that corrections added; below 0 if they took away."""


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is summed; None: all."""

    since: str = ""
    """The first day, and"""
    until: str = ""
    """the last one."""
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
    """That it is charged to."""
    at: float
    """When the call began."""
    settled_at: float
    bound: int
    billed: int
    """Of a correction: what it adds to the amount of the entry that it corrects."""
    kind: EntryKind
    input: int
    read: int
    written: int
    output: int
    labels: str
    """Nano-dollars of the prompt by block label, as JSON."""
    corrects: str = ""
    """Of a correction: the id of the entry."""
    reason: str = ""

    @property
    def label_costs(self) -> dict[str, int]:
        return msgspec.json.decode(self.labels, type=dict[str, int])


class EntryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries are listed."""

    app: str | None = None
    since: float | None = None
    """Of calls that began at this time or later."""
    before: str = ""
    """Only those before the entry of this id."""
    corrections: bool = False
    """Only corrections."""
    limit: int = 100

    @property
    def first_id(self) -> str:
        """Ids are in order of time."""
        return "" if self.since is None else f"{max(0, int(self.since * 1000)):012x}"


class CorrectedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a correction has changed."""

    id: str
    """Of the correction."""
    entry: str
    app: str
    request_id: str
    day: str
    before: int
    after: int
    booked: bool
    """False if the latest correction said the same already."""


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token of an app, or of an administrator (`app` is empty)."""

    id: str
    app: str
    digest: bytes
    """Keyed hash of the token, which itself is not stored."""
    created: float
    expires: float | None = None
    revoked: float | None = None


class HandleRow(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a provider keeps for an app."""

    kind: HandleKind
    id: str
    app: str
    provider: str
    created: float
    tokens: int | None = None
    """The last billed size of the history behind it."""
    bill: str = ""
    """Of a response that is made in the background: what its bill is computed from, as JSON."""


class Store(Protocol):
    """Raises `StoreUnavailable` if a write cannot be made durable."""

    @property
    def problem(self) -> str | None:
        """Why the last write failed; None: it did not."""
        ...

    async def probe(self) -> None:
        """Finds out whether it can be written. Raises `StoreUnavailable`."""
        ...

    @property
    def waiting(self) -> int:
        """Settlements that could not be written so far."""
        ...

    async def hold(self, hold: Hold, limits: SpendLimits) -> None:
        """Durable when it returns. Raises `GrantExceeded` if settled, held and this together
        exceed a limit. Charged to the day of `hold.at`, or to the latest day that any hold had: a
        clock that jumps back reopens no day."""
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Turns a hold into an entry, charged to the day of the hold. Idempotent. If the hold
        was settled at its bound, its entry becomes the real amount. Kept and written later if
        the disk is full: an answer never waits for it."""
        ...

    def settle_later(self, settlement: Settlement) -> None:
        """The same without waiting: it is written with the next hold, or some milliseconds later.
        Never raises."""
        ...

    async def recover(self, is_unsent: IsUnsent = all_sent) -> RecoveredHolds:
        """Settles the open holds of a daemon that was killed: those that were not sent are free,
        the others are settled at their bound. Called once, before the first hold."""
        ...

    def follow_holds(self, over: Callable[[str], None]) -> None:
        """Calls `over` with the id of each hold whose settlement is durable, and of each that was
        not taken. Perhaps in another thread, and more than once for a hold."""
        ...

    async def begin_audit(self, epoch: int) -> None:
        """From now on each settlement is marked until `audited`. `epoch` is that of the audit log's
        writer; 0: there is no audit log. Called once, before the first hold."""
        ...

    def audited(self, request_ids: Sequence[str]) -> None:
        """The audit rows of these calls are durable. Written with the next batch, whenever that is:
        who looks for calls without a row has to look into the log too. From any thread."""
        ...

    async def unaudited(self) -> list[UnauditedEntry]:
        """The marked entries of daemons that were killed. With several nodes, they are this node's
        from now on, until it is dead as well."""
        ...

    async def spent(self, app: str, now: float) -> Spent:
        """With all settlements so far, also those that are still to be written."""
        ...

    async def spent_by_app(self, now: float) -> dict[str, Spent]:
        """The same of every app that has spent or holds anything this month. Read outside of the
        event loop."""
        ...

    async def spend(self, by: Sequence[str], of: SpendQuery = EVERYTHING) -> list[SpendRow]:
        """Sums, grouped by any of `group`, `app`, `provider`, `model`, `label`, `day`, in the order
        of these."""
        ...

    async def spend_by_hour(self, day: str, of: SpendQuery = EVERYTHING) -> dict[float, SpendRow]:
        """The sums of a day by the beginning of each hour; empty if its entries were pruned."""
        ...

    async def held(self, of: SpendQuery = EVERYTHING) -> int:
        """Nano-dollars of open holds."""
        ...

    def note_groups(self, groups: Mapping[str, str], at: float) -> None:
        """The groups that apps have from now on, by app. Never raises."""
        ...

    async def entries(self, query: EntryQuery) -> list[Entry]:
        """The newest first, and one more than `limit` if there are more."""
        ...

    async def correct(self, entry: str, amount: int, reason: str) -> CorrectedEntry:
        """Books the difference to what a call really cost, as an entry of its own on the day and in
        the month of that one. Durable when it returns. Replaces an earlier correction. Raises
        `InvalidRequest` for an entry that there is not."""
        ...

    async def tokens(self) -> list[TokenRow]: ...
    async def add_token(self, token: TokenRow) -> None: ...
    async def change_token(
        self, id: str, *, expires: float | None = None, revoked: float | None = None
    ) -> None: ...

    async def add_handle(self, handle: HandleRow) -> None:
        """Also replaces the row of the same kind, provider and id if it is the same app's;
        another app's stays. Kept and written later if the disk is full, as a settle is."""
        ...

    def add_handles_later(self, handles: Iterable[HandleRow]) -> None:
        """The same without waiting: written with the next hold or settlement. Never raises."""
        ...

    async def handle(self, kind: HandleKind, id: str, app: str) -> HandleRow | None:
        """None also if it belongs to another app."""
        ...

    async def own_handles(
        self, kind: HandleKind, ids: Iterable[str], app: str
    ) -> dict[str, HandleRow]:
        """Those of the ids that belong to an app."""
        ...

    async def handles(self, kind: HandleKind, app: str) -> list[HandleRow]: ...
    async def grow_handle(
        self, row: HandleRow, growth: int | None, size: int | None = None
    ) -> None:
        """Sets the tokens of a handle to `size` if they are still those of `row`; adds `growth`
        to them otherwise, which is None if it is not known. Kept and written later if the
        disk is full."""
        ...

    async def remove_handle(self, kind: HandleKind, id: str, app: str) -> None: ...
    async def remove_old_handles(self, kind: HandleKind, before: float) -> None:
        """The oldest of them: a part, if there are many."""
        ...

    async def close(self) -> None: ...
