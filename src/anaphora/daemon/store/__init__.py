"""The rows and queries of a daemon's store: ledger, tokens and handles. Its interface (`interface`)
is implemented with SQLite for one node and PostgreSQL for several.

Amounts are whole nano-dollars. Times are seconds since 1970; a day is a UTC date, as `YYYY-MM-DD`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from anaphora.client.costs import LARGEST_AMOUNT as LARGEST_AMOUNT
from anaphora.client.costs import Settled as Settled
from anaphora.wire.permissions.stored import StoredKind

EntryKind: TypeAlias = Settled | Literal["correction"]
"""A correction changes the amount of another entry."""

#: Kinds of amounts without a bill.
ESTIMATED_KINDS: frozenset[EntryKind] = frozenset(("estimated", "bound", "disputed"))

HandleKind: TypeAlias = StoredKind
"""`item`: of a stored response."""


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
    epoch: int
    """The epoch of the audit log's writer."""
    app: str
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
    """The app's group."""
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
    lost: int | None = None
    """Lost to cache misses, as the audit log says; None: unknown, as in all rows of a store."""


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of entries to sum; None: all."""

    since: str = ""
    """The first day."""
    until: str = ""
    """The last day."""
    app: str | None = None
    groups: Mapping[str, str] = {}
    """The groups of apps: those that extensions.yaml has now."""


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
