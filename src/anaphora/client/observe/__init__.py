"""Watchers: functions that get a `Record` of each call when it is over.

    Traces()      a span for each call, by OpenTelemetry's conventions for generative AI
    Meters()      their histograms of tokens and times
    Metrics()     counters and histograms for Prometheus
    Logs()        a line for each call, through `logging`

None of these four exports prompts, replies or keys: `export` decides what may leave the process.
The first three need the extra `anaphora[observe]`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec

from anaphora.client.failures import failure_notice, line_of, log
from anaphora.client.response import Record
from anaphora.rendered import Plan, Rendered
from anaphora.values import Notice, Usage

if TYPE_CHECKING:
    from .export import Logs
    from .otel import Meters, Traces
    from .prometheus import Metrics

__all__ = ["Logs", "Meters", "Metrics", "Traces", "Watcher", "Watchers"]

#: Loaded on first use: most need a package that may not be installed.
_LAZY = {"Logs": ".export", "Meters": ".otel", "Metrics": ".prometheus", "Traces": ".otel"}

Watcher: TypeAlias = Callable[[Record], None]


class OwnBill(msgspec.Struct, frozen=True, kw_only=True):
    """The bill of a call as if its app were alone."""

    usage: Usage
    cost_usd: Decimal | None = None
    saved: Decimal | None = None
    unbilled_nano_usd: int = 0


class EndedCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A finished call, for an audit log. It holds the prompt, of which a log keeps only digests."""

    record: Record
    raw_hash: str = ""
    """BLAKE3 of the response as received; empty if there was none."""
    rendered: Rendered | None = None
    """None if the call failed before it was rendered."""
    plan: Plan | None = None
    adapter: str = "client"
    """The id of the adapter that made the call."""
    prompt_hash: str = ""
    """The hash of the adapter's prompt."""
    app: str = ""
    """The app that made it, for a daemon's call."""
    group: str = ""
    """The group of the app."""
    budget: str = ""
    """The id of the budget of the app's narrowed token,"""
    budget_label: str = ""
    """and its label."""
    call_id: str = ""
    """The request id at the daemon."""
    method: str = ""
    """The method or path that the app used."""
    ignored: tuple[str, ...] = ()
    """Parameters that the daemon ignored."""
    output_usd: Decimal | None = None
    """The cost of the output, part of the record's cost."""
    own: OwnBill | None = None
    """The bill that the app sees, if it read what other apps wrote."""
    unbilled_nano_usd: int = 0
    """The amount charged to an app for attempts without a bill."""
    conversation: str = ""
    """The id of the conversation."""
    turn: int = 0
    """The number of the call in the conversation."""
    session: str = ""
    """The name under which the application stores the conversation; a log keeps a digest of it
    instead of the id."""


class CallAudit(Protocol):
    """An audit log: `anaphora.audit.AuditLog`."""

    def check(self) -> None:
        """Raises if no call may be made, before anything is sent."""
        ...

    def call_ended(self, call: EndedCall) -> tuple[Notice, ...]:
        """Takes a call without waiting. Returns a notice if it was not taken, or if earlier ones
        were not written."""
        ...


class Watchers(tuple[Watcher, ...]):
    """Several watchers as one that never raises. A watcher that raises is logged the first time,
    and still called afterwards."""

    audit: CallAudit | None

    def __new__(cls, watchers: Iterable[Watcher] = (), audit: CallAudit | None = None) -> Self:
        self = super().__new__(cls, watchers)
        self.audit = audit
        return self

    def __call__(self, record: Record) -> tuple[Notice, ...]:
        """Returns a notice for each watcher that failed."""
        notices: list[Notice] = []
        for number, watcher in enumerate(self):
            try:
                watcher(record)
            except Exception as error:
                notices.append(failure_notice("observer_failed", error))
                logged: set[int] = self.__dict__.setdefault("logged", set())
                if number not in logged:
                    logged.add(number)
                    _log_failure(watcher, error)
        return tuple(notices)


def _log_failure(watcher: Watcher, error: Exception) -> None:
    """Without the exception's message, which may quote the record."""
    name = getattr(watcher, "__qualname__", None) or type(watcher).__qualname__
    reason = f"{type(error).__name__} at {line_of(error.__traceback__)}"
    message = f"the watcher {name} failed with {reason}; further failures of it are not logged"
    log(logging.WARNING, message, error)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
