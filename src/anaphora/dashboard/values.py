"""The values that pages show.

A call is the row of an audit log, `AuditEnvelope`, from any source: see `past_calls`. Amounts are
nano-dollars, times seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from anaphora.audit.envelope import AuditEnvelope
from anaphora.dashboard.past_calls.sums import CallTotals

RangeName: TypeAlias = Literal["hour", "day", "week", "month", "custom"]
CallOutcome: TypeAlias = Literal["", "ok", "failed", "broke"]
"""What a search is limited to; empty: all calls."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A time range and filters, stored in the page's URL. None: no filter."""

    since: float
    until: float
    range: RangeName = "day"
    app: str | None = None
    group: str | None = None
    """The app's group at the time of the call."""
    provider: str | None = None
    model: str | None = None
    label: str | None = None
    """Label of a block of the prompt."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that began within one step of a chart."""

    start: float
    seconds: float
    sums: CallTotals


class ShownCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a list or a conversation."""

    id: str
    """Unique within its source, ordered by call."""
    call: AuditEnvelope
    sentence: str = ""
    """The verdict in words, or the error, without excerpts."""
    excerpts: tuple[str, str] | None = None
    """The prompt before and after a change, if text may be shown. Never read from disk."""
    field: str = ""
    """The field that changed, such as `messages[3].content[0].text`."""
    position: int | None = None
    """The character of that field at which the change begins."""
    predicted: AuditEnvelope | None = None
    """With the predicted usage, if it is known in full; `call.predicted` is only the predicted
    read."""


class ConversationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in a list."""

    id: str
    app: str = ""
    provider: str = ""
    model: str = ""
    began: float
    ended: float
    sums: CallTotals
    side_call: bool = False
    """A single call beside a longer conversation: a title, a summary."""


class ShownConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with its calls, the oldest first."""

    row: ConversationRow
    calls: Sequence[ShownCall]
    left_out: int = 0
    """Earlier calls that are not among `calls`."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a view can be filtered by."""

    apps: Sequence[str] = ()
    groups: Sequence[str] = ()
    providers: Sequence[str] = ()
    models: Sequence[str] = ()
    labels: Sequence[str] = ()


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    total: CallTotals
    points: Sequence[Point]
    apps: dict[str, CallTotals]
    groups: dict[str, CallTotals]
    """Of apps."""
    providers: dict[str, CallTotals]
    models: dict[str, CallTotals]
    causes: dict[str, CallTotals]
    """Calls that lost tokens, by the cause."""
    outcomes: dict[str, int]
    """Calls that failed, by the class of the error."""


class CallPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some calls, the newest first."""

    calls: Sequence[ShownCall]
    before: str | None = None
    """The next page continues before this id; None if there are no earlier calls."""


class CallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search among calls."""

    view: View
    text: str = ""
    """Part of an app, provider, model, cause, request id, response id, or of a budget's label."""
    outcome: CallOutcome = ""
    before: str | None = None
    limit: int = 50


class AppRow(msgspec.Struct, frozen=True, kw_only=True):
    """An app of the daemon: its grant and its use of it."""

    id: str
    granted: bool = True
    """Whether extensions.yaml has a grant for it; without one, all its calls are refused."""
    group: str = ""
    capabilities: Sequence[str] = ()
    missing: Sequence[str] = ()
    """Capabilities that it requires and that are not granted."""
    providers: Sequence[str] = ()
    models: Sequence[str] = ()
    today_nano_usd: int = 0
    month_nano_usd: int = 0
    held_nano_usd: int = 0
    day_limit: int | None = None
    """None: unlimited."""
    month_limit: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    denied: dict[str, int] = {}
    """Refused calls of the view, by reason."""
    tokens: Sequence[TokenState] = ()
    narrowed: Sequence[BudgetRow] = ()
    """Valid narrowed tokens, on the page of one app."""
    corrections: Sequence[CorrectionOfCall] = ()
    """The latest, on the page of one app."""


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A narrowed token of an app, with its budget."""

    token: TokenState
    label: str
    limit_nano_usd: int
    spent_nano_usd: int | None = 0
    """None: not shown to the app, since it has reads of other apps' cache writes in it."""
    held_nano_usd: int = 0


class CorrectionOfCall(msgspec.Struct, frozen=True, kw_only=True):
    """An administrator's correction of what a call cost."""

    entry: str
    """The id of the call's entry in the ledger."""
    request_id: str
    day: str
    at: float
    added_nano_usd: int
    reason: str


class TokenState(msgspec.Struct, frozen=True, kw_only=True):
    """A token of an app, by its id; the token itself is not stored."""

    id: str
    created: float
    expires: float | None = None
    revoked: float | None = None


class ProviderRow(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as seen by calls."""

    name: str
    breaker: str = "closed"
    calls: int = 0
    failed: int = 0
    retries: int = 0
    first_p50: float | None = None
    """Seconds to the first byte."""
    first_p99: float | None = None
    headroom: dict[str, float] = {}
    """The remaining share of each rate limit, as reported by the provider."""
    refusals: dict[str, int] = {}
    """Calls that the provider refused, by the class of the error."""
